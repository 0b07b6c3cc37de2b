//! What must hold of the test cluster itself before anything else is worth testing on it.
#![allow(clippy::unwrap_used, reason = "a test that fails shows where")]

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, ResourceExt, api::DeleteParams};
use serde_json::json;
use tests::{
    Cluster, ContainerLog, TestNamespace, images,
    layout::NODE_NAME,
    namespace::{container_id, is_ready},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::Instant,
};

/// Longer than a pod needs on a busy machine.
const SOON: Duration = Duration::from_mins(1);

fn app(name: &str) -> serde_json::Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "containers": [{
                "name": "app",
                "image": images::reference("app"),
                "args": ["serve", "--port", "8080"],
                "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}, "periodSeconds": 1},
            }],
        },
    })
}

#[tokio::test]
async fn the_node_is_ready_and_runs_the_wanted_version() {
    let cluster = Cluster::from_env().unwrap();
    let nodes: Api<Node> = Api::all(cluster.client().await.unwrap());
    let status = nodes.get(NODE_NAME).await.unwrap().status.unwrap();
    assert!(
        status
            .conditions
            .unwrap()
            .iter()
            .any(|it| it.type_ == "Ready" && it.status == "True")
    );
    let version = status.node_info.unwrap().kubelet_version;
    assert_eq!(version, format!("v{}", cluster.layout().version));
}

#[tokio::test]
async fn a_pod_from_scratch_starts_gets_sigterm_and_goes_before_its_grace_ends() {
    let cluster = Cluster::from_env().unwrap();
    let namespace = TestNamespace::create(&cluster, "pod", &[]).await.unwrap();
    namespace.apply(app("one")).await.unwrap();
    let pod = namespace.wait_ready("one", SOON).await.unwrap();
    let id = container_id(&pod, "app").unwrap();
    assert!(!cluster.container_processes(&id).is_empty());

    let log = ContainerLog::open(&cluster, &pod, "app").unwrap();
    let begun = Instant::now();
    namespace
        .api::<Pod>()
        .delete("one", &DeleteParams::default())
        .await
        .unwrap();
    namespace
        .wait_gone("one", &pod.uid().unwrap(), SOON)
        .await
        .unwrap();
    let took = begun.elapsed();
    assert!(
        took < Duration::from_secs(15),
        "{took:?}: SIGTERM did not reach the app, grace is 30 s"
    );
    log.record("sigterm").unwrap();
    log.record("exit").unwrap();
    assert!(cluster.container_processes(&id).is_empty());
}

#[tokio::test]
async fn a_service_answers_on_its_cluster_ip_from_outside_and_exec_works() {
    let cluster = Cluster::from_env().unwrap();
    let namespace = TestNamespace::create(&cluster, "service", &[])
        .await
        .unwrap();
    namespace.apply(app("web")).await.unwrap();
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]},
    });
    let service = namespace.apply(service).await.unwrap();
    let address = service.data["spec"]["clusterIP"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(is_ready(&namespace.wait_ready("web", SOON).await.unwrap()));

    let answer = tokio::time::timeout(SOON, async {
        loop {
            match get(&address).await {
                Ok(answer) => return answer,
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    });
    let answer = answer.await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(
        answer.contains("web"),
        "the pod's name is in the answer: {answer}"
    );

    namespace
        .kubectl(&["exec", "web", "--", "/app", "record", "said by exec"])
        .unwrap();
    assert!(
        namespace
            .logs("web", "app")
            .await
            .unwrap()
            .contains("said by exec")
    );
}

async fn get(address: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect((address, 80)).await?;
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n")
        .await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}
