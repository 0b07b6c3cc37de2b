//! Deregistrations that come late, in part, or never, and groups that can't be asked.

use k8s_openapi::api::core::v1::Pod;
use sidecar::contract::annotation;
use tests::aws::Role;
use tests::aws::crds::Group;
use tests::gate::{GatedPod, unix_ms, wait_event};
use tokio::time::sleep;

use super::s;
use super::scene::{Scene, address, assert_settled, mk_settle, released, seconds_between};

/// Does what a controller would, and returns when.
fn deregister(scene: &Scene, arn: &str, pod: &GatedPod<'_>) -> u64 {
    scene.fake.deregister(arn, address(&pod.pod));
    unix_ms()
}

/// S60: the controller comes 30 s late, as when another replica of it has to take over first.
#[tokio::test]
async fn controller_that_is_down_for_30_s_is_waited_for() {
    let scene = Scene::begin("paused").await;
    let arn = scene.bind_alb("web").await;
    let controller = scene.control();
    let mut annotations = mk_settle(10);
    annotations[annotation::MAX_WAIT] = "120s".into();
    let (pod, other) = scene.pair(annotations).await;
    for pod in [&pod, &other] {
        scene.wait_healthy(&arn, &pod.pod).await;
    }
    let deregistered = scene.deregistered(&arn, &pod.pod);
    controller.pause(s(30));
    let asked = pod.delete().await.unwrap();
    let deregistered = deregistered.await;
    assert!(seconds_between(asked, deregistered) > 25.0);
    let sigterm = pod.sigterm().await.unwrap();
    let settled = seconds_between(deregistered, sigterm);
    assert!((9.9..35.0).contains(&settled), "{settled} s");
    let (released, _) = released(&pod).await;
    assert_settled(&released);
}

#[tokio::test]
async fn target_that_stays_healthy_holds_to_max_wait_and_is_named() {
    let scene = Scene::begin("skipped").await;
    let arn = scene.bind_alb("web").await;
    let controller = scene.control();
    let mut annotations = mk_settle(5);
    annotations[annotation::MAX_WAIT] = "25s".into();
    let (pod, other) = scene.pair(annotations).await;
    for pod in [&pod, &other] {
        scene.wait_healthy(&arn, &pod.pod).await;
    }
    controller.skip(1_000);
    pod.delete().await.unwrap();
    pod.sigterm().await.unwrap();
    let (released, seconds) = released(&pod).await;
    assert!(released.contains(": max-wait ("), "{released}");
    assert!(released.contains(&arn), "{released}");
    assert!((23.0..29.0).contains(&seconds), "{released}");
}

#[tokio::test]
async fn group_that_may_not_be_asked_is_settled_by_time_and_the_permission_is_named() {
    let scene = Scene::begin("denied").await;
    // A role of its own, so that only this group is denied. The controller would need it too: by hand, then.
    let role = Role::new(&scene.unique("reader"), tests::aws::ACCOUNT);
    let role_arn = scene.fake.add_role(role.clone());
    scene
        .fake
        .deny(&role.name, "elasticloadbalancing:DescribeTargetHealth");
    let kind = Group::LoadBalancerController;
    let arn = scene
        .bind(kind, scene.alb("web"), |spec| {
            spec["iamRoleArnToAssume"] = role_arn.into();
            spec["targetGroupProtocol"] = "HTTP".into();
        })
        .await;
    let mut annotations = mk_settle(6);
    annotations[annotation::FALLBACK_WAIT] = "14s".into();
    let (pod, other) = scene.pair(annotations).await;
    scene.register(&arn, [&pod, &other]);
    pod.delete().await.unwrap();
    deregister(&scene, &arn, &pod);
    pod.sigterm().await.unwrap();
    let permission = "elasticloadbalancing:DescribeTargetHealth";
    let told = wait_event(&scene.namespace, &pod.name(), "Unconfirmable", permission).await;
    assert!(told.unwrap().contains(&arn));
    let (released, seconds) = released(&pod).await;
    assert!(released.contains(": unconfirmable ("), "{released}");
    assert!((13.5..22.0).contains(&seconds), "{released}");
}

/// S60: one of two groups lets go 16 s after the other.
#[tokio::test]
async fn pod_in_two_groups_is_held_until_both_have_let_go() {
    let scene = Scene::begin("two").await;
    let first = scene.bind_alb("first").await;
    let kind = Group::EksAutoMode;
    let second = scene
        .bind(kind, scene.nlb("second"), |spec| {
            spec["targetGroupProtocol"] = "TCP".into();
        })
        .await;
    let (pod, other) = scene.pair(mk_settle(10)).await;
    for arn in [&first, &second] {
        scene.register(arn, [&pod, &other]);
    }
    pod.delete().await.unwrap();
    deregister(&scene, &first, &pod);
    sleep(s(16)).await;
    let last = deregister(&scene, &second, &pod);
    let settled = seconds_between(last, pod.sigterm().await.unwrap());
    assert!((9.9..30.0).contains(&settled), "{settled} s");
    let (released, seconds) = released(&pod).await;
    assert_settled(&released);
    assert!(seconds > 26.0, "{released}");
}

/// S59, S74: an NLB sends for longer than its API admits; held on a plain deletion, here for as long as asked for.
#[tokio::test]
async fn nlb_of_eks_auto_mode_is_waited_for() {
    let scene = Scene::begin("auto").await;
    let kind = Group::EksAutoMode;
    let arn = scene.bind(kind, scene.nlb("web"), |_| {}).await;
    let _controller = scene.control();
    let (pod, other) = scene.pair(mk_settle(15)).await;
    for pod in [&pod, &other] {
        scene.wait_healthy(&arn, &pod.pod).await;
    }
    let deregistered = scene.deregistered(&arn, &pod.pod);
    pod.delete().await.unwrap();
    let deregistered = deregistered.await;
    let settled = seconds_between(deregistered, pod.sigterm().await.unwrap());
    assert!((14.9..35.0).contains(&settled), "{settled} s");
    let (released, _) = released(&pod).await;
    assert_settled(&released);
    assert!(released.contains(&arn), "{released}");
}

/// S61: a target that is registered anew is sent to again, whatever was seen before.
#[tokio::test]
async fn target_that_comes_back_during_the_hold_starts_it_anew() {
    let scene = Scene::begin("flap").await;
    let arn = scene.bind_alb("web").await;
    let (pod, other) = scene.pair(mk_settle(12)).await;
    scene.register(&arn, [&pod, &other]);
    pod.delete().await.unwrap();
    deregister(&scene, &arn, &pod);
    // Within the settle, and before the answer that would have ended it.
    sleep(s(5)).await;
    scene.fake.register(&arn, address(&pod.pod));
    sleep(s(15)).await;
    let is_held = scene.namespace.api::<Pod>().get_opt(&pod.name()).await;
    assert!(is_held.unwrap().is_some() && pod.app.record("sigterm").is_err());
    let again = deregister(&scene, &arn, &pod);
    let settled = seconds_between(again, pod.sigterm().await.unwrap());
    assert!((11.9..32.0).contains(&settled), "{settled} s");
    let (released, _) = released(&pod).await;
    assert_settled(&released);
}
