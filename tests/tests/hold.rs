//! How long SIGTERM is held back, by what the kubelet did.
//!
//! The settle is the default 5 s unless a test says otherwise; upper bounds leave a busy machine several seconds.
#![allow(clippy::unwrap_used, reason = "a test that fails shows where")]

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::api::{DeleteParams, EvictParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use tests::gate::{GatedPod, SOON, mk_app, mk_service, namespace, unix_ms, wait_event};
use tests::process::Name;
use tests::{TestNamespace, http};
use tokio::time::sleep;

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Asserts a hold of the settle and little more.
fn assert_settled(held: Duration) {
    assert!(
        held >= s(5),
        "SIGTERM came {held:?} after the deletion, before the endpoint was dropped and settled"
    );
    assert!(held < s(13), "SIGTERM came {held:?} after the deletion");
}

/// S23: nothing of a shell or libc is in the image.
#[tokio::test]
async fn app_from_scratch_without_a_hook_is_held_until_its_endpoint_was_dropped_and_settled() {
    let namespace = namespace("scratch").await.unwrap();
    let pod = GatedPod::start_behind_service(&namespace, mk_app("web"))
        .await
        .unwrap();
    assert_settled(pod.held().await.unwrap());
    let began = pod.event("HoldBegan").await.unwrap();
    assert!(began.contains("Holding back SIGTERM"), "{began}");
    let released = pod.event("Released").await.unwrap();
    assert!(released.contains(": settled (Service "), "{released}");
    assert!(
        pod.waiter
            .lines()
            .unwrap()
            .iter()
            .any(|line| line.contains("settled")),
        "{:?}",
        pod.waiter.lines()
    );
}

/// The evidence counts, not the deletion: a gate that only slept a settle would let this pod go too early.
#[tokio::test]
async fn settle_counts_from_when_the_endpoint_was_dropped_however_late_that_is() {
    let namespace = namespace("late").await.unwrap();
    let pod = GatedPod::start(&namespace, mk_app("web")).await.unwrap();
    // A slice of our own, which no controller keeps.
    let slice = |ready: bool| {
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": "by-hand", "labels": {"kubernetes.io/service-name": "elsewhere"}},
            "addressType": "IPv4",
            "ports": [{"port": 8080}],
            "endpoints": [{
                "addresses": [pod.pod.status.clone().unwrap().pod_ip.unwrap()],
                "conditions": {"ready": ready},
                "targetRef": {"kind": "Pod", "name": "web", "namespace": namespace.name(), "uid": pod.pod.uid().unwrap()},
            }],
        })
    };
    namespace.apply(slice(true)).await.unwrap();
    sleep(s(1)).await;
    pod.delete().await.unwrap();
    sleep(s(8)).await;
    let dropped = unix_ms();
    namespace.apply(slice(false)).await.unwrap();
    assert_settled(Duration::from_millis(
        pod.sigterm().await.unwrap() - dropped,
    ));
    let released = pod.event("Released").await.unwrap();
    assert!(
        released.contains("/elsewhere: endpoint dropped"),
        "{released}"
    );
}

#[tokio::test]
async fn settle_annotation_stretches_the_hold() {
    let namespace = namespace("settle").await.unwrap();
    let mut app = mk_app("web");
    app["metadata"]["annotations"] = json!({"prestop-gate.dev/settle": "12s"});
    let pod = GatedPod::start_behind_service(&namespace, app)
        .await
        .unwrap();
    let held = pod.held().await.unwrap();
    assert!(held >= s(12) && held < s(20), "{held:?}");
}

#[tokio::test]
async fn own_exec_hook_runs_once_after_the_wait_and_keeps_its_exit_code() {
    let namespace = namespace("exec").await.unwrap();
    let mut app = mk_app("web");
    let command = json!(["/app", "record", "--exit", "7", "a b", "$HOME", "{{x}}"]);
    app["spec"]["containers"][0]["lifecycle"] = json!({"preStop": {"exec": {"command": command}}});
    let pod = GatedPod::start_behind_service(&namespace, app)
        .await
        .unwrap();
    let asked = pod.delete().await.unwrap();
    let sigterm = pod.sigterm().await.unwrap();
    let records = pod.hook_records().unwrap();
    assert_eq!(records.len(), 1, "{records:?}");
    assert_settled(Duration::from_millis(records[0].unix_ms - asked));
    assert!(records[0].unix_ms <= sigterm, "the hook ran after SIGTERM");
    assert_eq!(json!(records[0].argv), command);
    let failed = pod.event("FailedPreStopHook").await.unwrap();
    assert!(failed.contains("PreStopHook failed"), "{failed}");
    let kubelet = std::fs::read_to_string(namespace.cluster().log(Name::Kubelet)).unwrap();
    let uid = pod.pod.uid().unwrap();
    let mut about = kubelet
        .lines()
        .filter(|line| line.contains(&uid) || line.contains(namespace.name()));
    assert!(
        about.any(|line| line.contains("exited with 7")),
        "the kubelet saw another exit code"
    );
}

