//! Installs prestop-gate as a user does, and waits until it is in force.

use std::path::Path;
use std::process::Output;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use sidecar::contract::NAMESPACE;
use tokio::process::Command;
use tokio::time::{sleep, timeout};

use crate::gate;

/// How long the webhook may take to be in force.
const PATIENCE: Duration = Duration::from_secs(90);

/// Runs `kubectl apply -k FOLDER`, and waits until the webhook is available and trusted by the API server.
pub async fn install(client: &Client, kubectl: std::process::Command, folder: &Path) -> Result<()> {
    let mut command = Command::from(kubectl);
    command
        .arg("apply")
        .arg("-k")
        .arg(folder)
        .kill_on_drop(true);
    let Output { status, stderr, .. } = command.output().await.context("failed to run kubectl")?;
    ensure!(
        status.success(),
        "failed to apply {}: {}",
        folder.display(),
        String::from_utf8_lossy(&stderr)
    );
    let ready = async {
        loop {
            match is_in_force(client).await {
                Ok(true) => return,
                // The API server may well be busy now; the last error is not worth more than the time-out.
                Ok(false) | Err(_) => sleep(Duration::from_millis(500)).await,
            }
        }
    };
    if timeout(PATIENCE, ready).await.is_err() {
        bail!(
            "failed to see prestop-gate ready within {} s",
            PATIENCE.as_secs()
        );
    }
    gate::wait_injecting(client).await
}

async fn is_in_force(client: &Client) -> Result<bool> {
    let deployment = Api::<Deployment>::namespaced(client.clone(), NAMESPACE)
        .get(NAMESPACE)
        .await?;
    let available = deployment
        .status
        .and_then(|status| status.available_replicas);
    let wanted = deployment.spec.and_then(|spec| spec.replicas).unwrap_or(1);
    let all = Api::<MutatingWebhookConfiguration>::all(client.clone())
        .list(&ListParams::default())
        .await?;
    let ours: Vec<_> = all
        .iter()
        .filter(|configuration| configuration.name_any().starts_with(NAMESPACE))
        .collect();
    let mut webhooks = ours
        .iter()
        .flat_map(|configuration| configuration.webhooks.iter().flatten());
    let trusted = webhooks.all(|webhook| {
        webhook
            .client_config
            .ca_bundle
            .as_ref()
            .is_some_and(|ca| !ca.0.is_empty())
    });
    Ok(available == Some(wanted) && !ours.is_empty() && trusted)
}
