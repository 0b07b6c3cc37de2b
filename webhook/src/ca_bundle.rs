//! Keeps the `caBundle` of our webhook configuration what the webhook's Secret says.
//!
//! The manifests have no `caBundle`, and applying them (or another tool's reset) may take it away again. So the
//! configuration is watched, and patched only where it differs. All replicas want the same value, and a patch that
//! changes nothing makes no new version: they can't fight.

use std::pin::pin;
use std::time::Duration;

use futures::StreamExt as _;
use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, Patch, PatchOperation, TestOperation};
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::api::PatchParams;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::watch_object;
use kube::{Api, Client};
use sidecar::contract;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, info, info_span, warn};

use crate::readiness::BlockReady;
use crate::secrets::Trust;

/// Name of our `MutatingWebhookConfiguration`.
pub const CONFIGURATION: &str = "prestop-gate";

/// Shortest time between two patches, in case another tool keeps resetting the value.
const PATCH_PAUSE: Duration = Duration::from_secs(1);

/// Longest time for a patch.
const PATCH_LIMIT: Duration = Duration::from_secs(30);

/// First and longest pause after a failed patch.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));

/// Keeps the configuration until `shutdown`; `ready` is released once the API servers can trust us, or there is no
/// configuration to be patched. Errors are logged and tried again.
pub async fn keep(
    client: Client,
    trust: watch::Receiver<Option<Trust>>,
    ready: BlockReady,
    shutdown: CancellationToken,
) {
    let keeper = Keeper {
        api: Api::all(client),
        trust,
        ready: Some(ready),
        found: None,
    };
    let run = async {
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = keeper.run() => {}
        }
    };
    run.instrument(info_span!("ca_bundle", name = CONFIGURATION))
        .await;
}

struct Keeper {
    api: Api<MutatingWebhookConfiguration>,
    trust: watch::Receiver<Option<Trust>>,
    ready: Option<BlockReady>,
    found: Option<MutatingWebhookConfiguration>,
}

impl Keeper {
    async fn run(mut self) {
        let mut events = pin!(watch_object(self.api.clone(), CONFIGURATION).default_backoff());
        let mut synced = false;
        let mut retry_at = None;
        let mut pause = RETRY.0;
        loop {
            let retry = async {
                match retry_at {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                event = events.next() => match event {
                    Some(Ok(found)) => {
                        self.found = found;
                        synced = true;
                    }
                    Some(Err(error)) => {
                        warn!(%error, "Failed to watch the webhook configuration");
                        continue;
                    }
                    None => return,
                },
                changed = self.trust.changed() => if changed.is_err() {
                    // The Secret's keeper has ended: so do we.
                    return;
                },
                () = retry => {}
            }
            if !synced {
                continue;
            }
            (retry_at, pause) = match self.reconcile().await {
                Ok(patched) => {
                    if patched {
                        tokio::time::sleep(PATCH_PAUSE).await;
                    }
                    (None, RETRY.0)
                }
                Err(error) => {
                    warn!(%error, "Failed to patch the webhook configuration, trying again");
                    (Some(Instant::now() + pause), RETRY.1.min(pause * 2))
                }
            };
        }
    }

    /// Patches where needed; whether it did.
    async fn reconcile(&mut self) -> Result<bool, Box<dyn std::error::Error + Send + Sync>> {
        let trust = self.trust.borrow_and_update().clone();
        let Some(trust) = trust else {
            return Ok(false);
        };
        let patch = self
            .found
            .as_ref()
            .map(|found| patch(found, &trust.ca_pem))
            .unwrap_or_default();
        let is_needed = !patch.0.is_empty();
        if is_needed {
            let (params, patch) = (PatchParams::default(), kube::api::Patch::Json::<()>(patch));
            let patched = self.api.patch(CONFIGURATION, &params, &patch);
            self.found = Some(tokio::time::timeout(PATCH_LIMIT, patched).await??);
            info!("Patched the caBundle into the webhook configuration");
        }
        self.ready = None;
        Ok(is_needed)
    }
}

/// What makes every entry of `configuration` that calls our Service trust `ca_pem`; empty where all do.
///
/// Each entry's name is tested, so that a list that was changed meanwhile isn't patched at the wrong place.
fn patch(configuration: &MutatingWebhookConfiguration, ca_pem: &str) -> Patch {
    let wanted = ByteString(ca_pem.as_bytes().to_vec());
    let mut operations = Vec::new();
    for (index, webhook) in configuration.webhooks.iter().flatten().enumerate() {
        let config = &webhook.client_config;
        let is_ours = config.service.as_ref().is_some_and(|service| {
            service.name == contract::WEBHOOK_SERVICE && service.namespace == contract::NAMESPACE
        });
        if !is_ours || config.ca_bundle.as_ref() == Some(&wanted) {
            continue;
        }
        let index = index.to_string();
        operations.push(PatchOperation::Test(TestOperation {
            path: PointerBuf::from_tokens(["webhooks", &index, "name"]),
            value: webhook.name.clone().into(),
        }));
        operations.push(PatchOperation::Add(AddOperation {
            path: PointerBuf::from_tokens(["webhooks", &index, "clientConfig", "caBundle"]),
            value: serde_json::json!(wanted),
        }));
    }
    Patch(operations)
}

#[cfg(test)]
mod tests;
