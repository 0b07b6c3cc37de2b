//! Health and metrics, for the kubelet and Prometheus; served in plaintext, apart from the TLS listeners.

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::metrics::Metrics;
use crate::readiness::Readiness;

/// What `Metrics::encode` writes.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// `/healthz` (200 as long as the process answers), `/readyz` (200, or 503 with what is awaited) and `/metrics`.
pub fn router(readiness: Readiness, metrics: Metrics) -> Router {
    let ready = Router::new()
        .route("/readyz", get(readyz))
        .with_state(readiness);
    let metrics = Router::new()
        .route("/metrics", get(encode_metrics))
        .with_state(metrics);
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .merge(ready)
        .merge(metrics)
}

async fn readyz(State(readiness): State<Readiness>) -> Response {
    let pending = readiness.pending();
    if pending.is_empty() {
        return "ok\n".into_response();
    }
    let text = format!("waiting for {}\n", pending.join(", "));
    (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
}

async fn encode_metrics(State(metrics): State<Metrics>) -> Response {
    match metrics.encode() {
        Ok(text) => ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::Request;
    use http_body_util::BodyExt as _;
    use tower::ServiceExt as _;

    use super::*;

    async fn ask(router: &Router, path: &str) -> (StatusCode, Option<String>, String) {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        let content_type = response.headers().get(header::CONTENT_TYPE);
        let content_type = content_type.map(|value| value.to_str().unwrap().to_owned());
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (
            status,
            content_type,
            String::from_utf8(body.to_vec()).unwrap(),
        )
    }

    #[tokio::test]
    async fn readiness_says_what_is_pending_while_liveness_is_dumb() {
        let readiness = Readiness::new();
        let router = router(readiness.clone(), Metrics::new());
        let guards = (readiness.register("secrets"), readiness.register("watches"));
        let (status, _, body) = ask(&router, "/readyz").await;
        assert_eq!(
            (status.as_u16(), body.as_str()),
            (503, "waiting for secrets, watches\n")
        );
        assert_eq!(ask(&router, "/healthz").await.0, StatusCode::OK);
        drop(guards);
        assert_eq!(ask(&router, "/readyz").await.0, StatusCode::OK);
    }

    #[tokio::test]
    async fn metrics_are_open_metrics() {
        let metrics = Metrics::new();
        metrics
            .certificates_issued
            .get_or_create(&[("secret", "some-tls")])
            .inc();
        let (status, content_type, body) =
            ask(&router(Readiness::new(), metrics), "/metrics").await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(content_type.as_deref(), Some(OPEN_METRICS));
        assert!(
            body.contains("prestop_gate_certificates_issued_total{secret=\"some-tls\"} 1\n"),
            "{body}"
        );
        assert!(body.ends_with("# EOF\n"));
    }
}
