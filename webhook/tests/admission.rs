//! The wire: recorded reviews in, answers out. Whatever comes, no pod is denied and nothing panics.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tower::ServiceExt as _;
use webhook::admission::router;
use webhook::inject::InjectConfig;
use webhook::metrics::Metrics;

const UID: &str = "0df28fbd-5f5f-11e8-bc74-36e6bb280816";

fn recorded() -> Value {
    serde_json::from_str(include_str!("data/create.json")).unwrap()
}

fn config() -> InjectConfig {
    InjectConfig {
        waiter_image: "prestop-gate.dev/waiter:0.1.0".to_owned(),
        confirmer: "10.96.0.7:443".to_owned(),
        server_name: "0a1b.prestop-gate-confirmer.prestop-gate.svc".to_owned(),
        ca_pem: "PEM".to_owned(),
        default_max_wait: Duration::from_mins(1),
        default_max_wait_nlb: Duration::from_mins(4),
        slow: Arc::default(),
        default_fallback_wait: Duration::from_secs(15),
        max_wait_cap: Duration::from_mins(30),
        version: "0.1.0".to_owned(),
    }
}

struct Answered {
    status: StatusCode,
    body: String,
    metrics: String,
}

impl Answered {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    fn counted(&self, outcome: &str) -> bool {
        self.metrics.contains(&format!(
            "prestop_gate_injections_total{{outcome=\"{outcome}\"}} 1\n"
        ))
    }
}

async fn post_with(config: Option<InjectConfig>, body: impl Into<Body>) -> Answered {
    let metrics = Metrics::new();
    let router = router(
        Arc::new(ArcSwapOption::from_pointee(config)),
        metrics.clone(),
    );
    let request = Request::post("/mutate?timeout=3s")
        .header(header::CONTENT_TYPE, "application/json")
        .body(body.into())
        .unwrap();
    let response = router.oneshot(request).await.unwrap();
    let status = response.status();
    if status == StatusCode::OK {
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json");
    }
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let metrics = metrics.encode().unwrap();
    assert!(
        metrics.contains("prestop_gate_review_seconds_count 1\n"),
        "{metrics}"
    );
    Answered {
        status,
        body: String::from_utf8(body.to_vec()).unwrap(),
        metrics,
    }
}

async fn post(review: &Value) -> Answered {
    post_with(Some(config()), review.to_string()).await
}

/// The answer that lets a pod pass as it is; E28: with version, kind and the uid that was asked.
fn allowed(api_version: &str, warnings: &[&str]) -> Value {
    let mut response = json!({"uid": UID, "allowed": true});
    if !warnings.is_empty() {
        response["warnings"] = json!(warnings);
    }
    json!({"apiVersion": api_version, "kind": "AdmissionReview", "response": response})
}

