//! Follows a Service's `EndpointSlices` and changes the load balancer, by the schedule of [`follower`](super::follower).

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::StreamExt;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Api, Client, ResourceExt};
use tokio::sync::mpsc::UnboundedSender;

use super::follower::{Change, Follower, Target};
use super::haproxy::Runtime;
use super::ledger::Seen;
use super::pods::unix_ms;
use super::slots::Slots;

/// What to follow, and how.
#[derive(Debug, Clone)]
pub struct Following {
    /// The Service's namespace.
    pub namespace: String,
    /// The Service's name.
    pub service: String,
    /// How late a removal comes.
    pub lag: Duration,
    /// How many targets there may be at once.
    pub slots: usize,
}

/// Follows until something breaks. Errors of the watch are not among that: it is tried again, and the
/// load balancer keeps its targets meanwhile.
pub async fn follow(
    client: Client,
    following: Following,
    balancer: Runtime,
    tell: UnboundedSender<Seen>,
) -> Result<()> {
    let Following {
        namespace,
        service,
        lag,
        slots,
    } = following;
    let slices = Api::<EndpointSlice>::namespaced(client, &namespace);
    let config =
        watcher::Config::default().labels(&format!("kubernetes.io/service-name={service}"));
    let mut events = pin!(watch(slices, config).default_backoff());
    let mut known = Known::default();
    let mut follower = Follower::new(lag);
    let mut applier = Applier {
        balancer,
        slots: Slots::new(slots),
        tell,
    };
    loop {
        // Nothing is due: wait for the watch alone.
        let next = follower.next_due().map(tokio::time::Instant::from_std);
        let due = async {
            match next {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let changes = tokio::select! {
            () = due => follower.due(Instant::now()),
            event = events.next() => {
                let event = event.with_context(|| format!("failed to go on watching the endpoints of {service}"))?;
                let Some(ready) = event.ok().and_then(|event| known.note(event)) else { continue };
                follower.observe(&ready, Instant::now())
            }
        };
        for change in changes {
            applier.apply(change).await?;
        }
    }
}

struct Applier {
    balancer: Runtime,
    slots: Slots,
    tell: UnboundedSender<Seen>,
}

impl Applier {
    async fn apply(&mut self, change: Change) -> Result<()> {
        match &change {
            Change::Add(target) => {
                let slot = self
                    .slots
                    .take(target)
                    .context("failed to find a free slot in the load balancer")?;
                self.balancer.add(slot, target.address).await?;
            }
            Change::Remove(target) => {
                let slot = self
                    .slots
                    .release(target)
                    .context("failed to find a target's slot")?;
                self.balancer.remove(slot).await?;
            }
            Change::Leave(_) | Change::Stay(_) => {}
        }
        // Nobody listens any more once the trial ends.
        let _ = self.tell.send(Seen::Balancer {
            change,
            at: unix_ms(),
        });
        Ok(())
    }
}

/// The slices as the watch told them.
#[derive(Debug, Default)]
struct Known {
    slices: BTreeMap<String, EndpointSlice>,
    listing: Option<BTreeMap<String, EndpointSlice>>,
}

impl Known {
    /// Takes note and answers with the targets that are ready; nothing while a list is incomplete.
    fn note(&mut self, event: Event<EndpointSlice>) -> Option<BTreeSet<Target>> {
        match event {
            Event::Init => self.listing = Some(BTreeMap::new()),
            Event::InitApply(slice) => {
                self.listing
                    .get_or_insert_default()
                    .insert(slice.name_any(), slice);
            }
            Event::InitDone => self.slices = self.listing.take().unwrap_or_default(),
            Event::Apply(slice) => {
                self.slices.insert(slice.name_any(), slice);
            }
            Event::Delete(slice) => {
                self.slices.remove(&slice.name_any());
            }
        }
        self.listing
            .is_none()
            .then(|| self.slices.values().flat_map(ready_targets).collect())
    }
}

/// The ready endpoints of a slice; ready is what isn't said not to be, as the API has it.
fn ready_targets(slice: &EndpointSlice) -> Vec<Target> {
    let port = slice
        .ports
        .iter()
        .flatten()
        .find_map(|port| port.port)
        .and_then(|port| u16::try_from(port).ok());
    let Some(port) = port else { return Vec::new() };
    let mut targets = Vec::new();
    for endpoint in &slice.endpoints {
        let ready = endpoint
            .conditions
            .as_ref()
            .and_then(|conditions| conditions.ready)
            .unwrap_or(true);
        let pod = endpoint
            .target_ref
            .as_ref()
            .and_then(|target| target.name.clone())
            .unwrap_or_default();
        // More than one address of an endpoint has no meaning.
        let address = endpoint
            .addresses
            .first()
            .and_then(|address| address.parse::<IpAddr>().ok());
        if let (true, Some(address)) = (ready, address) {
            targets.push(Target {
                address: SocketAddr::new(address, port),
                pod,
            });
        }
    }
    targets
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn mk_slice(name: &str, endpoints: &[(u8, Value)]) -> EndpointSlice {
        let endpoints: Vec<_> = endpoints
            .iter()
            .map(|(last, conditions)| {
                json!({
                    "addresses": [format!("198.18.0.{last}")],
                    "conditions": conditions,
                    "targetRef": {"kind": "Pod", "name": format!("pod-{last}")},
                })
            })
            .collect();
        serde_json::from_value(json!({
            "metadata": {"name": name},
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": 8080}],
            "endpoints": endpoints,
        }))
        .unwrap()
    }

    fn pods(targets: BTreeSet<Target>) -> Vec<String> {
        targets.into_iter().map(|target| target.pod).collect()
    }

    #[test]
    fn terminating_endpoint_is_not_ready_and_one_without_conditions_is() {
        let terminating = json!({"ready": false, "serving": true, "terminating": true});
        let slice = mk_slice(
            "a",
            &[
                (1, json!({"ready": true})),
                (2, terminating),
                (3, json!({})),
            ],
        );
        let targets = ready_targets(&slice);
        assert_eq!(
            targets
                .iter()
                .map(|target| target.pod.as_str())
                .collect::<Vec<_>>(),
            ["pod-1", "pod-3"]
        );
        assert_eq!(targets[0].address, "198.18.0.1:8080".parse().unwrap());
    }

    #[test]
    fn half_a_list_is_no_picture() {
        let mut known = Known::default();
        let mut note = |event| known.note(event).map(pods);
        let mk = |name, last| mk_slice(name, &[(last, json!({"ready": true}))]);
        assert_eq!(note(Event::Init), None);
        assert_eq!(note(Event::InitApply(mk("a", 1))), None);
        assert_eq!(note(Event::InitDone).unwrap(), ["pod-1"]);
        assert_eq!(note(Event::Apply(mk("b", 2))).unwrap(), ["pod-1", "pod-2"]);
        assert_eq!(note(Event::Init), None);
        assert_eq!(note(Event::InitApply(mk("b", 2))), None);
        assert_eq!(note(Event::InitDone).unwrap(), ["pod-2"]);
        assert!(note(Event::Delete(mk("b", 2))).unwrap().is_empty());
    }
}