/// S68.
#[tokio::test]
async fn pod_that_nothing_points_at_goes_within_two_seconds() {
    let namespace = namespace("alone").await.unwrap();
    let pod = GatedPod::start(&namespace, mk_app("alone")).await.unwrap();
    let asked = pod.delete().await.unwrap();
    let sigterm = pod.sigterm().await.unwrap();
    let released = pod.event("Released").await.unwrap();
    assert!(released.contains(": no-attachment"), "{released}");
    // From the hook's first word: what the kubelet needs before that is no hold of ours.
    let seconds: f64 = released.split(' ').nth(2).unwrap().parse().unwrap();
    assert!(seconds < 2.0, "{released}");
    assert!(
        sigterm - asked < 5_000,
        "SIGTERM came {} ms after the deletion",
        sigterm - asked
    );
}

#[tokio::test]
async fn replaced_sleep_is_the_shortest_hold_and_not_added_to_it() {
    let namespace = namespace("sleep").await.unwrap();
    let mut app = mk_app("alone");
    app["spec"]["containers"][0]["lifecycle"] = json!({"preStop": {"sleep": {"seconds": 8}}});
    let alone = GatedPod::start(&namespace, app).await.unwrap();
    let mut app = mk_app("web");
    app["spec"]["containers"][0]["lifecycle"] =
        json!({"preStop": {"exec": {"command": ["sh", "-c", "sleep 2"]}}});
    let web = GatedPod::start_behind_service(&namespace, app)
        .await
        .unwrap();
    let (alone, web) = tokio::join!(alone.held(), web.held());
    let alone = alone.unwrap();
    assert!(alone >= s(8) && alone < s(14), "{alone:?}");
    assert_settled(web.unwrap());
}

/// S17, S4: a container restart is no deletion, and leaves nothing behind that would end the next hold.
#[tokio::test]
async fn liveness_restart_is_not_held_and_the_next_deletion_is() {
    let namespace = namespace("liveness").await.unwrap();
    let mut app = mk_app("web");
    app["spec"]["containers"][0]["livenessProbe"] = json!({"httpGet": {"path": "/live", "port": 8080}, "periodSeconds": 1, "failureThreshold": 1});
    let pod = GatedPod::start_behind_service(&namespace, app)
        .await
        .unwrap();
    let ip = pod.pod.status.clone().unwrap().pod_ip.unwrap();
    let failed = unix_ms();
    http::get(&format!("{ip}:8080"), "/fail-live")
        .await
        .unwrap();
    let restarted = |pod: Option<&Pod>| {
        let status = pod.and_then(|pod| pod.status.clone()).unwrap_or_default();
        let mut containers = status.container_statuses.into_iter().flatten();
        containers.any(|it| it.name == "app" && it.restart_count == 1 && it.ready)
    };
    namespace
        .wait("web", "was restarted", SOON, restarted)
        .await
        .unwrap();
    let sigterm = pod.app.record("sigterm").unwrap().unix_ms;
    // Up to 1 s to the next probe, 1 s between two looks at the node.
    assert!(
        sigterm - failed < 7_000,
        "SIGTERM of the restart came {} ms after the probe began to fail",
        sigterm - failed
    );
    assert!(pod.event("Released").await.unwrap().contains(": restart"));

    let again = GatedPod::find(&namespace, "web").await.unwrap();
    again.wait_endpoint().await.unwrap();
    assert_settled(again.held().await.unwrap());
    // One Event of a reason must not hide another.
    wait_event(&namespace, "web", "Released", ": settled (")
        .await
        .unwrap();
}

#[tokio::test]
async fn eviction_holds_like_a_deletion() {
    let namespace = namespace("evict").await.unwrap();
    let pod = GatedPod::start_behind_service(&namespace, mk_app("web"))
        .await
        .unwrap();
    let asked = unix_ms();
    namespace
        .api::<Pod>()
        .evict("web", &EvictParams::default())
        .await
        .unwrap();
    assert_settled(Duration::from_millis(pod.sigterm().await.unwrap() - asked));
}

#[tokio::test]
async fn rollout_and_scale_in_hold_every_pod_that_goes() {
    let namespace = namespace("rollout").await.unwrap();
    let mut template = mk_app("web");
    template["metadata"].as_object_mut().unwrap().remove("name");
    let deployment = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "web"}},
            "strategy": {"rollingUpdate": {"maxSurge": "100%", "maxUnavailable": 0}},
            "template": {"metadata": template["metadata"], "spec": template["spec"]},
        },
    });
    namespace.apply(mk_service("web")).await.unwrap();
    namespace.apply(deployment).await.unwrap();
    for (what, left) in [
        (["rollout", "restart", "deployment/web"].as_slice(), 2),
        (&["scale", "deployment/web", "--replicas=0"], 0),
    ] {
        let pods = namespace.wait_pods("app=web", 2, SOON).await.unwrap();
        let mut gated = Vec::new();
        for pod in &pods {
            let pod = GatedPod::find(&namespace, &pod.name_any()).await.unwrap();
            pod.wait_endpoint().await.unwrap();
            gated.push(pod);
        }
        namespace.kubectl(what).unwrap();
        let mut asked = Vec::new();
        for pod in &gated {
            asked.push(wait_deletion(&namespace, &pod.name()).await);
        }
        for (pod, asked) in gated.iter().zip(asked) {
            let sigterm = pod.sigterm().await.unwrap();
            let released = pod.event("Released").await.unwrap();
            assert!(released.contains(": settled ("), "{what:?}: {released}");
            assert!(
                sigterm >= asked + 5_000,
                "{what:?}: SIGTERM {} ms after the deletion",
                sigterm - asked
            );
        }
        namespace.wait_pods("app=web", left, SOON).await.unwrap();
    }
}

