//! A second pass over a pod that others changed after the first.

use serde_json::{Value, json};
use webhook::inject::{Outcome, Reason};

use crate::support::*;

fn add_container(pod: &Value, container: Value) -> Value {
    let mut pod = pod.clone();
    pod["spec"]["containers"]
        .as_array_mut()
        .unwrap()
        .push(container);
    pod
}

/// E4, E5, S34.
#[test]
fn a_container_that_came_later_is_gated_and_the_others_stay_as_they_are() {
    let first = injected(&mk_pod(
        json!({"lifecycle": {"preStop": {"exec": {"command": ["/bye"]}}}}),
    ));
    let grown = add_container(&first, json!({"name": "late", "livenessProbe": {}}));
    let second = injected(&grown);
    assert_eq!(
        second["spec"]["containers"][0],
        first["spec"]["containers"][0]
    );
    assert_eq!(
        hook(&second, 1)[2..],
        [
            "--container=late",
            "--max-wait=60",
            "--fallback-wait=15",
            "--liveness-cap=20"
        ]
    );
    assert_eq!(
        second["spec"]["containers"][1]["livenessProbe"]["terminationGracePeriodSeconds"],
        40
    );
    assert_eq!(
        second["spec"]["initContainers"],
        first["spec"]["initContainers"]
    );
    assert_eq!(second["spec"]["volumes"], first["spec"]["volumes"]);
    assert_eq!(second["spec"]["terminationGracePeriodSeconds"], 100);
    assert_eq!(status(&second)["containers"], json!(["app", "late"]));
}

#[test]
fn a_later_containers_longer_sleep_grows_the_hold_from_the_original_grace() {
    let mut pod = mk_pod(json!({"lifecycle": {"preStop": {"sleep": {"seconds": 5}}}}));
    pod["spec"]["terminationGracePeriodSeconds"] = json!(200);
    let first = injected(&pod);
    assert_eq!(first["spec"]["terminationGracePeriodSeconds"], 270);
    let second = injected(&add_container(
        &first,
        json!({"name": "late", "lifecycle": {"preStop": {"sleep": {"seconds": 90}}}}),
    ));
    assert_eq!(second["spec"]["terminationGracePeriodSeconds"], 300);
    let args = waiter(&second)["args"].as_array().unwrap();
    let min_holds: Vec<_> = args
        .iter()
        .filter(|argument| argument.as_str().unwrap().starts_with("--min-hold"))
        .collect();
    assert_eq!(min_holds, [&json!("--min-hold=90")]);
    assert_eq!(
        args.len(),
        first["spec"]["initContainers"][0]["args"]
            .as_array()
            .unwrap()
            .len()
    );
    assert!(hook(&second, 0).contains(&"--min-hold=5"));
}

/// E32: annotations are copied from pod to pod, so none of ours is believed about what was done.
#[test]
fn a_copied_status_annotation_or_label_makes_no_pod_injected() {
    let first = injected(&mk_pod(json!({})));
    let mut copied = mk_pod(json!({}));
    copied["metadata"] = first["metadata"].clone();
    assert_eq!(injected(&copied), first);
}

#[test]
fn waits_come_from_the_waiter_itself_whatever_annotations_say_later() {
    let mut first = injected(&annotated("max-wait", "90s"));
    for value in ["20s", "banana"] {
        first["metadata"]["annotations"]["prestop-gate.dev/max-wait"] = json!(value);
        let outcome = run(&first);
        assert!(
            matches!(
                outcome,
                Outcome::Unchanged {
                    reason: Reason::AlreadyInjected,
                    ..
                }
            ),
            "{outcome:?}"
        );
    }
    first["metadata"]["annotations"]["prestop-gate.dev/max-wait"] = json!("20s");
    let second = injected(&add_container(&first, json!({"name": "late"})));
    assert!(hook(&second, 1).contains(&"--max-wait=90"));
    assert_eq!(second["spec"]["terminationGracePeriodSeconds"], 130);
}

/// S34: what another webhook undoes is done again; what it raises stays.
#[test]
fn what_others_took_back_is_restored() {
    let first = injected(&mk_pod(json!({"livenessProbe": {}})));
    let mut undone = first.clone();
    undone["spec"]["terminationGracePeriodSeconds"] = json!(30);
    undone["spec"]["containers"][0]["volumeMounts"] = json!([]);
    undone["spec"]["containers"][0]["lifecycle"] = json!({});
    undone["spec"]["containers"][0]["livenessProbe"] = json!({});
    undone["metadata"]["labels"] = json!({"app": "app"});
    assert_eq!(injected(&undone), first);

    let mut raised = first.clone();
    raised["spec"]["terminationGracePeriodSeconds"] = json!(500);
    assert!(matches!(
        run(&raised),
        Outcome::Unchanged {
            reason: Reason::AlreadyInjected,
            ..
        }
    ));
}

#[test]
fn defaults_that_the_api_server_fills_in_and_init_containers_after_ours_change_nothing() {
    let mut pod = injected(&mk_pod(json!({})));
    let waiter = &mut pod["spec"]["initContainers"][0];
    waiter["terminationMessagePath"] = json!("/dev/termination-log");
    waiter["resources"]["requests"]["ephemeral-storage"] = json!("1Mi");
    pod["spec"]["volumes"][2]["projected"]["defaultMode"] = json!(420);
    pod["spec"]["initContainers"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "later"}));
    assert!(matches!(
        run(&pod),
        Outcome::Unchanged {
            reason: Reason::AlreadyInjected,
            ..
        }
    ));
}

#[test]
fn a_later_container_with_no_room_for_the_mount_does_not_ungate_the_pod() {
    let first = injected(&mk_pod(json!({})));
    let late =
        json!({"name": "late", "volumeMounts": [{"name": "data", "mountPath": "/prestop-gate"}]});
    let outcome = run(&add_container(&first, late));
    assert!(
        matches!(&outcome, Outcome::Unchanged { reason: Reason::AlreadyInjected, warnings } if warnings[0].contains("late")),
        "{outcome:?}"
    );
}

#[test]
fn flags_of_a_newer_version_survive() {
    let mut first = injected(&mk_pod(json!({})));
    first["spec"]["initContainers"][0]["args"]
        .as_array_mut()
        .unwrap()
        .push(json!("--from-the-future=1"));
    let second = injected(&add_container(
        &first,
        json!({"name": "late", "lifecycle": {"preStop": {"sleep": {"seconds": 9}}}}),
    ));
    let args = waiter(&second)["args"].as_array().unwrap();
    assert!(
        args.contains(&json!("--from-the-future=1")) && args.contains(&json!("--min-hold=9")),
        "{args:?}"
    );
}
