//! What admission makes of pods behind target groups.

use kube::ResourceExt;
use serde_json::Value;
use sidecar::contract::annotation;
use tests::aws::crds::Group;
use tests::gate::mk_service;

use super::scene::{Scene, mk_pod};
use super::world::wait_bindings_known;

/// S74, `max-wait: auto`: 60 s aren't enough for an NLB, and 240 s are too long for an ALB.
#[tokio::test]
async fn pod_behind_an_nlb_gets_a_longer_hold_and_is_told_why() {
    let scene = Scene::begin("admitted").await;
    scene.namespace.apply(mk_service("web")).await.unwrap();
    wait_bindings_known().await;
    let alb = scene.bind_alb("quick").await;
    assert_eq!(waits(&scene, "before").await["maxWait"], "60s", "{alb}");
    let nlb = scene.nlb("slow");
    let name = nlb.name.clone();
    let kind = Group::EksAutoMode;
    scene
        .bind(kind, nlb, |spec| spec["targetGroupProtocol"] = "TCP".into())
        .await;
    // It is known as soon as the watch has brought it.
    tokio::time::sleep(super::s(2)).await;
    let waits = waits(&scene, "after").await;
    assert_eq!(waits["maxWait"], "240s", "{waits}");
    let because = waits["maxWaitBecause"].as_str().unwrap();
    assert!(because.contains(&name), "{because}");
    assert!(because.contains("NLB"), "{because}");
}

/// The waits in the status of a new pod.
async fn waits(scene: &Scene, pod: &str) -> Value {
    let made = scene.namespace.apply(mk_pod(pod, Value::Null)).await;
    let made = made.unwrap();
    let status: Value = serde_json::from_str(&made.annotations()[annotation::STATUS]).unwrap();
    status["waits"].clone()
}
