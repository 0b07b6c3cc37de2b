//! The service that a trial deploys: three replicas that end at once at SIGTERM, as many apps do.

use anyhow::{Context, Result};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Service};
use serde_json::{Value, json};
use sidecar::contract::{INJECTION_ALL, LABEL_INJECTION, annotation};

use super::variant::Variant;

/// Name of the Deployment, the Service and the label's value.
pub const NAME: &str = "shop";
/// Name of the container.
pub const CONTAINER: &str = "app";

/// The namespace; gated ones are opted in.
pub fn namespace(name: &str, variant: Variant) -> Result<Namespace> {
    let labels = if variant.settle().is_some() {
        json!({LABEL_INJECTION: INJECTION_ALL})
    } else {
        json!({})
    };
    object(json!({"metadata": {"name": name, "labels": labels}}))
}

/// The Service in front of the pods.
pub fn service() -> Result<Service> {
    object(json!({
        "metadata": {"name": NAME},
        "spec": {"selector": {"app": NAME}, "ports": [{"name": "http", "port": 80, "targetPort": 8080}]},
    }))
}

/// The Deployment. Requests take 20 ms, so that some are always under way.
pub fn deployment(variant: Variant, image: &str, replicas: usize) -> Result<Deployment> {
    let mut container = json!({
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": "Never",
        "args": ["serve", "--port", "8080", "--work-ms", "20"],
        "ports": [{"name": "http", "containerPort": 8080}],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}, "periodSeconds": 1},
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}},
    });
    if let Some(lifecycle) = variant.lifecycle() {
        container["lifecycle"] = lifecycle;
    }
    let annotations = match variant.settle() {
        Some(settle) => json!({annotation::SETTLE: format!("{}s", settle.as_secs())}),
        None => json!({}),
    };
    object(json!({
        "metadata": {"name": NAME},
        "spec": {
            "replicas": replicas,
            "minReadySeconds": 2,
            "selector": {"matchLabels": {"app": NAME}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": {
                "metadata": {"labels": {"app": NAME}, "annotations": annotations},
                "spec": {"enableServiceLinks": false, "automountServiceAccountToken": false, "containers": [container]},
            },
        },
    }))
}

/// Whether the Deployment's controller has seen its latest change and all pods of it are available, and no others wanted.
pub fn is_rolled_out(deployment: &Deployment, replicas: usize) -> bool {
    let Some(status) = &deployment.status else {
        return false;
    };
    let wanted = i32::try_from(replicas).ok();
    status.observed_generation == deployment.metadata.generation
        && [
            status.replicas,
            status.updated_replicas,
            status.available_replicas,
        ]
        .iter()
        .all(|count| *count == wanted)
}

fn object<T: serde::de::DeserializeOwned>(value: Value) -> Result<T> {
    serde_json::from_value(value).context("failed to make an object of the demo")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_deployment(variant: Variant) -> Value {
        serde_json::to_value(deployment(variant, "image", 3).unwrap()).unwrap()
    }

    #[test]
    fn only_gated_variants_opt_in_and_only_sleep_has_a_hook() {
        for (variant, settle, sleep) in [
            (Variant::None, Value::Null, Value::Null),
            (Variant::Sleep5s, Value::Null, json!(5)),
            (Variant::ShortSettle, json!("5s"), Value::Null),
            (Variant::Gate, json!("20s"), Value::Null),
        ] {
            let namespace = serde_json::to_value(namespace("demo", variant).unwrap()).unwrap();
            let opted_in = namespace.pointer("/metadata/labels/prestop-gate.dev~1injection");
            assert_eq!(opted_in.is_some(), !settle.is_null(), "{variant:?}");
            let deployment = mk_deployment(variant);
            let template = &deployment["spec"]["template"];
            let annotation = template.pointer("/metadata/annotations/prestop-gate.dev~1settle");
            assert_eq!(
                annotation.cloned().unwrap_or_default(),
                settle,
                "{variant:?}"
            );
            let container = &template["spec"]["containers"][0];
            assert_eq!(
                container["lifecycle"]["preStop"]["sleep"]["seconds"], sleep,
                "{variant:?}"
            );
        }
    }

    #[test]
    fn rollout_is_over_when_only_new_pods_are_left_and_available() {
        let mk = |observed: i64, replicas: i32, updated: i32, available: i32| -> Deployment {
            serde_json::from_value(json!({
                "metadata": {"generation": 2},
                "status": {
                    "observedGeneration": observed, "replicas": replicas,
                    "updatedReplicas": updated, "availableReplicas": available,
                },
            }))
            .unwrap()
        };
        assert!(is_rolled_out(&mk(2, 3, 3, 3), 3));
        for (observed, replicas, updated, available) in
            [(1, 3, 3, 3), (2, 4, 3, 3), (2, 3, 1, 3), (2, 3, 3, 2)]
        {
            assert!(!is_rolled_out(
                &mk(observed, replicas, updated, available),
                3
            ));
        }
    }
}
