//! Pods that aren't gated: they are admitted as they are, and their owner is told.

use serde_json::{Value, json};
use webhook::inject::{Outcome, Reason};

use crate::support::*;

#[test]
fn opted_out_pods_are_not_touched_at_all() {
    let pod = annotated("inject", "false");
    assert_eq!(
        run(&pod),
        Outcome::Unchanged {
            reason: Reason::OptedOut,
            warnings: Vec::new()
        }
    );
    let mut pod = pod;
    pod["metadata"]["annotations"]["prestop-gate.dev/max-wait"] = json!("banana");
    assert_eq!(run(&pod).reason(), Reason::OptedOut);
}

/// E23, E25, S10, S50: also where a selector is wrong.
#[test]
fn our_own_and_the_systems_namespaces_are_not_touched() {
    for namespace in ["prestop-gate", "kube-system"] {
        let outcome = run_in(&annotated("inject", "true"), namespace);
        assert_eq!(
            outcome,
            Outcome::Unchanged {
                reason: Reason::SystemNamespace,
                warnings: Vec::new()
            }
        );
    }
}

/// E8, E9: a value is never part of anything but a JSON string.
#[test]
fn bad_values_are_named_with_what_is_allowed() {
    for (key, value, allowed) in [
        ("max-wait", "banana", "from 1s to 30m"),
        ("max-wait", "-5s", "from 1s to 30m"),
        ("max-wait", "1h", "from 1s to 30m"),
        (
            "max-wait",
            "60s\n- name: evil {{ a=\"b\" }}",
            "from 1s to 30m",
        ),
        ("fallback-wait", "soon", "from 0s to 30m"),
        ("settle", "a=\"b\"", "from 0s to 30m"),
        ("original", "never", "\"after\" or \"before\""),
        ("inject", "yes", "\"true\" or \"false\""),
    ] {
        let warnings = skipped(&annotated(key, value), Reason::InvalidAnnotation);
        assert_eq!(warnings.len(), 1);
        let start: String = format!("{value:?}").chars().take(20).collect();
        for part in [
            &format!("prestop-gate.dev/{key}"),
            start.trim_end_matches('"'),
            allowed,
        ] {
            assert!(warnings[0].contains(part), "{part} in {}", warnings[0]);
        }
    }
}

#[test]
fn unknown_keys_are_told_and_do_no_harm() {
    let (_, warnings) = injected_with_warnings(&annotated("max-wiat", "5s"));
    assert_eq!(warnings.len(), 1);
    assert!(
        warnings[0].contains("prestop-gate.dev/max-wiat"),
        "{warnings:?}"
    );
}

/// S38, S41 and others that can't work.
#[test]
fn pods_that_can_not_be_gated_are_told_why() {
    let with = |path: &str, value: Value| {
        let mut pod = mk_pod(json!({}));
        let mut at = &mut pod;
        for key in path.split('|') {
            at = &mut at[key];
        }
        *at = value;
        pod
    };
    for (pod, reason, part) in [
        (
            with(
                "metadata|annotations|kubernetes.io/config.mirror",
                json!("hash"),
            ),
            Reason::MirrorPod,
            "mirror",
        ),
        (
            with("spec|os", json!({"name": "windows"})),
            Reason::Windows,
            "Windows",
        ),
        (
            with("spec|nodeSelector", json!({"kubernetes.io/os": "windows"})),
            Reason::Windows,
            "Windows",
        ),
        (
            with("spec|terminationGracePeriodSeconds", json!(0)),
            Reason::NoGrace,
            "terminationGracePeriodSeconds",
        ),
        (
            annotated("containers", "none-such"),
            Reason::NoContainer,
            "no container",
        ),
        (
            annotated("containers", ""),
            Reason::NoContainer,
            "no container",
        ),
        (
            mk_pod(json!({"lifecycle": {"preStop": {"httpGet": {"port": 1}}}})),
            Reason::NoContainer,
            "no container",
        ),
        (
            with("spec|containers", json!([])),
            Reason::NoContainer,
            "no container",
        ),
    ] {
        let warnings = skipped(&pod, reason);
        assert!(
            warnings.iter().any(|warning| warning.contains(part)),
            "{part} in {warnings:?}"
        );
    }
    let linux = with("spec|os", json!({"name": "linux"}));
    injected(&linux);
}

/// E31.
#[test]
fn names_and_places_that_others_have_are_not_shared() {
    let mut container_main = mk_pod(json!({}));
    container_main["spec"]["containers"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "prestop-gate-waiter"}));
    let mut container_init = mk_pod(json!({}));
    container_init["spec"]["initContainers"] =
        json!([{"name": "prestop-gate-waiter", "args": ["other"]}]);
    let mut volume = mk_pod(json!({}));
    volume["spec"]["volumes"] = json!([{"name": "prestop-gate", "emptyDir": {}}]);
    let mut token_volume = mk_pod(json!({}));
    token_volume["spec"]["volumes"] =
        json!([{"name": "prestop-gate-token", "csi": {"driver": "x"}}]);
    let mount = |path| mk_pod(json!({"volumeMounts": [{"name": "data", "mountPath": path}]}));
    let device =
        mk_pod(json!({"volumeDevices": [{"name": "data", "devicePath": "/prestop-gate"}]}));
    for pod in [
        container_main,
        container_init,
        volume,
        token_volume,
        mount("/prestop-gate"),
        mount("/prestop-gate/"),
        mount("/prestop-gate/bin"),
        device,
    ] {
        skipped(&pod, Reason::Collision);
    }
    injected(&mount("/prestop-gate-data"));
}

#[test]
fn a_mount_at_our_place_does_not_matter_in_a_container_that_is_not_gated() {
    let mut pod = annotated("containers", "app");
    pod["spec"]["containers"].as_array_mut().unwrap().push(
        json!({"name": "other", "volumeMounts": [{"name": "data", "mountPath": "/prestop-gate"}]}),
    );
    injected(&pod);
}

/// The API server refuses pods with more than 256 KiB of annotations.
#[test]
fn a_pod_whose_annotations_leave_no_room_is_not_made_invalid() {
    let mut pod = mk_pod(json!({}));
    pod["metadata"]["annotations"]["big"] = json!("x".repeat(255 * 1024));
    let outcome = run(&pod);
    assert!(
        matches!(
            outcome,
            Outcome::Unchanged {
                reason: Reason::AnnotationsFull,
                ..
            }
        ),
        "{:?}",
        outcome.reason()
    );
    pod["metadata"]["annotations"]["big"] = json!("x".repeat(100 * 1024));
    injected(&pod);
}
