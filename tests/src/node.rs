//! The command lines and configuration of containerd, the kubelet and kube-proxy.

use std::{fs, process::Command};

use anyhow::{Context, Result};
use serde_json::json;

use crate::{
    control_plane::{binary, write},
    images,
    layout::{DNS_SERVICE_IP, Layout, NODE_IP, NODE_NAME, POD_RANGE},
    netns,
    process::Name,
};

/// containerd with everything of its own: root, state, socket, CNI configuration.
///
/// # Errors
/// When its configuration can't be written.
pub fn containerd(layout: &Layout) -> Result<Command> {
    let cni = layout.state.join("cni");
    fs::create_dir_all(&cni).with_context(|| format!("failed to create {}", cni.display()))?;
    write(layout, "cni/10-test.conflist", &cni_network(layout))?;
    let config = format!(
        r#"version = 2
root = "{state}/containerd"
state = "{run}/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs"]

[grpc]
address = "{run}/containerd.sock"

[plugins."io.containerd.internal.v1.opt"]
path = "{state}/containerd/opt"

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
# Without CAP_SYS_RESOURCE runc dies when it lowers a score.
restrict_oom_score_adj = true
# Pods' network namespaces then go with the state directory.
netns_mounts_under_state_dir = true

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{cni}"
"#,
        state = layout.state.display(),
        run = layout.run().display(),
        cni = cni.display(),
        pause = images::reference("pause"),
    );
    let file = layout.state.join("containerd.toml");
    fs::write(&file, config).with_context(|| format!("failed to write {}", file.display()))?;
    let mut command = netns::command(&layout.node_netns(), "containerd");
    command.arg("--config").arg(file);
    Ok(command)
}

/// Each pod hangs on a veth pair of its own; the node routes. No masquerading: the outside sees
/// pod addresses, as a cloud's load balancer with ip targets does.
fn cni_network(layout: &Layout) -> serde_json::Value {
    json!({
        "cniVersion": "0.4.0",
        "name": layout.cni_network(),
        "plugins": [{
            "type": "ptp",
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": POD_RANGE}]],
                "routes": [{"dst": "0.0.0.0/0"}],
                "dataDir": layout.state.join("cni-addresses"),
            },
        }],
    })
}

/// The kubelet, tuned for many short-lived pods.
///
/// # Errors
/// When its configuration can't be written.
pub fn kubelet(layout: &Layout) -> Result<Command> {
    let root = layout.state.join("kubelet");
    let resolv = layout.state.join("resolv.conf");
    fs::write(&resolv, format!("nameserver {DNS_SERVICE_IP}\n"))
        .with_context(|| format!("failed to write {}", resolv.display()))?;
    let mut config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": format!("unix://{}", layout.containerd_socket().display()),
        "address": "0.0.0.0",
        "tlsCertFile": layout.state.join("kubelet.crt"),
        "tlsPrivateKeyFile": layout.state.join("kubelet.key"),
        // Only the cluster's own namespaces reach this port.
        "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{}", layout.cgroup()),
        "enforceNodeAllocatable": [],
        "failSwapOn": false,
        // Lowering it needs a capability that containers and some machines don't have.
        "oomScoreAdj": 0,
        "evictionHard": {"memory.available": "1Mi", "nodefs.available": "1Mi", "imagefs.available": "1Mi"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "podLogsDir": layout.pod_logs(),
        "resolvConf": resolv,
        // Named though nobody serves it, else every pod gets a MissingClusterDNS Event.
        "clusterDNS": [DNS_SERVICE_IP],
        "clusterDomain": "cluster.local",
        "maxPods": 250,
        "serializeImagePulls": false,
        "registryPullQPS": 0,
        "eventRecordQPS": 0,
        "kubeAPIQPS": 500,
        "kubeAPIBurst": 1000,
        "syncFrequency": "10s",
        "nodeStatusUpdateFrequency": "2s",
    });
    if layout.minor()? >= 35 {
        config["failCgroupV1"] = false.into();
    }
    let file = write(layout, "kubelet.json", &config)?;
    let mut command = binary(layout, Name::Kubelet);
    command.args([
        format!("--config={file}"),
        format!("--kubeconfig={}", layout.kubeconfig_of("kubelet").display()),
        format!("--root-dir={}", root.display()),
        format!("--cert-dir={}", root.join("pki").display()),
        format!("--hostname-override={NODE_NAME}"),
        format!("--node-ip={NODE_IP}"),
    ]);
    Ok(command)
}

/// kube-proxy in iptables mode.
///
/// # Errors
/// When its configuration can't be written.
pub fn kube_proxy(layout: &Layout) -> Result<Command> {
    let file = write(
        layout,
        "kube-proxy.json",
        &json!({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": layout.kubeconfig_of("kube-proxy"), "qps": 500, "burst": 1000},
            "hostnameOverride": NODE_NAME,
            "mode": "iptables",
            "clusterCIDR": POD_RANGE,
            "healthzBindAddress": "0.0.0.0:10256",
            "oomScoreAdj": 0,
            // These sysctls are global to the machine and may not be writable.
            "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
            "iptables": {"minSyncPeriod": "100ms"},
        }),
    )?;
    let mut command = binary(layout, Name::KubeProxy);
    command.arg(format!("--config={file}"));
    Ok(command)
}
