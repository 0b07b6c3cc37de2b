//! What this replica knows of the cluster: endpoints and terminating pods, kept by watches, told to the holds.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Api, Client, ResourceExt};
use sidecar::contract::LABEL_INJECTED;
use tokio::sync::watch as level;
use tokio::time::Instant;
use tracing::warn;

use super::budget::Deletion;
use super::endpoints::{Endpoints, Seen, Sender};
use crate::readiness::BlockReady;

/// Longest life of one watch, in seconds: one that has silently died is noticed as late as that.
const WATCH_SECONDS: u32 = 30;

/// How often endpoints that left long ago are forgotten.
const PRUNE_EVERY: Duration = Duration::from_mins(1);

/// What the watches last said of a gated pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodState {
    /// It exists and isn't being deleted, as far as this replica heard: no proof.
    Running,
    /// It is being deleted.
    Terminating(Deletion),
}

/// The shared knowledge; cloning shares it.
#[derive(Debug, Clone, Default)]
pub struct World(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    endpoints: Endpoints,
    pods: HashMap<String, PodState>,
    pods_listed: Option<HashMap<String, PodState>>,
    endpoints_synced: bool,
    pods_synced: bool,
    /// Since when both watches are complete.
    synced_at: level::Sender<Option<Instant>>,
    holds: HashMap<String, level::Sender<()>>,
}

/// What is known of one pod.
#[derive(Debug, Clone)]
pub struct Observation {
    /// Since when every watch is complete.
    pub synced_at: Option<Instant>,
    /// What the pod watch last said; `None`: no such gated pod.
    pub pod: Option<PodState>,
    /// What sends to it.
    pub senders: Vec<(Sender, Seen)>,
}

impl World {
    /// Knows nothing yet; endpoints that left their slice are remembered for `memory`, which must be longer than any
    /// hold: a pod may have lost its Service (a selector switch) just before its deletion.
    pub fn new(memory: Duration) -> Self {
        let inner = Inner {
            endpoints: Endpoints::new(memory),
            ..Inner::default()
        };
        Self(Arc::new(Mutex::new(inner)))
    }

    /// What is known of the pod with this UID.
    pub fn observe(&self, uid: &str, now: Instant) -> Observation {
        let inner = self.lock();
        Observation {
            synced_at: *inner.synced_at.borrow(),
            pod: inner.pods.get(uid).copied(),
            senders: inner.endpoints.of_pod(uid, now),
        }
    }

    /// Marks a change whenever something is heard of the pod; level-triggered, so that none is missed.
    pub fn subscribe(&self, uid: &str) -> level::Receiver<()> {
        self.lock()
            .holds
            .entry(uid.to_owned())
            .or_default()
            .subscribe()
    }

    /// Takes an event of the EndpointSlice watch.
    pub fn on_endpoint_slice(&self, event: Event<EndpointSlice>, now: Instant) {
        let mut inner = self.lock();
        let changed = match event {
            Event::Init => {
                inner.endpoints.list_begins();
                return;
            }
            Event::InitApply(slice) | Event::Apply(slice) => inner.endpoints.apply(&slice, now),
            Event::Delete(slice) => inner.endpoints.delete(&slice, now),
            Event::InitDone => {
                let lost = inner.endpoints.list_ends(now);
                inner.endpoints_synced = true;
                inner.mark_synced(now);
                lost
            }
        };
        for uid in changed {
            inner.notify(&uid);
        }
    }

    /// Takes an event of the watch on gated pods.
    pub fn on_pod(&self, event: Event<PartialObjectMeta<Pod>>, now: Instant) {
        let mut inner = self.lock();
        match event {
            Event::Init => inner.pods_listed = Some(HashMap::new()),
            Event::InitApply(pod) => {
                if let (Some(uid), Some(listed)) = (pod.uid(), &mut inner.pods_listed) {
                    listed.insert(uid, state(&pod));
                }
            }
            Event::InitDone => {
                inner.pods = inner.pods_listed.take().unwrap_or_default();
                inner.pods_synced = true;
                inner.mark_synced(now);
                inner.notify_all();
            }
            Event::Apply(pod) => {
                if let Some(uid) = pod.uid() {
                    inner.pods.insert(uid.clone(), state(&pod));
                    inner.notify(&uid);
                }
            }
            Event::Delete(pod) => {
                if let Some(uid) = pod.uid() {
                    inner.pods.remove(&uid);
                    inner.notify(&uid);
                }
            }
        }
    }

    /// Forgets what no hold can still ask for.
    pub fn prune(&self, now: Instant) {
        let mut inner = self.lock();
        inner.endpoints.prune(now);
        inner.holds.retain(|_, sender| !sender.is_closed());
    }

    /// Knowledge that a panic elsewhere left behind is still the best there is.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn mark_synced(&mut self, now: Instant) {
        if self.endpoints_synced && self.pods_synced && self.synced_at.borrow().is_none() {
            self.synced_at.send_replace(Some(now));
            self.notify_all();
        }
    }

    fn notify(&self, uid: &str) {
        if let Some(sender) = self.holds.get(uid) {
            sender.send_replace(());
        }
    }

    fn notify_all(&self) {
        for sender in self.holds.values() {
            sender.send_replace(());
        }
    }
}

fn state(pod: &PartialObjectMeta<Pod>) -> PodState {
    deletion(&pod.metadata).map_or(PodState::Running, PodState::Terminating)
}

/// The deletion that an object's metadata tells of.
pub fn deletion(metadata: &kube::core::ObjectMeta) -> Option<Deletion> {
    let timestamp = metadata.deletion_timestamp.as_ref()?.0.as_second();
    let grace = metadata.deletion_grace_period_seconds.unwrap_or_default();
    let seconds = |value: i64| Duration::from_secs(u64::try_from(value).unwrap_or_default());
    Some(Deletion {
        timestamp: seconds(timestamp),
        grace: seconds(grace),
    })
}

/// Watches EndpointSlices and gated pods into `world` until dropped; `ready` is released when both are complete.
pub async fn run(client: Client, world: World, ready: BlockReady) {
    let slices = async {
        let api = Api::<EndpointSlice>::all(client.clone());
        let mut events =
            pin!(watch(api, watcher::Config::default().timeout(WATCH_SECONDS)).default_backoff());
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => world.on_endpoint_slice(event, Instant::now()),
                Err(error) => warn!(%error, "EndpointSlice watch failed"),
            }
        }
    };
    let pods = async {
        let api = Api::<PartialObjectMeta<Pod>>::all(client.clone());
        let gated = watcher::Config::default()
            .labels(&format!("{LABEL_INJECTED}=true"))
            .timeout(WATCH_SECONDS);
        let mut events = pin!(watch(api, gated).default_backoff());
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => world.on_pod(event, Instant::now()),
                Err(error) => warn!(%error, "Pod watch failed"),
            }
        }
    };
    let housekeeping = async {
        let mut synced = world.lock().synced_at.subscribe();
        // The sender lives in `world`, so this ends with the watches and not before.
        let _ = synced.wait_for(Option::is_some).await;
        drop(ready);
        loop {
            tokio::time::sleep(PRUNE_EVERY).await;
            world.prune(Instant::now());
        }
    };
    tokio::join!(slices, pods, housekeeping);
}