/// E28.
#[tokio::test]
async fn a_recorded_review_is_answered_with_a_patch_that_gates_its_pod() {
    let review = recorded();
    let answered = post(&review).await;
    assert_eq!(answered.status, StatusCode::OK);
    assert!(answered.counted("injected"), "{}", answered.metrics);
    let mut answer = answered.json();
    let patch = STANDARD
        .decode(answer["response"]["patch"].take().as_str().unwrap())
        .unwrap();
    let patch: json_patch::Patch = serde_json::from_slice(&patch).unwrap();
    let mut expected = allowed("admission.k8s.io/v1", &[]);
    expected["response"]["patch"] = Value::Null;
    expected["response"]["patchType"] = json!("JSONPatch");
    assert_eq!(answer, expected);

    let mut pod = review["request"]["object"].clone();
    json_patch::patch(&mut pod, &patch).unwrap();
    let typed: k8s_openapi::api::core::v1::Pod = serde_json::from_value(pod.clone()).unwrap();
    assert_eq!(
        typed.spec.unwrap().init_containers.unwrap()[0]
            .restart_policy
            .as_deref(),
        Some("Always")
    );
    assert_eq!(
        pod["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][0],
        "/prestop-gate/bin/waiter"
    );
}

#[tokio::test]
async fn a_dry_run_gets_the_same_patch() {
    let mut review = recorded();
    let wet = post(&review).await;
    review["request"]["dryRun"] = json!(true);
    assert_eq!(post(&review).await.json(), wet.json());
}

#[tokio::test]
async fn an_opted_out_pod_gets_neither_patch_nor_warning() {
    let mut review = recorded();
    review["request"]["object"]["metadata"]["annotations"] =
        json!({"prestop-gate.dev/inject": "false"});
    let answered = post(&review).await;
    assert_eq!(answered.json(), allowed("admission.k8s.io/v1", &[]));
    assert!(answered.counted("opted-out"));
}

/// S33: the pod's own namespace is empty, the request's counts.
#[tokio::test]
async fn the_requests_namespace_decides() {
    let mut review = recorded();
    review["request"]["namespace"] = json!("kube-system");
    let answered = post(&review).await;
    assert_eq!(answered.json(), allowed("admission.k8s.io/v1", &[]));
    assert!(answered.counted("system-namespace"));
}

#[tokio::test]
async fn a_bad_annotation_is_warned_of_and_counted() {
    let mut review = recorded();
    review["request"]["object"]["metadata"]["annotations"] =
        json!({"prestop-gate.dev/max-wait": "banana"});
    let answered = post(&review).await;
    let answer = answered.json();
    assert_eq!(answer["response"]["allowed"], true);
    let warning = answer["response"]["warnings"][0].as_str().unwrap();
    assert_eq!(
        warning,
        r#"prestop-gate: not gated: annotation prestop-gate.dev/max-wait is "banana"; allowed is a duration such as "90s" or "1m30s", from 1s to 30m, or "auto""#
    );
    assert!(warning.len() <= 256);
    assert!(answered.counted("invalid-annotation"));
}

/// E29, S41; the webhook's own rules don't send these, a changed configuration may.
#[tokio::test]
async fn what_is_not_a_pods_creation_passes_unread() {
    let change = |path: &[&str], value: Value| {
        let mut review = recorded();
        let mut at = &mut review["request"];
        for key in path {
            at = &mut at[*key];
        }
        *at = value;
        review
    };
    for review in [
        change(&["operation"], json!("UPDATE")),
        change(&["operation"], json!("DELETE")),
        change(&["subResource"], json!("ephemeralcontainers")),
        change(&["resource", "resource"], json!("configmaps")),
        change(
            &["resource"],
            json!({"group": "apps", "version": "v1", "resource": "deployments"}),
        ),
        change(&["object"], Value::Null),
    ] {
        let answered = post(&review).await;
        assert_eq!(
            (answered.status, answered.json()),
            (StatusCode::OK, allowed("admission.k8s.io/v1", &[]))
        );
        assert!(answered.counted("not-pod-creation"), "{}", answered.metrics);
    }
    let mut review = recorded();
    review["request"]["subResource"] = json!("");
    assert!(post(&review).await.counted("injected"));
}

/// E27.
#[tokio::test]
async fn an_object_that_is_no_pod_is_allowed_with_a_warning() {
    for object in [
        json!({}),
        json!([]),
        json!(7),
        json!({"metadata": {}, "spec": {"containers": {}}}),
        json!({"metadata": null, "spec": null}),
    ] {
        let mut review = recorded();
        review["request"]["object"] = object.clone();
        let answered = post(&review).await;
        let answer = answered.json();
        assert_eq!(
            (answered.status, &answer["response"]["allowed"]),
            (StatusCode::OK, &json!(true)),
            "{object}"
        );
        assert!(answer["response"].get("patch").is_none());
        assert!(
            answer["response"]["warnings"][0]
                .as_str()
                .unwrap()
                .contains("failed to decode the pod"),
            "{answer}"
        );
        assert!(answered.counted("undecodable-pod"));
    }
}

#[tokio::test]
async fn pods_pass_until_the_configuration_is_complete() {
    let answered = post_with(None, recorded().to_string()).await;
    let answer = answered.json();
    assert_eq!(
        (answered.status, &answer["response"]["uid"]),
        (StatusCode::OK, &json!(UID))
    );
    assert!(answer["response"].get("patch").is_none());
    assert_eq!(answer["response"]["warnings"].as_array().unwrap().len(), 1);
    assert!(answered.counted("not-configured"));
}

/// E28: an older API server is answered in its own version, and its pod isn't kept from starting.
#[tokio::test]
async fn another_version_is_allowed_and_named() {
    for (api_version, answered_in) in [
        ("admission.k8s.io/v1beta1", "admission.k8s.io/v1beta1"),
        ("v1", "admission.k8s.io/v1"),
    ] {
        let mut review = recorded();
        review["apiVersion"] = json!(api_version);
        let answered = post(&review).await;
        let warning =
            format!("prestop-gate: not gated: {api_version} AdmissionReview isn't spoken here");
        assert_eq!(
            (answered.status, answered.json()),
            (StatusCode::OK, allowed(answered_in, &[&warning]))
        );
        assert!(answered.counted("unknown-review"));
    }
}

#[tokio::test]
async fn a_review_with_a_uid_and_odd_fields_is_allowed() {
    for (key, value) in [
        ("operation", json!(7)),
        ("resource", json!("pods")),
        ("namespace", json!({})),
    ] {
        let mut review = recorded();
        review["request"][key] = value;
        let answered = post(&review).await;
        let answer = answered.json();
        assert_eq!(
            (answered.status, &answer["response"]["allowed"]),
            (StatusCode::OK, &json!(true)),
            "{key}"
        );
        assert_eq!(answer["response"]["uid"], UID);
        assert!(answered.counted("unknown-review"));
    }
}

#[tokio::test]
async fn where_no_uid_can_be_read_the_failure_policy_decides() {
    let without_uid =
        json!({"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview", "request": {}})
            .to_string();
    let mut empty_uid = recorded();
    empty_uid["request"]["uid"] = json!("");
    let mut cut_off = recorded().to_string();
    cut_off.truncate(cut_off.len() - 1);
    for body in [
        "",
        "no json",
        "null",
        "[]",
        "{}",
        "\u{0}",
        &without_uid,
        &cut_off,
        &empty_uid.to_string(),
        &"[".repeat(100_000),
    ] {
        let answered = post_with(Some(config()), body.to_owned()).await;
        assert_eq!(answered.status, StatusCode::BAD_REQUEST, "{body:.100}");
        assert!(
            answered
                .body
                .contains("AdmissionReview of admission.k8s.io/v1"),
            "{}",
            answered.body
        );
        assert!(answered.counted("unreadable"), "{}", answered.metrics);
    }
    let not_utf8 = post_with(Some(config()), vec![b'"', 0xff, b'"']).await;
    assert_eq!(not_utf8.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_body_beyond_the_limit_is_refused_and_one_within_is_not() {
    let review_of = |bytes: usize| {
        let mut review = recorded();
        review["request"]["oldObject"] = json!("x".repeat(bytes));
        review.to_string()
    };
    let answered = post_with(Some(config()), review_of(8 * 1024 * 1024)).await;
    assert_eq!(answered.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert!(answered.counted("too-large"));
    assert!(
        post_with(Some(config()), review_of(6 * 1024 * 1024))
            .await
            .counted("injected")
    );
}

#[tokio::test]
async fn other_paths_and_methods_are_not_there() {
    for (request, status) in [
        (Request::get("/mutate"), StatusCode::METHOD_NOT_ALLOWED),
        (Request::post("/"), StatusCode::NOT_FOUND),
    ] {
        let router = router(Arc::new(ArcSwapOption::empty()), Metrics::new());
        let response = router
            .oneshot(request.body(Body::empty()).unwrap())
            .await
            .unwrap();
        assert_eq!(response.status(), status);
    }
}
