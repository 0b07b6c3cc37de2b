//! What becomes of pods and holds while parts of prestop-gate or of the cluster are away. One test at a time.
#![allow(clippy::unwrap_used, reason = "a test that fails shows where")]

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use rustix::process::Signal;
use serde_json::{Value, json};
use sidecar::contract::{CONTAINER, NAMESPACE, annotation};
use tests::TestNamespace;
use tests::gate::{GatedPod, is_gated, mk_app, namespace, unix_ms};
use tests::namespace::container_id;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{Instant, sleep};

/// Held by each test of this file for its whole length.
static EXCLUSIVE: Mutex<()> = Mutex::const_new(());

/// The lock, and a namespace of a cluster in which prestop-gate is whole, whatever the test before left.
async fn begin(prefix: &str) -> (MutexGuard<'static, ()>, TestNamespace) {
    let exclusive = EXCLUSIVE.lock().await;
    let namespace = namespace(prefix).await.unwrap();
    scale(&namespace, 2).await;
    (exclusive, namespace)
}

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The test service with a settle that leaves time for things to happen during the hold.
fn mk_held(name: &str, settle: &str) -> Value {
    let mut app = mk_app(name);
    app["metadata"]["annotations"] =
        json!({annotation::SETTLE: settle, annotation::FALLBACK_WAIT: "10s"});
    app
}

/// A pod whose hold has begun and would last for `settle`; and when it was deleted.
async fn start_hold<'a>(namespace: &'a TestNamespace, settle: &str) -> (GatedPod<'a>, u64) {
    let pod = GatedPod::start_behind_service(namespace, mk_held("web", settle))
        .await
        .unwrap();
    let asked = pod.delete().await.unwrap();
    pod.event("HoldBegan").await.unwrap();
    (pod, asked)
}

async fn held_since(pod: &GatedPod<'_>, asked: u64) -> Duration {
    Duration::from_millis(pod.sigterm().await.unwrap() - asked)
}

fn deployments(namespace: &TestNamespace) -> Api<Deployment> {
    Api::namespaced(namespace.client().clone(), NAMESPACE)
}

async fn scale(namespace: &TestNamespace, replicas: u32) {
    let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
    deployments(namespace)
        .patch(NAMESPACE, &PatchParams::default(), &patch)
        .await
        .unwrap();
    let deadline = Instant::now() + s(120);
    loop {
        let pods = own_pods(namespace).await;
        let ready = pods
            .iter()
            .filter(|pod| tests::namespace::is_ready(pod))
            .count();
        if pods.len() == replicas as usize && ready == pods.len() {
            break;
        }
        assert!(
            Instant::now() < deadline,
            "prestop-gate has {} pods, {ready} ready, not {replicas}",
            pods.len()
        );
        sleep(Duration::from_millis(200)).await;
    }
    if replicas > 0 {
        wait_injecting(namespace).await;
    }
}

/// Until the API server's calls arrive: its watches and kube-proxy's rules follow the replicas.
async fn wait_injecting(namespace: &TestNamespace) {
    tests::gate::wait_injecting(namespace.client())
        .await
        .unwrap();
}

async fn own_pods(namespace: &TestNamespace) -> Vec<Pod> {
    let pods: Api<Pod> = Api::namespaced(namespace.client().clone(), NAMESPACE);
    pods.list(&ListParams::default()).await.unwrap().items
}

/// Both halves of prestop-gate are one Deployment: without it pods start without the gate, and pods that have it
/// hold for the fallback.
#[tokio::test]
async fn without_prestop_gate_pods_start_ungated_and_gated_ones_hold_for_the_fallback() {
    let (_exclusive, namespace) = begin("absent").await;
    let pod = GatedPod::start_behind_service(&namespace, mk_held("web", "5s"))
        .await
        .unwrap();
    scale(&namespace, 0).await;

    let ungated: Pod = serde_json::from_value(mk_app("ungated")).unwrap();
    let ungated = namespace
        .api::<Pod>()
        .create(&PostParams::default(), &ungated)
        .await
        .unwrap();
    assert!(!is_gated(&ungated), "somebody injected it");
    let held = pod.held().await.unwrap();
    assert!(held >= s(10) && held < s(18), "{held:?}");
    let log = pod.waiter.lines().unwrap();
    assert!(log.iter().any(|line| line.contains("fallback")), "{log:?}");

    scale(&namespace, 2).await;
    let again = GatedPod::start(&namespace, mk_held("again", "5s")).await;
    again.unwrap();
}

