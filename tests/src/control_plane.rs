//! The command lines of etcd, the API server, the controller manager and the scheduler.

use std::{fs, process::Command};

use anyhow::{Context, Result};
use serde_json::json;

use crate::{
    layout::{Layout, NODE_IP, POD_RANGE, SERVICE_RANGE},
    netns,
    process::Name,
};

/// The address of etcd's client port, in the node's namespace.
const ETCD: &str = "http://127.0.0.1:2379";

/// A command that runs a component's own binary in the node's network namespace.
pub fn binary(layout: &Layout, name: Name) -> Command {
    netns::command(&layout.node_netns(), layout.binaries.join(name.as_str()))
}

/// etcd, its data thrown away with the cluster.
pub fn etcd(layout: &Layout) -> Command {
    let peer = "http://127.0.0.1:2380";
    let mut command = netns::command(&layout.node_netns(), "etcd");
    command.arg("--data-dir").arg(layout.state.join("etcd"));
    command.args([
        "--listen-client-urls",
        ETCD,
        "--advertise-client-urls",
        ETCD,
    ]);
    command.args([
        "--listen-peer-urls",
        peer,
        "--initial-advertise-peer-urls",
        peer,
    ]);
    command.args(["--initial-cluster", &format!("default={peer}")]);
    command
}

/// The API server, with authorisation as in production: a missing role must show in a test.
pub fn apiserver(layout: &Layout) -> Command {
    let state = |file: &str| layout.state.join(file).display().to_string();
    let mut command = binary(layout, Name::KubeApiserver);
    command.args([
        "--advertise-address".to_owned(),
        NODE_IP.to_string(),
        format!("--etcd-servers={ETCD}"),
        format!("--service-cluster-ip-range={SERVICE_RANGE}"),
        "--authorization-mode=Node,RBAC".to_owned(),
        "--allow-privileged".to_owned(),
        "--enable-admission-plugins=NodeRestriction".to_owned(),
        format!("--token-auth-file={}", state("tokens.csv")),
        format!("--tls-cert-file={}", state("apiserver.crt")),
        format!("--tls-private-key-file={}", state("apiserver.key")),
        format!(
            "--service-account-key-file={}",
            state("service-account.key")
        ),
        format!(
            "--service-account-signing-key-file={}",
            state("service-account.key")
        ),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        "--kubelet-preferred-address-types=InternalIP".to_owned(),
        "--profiling=false".to_owned(),
    ]);
    command
}

/// The controller manager, without the controllers that need a cloud or hand out node ranges.
pub fn controller_manager(layout: &Layout) -> Command {
    let absent = "*,-node-ipam-controller,-node-route-controller,-cloud-node-lifecycle-controller,-service-lb-controller";
    let mut command = binary(layout, Name::KubeControllerManager);
    command.args([
        format!(
            "--kubeconfig={}",
            layout.kubeconfig_of("kube-controller-manager").display()
        ),
        format!("--controllers={absent}"),
        format!("--root-ca-file={}", layout.ca().display()),
        format!(
            "--service-account-private-key-file={}",
            layout.state.join("service-account.key").display()
        ),
        "--use-service-account-credentials".to_owned(),
        "--leader-elect=false".to_owned(),
        format!("--cluster-cidr={POD_RANGE}"),
        "--kube-api-qps=500".to_owned(),
        "--kube-api-burst=1000".to_owned(),
        "--concurrent-namespace-syncs=20".to_owned(),
        "--concurrent-deployment-syncs=20".to_owned(),
        "--concurrent-replicaset-syncs=20".to_owned(),
        "--concurrent-service-endpoint-syncs=20".to_owned(),
    ]);
    command
}

/// The scheduler.
///
/// # Errors
/// When its configuration can't be written.
pub fn scheduler(layout: &Layout) -> Result<Command> {
    let kubeconfig = layout.kubeconfig_of("kube-scheduler");
    let file = write(
        layout,
        "kube-scheduler.json",
        &json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": kubeconfig, "qps": 500, "burst": 1000},
            "leaderElection": {"leaderElect": false},
        }),
    )?;
    let mut command = binary(layout, Name::KubeScheduler);
    command.arg(format!("--config={file}"));
    Ok(command)
}

/// Writes a component's configuration and returns its path.
pub(crate) fn write(layout: &Layout, name: &str, value: &serde_json::Value) -> Result<String> {
    let file = layout.state.join(name);
    fs::write(&file, format!("{value:#}\n"))
        .with_context(|| format!("failed to write {}", file.display()))?;
    Ok(file.display().to_string())
}
