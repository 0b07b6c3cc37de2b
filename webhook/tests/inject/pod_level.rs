//! What a pod gets besides its containers' hooks: sidecar, volumes, grace, metadata.

use serde_json::{Value, json};

use crate::support::*;

#[test]
fn an_ordinary_pod_becomes_what_an_engineer_would_have_written_by_hand() {
    let pod = mk_pod(
        json!({"image": "example.com/web:1", "ports": [{"containerPort": 8080, "protocol": "TCP"}]}),
    );
    let mut expected = pod.clone();
    expected["metadata"]["labels"]["prestop-gate.dev/injected"] = json!("true");
    expected["metadata"]["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"] =
        json!("prestop-gate");
    expected["metadata"]["annotations"][STATUS] = json!(
        r#"{"outcome":"injected","version":"0.1.0","containers":["app"],"waits":{"originalGrace":"30s","maxWait":"60s","maxWaitBecause":"no NLB known for it","fallbackWait":"15s"}}"#
    );
    expected["spec"]["terminationGracePeriodSeconds"] = json!(100);
    expected["spec"]["volumes"].as_array_mut().unwrap().extend([
        json!({"name": "prestop-gate", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}}),
        json!({"name": "prestop-gate-token", "projected": {"sources": [
            {"serviceAccountToken": {"audience": "prestop-gate.dev", "expirationSeconds": 86400, "path": "token"}}
        ]}}),
    ]);
    expected["spec"]["containers"][0]["volumeMounts"] =
        json!([{"name": "prestop-gate", "mountPath": "/prestop-gate", "readOnly": true}]);
    expected["spec"]["containers"][0]["lifecycle"] = json!({"preStop": {"exec": {"command": [
        "/prestop-gate/bin/waiter", "hook", "--container=app", "--max-wait=60", "--fallback-wait=15"
    ]}}});
    expected["spec"]["initContainers"] = json!([{
        "name": "prestop-gate-waiter",
        "image": "prestop-gate.dev/waiter:0.1.0",
        "imagePullPolicy": "IfNotPresent",
        "restartPolicy": "Always",
        "command": ["/waiter"],
        "args": [
            "run", "--original-grace=30", "--max-wait=60", "--fallback-wait=15",
            "--server-name=0a1b.prestop-gate-confirmer.prestop-gate.svc"
        ],
        "env": [
            {"name": "PRESTOP_GATE_CONFIRMER", "value": "10.96.0.7:443,prestop-gate-confirmer.prestop-gate.svc:443"},
            {"name": "PRESTOP_GATE_CA", "value": "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"},
        ],
        "lifecycle": {"postStart": {"exec": {"command": ["/waiter", "ready"]}}},
        "resources": {"requests": {"cpu": "5m", "memory": "16Mi"}, "limits": {"cpu": "100m", "memory": "16Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": true,
            "runAsNonRoot": true,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [
            {"name": "prestop-gate", "mountPath": "/prestop-gate"},
            {"name": "prestop-gate-token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": true},
        ],
    }]);
    assert_eq!(injected(&pod), expected);
}

/// E1, E2, E17, S30, S31, S33: nothing that could be absent is there, and the pod has no name yet.
#[test]
fn missing_parents_are_created() {
    let bare = json!({"metadata": {"generateName": "x".repeat(250)}, "spec": {"containers": [{"name": "app"}]}});
    let nulls = json!({
        "metadata": {"name": null, "annotations": null, "labels": null},
        "spec": {
            "containers": [{"name": "app", "lifecycle": null, "volumeMounts": null}],
            "volumes": null, "initContainers": null, "terminationGracePeriodSeconds": null, "securityContext": null
        }
    });
    for pod in [bare, nulls] {
        let patched = injected(&pod);
        assert_eq!(patched["spec"]["terminationGracePeriodSeconds"], 100);
        assert_eq!(
            patched["metadata"]["labels"],
            json!({"prestop-gate.dev/injected": "true"})
        );
        assert_eq!(
            patched["metadata"]["annotations"]
                .as_object()
                .unwrap()
                .len(),
            2
        );
        assert_eq!(patched["spec"]["volumes"].as_array().unwrap().len(), 2);
        assert_eq!(
            patched["spec"]["initContainers"].as_array().unwrap().len(),
            1
        );
        assert_eq!(hook(&patched, 0)[1], "hook");
    }
}

/// S32: empty lists, and more than one addition to each.
#[test]
fn empty_lists_are_filled() {
    let mut pod = mk_pod(json!({"volumeMounts": []}));
    pod["spec"]["volumes"] = json!([]);
    pod["spec"]["initContainers"] = json!([]);
    let patched = injected(&pod);
    assert_eq!(patched["spec"]["volumes"][0]["name"], "prestop-gate");
    assert_eq!(patched["spec"]["volumes"][1]["name"], "prestop-gate-token");
    assert_eq!(patched["spec"]["volumes"].as_array().unwrap().len(), 2);
}

/// E6, E39, S40: ours is last, so that it starts after and stops before a mesh's sidecar.
#[test]
fn existing_init_containers_stay_in_their_order_and_ours_is_last() {
    let mut pod = mk_pod(json!({}));
    let inits =
        json!([{"name": "a"}, {"name": "istio-proxy", "restartPolicy": "Always"}, {"name": "c"}]);
    pod["spec"]["initContainers"] = inits.clone();
    let patched = injected(&pod);
    assert_eq!(
        patched["spec"]["initContainers"].as_array().unwrap()[..3],
        inits.as_array().unwrap()[..]
    );
    assert_eq!(waiter(&patched)["restartPolicy"], "Always");
}

/// E15: secrets' modes and slow chowns come from fsGroup.
#[test]
fn the_pod_level_security_context_is_not_touched() {
    for context in [
        json!({}),
        json!({"runAsUser": 0}),
        json!({"fsGroup": 1, "runAsUser": 5, "seLinuxOptions": {"level": "s0"}}),
    ] {
        let mut pod = mk_pod(json!({}));
        pod["spec"]["securityContext"] = context.clone();
        assert_eq!(injected(&pod)["spec"]["securityContext"], context);
    }
}

/// E16, S26, S46: token modes stay as they are where the mains share a user, ranges of the namespace apply otherwise.
#[test]
fn the_waiter_runs_as_the_mains_common_user_where_that_is_not_root() {
    let cases: [(Value, &[Value], Value); 9] = [
        (json!({}), &[json!({})], Value::Null),
        (json!({}), &[json!({"runAsUser": 1000})], json!(1000)),
        (
            json!({}),
            &[json!({"runAsUser": 1000}), json!({"runAsUser": 1000})],
            json!(1000),
        ),
        (
            json!({}),
            &[json!({"runAsUser": 1000}), json!({"runAsUser": 2000})],
            Value::Null,
        ),
        (
            json!({}),
            &[json!({"runAsUser": 1000}), json!({})],
            Value::Null,
        ),
        (json!({"runAsUser": 1000}), &[json!({})], Value::Null),
        (
            json!({"runAsUser": 1000}),
            &[json!({"runAsUser": 2000})],
            json!(2000),
        ),
        (
            json!({"runAsUser": 0}),
            &[json!({"runAsUser": 2000})],
            json!(2000),
        ),
        (json!({}), &[json!({"runAsUser": 0})], Value::Null),
    ];
    for (pod_level, containers, expected) in cases {
        let mut pod = mk_pod(json!({}));
        pod["spec"]["securityContext"] = pod_level.clone();
        pod["spec"]["containers"] = containers
            .iter()
            .enumerate()
            .map(|(i, context)| json!({"name": format!("c{i}"), "securityContext": context}))
            .collect();
        let context = waiter(&injected(&pod))["securityContext"].clone();
        assert_eq!(context["runAsUser"], expected, "{pod_level} {containers:?}");
        assert_eq!(context["runAsNonRoot"], true);
    }
}

#[test]
fn the_waiter_is_not_root_where_the_pod_level_says_root() {
    for containers in [
        json!([{"name": "a"}]),
        json!([{"name": "a"}, {"name": "b", "securityContext": {"runAsUser": 7}}]),
    ] {
        let mut pod = mk_pod(json!({}));
        pod["spec"]["securityContext"] = json!({"runAsUser": 0});
        pod["spec"]["containers"] = containers;
        assert_eq!(
            waiter(&injected(&pod))["securityContext"]["runAsUser"],
            65532
        );
    }
}

/// E12, E14, S42, S44: autoscalers want requests, quotas want both.
#[test]
fn requests_and_limits_are_set_whatever_the_mains_have() {
    for resources in [
        json!({}),
        json!({"requests": {"cpu": "1"}}),
        json!({"limits": {"memory": "1Gi"}}),
    ] {
        let pod = mk_pod(json!({"resources": resources}));
        let patched = injected(&pod);
        let of_waiter = &waiter(&patched)["resources"];
        assert_eq!(
            of_waiter,
            &json!({"requests": {"cpu": "5m", "memory": "16Mi"}, "limits": {"cpu": "100m", "memory": "16Mi"}})
        );
        assert_eq!(patched["spec"]["containers"][0]["resources"], resources);
    }
}

/// S42: a quota on local storage wants it of every container.
#[test]
fn local_storage_is_said_where_every_main_says_it() {
    let pod = mk_pod(json!({"resources": {"limits": {"ephemeral-storage": "1Gi"}}}));
    let resources = waiter(&injected(&pod))["resources"].clone();
    assert_eq!(resources["requests"]["ephemeral-storage"], "16Mi");
    assert_eq!(resources["limits"]["ephemeral-storage"], "16Mi");
    let mut pod = pod;
    pod["spec"]["containers"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "other"}));
    assert!(
        waiter(&injected(&pod))["resources"]["limits"]
            .get("ephemeral-storage")
            .is_none()
    );
}

