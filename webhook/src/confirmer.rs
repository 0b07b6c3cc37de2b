//! The confirmer: watches the cluster once for everybody, and tells each waiter when its pod may get SIGTERM.
//!
//! ```text
//! waiter ── POST /v1/hold ──► auth: which pod? ──► hold: classify once, by a fresh GET
//!                                                  │  deleting
//!                                                  ▼
//!              watches ──► endpoints ──► attachment + budget ──► decide ──► Go | Hold, ask again
//! ```
//! `endpoints`, `attachment`, `budget` and `decide` are pure; time is passed in.

pub mod attachment;
pub mod auth;
pub mod bindings;
pub mod budget;
pub mod classify;
pub mod decide;
mod drain_delay;
pub mod endpoints;
pub mod events;
pub mod groups;
pub mod hold;
pub mod memory;
pub mod polls;
pub mod quiet;
mod remembered;
pub mod sender;
pub mod services;
pub mod settles;
pub mod target_group;
pub mod track;
pub mod trouble;
pub mod watches;
pub mod weigh;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, FromRequest, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::de::DeserializeOwned;
use sidecar::contract::{
    DRAIN_DELAY_PATH, HELLO_PATH, HOLD_PATH, HelloRequest, HelloResponse, HoldRequest, PROTOCOL,
};
use tokio::time::timeout;
use tracing::{debug, warn};

use self::auth::{PodIdentity, Verifier};
use self::hold::Holds;
use crate::error_chain::chain;

/// Largest request: a hold with the progress of some hundred attachments.
const BODY_LIMIT: usize = 64 * 1024;

/// Longest wait for a request's body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// What the routes share.
#[derive(Debug, Clone)]
struct Shared {
    verifier: Arc<Verifier>,
    holds: Arc<Holds>,
    max_wait_cap: Duration,
}

/// The confirmer's routes; nobody may ask for a hold longer than `max_wait_cap`.
pub fn router(verifier: Arc<Verifier>, holds: Arc<Holds>, max_wait_cap: Duration) -> Router {
    Router::new()
        .route(HELLO_PATH, post(hello))
        .route(HOLD_PATH, post(hold))
        .route(DRAIN_DELAY_PATH, get(drain_delay::drain_delay))
        .layer(DefaultBodyLimit::max(BODY_LIMIT))
        .with_state(Shared {
            verifier,
            holds,
            max_wait_cap,
        })
}

async fn hello(
    State(shared): State<Shared>,
    headers: HeaderMap,
    Timely(hello): Timely<HelloRequest>,
) -> Response {
    let count = |result| {
        shared
            .holds
            .metrics
            .hellos
            .get_or_create(&[("result", result)])
            .inc()
    };
    match authenticate(&shared.verifier, &headers).await {
        Ok(pod) => {
            count("ok");
            debug!(
                namespace = pod.namespace,
                pod = pod.name,
                version = hello.version,
                "Hello"
            );
            Json(HelloResponse {
                protocol: PROTOCOL,
                version: env!("CARGO_PKG_VERSION").to_owned(),
            })
            .into_response()
        }
        Err(response) => {
            count("refused");
            response
        }
    }
}

async fn hold(
    State(shared): State<Shared>,
    headers: HeaderMap,
    Timely(request): Timely<HoldRequest>,
) -> Response {
    let pod = match authenticate(&shared.verifier, &headers).await {
        Ok(pod) => pod,
        Err(response) => return response,
    };
    let _in_progress = InProgress::begin(&shared.holds.metrics.holds_in_progress);
    match shared.holds.turn(&pod, &request).await {
        Ok(answer) => Json(answer).into_response(),
        Err(hold::Error::Request(error)) => (StatusCode::BAD_REQUEST, error).into_response(),
        Err(error @ hold::Error::Unclassified(_)) => {
            warn!(
                namespace = pod.namespace,
                pod = pod.name,
                error = chain(&error),
                "Can't answer a hold"
            );
            (StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response()
        }
    }
}

/// The pod that asks, or the answer that refuses it. What is wrong with a token is for our log alone.
async fn authenticate(verifier: &Verifier, headers: &HeaderMap) -> Result<PodIdentity, Response> {
    let token = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.strip_prefix("Bearer "))
        .ok_or(auth::Error::Missing);
    let result = match token {
        Ok(token) => verifier.verify(token.trim()).await,
        Err(error) => Err(error),
    };
    result.map_err(|error| {
        warn!(error = chain(&error), "Refused a waiter's token");
        match error {
            auth::Error::NoKeys(_) => {
                (StatusCode::SERVICE_UNAVAILABLE, "not ready").into_response()
            }
            _ => (StatusCode::UNAUTHORIZED, "unauthorized").into_response(),
        }
    })
}

/// A JSON body that has to arrive in time: every pod can reach us, and a slow one must not hold a slot.
struct Timely<T>(T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Timely<T> {
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        match timeout(BODY_TIMEOUT, Json::from_request(request, state)).await {
            Ok(Ok(Json(body))) => Ok(Self(body)),
            Ok(Err(rejection)) => Err(rejection.into_response()),
            Err(_) => Err(StatusCode::REQUEST_TIMEOUT.into_response()),
        }
    }
}

/// Counts a turn for as long as it lives, however it ends.
struct InProgress<'a>(&'a prometheus_client::metrics::gauge::Gauge);

impl<'a> InProgress<'a> {
    fn begin(gauge: &'a prometheus_client::metrics::gauge::Gauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for InProgress<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}
