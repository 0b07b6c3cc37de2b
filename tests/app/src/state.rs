//! What the service knows about itself: requests and connections so far, and whether it still calls itself alive.

use std::cell::Cell;
use std::time::Duration;

use hyper::StatusCode;
use serde_json::{Value, json};

/// The path of clients in the cluster: their requests are answered as any other, and counted apart, since no load
/// balancer sent them.
const CLUSTER: &str = "/cluster";

/// Answers and counts. Probes, scrapes and questions about the service are no traffic and are not counted.
#[derive(Debug)]
pub(crate) struct State {
    pod: String,
    work: Duration,
    alive: Cell<bool>,
    requests: Cell<u64>,
    last_request_unix_ms: Cell<Option<u64>>,
    last_connection_unix_ms: Cell<Option<u64>>,
    last_cluster_connection_unix_ms: Cell<Option<u64>>,
}

/// An answer, and how long to wait before it is given.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: String,
    pub(crate) after: Duration,
}

impl State {
    /// A service that has seen nothing yet.
    pub(crate) fn new(pod: String, work: Duration) -> Self {
        Self {
            pod,
            work,
            alive: Cell::new(true),
            requests: Cell::new(0),
            last_request_unix_ms: Cell::new(None),
            last_connection_unix_ms: Cell::new(None),
            last_cluster_connection_unix_ms: Cell::new(None),
        }
    }

    /// Answers the request for `path` that arrived at `now` on a connection accepted at `accepted` (Unix milliseconds).
    pub(crate) fn answer(&self, path: &str, accepted: u64, now: u64) -> Answer {
        let (status, body, after) = match path {
            "/ready" => (StatusCode::OK, "ready\n".to_owned(), Duration::ZERO),
            "/live" if self.alive.get() => (StatusCode::OK, "live\n".to_owned(), Duration::ZERO),
            "/live" => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "told to fail\n".to_owned(),
                Duration::ZERO,
            ),
            "/fail-live" => {
                self.alive.set(false);
                (
                    StatusCode::OK,
                    "/live fails from now on\n".to_owned(),
                    Duration::ZERO,
                )
            }
            "/requests" | "/metrics" => (
                StatusCode::OK,
                format!("{}\n", self.event("requests", now)),
                Duration::ZERO,
            ),
            CLUSTER => {
                later(&self.last_cluster_connection_unix_ms, accepted);
                (StatusCode::OK, format!("{}\n", self.pod), self.work)
            }
            _ => {
                self.requests.set(self.requests.get() + 1);
                self.last_request_unix_ms.set(Some(now));
                later(&self.last_connection_unix_ms, accepted);
                (StatusCode::OK, format!("{}\n", self.pod), self.work)
            }
        };
        Answer {
            status,
            body,
            after,
        }
    }

    /// The line to write about `event` at `now` (Unix milliseconds).
    pub(crate) fn event(&self, event: &str, now: u64) -> Value {
        json!({
            "event": event,
            "unix_ms": now,
            "pod": self.pod,
            "requests": self.requests.get(),
            "last_request_unix_ms": self.last_request_unix_ms.get(),
            "last_connection_unix_ms": self.last_connection_unix_ms.get(),
            "last_cluster_connection_unix_ms": self.last_cluster_connection_unix_ms.get(),
        })
    }
}

/// Keeps the later time: an old connection may bring a request after a new one was accepted.
fn later(cell: &Cell<Option<u64>>, at: u64) {
    cell.set(cell.get().max(Some(at)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_state() -> State {
        State::new("pod-1".to_owned(), Duration::from_millis(20))
    }

    #[test]
    fn only_traffic_is_counted() {
        let state = mk_state();
        for path in ["/ready", "/live", "/requests", "/metrics"] {
            state.answer(path, 1, 1);
        }
        for key in ["last_request_unix_ms", "last_connection_unix_ms"] {
            assert_eq!(state.event("sigterm", 2)[key], Value::Null);
        }
        let answer = state.answer("/orders", 4, 5);
        assert_eq!(
            (answer.body.as_str(), answer.after),
            ("pod-1\n", Duration::from_millis(20))
        );
        let event = state.event("sigterm", 9);
        assert_eq!(event["requests"], 1);
        assert_eq!(event["last_request_unix_ms"], 5);
        assert_eq!(event["unix_ms"], 9);
    }

    #[test]
    fn request_on_an_old_connection_brings_no_new_connection() {
        let state = mk_state();
        state.answer("/", 4, 5);
        state.answer("/", 2, 6);
        let event = state.event("sigterm", 9);
        assert_eq!(event["last_request_unix_ms"], 6);
        assert_eq!(event["last_connection_unix_ms"], 4);
    }

    #[test]
    fn client_in_the_cluster_is_no_load_balancer() {
        let state = mk_state();
        assert_eq!(state.answer("/cluster", 3, 5).body, "pod-1\n");
        let event = state.event("sigterm", 9);
        assert_eq!(event["requests"], 0);
        assert_eq!(event["last_connection_unix_ms"], Value::Null);
        assert_eq!(event["last_cluster_connection_unix_ms"], 3);
    }

    #[test]
    fn liveness_fails_from_when_it_is_told_to() {
        let state = mk_state();
        assert_eq!(state.answer("/live", 1, 1).status, StatusCode::OK);
        state.answer("/fail-live", 2, 2);
        assert_eq!(
            state.answer("/live", 3, 3).status,
            StatusCode::INTERNAL_SERVER_ERROR
        );
        assert_eq!(state.answer("/ready", 4, 4).status, StatusCode::OK);
    }
}