/// E13.
#[test]
fn a_guaranteed_pod_stays_guaranteed() {
    let guaranteed = json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1000m", "memory": "1073741824"}});
    let limits_only = json!({"limits": {"cpu": 2, "memory": "64Mi"}});
    let burstable =
        json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "1Gi"}});
    let memory_only = json!({"requests": {"memory": "1Gi"}, "limits": {"memory": "1Gi"}});
    let cases = [
        (&guaranteed, &guaranteed, "100m"),
        (&limits_only, &guaranteed, "100m"),
        (&burstable, &guaranteed, "5m"),
        (&guaranteed, &burstable, "5m"),
        (&guaranteed, &memory_only, "5m"),
    ];
    for (main, init, expected) in cases {
        let mut pod = mk_pod(json!({"resources": main}));
        pod["spec"]["initContainers"] = json!([{"name": "init", "resources": init}]);
        let raw = run(&pod);
        let webhook::inject::Outcome::Patched { patch, .. } = raw else {
            panic!("{raw:?}")
        };
        let patched = apply(&pod, &patch);
        assert_eq!(
            waiter(&patched)["resources"]["requests"]["cpu"],
            expected,
            "{main} {init}"
        );
        assert_eq!(waiter(&patched)["resources"]["limits"]["cpu"], "100m");
    }
}

