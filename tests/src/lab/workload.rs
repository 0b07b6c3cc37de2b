//! What a run deploys: a Deployment, its Service, and a `TargetGroupBinding` for each of its target groups.

use anyhow::{Context, Result};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Service};
use serde_json::{Value, json};
use sidecar::contract::{INJECTION_ALL, LABEL_INJECTION};

use super::cell::{Cell, Operation};

/// Name of the Deployment, the Service and the label's value.
pub const NAME: &str = "shop";
/// Name of the container.
pub const CONTAINER: &str = "app";
/// The port that pods listen on.
pub const PORT: u16 = 8080;
/// Pods that a run ends.
pub const ENDED: usize = 3;
/// Time for which a new pod must have been ready before an old one is ended: the controller registers it meanwhile,
/// as a readiness gate would make sure.
const MIN_READY_SECONDS: u32 = 5;

/// Replicas that a run begins with.
pub fn replicas_before(operation: Operation) -> usize {
    match operation {
        Operation::ScaleIn => 2 * ENDED,
        Operation::Rollout | Operation::Eviction | Operation::Delete => ENDED,
    }
}

/// The namespace; gated ones are opted in.
pub fn namespace(name: &str, cell: Cell) -> Result<Namespace> {
    let labels = if cell.variant.is_gated() {
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
        "spec": {"selector": {"app": NAME}, "ports": [{"name": "http", "port": 80, "targetPort": PORT}]},
    }))
}

/// The Deployment. Requests take 20 ms, so that some are always under way.
pub fn deployment(cell: Cell, image: &str) -> Result<Deployment> {
    let mut args = vec!["serve", "--work-ms", "20"];
    if cell.drains() {
        args.push("--drain");
    }
    let mut container = json!({
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": "Never",
        "args": args,
        "ports": [{"name": "http", "containerPort": PORT}],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": PORT}, "periodSeconds": 1},
        "resources": {"requests": {"cpu": "1m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}},
    });
    if let Some(lifecycle) = cell.variant.lifecycle() {
        container["lifecycle"] = lifecycle;
    }
    let annotations = cell.variant.annotations();
    object(json!({
        "metadata": {"name": NAME},
        "spec": {
            "replicas": replicas_before(cell.operation()),
            "minReadySeconds": MIN_READY_SECONDS,
            "selector": {"matchLabels": {"app": NAME}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": {
                "metadata": {"labels": {"app": NAME}, "annotations": annotations},
                "spec": {
                    // Longer than the longest sleep and the app's own drain together.
                    "terminationGracePeriodSeconds": 60,
                    "enableServiceLinks": false,
                    "automountServiceAccountToken": false,
                    "containers": [container],
                },
            },
        },
    }))
}

/// Whether the Deployment's controller has seen its latest change and all pods of it are available, and no others wanted.
pub fn is_rolled_out(deployment: &Deployment) -> bool {
    let (Some(spec), Some(status)) = (&deployment.spec, &deployment.status) else {
        return false;
    };
    status.observed_generation == deployment.metadata.generation
        && [
            status.replicas,
            status.updated_replicas,
            status.available_replicas,
        ]
        .iter()
        .all(|count| *count == spec.replicas)
}

fn object<T: serde::de::DeserializeOwned>(value: Value) -> Result<T> {
    serde_json::from_value(value).context("failed to make an object of the lab")
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::super::balancer::Balancer;
    use super::super::cell::Drawn;
    use super::super::traffic::Traffic;
    use super::super::variant::Variant;
    use super::*;

    fn mk_cell(variant: Variant, seed: u64) -> Cell {
        Cell {
            balancer: Balancer::Alb,
            variant,
            traffic: Traffic::Short,
            seed,
            drawn: Drawn::Within,
        }
    }

    fn mk_deployment(variant: Variant) -> Value {
        serde_json::to_value(deployment(mk_cell(variant, 4), "image").unwrap()).unwrap()
    }

    #[test]
    fn only_gated_variants_opt_in_and_only_sleeps_have_a_hook() {
        for variant in Variant::value_variants() {
            let namespace = namespace("lab", mk_cell(*variant, 1)).unwrap();
            let labels = namespace.metadata.labels.unwrap_or_default();
            assert_eq!(labels.contains_key(LABEL_INJECTION), variant.is_gated());
            let sleeps = variant.name().strip_prefix("sleep-");
            let deployment = mk_deployment(*variant);
            let container = &deployment["spec"]["template"]["spec"]["containers"][0];
            let seconds = &container["lifecycle"]["preStop"]["sleep"]["seconds"];
            let expected = sleeps.map(|sleep| format!("{seconds}s") == sleep);
            assert_ne!(expected, Some(false), "{variant:?}: {seconds}");
            assert_eq!(expected.is_none(), seconds.is_null(), "{variant:?}");
        }
    }

    #[test]
    fn only_the_control_turns_settle_and_quiet_off() {
        for variant in Variant::value_variants() {
            let deployment = mk_deployment(*variant);
            let annotations = &deployment["spec"]["template"]["metadata"]["annotations"];
            for key in ["prestop-gate.dev/settle", "prestop-gate.dev/quiet"] {
                let off = annotations.get(key) == Some(&json!("0s"));
                assert_eq!(off, *variant == Variant::NoSettle, "{variant:?} {key}");
            }
        }
    }

    #[test]
    fn rollout_is_over_when_only_new_pods_are_left_and_available() {
        let mk = |observed: i64, replicas: i32, updated: i32, available: i32| -> Deployment {
            serde_json::from_value(json!({
                "metadata": {"generation": 2},
                "spec": {"replicas": 3, "selector": {}, "template": {}},
                "status": {
                    "observedGeneration": observed, "replicas": replicas,
                    "updatedReplicas": updated, "availableReplicas": available,
                },
            }))
            .unwrap()
        };
        assert!(is_rolled_out(&mk(2, 3, 3, 3)));
        for (observed, replicas, updated, available) in
            [(1, 3, 3, 3), (2, 4, 3, 3), (2, 3, 1, 3), (2, 3, 3, 2)]
        {
            assert!(!is_rolled_out(&mk(observed, replicas, updated, available)));
        }
    }
}
