//! Holds for those who can't inject.

use http::StatusCode;
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::{Pod, Secret, Service};
use kube::api::DeleteParams;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::{Value, json};
use sidecar::contract::{
    CONFIRMER_SERVICE, DRAIN_DELAY_PATH, NAMESPACE, TOKEN_AUDIENCE, annotation,
};
use tests::TestNamespace;
use tests::gate::{SOON, unix_ms};

use super::scene::{Scene, address, mk_pod, mk_settle};

/// Asks the confirmer as curl would, from outside the cluster, with a certificate that its Secret's authority signed.
async fn drain_delay(client: &Client, token: &str) -> (StatusCode, String) {
    let secrets = Api::<Secret>::namespaced(client.clone(), NAMESPACE);
    let secret = secrets.get("prestop-gate-confirmer-tls").await.unwrap();
    let services = Api::<Service>::namespaced(client.clone(), NAMESPACE);
    let service = services.get(CONFIRMER_SERVICE).await.unwrap();
    let ip = service.spec.unwrap().cluster_ip.unwrap();
    let confirmer = json!({
        "server": format!("https://{ip}"),
        "certificate-authority-data": secret.data.unwrap()["ca.crt"],
        "tls-server-name": format!("{CONFIRMER_SERVICE}.{NAMESPACE}.svc"),
    });
    // Only a client with a token is wanted, but this one trusts nobody else.
    let kubeconfig = json!({
        "clusters": [{"name": "confirmer", "cluster": confirmer}],
        "users": [{"name": "pod", "user": {"token": token}}],
        "contexts": [{"name": "asked", "context": {"cluster": "confirmer", "user": "pod"}}],
        "current-context": "asked",
    });
    let kubeconfig: Kubeconfig = serde_json::from_value(kubeconfig).unwrap();
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
    let config = config.unwrap();
    let confirmer = Client::try_from(config).unwrap();
    let request = http::Request::get(format!("{DRAIN_DELAY_PATH}?max-wait=60s"));
    let request = request.body(Body::empty()).unwrap();
    let response = confirmer.send(request).await.unwrap();
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8_lossy(&body).into_owned())
}

fn token(namespace: &TestNamespace, pod: &Pod, audience: &str) -> String {
    let uid = pod.metadata.uid.as_deref().unwrap();
    let name = pod.metadata.name.as_deref().unwrap();
    let arguments = [
        &["create", "token", "default", "--audience", audience][..],
        &["--bound-object-kind", "Pod", "--bound-object-name", name],
        &["--bound-object-uid", uid],
    ];
    let token = namespace.kubectl(&arguments.concat()).unwrap();
    token.trim().to_owned()
}

#[tokio::test]
async fn drain_delay_of_a_pod_that_is_not_injected_ends_when_its_group_has_let_go() {
    let scene = Scene::begin("asked").await;
    let arn = scene.bind_alb("web").await;
    let (_, other) = scene.pair(mk_settle(5)).await;
    let mut own = mk_pod("own", json!({annotation::INJECT: "false"}));
    own["spec"]["containers"][0]["args"] = json!(["serve", "--ignore-sigterm"]);
    scene.namespace.apply(own).await.unwrap();
    let pod = scene.namespace.wait_ready("own", SOON).await.unwrap();
    for target in [address(&pod), address(&other.pod)] {
        scene.fake.register(&arn, target);
    }
    let client = scene.namespace.client();
    let right = token(&scene.namespace, &pod, TOKEN_AUDIENCE);
    let wrong = token(&scene.namespace, &pod, "sts.amazonaws.com");

    let (status, text) = drain_delay(client, &wrong).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED, "{text}");
    let (status, text) = drain_delay(client, &right).await;
    assert_eq!(status, StatusCode::CONFLICT, "{text}");
    assert!(text.contains("delete it first"), "{text}");

    let pods = scene.namespace.api::<Pod>();
    let long = DeleteParams::default().grace_period(90);
    pods.delete("own", &long).await.unwrap();
    let deregister = async {
        tokio::time::sleep(super::s(4)).await;
        scene.fake.deregister(&arn, address(&pod));
        unix_ms()
    };
    let answer = async {
        let answer = drain_delay(client, &right).await;
        (answer, unix_ms())
    };
    let (deregistered, ((status, text), answered)) = tokio::join!(deregister, answer);
    assert_eq!(status, StatusCode::OK, "{text}");
    let told: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(told["verdict"], "go", "{told}");
    let reason = told["reason"].as_str().unwrap();
    assert!(["confirmed", "settled"].contains(&reason), "{told}");
    // The pod has no say in its settle: an ALB's 20 s.
    let waited = answered - deregistered;
    assert!((19_900..45_000).contains(&waited), "{waited} ms: {told}");
    let now = DeleteParams::default().grace_period(0);
    pods.delete("own", &now).await.unwrap();
}
