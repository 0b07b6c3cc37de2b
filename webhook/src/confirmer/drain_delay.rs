//! A hold for those who can't inject: a preStop with its own HTTP client, or a deploy script, asks once and is
//! answered when the pod may get SIGTERM.
//!
//! It is the waiter's own hold, turn after turn, from within; whoever asks must hold a token that is bound to the pod.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Json;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use sidecar::contract::{HoldParams, HoldRequest, PROTOCOL, Progress, ReleaseReason, Verdict};
use tokio::time::{Instant, sleep};
use tracing::warn;

use super::auth::PodIdentity;
use super::hold::{self, Holds};
use super::{InProgress, Shared, authenticate};
use crate::error_chain::chain;
use crate::inject::config::DEFAULT_FALLBACK_WAIT;

/// The only key of the query.
const MAX_WAIT: &str = "max-wait";

/// Longest hold where the query names none.
const DEFAULT_MAX_WAIT: Duration = Duration::from_mins(1);

/// Why nothing is awaited: a hold of a pod that goes on running would never end.
const NOT_TERMINATING: &str = "the pod is not terminating: delete it first, then ask";

/// Said by a replica that is going away; another one goes on from its own watches.
const CLOSING: &str = "this replica is shutting down: ask again";

/// The answer once the pod may get SIGTERM.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Released {
    /// Always `go`.
    verdict: Verdict,
    reason: Option<ReleaseReason>,
    /// What was seen of each attachment, a sentence each; what was still missing where the reason is `max-wait`.
    awaiting: Vec<String>,
    held_seconds: f64,
}

/// `GET /v1/drain-delay?max-wait=90s`.
pub(super) async fn drain_delay(
    State(shared): State<Shared>,
    headers: HeaderMap,
    Query(query): Query<Vec<(String, String)>>,
) -> Response {
    let pod = match authenticate(&shared.verifier, &headers).await {
        Ok(pod) => pod,
        Err(response) => return response,
    };
    match max_wait(&query, shared.max_wait_cap) {
        Ok(max_wait) => wait(&shared.holds, &pod, max_wait).await,
        Err(error) => (StatusCode::BAD_REQUEST, error).into_response(),
    }
}

/// Reads the query.
///
/// # Errors
/// A sentence that names the key, its value and what is allowed.
fn max_wait(query: &[(String, String)], cap: Duration) -> Result<Duration, String> {
    let mut max_wait = DEFAULT_MAX_WAIT.min(cap);
    for (key, value) in query {
        if key != MAX_WAIT {
            return Err(format!("{key} is unknown; allowed is {MAX_WAIT}"));
        }
        max_wait = crate::duration::parse(value)
            .filter(|wait| *wait <= cap)
            .ok_or_else(|| {
                format!(
                    "{MAX_WAIT} is {value:?}; allowed is a duration such as 90s, at most {cap:?}"
                )
            })?;
    }
    Ok(max_wait)
}

/// Holds until the pod may go. Dropped when the client is gone, which ends the hold.
pub(super) async fn wait(holds: &Holds, pod: &PodIdentity, max_wait: Duration) -> Response {
    let _in_progress = InProgress::begin(&holds.metrics.holds_in_progress);
    let began = Instant::now();
    let mut request = mk_request(max_wait);
    loop {
        // Boxed: a turn's future is large, and this one lives for minutes.
        let answer = match Box::pin(holds.turn(pod, &request)).await {
            Ok(answer) => answer,
            Err(hold::Error::Request(error)) => {
                return (StatusCode::BAD_REQUEST, error).into_response();
            }
            Err(error @ hold::Error::Unclassified(_)) => {
                warn!(
                    namespace = pod.namespace,
                    pod = pod.name,
                    error = chain(&error),
                    "Can't answer a drain delay"
                );
                return ask_again(error.to_string());
            }
        };
        match answer.verdict {
            Verdict::Hold if !holds.closing.is_cancelled() => {
                request.terminating = true;
                request.elapsed_seconds = began.elapsed().as_secs_f64();
                request.progress = answer.progress;
                continue;
            }
            Verdict::Hold | Verdict::Unknown => return ask_again(CLOSING.to_owned()),
            Verdict::Restart => return (StatusCode::CONFLICT, NOT_TERMINATING).into_response(),
            Verdict::Go => {}
            Verdict::Wait => {
                let pause = Duration::try_from_secs_f64(answer.seconds_left).unwrap_or_default();
                tokio::select! {
                    () = sleep(pause.min(max_wait)) => {}
                    () = holds.closing.cancelled() => return ask_again(CLOSING.to_owned()),
                }
            }
        }
        return Json(Released {
            verdict: Verdict::Go,
            reason: answer.reason,
            awaiting: answer.awaiting,
            held_seconds: began.elapsed().as_secs_f64(),
        })
        .into_response();
    }
}

/// What a waiter would send of a pod that was not injected: nothing is known of its own grace or traffic.
fn mk_request(max_wait: Duration) -> HoldRequest {
    HoldRequest {
        protocol: PROTOCOL,
        epoch: String::new(),
        params: HoldParams {
            // The grace period is the user's own and has room for the wait: only the least is kept back from it.
            original_grace_seconds: 0.0,
            max_wait_seconds: max_wait.as_secs_f64(),
            min_hold_seconds: 0.0,
            fallback_wait_seconds: DEFAULT_FALLBACK_WAIT.as_secs_f64(),
            settle_seconds: None,
            quiet_seconds: None,
            host_network: false,
            probes_per_minute: BTreeMap::new(),
        },
        elapsed_seconds: 0.0,
        terminating: false,
        progress: Progress::new(),
        traffic: None,
    }
}

fn ask_again(text: String) -> Response {
    (
        StatusCode::SERVICE_UNAVAILABLE,
        [(header::RETRY_AFTER, "1")],
        text,
    )
        .into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_wait_is_read_from_the_query() {
        let read = |pairs: &[(&str, &str)]| {
            let query: Vec<_> = pairs
                .iter()
                .map(|&(key, value)| (key.to_owned(), value.to_owned()))
                .collect();
            max_wait(&query, Duration::from_mins(30))
        };
        assert_eq!(read(&[]), Ok(Duration::from_mins(1)));
        assert_eq!(read(&[("max-wait", "1m30s")]), Ok(Duration::from_secs(90)));
        assert_eq!(read(&[("max-wait", "30m")]), Ok(Duration::from_mins(30)));
        for value in ["30m1s", "90", "-1s", "", "soon"] {
            let error = read(&[("max-wait", value)]).unwrap_err();
            assert_eq!(
                error,
                format!("max-wait is {value:?}; allowed is a duration such as 90s, at most 1800s")
            );
        }
        let error = read(&[("maxWait", "90s")]).unwrap_err();
        assert_eq!(error, "maxWait is unknown; allowed is max-wait");
    }
}
