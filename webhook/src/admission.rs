//! The webhook's HTTP side: an `AdmissionReview` in, an answer out. The one place that fails open.
//!
//! Whatever is odd about a review, its pod is allowed: `allowed: false` would override `failurePolicy: Ignore`. Only
//! where not even the uid can be read is the answer an HTTP error, so that the failure policy decides.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, FromRequest, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use tokio::time::timeout;
use tracing::{Span, debug, field, info, info_span, warn};

use self::review::{Answer, Envelope, Review};
use crate::error_chain::chain;
use crate::inject::{InjectConfig, Outcome, Pod, Reason, inject};
use crate::metrics::Metrics;

mod review;

/// The API server takes requests of up to 3 MiB; a review carries `object` and `oldObject`, so twice that, and 1 MiB for
/// user, options and JSON's escapes.
const BODY_LIMIT: usize = (2 * 3 + 1) * 1024 * 1024;

/// Longest wait for a body: the API server gives up after 3 s, and every pod can reach this port.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// What the confirmer's watches and certificates know by now; `None` until all of it is there.
pub type SharedConfig = Arc<ArcSwapOption<InjectConfig>>;

#[derive(Debug, Clone)]
struct AppState {
    config: SharedConfig,
    metrics: Metrics,
}

/// Why a review's pod passes unread: with [`Reason`], the values of the metric's label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Oddity {
    /// The body is larger than [`BODY_LIMIT`].
    TooLarge,
    /// The body broke off, isn't JSON, or has no uid.
    Unreadable,
    /// The review is of another version or kind, or its fields have other types.
    UnknownReview,
    /// It isn't about a pod's creation.
    NotPodCreation,
    /// Its pod can't be decoded.
    UndecodablePod,
    /// The configuration isn't complete yet.
    NotConfigured,
    /// A defect of ours.
    Panic,
}

impl Oddity {
    const fn as_str(self) -> &'static str {
        match self {
            Self::TooLarge => "too-large",
            Self::Unreadable => "unreadable",
            Self::UnknownReview => "unknown-review",
            Self::NotPodCreation => "not-pod-creation",
            Self::UndecodablePod => "undecodable-pod",
            Self::NotConfigured => "not-configured",
            Self::Panic => "panic",
        }
    }
}

/// The routes of the admission webhook: `POST /mutate`.
pub fn router(config: SharedConfig, metrics: Metrics) -> Router {
    Router::new()
        .route("/mutate", post(mutate))
        .layer(DefaultBodyLimit::max(BODY_LIMIT))
        .with_state(AppState { config, metrics })
}

async fn mutate(State(state): State<AppState>, request: Request) -> Response {
    let start = Instant::now();
    let response = match timeout(BODY_TIMEOUT, Bytes::from_request(request, &())).await {
        Err(elapsed) => {
            state.count(Oddity::Unreadable.as_str());
            warn!(error = %elapsed, outcome = Oddity::Unreadable.as_str(), "Failed to read a review");
            StatusCode::REQUEST_TIMEOUT.into_response()
        }
        Ok(Ok(body)) => info_span!("review", uid = field::Empty).in_scope(|| answer(&body, &state)),
        Ok(Err(rejection)) => {
            let is_too_large = rejection.status() == StatusCode::PAYLOAD_TOO_LARGE;
            let oddity = if is_too_large {
                Oddity::TooLarge
            } else {
                Oddity::Unreadable
            };
            state.count(oddity.as_str());
            warn!(error = %rejection, outcome = oddity.as_str(), "Failed to read a review");
            rejection.into_response()
        }
    };
    state
        .metrics
        .review_seconds
        .observe(start.elapsed().as_secs_f64());
    response
}

fn answer(body: &[u8], state: &AppState) -> Response {
    let error = match serde_json::from_slice::<Review<'_>>(body) {
        Ok(review) if review.request.uid.is_empty() => "its uid is empty".to_owned(),
        Ok(review) if review.is_supported() => {
            Span::current().record("uid", &*review.request.uid);
            let (patch, warnings) = decide(&review, state);
            return respond(&Answer::new(
                &review.api_version,
                &review.request.uid,
                patch.as_deref(),
                &warnings,
            ));
        }
        Ok(review) => {
            let warning = format!(
                "not gated: {} {} isn't spoken here",
                review.api_version, review.kind
            );
            return pass(&review.api_version, &review.request.uid, &warning, state);
        }
        Err(error) => error.to_string(),
    };
    match serde_json::from_slice::<Envelope<'_>>(body) {
        Ok(Envelope {
            api_version,
            request,
        }) if !request.uid.is_empty() => {
            let warning = format!("not gated: failed to decode the review: {error}");
            pass(
                api_version.as_deref().unwrap_or_default(),
                &request.uid,
                &warning,
                state,
            )
        }
        _ => {
            state.count(Oddity::Unreadable.as_str());
            warn!(
                error,
                outcome = Oddity::Unreadable.as_str(),
                "Failed to decode a review"
            );
            (
                StatusCode::BAD_REQUEST,
                format!("failed to decode an AdmissionReview of admission.k8s.io/v1: {error}\n"),
            )
                .into_response()
        }
    }
}

