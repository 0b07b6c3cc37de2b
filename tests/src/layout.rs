//! Where one test cluster lives: every name, path and address it uses, derived from its id.
//!
//! Nothing here touches the system. Several clusters may run at once, so whatever is global on a
//! machine (namespaces, cgroups, directories under `/run`) carries the id.

use std::{
    fs, io,
    net::Ipv4Addr,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// The Kubernetes version that is used when none is named.
pub const DEFAULT_VERSION: &str = "1.34.4";

/// The node's address. All addresses are from ranges kept for documentation and benchmarks
/// (RFC 5737, RFC 2544), so that they never collide with a real network.
pub const NODE_IP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// The address of the outside namespace, where clients and load balancers live.
pub const OUTSIDE_IP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 254);
/// The range pods get their addresses from.
pub const POD_RANGE: &str = "198.18.0.0/16";
/// The range of cluster IPs.
pub const SERVICE_RANGE: &str = "198.19.0.0/16";
/// Both ranges in one route.
pub const POD_AND_SERVICE_RANGE: &str = "198.18.0.0/15";
/// The cluster IP of the API server, by rule the first of the range.
pub const API_SERVICE_IP: Ipv4Addr = Ipv4Addr::new(198, 19, 0, 1);
/// The cluster IP where a DNS server would be. There is none: dialling it is refused at once.
pub const DNS_SERVICE_IP: Ipv4Addr = Ipv4Addr::new(198, 19, 0, 10);
/// The API server's address for everything in the node's and the outside namespace.
pub const API_SERVER: &str = "https://192.0.2.1:6443";
/// The name of the only node.
pub const NODE_NAME: &str = "node";

/// Sockets and the lock live here and not under `target/`, because a unix socket's path may have
/// 107 characters only.
const RUN_PREFIX: &str = "/run/prestop-gate-test-";

/// The names and paths of one cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Short name, unique on this machine: `dev`, `r1234`.
    pub id: String,
    /// Kubernetes version without the `v`.
    pub version: String,
    /// What is too big or too long-named for `/run`: etcd's data, containerd's root, the kubelet's root.
    pub state: PathBuf,
    /// One log file for each component. Kept after the cluster is gone.
    pub logs: PathBuf,
    /// The folder of the Kubernetes binaries, `kubectl` among them.
    pub binaries: PathBuf,
}

impl Layout {
    /// Names a new cluster whose files live under this workspace's `target/`.
    pub fn new(id: &str, version: &str) -> Self {
        let target = workspace().join("target");
        // Mount points are compared with these paths, and the kernel knows no links.
        let target = target.canonicalize().unwrap_or(target);
        Self {
            id: id.to_owned(),
            version: version.to_owned(),
            state: target.join("cluster").join(id),
            logs: target.join("cluster-logs").join(id),
            binaries: target.join("kubernetes").join(format!("v{version}")),
        }
    }

    /// Reads the names of a cluster that was started before, perhaps from another checkout.
    ///
    /// # Errors
    /// When there is no such cluster, or it died before it could write its names down.
    pub fn load(id: &str) -> Result<Self> {
        let file = run_dir(id).join("layout.json");
        let text = fs::read(&file).with_context(|| format!("failed to read {}", file.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("failed to parse {}", file.display()))
    }

    /// Writes the names where [`Layout::load`] finds them. The run directory must exist.
    ///
    /// # Errors
    /// When the file can't be written.
    pub fn save(&self) -> Result<()> {
        let file = self.run().join("layout.json");
        fs::write(&file, serde_json::to_vec_pretty(self)?)
            .with_context(|| format!("failed to write {}", file.display()))
    }

    /// The directory of sockets, the lock and containerd's state.
    pub fn run(&self) -> PathBuf {
        run_dir(&self.id)
    }

    /// Held (`flock`) by the supervising process for as long as it lives; the kernel drops it with
    /// the process, so a lock that can be had means that the cluster was left behind.
    pub fn lock(&self) -> PathBuf {
        self.run().join("lock")
    }

    /// Where the supervising process takes requests to stop and start components.
    pub fn control_socket(&self) -> PathBuf {
        self.run().join("control.sock")
    }

    /// containerd's socket, for the kubelet and `ctr`.
    pub fn containerd_socket(&self) -> PathBuf {
        self.run().join("containerd.sock")
    }

    /// The network namespace of the node and the control plane.
    pub fn node_netns(&self) -> String {
        format!("pg-{}-node", self.id)
    }

    /// The network namespace of clients and load balancers.
    pub fn outside_netns(&self) -> String {
        format!("pg-{}-out", self.id)
    }

    /// The cgroup, below each hierarchy's root, that holds every pod of this cluster.
    pub fn cgroup(&self) -> String {
        format!("prestop-gate-{}", self.id)
    }

    /// The CNI network's name.
    pub fn cni_network(&self) -> String {
        format!("pg-{}", self.id)
    }

    /// The administrator's kubeconfig. It works in the outside namespace and in the node's.
    pub fn kubeconfig(&self) -> PathBuf {
        self.kubeconfig_of("admin")
    }

    /// The kubeconfig of `user`, one of the components.
    pub fn kubeconfig_of(&self, user: &str) -> PathBuf {
        self.state.join(format!("{user}.kubeconfig"))
    }

    /// The certificate authority that signed the API server's certificate.
    pub fn ca(&self) -> PathBuf {
        self.state.join("ca.crt")
    }

    /// Where the kubelet keeps the logs of pods: `NAMESPACE_POD_UID/CONTAINER/STARTS.log`.
    pub fn pod_logs(&self) -> PathBuf {
        self.state.join("pod-logs")
    }

    /// The log file of a component.
    pub fn log(&self, component: &str) -> PathBuf {
        self.logs.join(format!("{component}.log"))
    }

    /// The minor version, 34 for 1.34.4.
    ///
    /// # Errors
    /// When the version isn't of the form `1.MINOR.PATCH`.
    pub fn minor(&self) -> Result<u32> {
        let minor = self
            .version
            .strip_prefix("1.")
            .and_then(|rest| rest.split('.').next());
        minor.and_then(|minor| minor.parse().ok()).with_context(|| {
            format!(
                "failed to parse Kubernetes version {:?}, want 1.MINOR.PATCH",
                self.version
            )
        })
    }
}

/// The workspace's root directory.
pub fn workspace() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    root.expect("the tests crate must be in the workspace")
        .to_owned()
}

/// The run directory of the cluster `id`.
pub fn run_dir(id: &str) -> PathBuf {
    PathBuf::from(format!("{RUN_PREFIX}{id}"))
}

/// The ids of all clusters that have a run directory on this machine, running or left behind.
///
/// # Errors
/// When `/run` can't be read.
pub fn known_ids() -> io::Result<Vec<String>> {
    let mut ids = Vec::new();
    for entry in fs::read_dir("/run")? {
        let path = entry?.path();
        if let Some(id) = path.to_str().and_then(|path| path.strip_prefix(RUN_PREFIX)) {
            ids.push(id.to_owned());
        }
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_fit_into_a_unix_socket_address() {
        let layout = Layout::new("r4194304", DEFAULT_VERSION);
        // containerd adds ".ttrpc" to its own.
        assert!(layout.containerd_socket().as_os_str().len() + ".ttrpc".len() < 108);
        assert!(layout.control_socket().as_os_str().len() < 108);
    }

    #[test]
    fn minor_version_is_read_from_the_middle() {
        assert_eq!(Layout::new("a", "1.34.4").minor().unwrap(), 34);
        assert!(Layout::new("a", "v1.34.4").minor().is_err());
    }
}