/// E10: no key without a value. Containers' requests must fit into the pod's, so ours has none then.
#[test]
fn resources_are_left_out_under_pod_level_resources() {
    for (resources, is_left_out) in [
        (json!({"limits": {"cpu": "1"}}), true),
        (json!({"requests": {"memory": "1Gi"}}), true),
        (json!({}), false),
        (json!({"limits": {}}), false),
    ] {
        let mut pod = mk_pod(json!({}));
        pod["spec"]["resources"] = resources.clone();
        assert_eq!(
            waiter(&injected(&pod)).get("resources").is_none(),
            is_left_out,
            "{resources}"
        );
    }
}

/// E19, S8, S9: the app keeps all of its own time after the longest hold.
#[test]
fn the_grace_period_grows_by_the_longest_hold() {
    for (grace, max_wait, pre_stop, expected) in [
        (json!(30), "60s", Value::Null, 100),
        (Value::Null, "60s", Value::Null, 100),
        (json!(1), "60s", Value::Null, 71),
        (json!(-7), "60s", Value::Null, 71),
        (json!(3600), "60s", Value::Null, 3670),
        (json!(30), "1.2s", Value::Null, 42),
        (json!(300), "60s", json!({"sleep": {"seconds": 300}}), 610),
        (
            json!(30),
            "60s",
            json!({"exec": {"command": ["sleep", "20.5"]}}),
            100,
        ),
        (
            json!(120),
            "60s",
            json!({"exec": {"command": ["sleep", "60.5"]}}),
            191,
        ),
        (json!(i64::MAX), "60s", Value::Null, i64::MAX),
    ] {
        let mut pod = mk_pod(json!({"lifecycle": {"preStop": pre_stop}}));
        pod["metadata"]["annotations"]["prestop-gate.dev/max-wait"] = json!(max_wait);
        pod["spec"]["terminationGracePeriodSeconds"] = grace.clone();
        assert_eq!(
            injected(&pod)["spec"]["terminationGracePeriodSeconds"],
            expected,
            "{grace} {max_wait} {pre_stop}"
        );
    }
}

