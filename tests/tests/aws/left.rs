//! Pods that were never registered or left before, and bindings and groups that go during the hold.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams};
use serde_json::json;
use sidecar::contract::annotation;
use tests::aws::TargetGroup;
use tests::aws::crds::Group;
use tests::gate::{GatedPod, SOON, unix_ms};
use tokio::time::sleep;

use super::s;
use super::scene::{Scene, address, assert_settled, mk_pod, mk_settle, released, seconds_between};

/// S68: a registration may be under way, which two answers that are 15 s apart rule out.
#[tokio::test]
async fn ready_pod_that_never_was_in_the_group_is_let_go_after_the_race() {
    let scene = Scene::begin("never").await;
    let arn = scene.bind_alb("web").await;
    let (pod, other) = scene.pair(mk_settle(5)).await;
    scene.fake.register(&arn, address(&other.pod));
    pod.delete().await.unwrap();
    pod.sigterm().await.unwrap();
    let (released, seconds) = released(&pod).await;
    assert_settled(&released);
    assert!((14.5..28.0).contains(&seconds), "{released}");
}

/// S68: nobody registers what never was Ready.
#[tokio::test]
async fn pod_that_never_was_ready_goes_after_one_answer() {
    let scene = Scene::begin("unready").await;
    let arn = scene.bind_alb("web").await;
    let (_, other) = scene.pair(mk_settle(5)).await;
    scene.fake.register(&arn, address(&other.pod));
    let mut unready = mk_pod("unready", mk_settle(5));
    unready["spec"]["containers"][0]["readinessProbe"]["httpGet"]["path"] = "/nowhere".into();
    unready["spec"]["containers"][0]["readinessProbe"]["httpGet"]["port"] = 9.into();
    scene.namespace.apply(unready).await.unwrap();
    let is_running = |pod: Option<&Pod>| {
        let status = pod.and_then(|pod| pod.status.clone()).unwrap_or_default();
        let mut containers = status.container_statuses.into_iter().flatten();
        containers.any(|it| it.name == "app" && it.started == Some(true))
    };
    let pod = scene
        .namespace
        .wait("unready", "runs", SOON, is_running)
        .await
        .unwrap()
        .unwrap();
    // Its endpoint is there by then, and not ready.
    sleep(s(8)).await;
    let pods = scene.namespace.api::<Pod>();
    pods.delete("unready", &DeleteParams::default())
        .await
        .unwrap();
    let uid = pod.metadata.uid.unwrap();
    scene
        .namespace
        .wait_gone("unready", &uid, SOON)
        .await
        .unwrap();
    let released = tests::gate::wait_event(&scene.namespace, "unready", "Released", "").await;
    let released = released.unwrap();
    let seconds: f64 = released.split(' ').nth(2).unwrap().parse().unwrap();
    assert!(seconds < 10.0, "{released}");
}

/// S69: a selector switch (blue/green), long before the deletion.
#[tokio::test]
async fn pod_that_left_the_group_long_before_goes_after_one_answer() {
    let scene = Scene::begin("switched").await;
    let group = TargetGroup {
        deregistration_delay: s(3),
        ..scene.alb("web")
    };
    let kind = Group::LoadBalancerController;
    let arn = scene
        .bind(kind, group, |spec| {
            spec["targetGroupProtocol"] = "HTTP".into();
        })
        .await;
    let _controller = scene.control();
    let (pod, other) = scene.pair(mk_settle(6)).await;
    for pod in [&pod, &other] {
        scene.wait_healthy(&arn, &pod.pod).await;
    }
    let deregistered = scene.deregistered(&arn, &pod.pod);
    let relabel = Patch::Merge(json!({"metadata": {"labels": {"app": "blue"}}}));
    let pods = scene.namespace.api::<Pod>();
    pods.patch(&pod.name(), &PatchParams::default(), &relabel)
        .await
        .unwrap();
    deregistered.await;
    sleep(s(12)).await;
    pod.delete().await.unwrap();
    pod.sigterm().await.unwrap();
    let (released, seconds) = released(&pod).await;
    assert_settled(&released);
    assert!(seconds < 10.0, "{released}");
}

/// A binding that goes says nothing of the group: its targets are deregistered later, or never.
#[tokio::test]
async fn binding_that_is_deleted_during_the_hold_still_counts() {
    let scene = Scene::begin("unbound").await;
    let arn = scene.bind_alb("web").await;
    let (pod, other) = scene.pair(mk_settle(8)).await;
    scene.register(&arn, [&pod, &other]);
    pod.delete().await.unwrap();
    pod.event("HoldBegan").await.unwrap();
    let resource = Group::LoadBalancerController.resource();
    let client = scene.namespace.client().clone();
    let bindings = Api::<DynamicObject>::namespaced_with(client, scene.namespace.name(), &resource);
    bindings
        .delete(&scene.unique("web"), &DeleteParams::default())
        .await
        .unwrap();
    sleep(s(14)).await;
    assert!(pod.app.record("sigterm").is_err(), "it was let go early");
    scene.fake.deregister(&arn, address(&pod.pod));
    let deregistered = unix_ms();
    let settled = seconds_between(deregistered, pod.sigterm().await.unwrap());
    assert!((7.9..28.0).contains(&settled), "{settled} s");
    let (released, _) = released(&pod).await;
    assert_settled(&released);
}

/// S62: nothing routes by a group that is gone, once the load balancer has heard of it.
#[tokio::test]
async fn group_that_is_deleted_during_the_hold_settles_from_then() {
    let scene = Scene::begin("deleted").await;
    let arn = scene.bind_alb("web").await;
    let mut annotations = mk_settle(8);
    annotations[annotation::MAX_WAIT] = "60s".into();
    let (pod, other): (GatedPod<'_>, _) = scene.pair(annotations).await;
    scene.register(&arn, [&pod, &other]);
    pod.delete().await.unwrap();
    pod.event("HoldBegan").await.unwrap();
    // Long enough for an answer that shows it there.
    sleep(s(12)).await;
    scene.fake.delete_target_group(&arn);
    let deleted = unix_ms();
    let settled = seconds_between(deleted, pod.sigterm().await.unwrap());
    assert!((7.9..28.0).contains(&settled), "{settled} s");
    let (released, _) = released(&pod).await;
    assert_settled(&released);
    assert!(released.contains("the group was gone"), "{released}");
}
