//! Puts together what injection needs: flags, the confirmer's authority and its ClusterIP.

use std::pin::pin;
use std::sync::Arc;

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Service;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::watch_object;
use kube::{Api, Client};
use sidecar::contract::{CONFIRMER_SERVICE, NAMESPACE, server_name};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::admission::SharedConfig;
use crate::inject::InjectConfig;
use crate::readiness::BlockReady;
use crate::secrets::Trust;

/// Port of the confirmer's Service.
const PORT: u16 = 443;

/// What the flags say; the rest is filled in.
#[derive(Debug, Clone)]
pub struct Template(pub InjectConfig);

impl Template {
    /// The configuration for pods that reach the confirmer at `cluster_ip` and trust `trust`.
    fn fill(&self, trust: &Trust, cluster_ip: Option<&str>) -> InjectConfig {
        InjectConfig {
            confirmer: addresses(cluster_ip),
            server_name: server_name(&trust.key_id),
            ca_pem: trust.ca_pem.clone(),
            ..self.0.clone()
        }
    }
}

/// The ClusterIP first, since it needs no resolver; then the DNS name, which outlives a Service made anew.
fn addresses(cluster_ip: Option<&str>) -> String {
    let name = format!("{CONFIRMER_SERVICE}.{NAMESPACE}.svc:{PORT}");
    match cluster_ip {
        Some(ip) if ip.contains(':') => format!("[{ip}]:{PORT},{name}"),
        Some(ip) => format!("{ip}:{PORT},{name}"),
        None => name,
    }
}

/// The ClusterIP of a Service that has one.
fn cluster_ip(service: &Service) -> Option<String> {
    let ip = service.spec.as_ref()?.cluster_ip.clone()?;
    (!ip.is_empty() && ip != "None").then_some(ip)
}

/// Keeps `config` complete until dropped; `ready` is released with the first one.
pub async fn keep(
    client: Client,
    template: Template,
    mut trust: watch::Receiver<Option<Trust>>,
    config: SharedConfig,
    ready: BlockReady,
) {
    let api = Api::<Service>::namespaced(client, NAMESPACE);
    let mut services = pin!(
        watch_object(api, CONFIRMER_SERVICE)
            .default_backoff()
            .inspect_err(|error| warn!(%error, "Failed to watch the confirmer's Service"))
            .filter_map(async |service| service.ok())
    );
    let mut ready = Some(ready);
    // `None`: not known yet. Without a Service the name is all that pods can be given.
    let mut ip: Option<Option<String>> = None;
    loop {
        tokio::select! {
            Some(service) = services.next() => ip = Some(service.as_ref().and_then(cluster_ip)),
            Ok(()) = trust.changed() => {}
            else => return,
        }
        let (Some(ip), Some(trust)) = (&ip, trust.borrow_and_update().clone()) else {
            continue;
        };
        let filled = template.fill(&trust, ip.as_deref());
        if config.load().as_deref() != Some(&filled) {
            info!(
                confirmer = filled.confirmer,
                server_name = filled.server_name,
                "Injection is configured"
            );
            config.store(Some(Arc::new(filled)));
        }
        ready.take();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cluster_ip_comes_before_the_name_in_either_family() {
        let name = "prestop-gate-confirmer.prestop-gate.svc:443";
        assert_eq!(
            addresses(Some("198.19.0.7")),
            format!("198.19.0.7:443,{name}")
        );
        assert_eq!(addresses(Some("fd00::7")), format!("[fd00::7]:443,{name}"));
        assert_eq!(addresses(None), name);
    }

    #[test]
    fn headless_service_has_no_cluster_ip() {
        let service = |ip| {
            serde_json::from_value(json!({"spec": {"clusterIP": ip}}))
                .expect("the Service must decode")
        };
        assert_eq!(
            cluster_ip(&service("198.19.0.7")),
            Some("198.19.0.7".to_owned())
        );
        assert_eq!(cluster_ip(&service("None")), None);
        assert_eq!(cluster_ip(&service("")), None);
    }
}
