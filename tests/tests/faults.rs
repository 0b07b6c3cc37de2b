//! What only one test at a time may do to the cluster. Cargo runs test files one after the other, so
//! the others never see it.
#![allow(clippy::unwrap_used, reason = "a test that fails shows where")]

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt};
use tests::{Cluster, control::Action, layout::NODE_NAME, process::Name};
use tokio::{sync::Mutex, time::timeout};

/// Held by each test of this file for its whole length.
static EXCLUSIVE: Mutex<()> = Mutex::const_new(());

#[tokio::test]
async fn the_api_server_can_be_stopped_and_started_without_losing_anything() {
    let _exclusive = EXCLUSIVE.lock().await;
    let cluster = Cluster::from_env().unwrap();
    let nodes: Api<Node> = Api::all(cluster.client().await.unwrap());
    let before = nodes.get(NODE_NAME).await.unwrap();
    cluster.stop_apiserver().unwrap();
    nodes.get(NODE_NAME).await.unwrap_err();
    cluster.start_apiserver().await.unwrap();
    let after = nodes.get(NODE_NAME).await.unwrap();
    assert_eq!(before.uid(), after.uid());
}

#[tokio::test]
async fn a_paused_api_server_answers_nothing_until_it_is_resumed() {
    let _exclusive = EXCLUSIVE.lock().await;
    let cluster = Cluster::from_env().unwrap();
    let nodes: Api<Node> = Api::all(cluster.client().await.unwrap());
    cluster.control(Action::Pause, Name::KubeApiserver).unwrap();
    let silent = timeout(Duration::from_secs(2), nodes.get(NODE_NAME)).await;
    cluster
        .control(Action::Resume, Name::KubeApiserver)
        .unwrap();
    silent.unwrap_err();
    timeout(Duration::from_secs(30), nodes.get(NODE_NAME))
        .await
        .unwrap()
        .unwrap();
}
