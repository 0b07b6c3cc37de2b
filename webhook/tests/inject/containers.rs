//! What happens to each container: hooks around every kind of handler, mounts, probes.

use serde_json::{Value, json};

use crate::support::*;

fn mk_pod_with(pre_stop: &Value) -> Value {
    mk_pod(json!({"lifecycle": {"preStop": pre_stop}}))
}

/// S23, S24: the hook's path is absolute and needs nothing of the image. S28: exactly one handler is left.
#[test]
fn a_command_runs_after_the_wait_with_its_arguments_kept_exactly() {
    for command in [
        json!(["/usr/sbin/nginx", "-s", "quit"]),
        json!(["sh", "-c", "sleep 15; nginx -s quit"]),
        json!([
            "/app",
            "--",
            "",
            "a b",
            "$(VAR)",
            "\"{{ }}\"\n",
            "ü",
            "--container=x"
        ]),
        json!(["-weird"]),
    ] {
        let patched = injected(&mk_pod_with(&json!({"exec": {"command": command}})));
        let hook = hook(&patched, 0);
        assert_eq!(hook[..2], ["/prestop-gate/bin/waiter", "hook"]);
        let end = hook.iter().position(|argument| *argument == "--").unwrap();
        assert_eq!(json!(hook[end + 1..]), command);
        let pre_stop = &patched["spec"]["containers"][0]["lifecycle"]["preStop"];
        assert_eq!(
            pre_stop.as_object().unwrap().keys().collect::<Vec<_>>(),
            ["exec"]
        );
    }
}

#[test]
fn the_original_runs_first_where_the_annotation_says_before() {
    for (original, expected) in [("before", true), ("after", false)] {
        let mut pod = mk_pod_with(&json!({"exec": {"command": ["/bye"]}}));
        pod["metadata"]["annotations"]["prestop-gate.dev/original"] = json!(original);
        let patched = injected(&pod);
        assert_eq!(hook(&patched, 0).contains(&"--original-first"), expected);
        assert_eq!(
            hook(&patched, 0)[hook(&patched, 0).len() - 2..],
            ["--", "/bye"]
        );
    }
}

/// S28: a pure sleep is what the gate replaces.
#[test]
fn a_pure_sleep_becomes_the_minimum_hold_and_the_pod_takes_the_longest() {
    let mut pod = mk_pod_with(&json!({"sleep": {"seconds": 20}}));
    pod["spec"]["containers"].as_array_mut().unwrap().extend([
        json!({"name": "b", "lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", "sleep 25.5"]}}}}),
        json!({"name": "c"}),
        json!({"name": "d", "lifecycle": {"preStop": {"sleep": {"seconds": 0}}}}),
    ]);
    let patched = injected(&pod);
    for (index, min_hold) in [
        (0, Some("--min-hold=20")),
        (1, Some("--min-hold=25.5")),
        (2, None),
        (3, None),
    ] {
        let hook = hook(&patched, index);
        assert_eq!(
            hook.iter()
                .find(|argument| argument.starts_with("--min-hold"))
                .copied(),
            min_hold
        );
        assert!(!hook.contains(&"--"));
    }
    assert!(
        waiter(&patched)["args"]
            .as_array()
            .unwrap()
            .contains(&json!("--min-hold=25.5"))
    );
    assert_eq!(status(&patched)["waits"]["minHold"], "25.5s");
}

/// S8, S11: `sleep 999999` ended with the grace period before us, and must not hold a pod for days with us.
#[test]
fn a_sleep_beyond_the_grace_period_holds_no_longer_than_that() {
    let (patched, warnings) = injected_with_warnings(&mk_pod_with(
        &json!({"exec": {"command": ["sleep", "999999"]}}),
    ));
    assert!(hook(&patched, 0).contains(&"--min-hold=30"));
    assert_eq!(patched["spec"]["terminationGracePeriodSeconds"], 100);
    assert_eq!(warnings.len(), 1);
    assert!(
        warnings[0].contains("app")
            && warnings[0].contains("999999s")
            && warnings[0].contains("30s"),
        "{warnings:?}"
    );
}

/// S28, S29: what can't be kept isn't touched.
#[test]
fn containers_with_other_handlers_are_left_alone_and_named() {
    for handler in [
        json!({"httpGet": {"path": "/bye", "port": 8080, "scheme": "HTTP"}}),
        json!({"tcpSocket": {"port": 1}}),
        json!({"exec": {"command": ["a"], "newField": 1}}),
        json!({"newKind": {}}),
        json!({"exec": {"command": ["a"]}, "newField": 1}),
    ] {
        let mut pod = mk_pod(json!({}));
        pod["spec"]["containers"]
            .as_array_mut()
            .unwrap()
            .push(json!({"name": "odd", "lifecycle": {"preStop": handler}}));
        let (patched, warnings) = injected_with_warnings(&pod);
        assert_eq!(
            patched["spec"]["containers"][1],
            pod["spec"]["containers"][1]
        );
        assert_eq!(warnings.len(), 1);
        assert!(
            warnings[0].contains("container odd is not gated"),
            "{warnings:?}"
        );
        assert_eq!(status(&patched)["containers"], json!(["app"]));
        assert_eq!(status(&patched)["skippedContainers"][0]["name"], "odd");
        assert_eq!(status(&patched)["warnings"], json!(warnings));
    }
}