/// E32, S48.
#[test]
fn our_volume_joins_those_that_the_cluster_autoscaler_may_lose() {
    const KEY: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes";
    for (before, after) in [
        ("", "prestop-gate"),
        ("cache", "cache,prestop-gate"),
        ("a, prestop-gate ,b", "a, prestop-gate ,b"),
        ("a,", "a,,prestop-gate"),
    ] {
        let mut pod = mk_pod(json!({}));
        pod["metadata"]["annotations"][KEY] = json!(before);
        assert_eq!(injected(&pod)["metadata"]["annotations"][KEY], after);
    }
}

/// E22, S75: a native sidecar lets a Job complete; nothing about restarts or deadlines changes. S37: nor about networks.
#[test]
fn jobs_and_host_network_pods_are_gated_like_others() {
    let mut pod = mk_pod(json!({}));
    pod["spec"]["restartPolicy"] = json!("Never");
    pod["spec"]["activeDeadlineSeconds"] = json!(60);
    pod["spec"]["hostNetwork"] = json!(true);
    pod["spec"]["nodeName"] = json!("node-1");
    let patched = injected(&pod);
    for key in [
        "restartPolicy",
        "activeDeadlineSeconds",
        "hostNetwork",
        "nodeName",
    ] {
        assert_eq!(patched["spec"][key], pod["spec"][key]);
    }
    assert!(waiter(&patched).get("ports").is_none());
}

/// S3, S12: a sidecar with a preStop or a probe of its own has drained proxies on restarts.
#[test]
fn the_waiter_has_no_pre_stop_and_no_probes() {
    let patched = injected(&mk_pod(json!({})));
    let waiter = waiter(&patched);
    assert!(waiter["lifecycle"].get("preStop").is_none());
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        assert!(waiter.get(probe).is_none());
    }
}

#[test]
fn annotations_reach_the_waiter_and_the_status() {
    let mut pod = annotated("max-wait", "90s");
    pod["metadata"]["annotations"]["prestop-gate.dev/fallback-wait"] = json!("2.5s");
    pod["metadata"]["annotations"]["prestop-gate.dev/settle"] = json!("20s");
    pod["metadata"]["annotations"]["prestop-gate.dev/quiet"] = json!("8s");
    pod["metadata"]["annotations"]["prestop-gate.dev/inject"] = json!("true");
    let patched = injected(&pod);
    let args = waiter(&patched)["args"].clone();
    for flag in [
        "--max-wait=90",
        "--fallback-wait=2.5",
        "--settle=20",
        "--quiet=8",
    ] {
        assert!(
            args.as_array().unwrap().contains(&json!(flag)),
            "{flag} in {args}"
        );
    }
    assert_eq!(
        status(&patched)["waits"],
        json!({"originalGrace": "30s", "maxWait": "90s", "fallbackWait": "2.5s", "settle": "20s", "quiet": "8s"})
    );
}
