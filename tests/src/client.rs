//! Kubernetes clients of the test cluster.

use std::path::Path;

use anyhow::{Context, Result};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

/// A client from a kubeconfig. Only makes sense in the outside namespace or the node's.
///
/// # Errors
/// When the file can't be read or used.
pub async fn connect(kubeconfig: &Path) -> Result<Client> {
    // Fails if another part of the process was first, which is as good.
    drop(rustls::crypto::ring::default_provider().install_default());
    let text = Kubeconfig::read_from(kubeconfig)
        .with_context(|| format!("failed to read {}", kubeconfig.display()))?;
    let config = Config::from_custom_kubeconfig(text, &KubeConfigOptions::default()).await;
    let config = config.with_context(|| format!("failed to use {}", kubeconfig.display()))?;
    Client::try_from(config).context("failed to make a Kubernetes client")
}