#[test]
fn post_start_and_stop_signal_stay_beside_a_new_pre_stop() {
    for pre_stop in [Value::Null, json!({"exec": {"command": ["/bye"]}})] {
        let lifecycle = json!({"postStart": {"httpGet": {"port": 1}}, "stopSignal": "SIGUSR1", "preStop": pre_stop});
        let patched = injected(&mk_pod(json!({"lifecycle": lifecycle})));
        let after = &patched["spec"]["containers"][0]["lifecycle"];
        assert_eq!(after["postStart"], lifecycle["postStart"]);
        assert_eq!(after["stopSignal"], lifecycle["stopSignal"]);
        assert_eq!(after.as_object().unwrap().len(), 3);
    }
}

/// E39: a mesh's proxy among the mains carries traffic too.
#[test]
fn every_main_container_waits() {
    let mut pod = mk_pod(json!({"volumeMounts": [{"name": "data", "mountPath": "/data"}]}));
    pod["spec"]["containers"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "istio-proxy"}));
    let patched = injected(&pod);
    for (index, name, mounts) in [(0, "app", 2), (1, "istio-proxy", 1)] {
        assert_eq!(hook(&patched, index)[2], format!("--container={name}"));
        let all = patched["spec"]["containers"][index]["volumeMounts"]
            .as_array()
            .unwrap();
        assert_eq!(all.len(), mounts);
        assert_eq!(
            all[mounts - 1],
            json!({"name": "prestop-gate", "mountPath": "/prestop-gate", "readOnly": true})
        );
    }
}

#[test]
fn only_listed_containers_are_gated_and_unknown_names_are_told() {
    let mut pod = annotated("containers", "web, nope");
    pod["spec"]["containers"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "web"}));
    let (patched, warnings) = injected_with_warnings(&pod);
    assert_eq!(
        patched["spec"]["containers"][0],
        pod["spec"]["containers"][0]
    );
    assert_eq!(hook(&patched, 1)[2], "--container=web");
    assert_eq!(warnings.len(), 1);
    assert!(
        warnings[0].contains("\"nope\"") && warnings[0].contains("app, web"),
        "{warnings:?}"
    );
    assert_eq!(
        status(&patched)["skippedContainers"],
        json!([{"name": "app", "reason": "not listed in prestop-gate.dev/containers"}])
    );
}

/// A longer grace of the pod would slow down the restart of a hung container.
#[test]
fn liveness_and_startup_probes_keep_the_grace_that_they_had() {
    let mut pod = mk_pod(json!({
        "livenessProbe": {"httpGet": {"port": 1}},
        "startupProbe": {"httpGet": {"port": 1}, "terminationGracePeriodSeconds": 8},
        "readinessProbe": {"httpGet": {"port": 1}},
    }));
    pod["spec"]["containers"].as_array_mut().unwrap().extend([
        json!({"name": "odd", "livenessProbe": {}, "lifecycle": {"preStop": {"tcpSocket": {"port": 1}}}}),
        json!({"name": "started", "startupProbe": {"grpc": {"port": 1}}}),
    ]);
    pod["spec"]["initContainers"] =
        json!([{"name": "proxy", "restartPolicy": "Always", "livenessProbe": {}}]);
    let (patched, _) = injected_with_warnings(&pod);
    let grace = |list: &str, index: usize, probe: &str| {
        patched["spec"][list][index][probe]["terminationGracePeriodSeconds"].clone()
    };
    // 10 s more where our hook takes some of it; exactly as before where there is none.
    assert_eq!(grace("containers", 0, "livenessProbe"), 40);
    assert_eq!(grace("containers", 0, "startupProbe"), 8);
    assert_eq!(grace("containers", 0, "readinessProbe"), Value::Null);
    assert_eq!(grace("containers", 1, "livenessProbe"), 30);
    assert_eq!(grace("containers", 2, "startupProbe"), 40);
    assert_eq!(grace("initContainers", 0, "livenessProbe"), 30);
}

/// E20, S17: while nobody can tell a restart from a deletion.
#[test]
fn a_hook_knows_half_its_containers_smallest_probe_grace() {
    for (probes, cap) in [
        (json!({}), None),
        (json!({"readinessProbe": {}}), None),
        (json!({"livenessProbe": {}}), Some("--liveness-cap=20")),
        (
            json!({"livenessProbe": {}, "startupProbe": {"terminationGracePeriodSeconds": 5}}),
            Some("--liveness-cap=2.5"),
        ),
        (
            json!({"startupProbe": {"terminationGracePeriodSeconds": 600}}),
            Some("--liveness-cap=300"),
        ),
    ] {
        let patched = injected(&mk_pod(probes.clone()));
        assert_eq!(
            hook(&patched, 0)
                .iter()
                .find(|argument| argument.starts_with("--liveness-cap"))
                .copied(),
            cap,
            "{probes}"
        );
    }
}

/// A hook of ours without a waiter: the pod was copied in parts, or another webhook dropped our sidecar.
#[test]
fn a_hook_without_its_waiter_is_made_anew_around_the_same_original() {
    let mut first = mk_pod_with(&json!({"exec": {"command": ["/bye", "--", "x"]}}));
    first["metadata"]["annotations"]["prestop-gate.dev/max-wait"] = json!("90s");
    let injected_pod = injected(&first);
    let mut copied = mk_pod(json!({}));
    copied["spec"]["containers"][0]["lifecycle"] =
        injected_pod["spec"]["containers"][0]["lifecycle"].clone();
    let patched = injected(&copied);
    assert_eq!(
        hook(&patched, 0)[2..],
        [
            "--container=app",
            "--max-wait=60",
            "--fallback-wait=15",
            "--",
            "/bye",
            "--",
            "x"
        ]
    );
}
