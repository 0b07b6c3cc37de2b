//! The running cluster as a test sees it: from inside `cluster run -- …`.

use std::{collections::BTreeSet, path::PathBuf, process::Command, time::Duration};

use anyhow::{Context, Result, bail};
use kube::Client;
use rustix::process::Signal;
use tokio::time::{Instant, sleep};

use crate::{
    cgroup, client,
    control::{self, Action, Request},
    images,
    layout::Layout,
    process::{self, Name},
    start,
};

/// The variable that names the cluster to everything that `cluster run` starts.
pub const ID: &str = "PRESTOP_GATE_TEST_ID";

/// A handle on the running cluster.
#[derive(Debug, Clone)]
pub struct Cluster {
    layout: Layout,
}

impl Cluster {
    /// The cluster that this process was started in.
    ///
    /// # Errors
    /// When it wasn't started by `cluster run`.
    #[expect(
        clippy::disallowed_methods,
        reason = "the test runner leaves no other way"
    )]
    pub fn from_env() -> Result<Self> {
        let id = std::env::var(ID).with_context(|| {
            format!("failed to find a cluster: {ID} is not set (run `make test`)")
        })?;
        Ok(Self {
            layout: Layout::load(&id)?,
        })
    }

    /// All names and paths of the cluster.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// A client with the administrator's rights.
    ///
    /// # Errors
    /// When the kubeconfig can't be used.
    pub async fn client(&self) -> Result<Client> {
        client::connect(&self.layout.kubeconfig()).await
    }

    /// `kubectl` of the cluster's version with the administrator's kubeconfig.
    pub fn kubectl(&self) -> Command {
        let mut command = Command::new(self.layout.binaries.join("kubectl"));
        command.arg("--kubeconfig").arg(self.layout.kubeconfig());
        command
    }

    /// containerd's client.
    pub fn ctr(&self) -> Command {
        images::ctr(&self.layout)
    }

    /// The log file of a component.
    pub fn log(&self, component: Name) -> PathBuf {
        self.layout.log(component.as_str())
    }

    /// Asks the supervising process to do something to a component; answers its process id.
    ///
    /// # Errors
    /// When that fails.
    pub fn control(&self, action: Action, component: Name) -> Result<Option<u32>> {
        Ok(control::ask(&self.layout.control_socket(), Request { action, component })?.pid)
    }

    /// Ends the API server at once. Every watch and long-poll of the cluster breaks.
    ///
    /// # Errors
    /// When it can't be ended.
    pub fn stop_apiserver(&self) -> Result<()> {
        self.control(Action::Kill, Name::KubeApiserver).map(drop)
    }

    /// Starts the API server again and waits until it is ready.
    ///
    /// # Errors
    /// When it isn't ready within a minute.
    pub async fn start_apiserver(&self) -> Result<()> {
        self.control(Action::Start, Name::KubeApiserver)?;
        let client = self.client().await?;
        let deadline = Instant::now() + Duration::from_mins(1);
        while !start::is_api_ready(&client).await {
            if Instant::now() > deadline {
                bail!(
                    "failed to restart the API server: {}",
                    process::last_lines(&self.log(Name::KubeApiserver))
                );
            }
            sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    /// The processes of a container, as seen from the machine. `id` is the one in the pod's status,
    /// with or without `containerd://`.
    pub fn container_processes(&self, id: &str) -> BTreeSet<u32> {
        cgroup::container_processes(
            &self.layout.cgroup(),
            id.trim_start_matches("containerd://"),
        )
    }

    /// Sends a signal to every process of a container, as the kernel or an operator would.
    ///
    /// # Errors
    /// When the container has no process.
    pub fn signal_container(&self, id: &str, kind: Signal) -> Result<()> {
        let found = self.container_processes(id);
        if found.is_empty() {
            bail!("failed to signal container {id}: it has no process");
        }
        found
            .into_iter()
            .try_for_each(|pid| process::signal(pid, kind))
    }
}