#[tokio::test]
async fn hold_survives_the_rollout_of_prestop_gate_itself_and_no_pod_starts_ungated() {
    let (_exclusive, namespace) = begin("own-rollout").await;
    let (pod, asked) = start_hold(&namespace, "35s").await;
    let before: Vec<_> = own_pods(&namespace)
        .await
        .iter()
        .map(ResourceExt::uid)
        .collect();
    deployments(&namespace).restart(NAMESPACE).await.unwrap();
    let deadline = Instant::now() + s(120);
    let mut created = 0;
    loop {
        let mut app = mk_app("probe");
        app["metadata"] = json!({"generateName": "probe-"});
        let app: Pod = serde_json::from_value(app).unwrap();
        let params = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let made = namespace.api::<Pod>().create(&params, &app).await.unwrap();
        assert!(
            is_gated(&made),
            "pod {created} was created without the gate during the rollout"
        );
        created += 1;
        let pods = own_pods(&namespace).await;
        let renewed = pods
            .iter()
            .all(|pod| !before.contains(&pod.uid()) && tests::namespace::is_ready(pod));
        if pods.len() == 2 && renewed {
            break;
        }
        assert!(Instant::now() < deadline, "the rollout hasn't ended");
        sleep(Duration::from_millis(100)).await;
    }
    assert!(created > 20, "{created} pods");
    let held = held_since(&pod, asked).await;
    assert!(held >= s(35) && held < s(45), "{held:?}");
    let released = pod.event("Released").await.unwrap();
    assert!(released.contains(": settled ("), "{released}");
}

#[tokio::test]
async fn replicas_that_are_all_killed_come_back_with_the_same_authorities_and_are_still_trusted() {
    let (_exclusive, namespace) = begin("killed").await;
    let pod = GatedPod::start_behind_service(&namespace, mk_app("web"))
        .await
        .unwrap();
    let before = authorities(&namespace).await;
    assert_eq!(before.len(), 2);
    let pods: Api<Pod> = Api::namespaced(namespace.client().clone(), NAMESPACE);
    let killed: Vec<_> = own_pods(&namespace).await;
    for pod in &killed {
        pods.delete(&pod.name_any(), &DeleteParams::default().grace_period(0))
            .await
            .unwrap();
    }
    let deadline = Instant::now() + s(120);
    loop {
        let now = own_pods(&namespace).await;
        let is_new = |pod: &Pod| {
            killed.iter().all(|old| old.uid() != pod.uid()) && tests::namespace::is_ready(pod)
        };
        if now.len() == 2 && now.iter().all(is_new) {
            break;
        }
        assert!(Instant::now() < deadline, "prestop-gate didn't come back");
        sleep(Duration::from_millis(200)).await;
    }
    wait_injecting(&namespace).await;
    assert_eq!(authorities(&namespace).await, before);
    GatedPod::start(&namespace, mk_app("trusts-the-webhook"))
        .await
        .unwrap();
    let held = pod.held().await.unwrap();
    assert!(held >= s(5), "{held:?}");
    assert!(pod.event("Released").await.unwrap().contains(": settled ("));
}

/// The authorities' certificates, by Secret.
async fn authorities(namespace: &TestNamespace) -> BTreeMap<String, ByteString> {
    let secrets: Api<Secret> = Api::namespaced(namespace.client().clone(), NAMESPACE);
    let all = secrets.list(&ListParams::default()).await.unwrap();
    all.into_iter()
        .filter_map(|secret| Some((secret.name_any(), secret.data?.remove("ca.crt")?)))
        .collect()
}

/// S14: the kubelet doesn't start it again while the pod terminates.
#[tokio::test]
async fn waiter_that_is_killed_during_the_hold_leaves_the_app_held_for_the_fallback() {
    let (_exclusive, namespace) = begin("waiter").await;
    let (pod, asked) = start_hold(&namespace, "40s").await;
    let id = container_id(&pod.pod, CONTAINER).unwrap();
    let killed = unix_ms();
    namespace
        .cluster()
        .signal_container(&id, Signal::KILL)
        .unwrap();
    let held = held_since(&pod, asked).await;
    assert!(
        Duration::from_millis(killed - asked) < s(10),
        "the waiter was killed too late to show anything"
    );
    assert!(held >= s(10) && held < s(20), "{held:?}");
}

#[tokio::test]
async fn hold_goes_on_while_the_api_server_is_down() {
    let (_exclusive, namespace) = begin("api").await;
    let (pod, asked) = start_hold(&namespace, "25s").await;
    // The endpoint's drop has to be known before.
    sleep(s(2)).await;
    namespace.cluster().stop_apiserver().unwrap();
    sleep(s(15)).await;
    let early = pod.app.record("sigterm").is_ok();
    namespace.cluster().start_apiserver().await.unwrap();
    assert!(!early, "SIGTERM came while the API server was down");
    let held = held_since(&pod, asked).await;
    assert!(held >= s(25) && held < s(40), "{held:?}");
    let log = pod.waiter.lines().unwrap();
    assert!(log.iter().any(|line| line.contains("settled")), "{log:?}");
}
