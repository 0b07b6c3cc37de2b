//! Puts together what injection needs: flags, the confirmer's authority and its ClusterIP, and which pods something
//! slow sends to.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Service;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::watch_object;
use kube::{Api, Client};
use sidecar::contract::{CONFIRMER_SERVICE, NAMESPACE, server_name};
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{debug, info, warn};

use crate::admission::SharedConfig;
use crate::confirmer::watches::World;
use crate::inject::{InjectConfig, SlowSelectors};
use crate::readiness::BlockReady;
use crate::secrets::Trust;

/// Port of the confirmer's Service.
const PORT: u16 = 443;

/// Least time between two looks at what something slow sends to: bindings may change many times a second, and a new
/// one needs longer than that to get its first targets.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What the flags say; the rest is filled in.
#[derive(Debug, Clone)]
pub struct Template(pub InjectConfig);

impl Template {
    /// The configuration for pods that reach the confirmer at `cluster_ip` and trust `trust`.
    fn fill(
        &self,
        trust: &Trust,
        cluster_ip: Option<&str>,
        slow: &Arc<SlowSelectors>,
    ) -> InjectConfig {
        InjectConfig {
            slow: Arc::clone(slow),
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
    trust: watch::Receiver<Option<Trust>>,
    world: World,
    config: SharedConfig,
    ready: BlockReady,
) {
    let (sender, slow) = watch::channel(None);
    tokio::select! {
        () = look(&world, &sender) => {}
        () = fill(client, template, trust, slow, config, ready) => {}
    }
}

/// Tells what something slow sends to, as soon as the watches are complete, and whenever that changes.
async fn look(world: &World, slow: &watch::Sender<Option<Arc<SlowSelectors>>>) {
    let mut references = world.references();
    // Both senders live in `world`.
    if world.synced().wait_for(Option::is_some).await.is_err() {
        return;
    }
    loop {
        references.mark_unchanged();
        let now = world.slow_selectors();
        slow.send_if_modified(|known| {
            let is_new = known.as_deref() != Some(&now);
            if is_new {
                *known = Some(Arc::new(now));
            }
            is_new
        });
        sleep(LOOK_EVERY).await;
        if references.changed().await.is_err() {
            return;
        }
    }
}

async fn fill(
    client: Client,
    template: Template,
    mut trust: watch::Receiver<Option<Trust>>,
    mut slow: watch::Receiver<Option<Arc<SlowSelectors>>>,
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
            Ok(()) = slow.changed() => {}
            else => return,
        }
        let known = (
            trust.borrow_and_update().clone(),
            slow.borrow_and_update().clone(),
        );
        let (Some(ip), (Some(trust), Some(slow))) = (&ip, known) else {
            continue;
        };
        let filled = template.fill(&trust, ip.as_deref(), &slow);
        let before = config.load();
        if before.as_deref() != Some(&filled) {
            let is_same = before.as_ref().is_some_and(|before| {
                before.confirmer == filled.confirmer && before.server_name == filled.server_name
            });
            if is_same {
                debug!("What slow load balancers send to has changed");
            } else {
                info!(
                    confirmer = filled.confirmer,
                    server_name = filled.server_name,
                    "Injection is configured"
                );
            }
            config.store(Some(Arc::new(filled)));
        }
        ready.take();
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use serde_json::json;
    use tokio::time::Instant;

    use super::*;
    use crate::confirmer::watches::{Progress, Source};

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

    /// Injection waits for the watches, then follows them without being restless.
    #[tokio::test(start_paused = true)]
    async fn slow_selectors_are_told_when_all_is_known_and_at_most_once_a_second() {
        let world = World::default();
        let (sender, mut slow) = watch::channel(None);
        let watched = world.clone();
        tokio::spawn(async move { look(&watched, &sender).await });
        let add = |name: &str| {
            let service = json!({"metadata": {"name": name, "namespace": "shop"}, "spec": {
                "type": "LoadBalancer", "loadBalancerClass": "example.com/lb", "selector": {"app": name},
            }});
            let service = serde_json::from_value(service).expect("the Service must decode");
            world.on_service(Event::Apply(service), Instant::now());
        };
        add("a");
        sleep(Duration::from_mins(1)).await;
        assert!(slow.borrow_and_update().is_none(), "it isn't complete yet");
        for source in Source::ALL {
            world.on_unavailable(source, Progress::Absent, Instant::now());
        }
        slow.changed().await.expect("it goes on");
        let first = slow.borrow_and_update().clone();
        assert_eq!(first, Some(Arc::new(world.slow_selectors())));
        let began = Instant::now();
        for name in ["b", "c", "d"] {
            add(name);
        }
        slow.changed().await.expect("it goes on");
        assert!(began.elapsed() <= LOOK_EVERY);
        let second = slow.borrow_and_update().clone();
        assert_eq!(second, Some(Arc::new(world.slow_selectors())));
        assert_ne!(second, first);
        // The same again is no news.
        add("d");
        sleep(Duration::from_mins(1)).await;
        assert!(!slow.has_changed().expect("it goes on"));
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
