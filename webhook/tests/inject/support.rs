//! Pods to inject into, and the checks that hold for every one of them.

use std::time::Duration;

use json_patch::{Patch, PatchOperation};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use webhook::inject::{InjectConfig, Outcome, Pod, Reason, inject};

pub(crate) const STATUS: &str = "prestop-gate.dev/status";

pub(crate) fn config() -> InjectConfig {
    InjectConfig {
        waiter_image: "prestop-gate.dev/waiter:0.1.0".to_owned(),
        confirmer: "10.96.0.7:443,prestop-gate-confirmer.prestop-gate.svc:443".to_owned(),
        server_name: "0a1b.prestop-gate-confirmer.prestop-gate.svc".to_owned(),
        ca_pem: "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n".to_owned(),
        default_max_wait: Duration::from_mins(1),
        default_max_wait_nlb: Duration::from_mins(4),
        slow: std::sync::Arc::default(),
        default_fallback_wait: Duration::from_secs(15),
        max_wait_cap: Duration::from_mins(30),
        version: "0.1.0".to_owned(),
    }
}

/// A pod as the API server sends it: defaulted, with the API token of the ServiceAccount plugin.
pub(crate) fn mk_pod(container: Value) -> Value {
    let mut container = container;
    for (key, value) in [
        ("name", json!("app")),
        ("image", json!("example.com/app:1")),
        ("resources", json!({})),
    ] {
        container
            .as_object_mut()
            .unwrap()
            .entry(key)
            .or_insert(value);
    }
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "app-5d9c-", "creationTimestamp": null, "labels": {"app": "app"}, "annotations": {"team": "x"}},
        "spec": {
            "volumes": [{"name": "kube-api-access-x", "projected": {"defaultMode": 420, "sources": []}}],
            "containers": [container],
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "securityContext": {},
        },
        "status": {}
    })
}

pub(crate) fn annotated(key: &str, value: &str) -> Value {
    let mut pod = mk_pod(json!({}));
    pod["metadata"]["annotations"][format!("prestop-gate.dev/{key}")] = json!(value);
    pod
}

pub(crate) fn run(pod: &Value) -> Outcome {
    run_in(pod, "default")
}

pub(crate) fn run_in(pod: &Value, namespace: &str) -> Outcome {
    run_with(pod, namespace, &config())
}

pub(crate) fn run_with(pod: &Value, namespace: &str, config: &InjectConfig) -> Outcome {
    let raw: Box<RawValue> = to_raw_value(pod).unwrap();
    inject(&Pod::parse(&raw).unwrap(), namespace, config)
}

/// The pod after its patch, which must apply.
pub(crate) fn apply(pod: &Value, patch: &str) -> Value {
    let patch: Patch = serde_json::from_str(patch).unwrap();
    assert!(
        patch.iter().all(|operation| matches!(
            operation,
            PatchOperation::Add(_) | PatchOperation::Replace(_)
        )),
        "only add and replace: {patch}"
    );
    let mut patched = pod.clone();
    json_patch::patch(&mut patched, &patch).unwrap();
    patched
}

/// The gated pod, and the warnings; checks what must hold for each.
pub(crate) fn injected_with_warnings(pod: &Value) -> (Value, Vec<String>) {
    let Outcome::Patched {
        reason: Reason::Injected,
        patch,
        warnings,
    } = run(pod)
    else {
        panic!("not injected: {:?}", run(pod));
    };
    let patched = apply(pod, &patch);
    let _: k8s_openapi::api::core::v1::Pod = serde_json::from_value(patched.clone()).unwrap();
    match run(&patched) {
        Outcome::Unchanged {
            reason: Reason::AlreadyInjected,
            ..
        } => {}
        again => panic!("a second pass must change nothing: {again:?}"),
    }
    (patched, warnings)
}

pub(crate) fn injected(pod: &Value) -> Value {
    let (patched, warnings) = injected_with_warnings(pod);
    assert_eq!(warnings, Vec::<String>::new());
    patched
}

/// The warnings of a pod that isn't gated; checks that it changes in nothing but its status, which says the same.
pub(crate) fn skipped(pod: &Value, expected: Reason) -> Vec<String> {
    let Outcome::Patched {
        reason,
        patch,
        warnings,
    } = run(pod)
    else {
        panic!("unchanged: {:?}", run(pod))
    };
    assert_eq!(reason, expected);
    assert!(
        warnings
            .iter()
            .any(|warning| warning.starts_with("not gated: ")),
        "{warnings:?}"
    );
    let mut patched = apply(pod, &patch);
    match run(&patched) {
        Outcome::Unchanged { reason, .. } => assert_eq!(reason, expected),
        again @ Outcome::Patched { .. } => panic!("a second pass must change nothing: {again:?}"),
    }
    let status = status(&patched);
    assert_eq!(status["outcome"], "skipped");
    assert_eq!(status["reason"], expected.as_str());
    assert_eq!(status["warnings"], json!(warnings));
    let annotations = patched["metadata"]["annotations"].as_object_mut().unwrap();
    annotations.remove(STATUS);
    if pod["metadata"].get("annotations").is_none() {
        patched["metadata"]
            .as_object_mut()
            .unwrap()
            .remove("annotations");
    }
    let mut before = pod.clone();
    before["metadata"]
        .get_mut("annotations")
        .and_then(Value::as_object_mut)
        .and_then(|annotations| annotations.remove(STATUS));
    assert_eq!(patched, before);
    warnings
}

pub(crate) fn status(pod: &Value) -> Value {
    serde_json::from_str(pod["metadata"]["annotations"][STATUS].as_str().unwrap()).unwrap()
}

/// Our sidecar, which must be the last init container.
pub(crate) fn waiter(pod: &Value) -> &Value {
    let waiter = pod["spec"]["initContainers"]
        .as_array()
        .unwrap()
        .last()
        .unwrap();
    assert_eq!(waiter["name"], "prestop-gate-waiter");
    waiter
}

/// The preStop command of a container.
pub(crate) fn hook(pod: &Value, index: usize) -> Vec<&str> {
    let command = &pod["spec"]["containers"][index]["lifecycle"]["preStop"]["exec"]["command"];
    command
        .as_array()
        .unwrap()
        .iter()
        .map(|argument| argument.as_str().unwrap())
        .collect()
}