/// Lets pass what isn't a review as it should be.
fn pass(api_version: &str, uid: &str, warning: &str, state: &AppState) -> Response {
    Span::current().record("uid", uid);
    state.count(Oddity::UnknownReview.as_str());
    warn!(
        error = warning,
        outcome = Oddity::UnknownReview.as_str(),
        "Review allowed unread"
    );
    respond(&Answer::new(api_version, uid, None, &[warning.to_owned()]))
}

/// A pod's patch and warnings; both empty where nothing is to be said.
fn decide(review: &Review<'_>, state: &AppState) -> (Option<String>, Vec<String>) {
    // A panic is a defect, and yet no reason to keep a pod from starting.
    let decided =
        catch_unwind(AssertUnwindSafe(|| try_decide(review, state))).unwrap_or_else(|_| {
            Err((
                Oddity::Panic,
                "a defect in prestop-gate, see its log".to_owned(),
            ))
        });
    let (oddity, error) = match decided {
        Ok(outcome) => {
            state.count(outcome.reason().as_str());
            return match outcome {
                Outcome::Patched {
                    patch, warnings, ..
                } => (Some(patch), warnings),
                Outcome::Unchanged { warnings, .. } => (None, warnings),
            };
        }
        Err(odd) => odd,
    };
    state.count(oddity.as_str());
    let request = &review.request;
    warn!(error, operation = %request.operation, namespace = %request.namespace, outcome = oddity.as_str(), "Review allowed unread");
    match oddity {
        // A wrong webhook configuration is the operator's, and every update of a pod would tell its user.
        Oddity::NotPodCreation => (None, Vec::new()),
        _ => (None, vec![format!("not gated: {error}")]),
    }
}

fn try_decide(review: &Review<'_>, state: &AppState) -> Result<Outcome, (Oddity, String)> {
    let request = &review.request;
    let object = request.object.filter(|_| request.is_pod_creation());
    let object = object.ok_or_else(|| {
        (
            Oddity::NotPodCreation,
            "only the creation of pods is looked at".to_owned(),
        )
    })?;
    let config = state.config.load();
    let config = config.as_deref().ok_or_else(|| {
        (
            Oddity::NotConfigured,
            "the webhook has just started; create the pod again".to_owned(),
        )
    })?;
    let pod = Pod::parse(object).map_err(|error| (Oddity::UndecodablePod, chain(&error)))?;
    let outcome = inject(&pod, &request.namespace, config);
    log(&outcome, &pod, review);
    Ok(outcome)
}

fn log(outcome: &Outcome, pod: &Pod<'_>, review: &Review<'_>) {
    let (namespace, dry_run) = (
        &*review.request.namespace,
        review.request.dry_run.unwrap_or(false),
    );
    let (reason, name) = (outcome.reason(), pod.name());
    match outcome {
        Outcome::Patched {
            reason: Reason::Injected,
            ..
        } => {
            info!(
                namespace,
                pod = name,
                dry_run,
                outcome = reason.as_str(),
                "Pod injected"
            );
        }
        Outcome::Patched { warnings, .. } => info!(
            namespace,
            pod = name,
            dry_run,
            outcome = reason.as_str(),
            ?warnings,
            "Pod skipped"
        ),
        Outcome::Unchanged { .. } => debug!(
            namespace,
            pod = name,
            dry_run,
            outcome = reason.as_str(),
            "Pod unchanged"
        ),
    }
}

fn respond(answer: &Answer<'_>) -> Response {
    (
        [(header::CONTENT_TYPE, "application/json")],
        answer.to_json(),
    )
        .into_response()
}

impl AppState {
    fn count(&self, outcome: &'static str) {
        self.metrics
            .injections
            .get_or_create(&[("outcome", outcome)])
            .inc();
    }
}