/// When the pod's deletion was asked for, in wall-clock milliseconds; the API counts whole seconds, rounded down.
async fn wait_deletion(namespace: &TestNamespace, pod: &str) -> u64 {
    let is_terminating =
        |pod: Option<&Pod>| pod.is_some_and(|pod| pod.metadata.deletion_timestamp.is_some());
    let pod = namespace
        .wait(pod, "is terminating", SOON, is_terminating)
        .await
        .unwrap()
        .unwrap();
    let ends = pod.metadata.deletion_timestamp.unwrap().0.as_second();
    u64::try_from(ends - pod.metadata.deletion_grace_period_seconds.unwrap()).unwrap() * 1_000
}

#[tokio::test]
async fn second_delete_with_now_ends_the_hold_at_once() {
    let namespace = namespace("now").await.unwrap();
    let mut app = mk_app("web");
    app["metadata"]["annotations"] = json!({"prestop-gate.dev/settle": "50s"});
    let pod = GatedPod::start_behind_service(&namespace, app)
        .await
        .unwrap();
    pod.delete().await.unwrap();
    pod.event("HoldBegan").await.unwrap();
    sleep(s(3)).await;
    let asked = unix_ms();
    namespace
        .api::<Pod>()
        .delete("web", &DeleteParams::default().grace_period(1))
        .await
        .unwrap();
    let sigterm = pod.sigterm().await.unwrap();
    assert!(sigterm > asked, "the hold was over before");
    assert!(
        sigterm - asked < 5_000,
        "SIGTERM came {} ms after the second delete",
        sigterm - asked
    );
    let released = pod.event("Released").await.unwrap();
    assert!(released.contains(": forced"), "{released}");
}

/// Row 36 of the admission facts: the token is verified by its signature, not by asking for the ServiceAccount.
#[tokio::test]
async fn hold_goes_on_when_its_service_account_is_deleted() {
    let namespace = namespace("account").await.unwrap();
    let account =
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "mine"}});
    namespace.apply(account).await.unwrap();
    let mut app = mk_app("web");
    app["spec"]["serviceAccountName"] = "mine".into();
    app["metadata"]["annotations"] = json!({"prestop-gate.dev/settle": "12s"});
    let pod = GatedPod::start_behind_service(&namespace, app)
        .await
        .unwrap();
    let asked = pod.delete().await.unwrap();
    pod.event("HoldBegan").await.unwrap();
    namespace
        .api::<ServiceAccount>()
        .delete("mine", &DeleteParams::default())
        .await
        .unwrap();
    let held = Duration::from_millis(pod.sigterm().await.unwrap() - asked);
    assert!(held >= s(12) && held < s(20), "{held:?}");
    assert!(pod.event("Released").await.unwrap().contains(": settled ("));
}

/// S7: such a Service keeps a terminating pod ready, so nothing can be confirmed.
#[tokio::test]
async fn service_that_publishes_not_ready_addresses_is_named_and_waited_for_by_time() {
    let namespace = namespace("published").await.unwrap();
    let mut service = mk_service("web");
    service["spec"]["publishNotReadyAddresses"] = true.into();
    namespace.apply(service).await.unwrap();
    let mut app = mk_app("web");
    app["metadata"]["annotations"] = json!({"prestop-gate.dev/fallback-wait": "9s"});
    let pod = GatedPod::start(&namespace, app).await.unwrap();
    pod.wait_endpoint().await.unwrap();
    let held = pod.held().await.unwrap();
    assert!(held >= s(9) && held < s(16), "{held:?}");
    let released = pod.event("Released").await.unwrap();
    assert!(
        released.contains(": unconfirmable (Service ")
            && released.contains("publishNotReadyAddresses"),
        "{released}"
    );
}

/// S69: what was deregistered long before its deletion has nothing to wait for.
#[tokio::test]
async fn pod_that_left_its_service_a_settle_ago_goes_at_once() {
    let namespace = namespace("left").await.unwrap();
    let pod = GatedPod::start_behind_service(&namespace, mk_app("web"))
        .await
        .unwrap();
    let pods: Api<Pod> = namespace.api();
    let relabel = Patch::Merge(json!({"metadata": {"labels": {"app": "elsewhere"}}}));
    pods.patch("web", &PatchParams::default(), &relabel)
        .await
        .unwrap();
    sleep(s(8)).await;
    let held = pod.held().await.unwrap();
    assert!(held < s(5), "{held:?}");
    assert!(pod.event("Released").await.unwrap().contains(": settled ("));
}
