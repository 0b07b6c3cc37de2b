//! Whole rollouts under 100 requests a second.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::ResourceExt;
use kube::api::ListParams;
use serde_json::{Value, json};
use sidecar::contract::{NAMESPACE, annotation};
use tests::aws::controller::Controller;
use tests::aws::crds::Group;
use tests::aws::{Effect, Fault, Lasting, Role, TargetGroup};
use tests::gate::{GatedPod, SOON, mk_app, mk_service};
use tests::process;

use super::data_plane::{DataPlane, Tally};
use super::s;
use super::scene::{Scene, address, assert_settled, released};
use super::world::{solitude, wait_bindings_known};

/// Below the 20 s of an ALB's settle, each node its own.
const LAGS: [Duration; 3] = [s(5), s(9), s(12)];

/// A Deployment behind a load balancer, under load.
struct Shop<'a> {
    scene: &'a Scene,
    data_plane: DataPlane,
    old: Vec<GatedPod<'a>>,
    _controller: Controller,
}

impl<'a> Shop<'a> {
    async fn open(scene: &'a Scene, annotations: Value, arn: &str) -> Self {
        let controller = scene.control();
        let mut template = mk_app("web");
        template["metadata"] = json!({"labels": {"app": "web"}, "annotations": annotations});
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
        let namespace = &scene.namespace;
        namespace.apply(mk_service("web")).await.unwrap();
        namespace.apply(deployment).await.unwrap();
        wait_bindings_known().await;
        let mut old = Vec::new();
        for pod in namespace.wait_pods("app=web", 2, SOON).await.unwrap() {
            scene.wait_healthy(arn, &pod).await;
            let pod = GatedPod::find(namespace, &pod.name_any()).await.unwrap();
            old.push(pod);
        }
        let data_plane = DataPlane::start(scene.fake, arn, &LAGS);
        Self {
            scene,
            data_plane,
            old,
            _controller: controller,
        }
    }

    fn restart(&self) {
        let arguments = ["rollout", "restart", "deployment/web"];
        self.scene.namespace.kubectl(&arguments).unwrap();
    }

    /// Waits until the old pods are gone; what users saw, and each release's Event and seconds.
    ///
    /// No pod may have got SIGTERM before every node had stopped to send to it.
    async fn close(self) -> (Tally, Vec<(String, f64)>) {
        let mut releases = Vec::new();
        for pod in &self.old {
            let sigterm = pod.sigterm().await.unwrap();
            let release = released(pod).await;
            let stopped = self.data_plane.stopped(address(&pod.pod));
            assert!(
                sigterm >= stopped,
                "SIGTERM came {} ms before the data plane had stopped: {release:?}",
                stopped - sigterm
            );
            releases.push(release);
        }
        let tally = self.data_plane.finish();
        assert!(tally.failed.is_empty(), "{:?}", tally.failed);
        assert!(tally.requests > 1_000, "{} requests", tally.requests);
        (tally, releases)
    }
}

/// S58: an ALB goes on sending after its API says `draining`.
#[tokio::test]
async fn rollout_behind_an_alb_fails_no_request() {
    let scene = Scene::begin("alb").await;
    // What kind of load balancer it is has to be asked for.
    let kind = Group::LoadBalancerController;
    let arn = scene.bind(kind, scene.alb("web"), |_| {}).await;
    let shop = Box::pin(Shop::open(&scene, json!({}), &arn)).await;
    shop.restart();
    let (tally, releases) = shop.close().await;
    println!("{} requests, {releases:?}", tally.requests);
    for (released, seconds) in releases {
        assert_settled(&released);
        assert!((19.0..45.0).contains(&seconds), "{released}");
    }
}

#[tokio::test]
async fn rollout_of_prestop_gate_during_the_holds_of_another_loses_no_evidence() {
    let _solitude = solitude().await;
    let scene = Scene::begin_alone("restarted").await;
    let arn = scene.bind_alb("web").await;
    let annotations = json!({annotation::SETTLE: "45s", annotation::MAX_WAIT: "100s"});
    let shop = Box::pin(Shop::open(&scene, annotations, &arn)).await;
    shop.restart();
    shop.old[0].event("HoldBegan").await.unwrap();
    let began = tokio::time::Instant::now();
    // The evidence has to be seen by those who go.
    tokio::time::sleep(s(6)).await;
    restart_prestop_gate(&scene).await;
    let restarted = began.elapsed();
    let (tally, releases) = shop.close().await;
    println!("{} requests, {releases:?}", tally.requests);
    for (released, seconds) in releases {
        assert!(released.contains(": confirmed ("), "{released}");
        // Were it counted from a new replica's first look, it would be as much longer as that came later.
        assert!((45.0..57.0).contains(&seconds), "{released}");
    }
    assert!(
        restarted < s(44),
        "too late to show anything: {restarted:?}"
    );
}

/// Replaces every replica, and waits until the old ones are gone.
async fn restart_prestop_gate(scene: &Scene) {
    let replicas = Api::<Pod>::namespaced(scene.namespace.client().clone(), NAMESPACE);
    let list = async || replicas.list(&ListParams::default()).await.unwrap().items;
    let old = list().await;
    let mut kubectl = scene.namespace.cluster().kubectl();
    kubectl.args(["--namespace", NAMESPACE, "rollout", "restart", "deployment"]);
    process::output(kubectl.arg(NAMESPACE)).unwrap();
    let is_old = |pod: &Pod| old.iter().any(|old| old.uid() == pod.uid());
    while list().await.iter().any(is_old) {
        tokio::time::sleep(s(1)).await;
    }
}

/// S63: the account's bucket is shared with the controller, which deregisters late then.
#[tokio::test]
async fn rollout_while_all_calls_are_throttled_fails_no_request() {
    /// Its bucket is none of the other tests' affair.
    const OTHER_ACCOUNT: &str = "444455556666";
    let scene = Scene::begin("throttled").await;
    let role = Role::new(&scene.unique("reader"), OTHER_ACCOUNT);
    let role_arn = scene.fake.add_role(role.clone());
    let group = TargetGroup {
        account: OTHER_ACCOUNT.to_owned(),
        ..scene.alb("web")
    };
    let kind = Group::LoadBalancerController;
    let arn = scene
        .bind(kind, group, |spec| {
            spec["iamRoleArnToAssume"] = role_arn.into();
            spec["targetGroupProtocol"] = "HTTP".into();
        })
        .await;
    let shop = Box::pin(Shop::open(
        &scene,
        json!({annotation::MAX_WAIT: "120s"}),
        &arn,
    ))
    .await;
    scene.fake.inject(Fault {
        operation: None,
        caller: Some(role.name),
        effect: Effect::Throttled,
        lasting: Lasting::For(s(25)),
    });
    scene.fake.set_foreign_load(OTHER_ACCOUNT, 9.5);
    shop.restart();
    let (tally, releases) = shop.close().await;
    println!("{} requests, {releases:?}", tally.requests);
    for (released, seconds) in releases {
        assert_settled(&released);
        assert!((20.0..110.0).contains(&seconds), "{released}");
    }
}
