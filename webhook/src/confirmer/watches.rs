//! What this replica knows of the cluster: endpoints, terminating pods, and what refers to Services, kept by watches,
//! told to the holds.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::{Ingress, IngressClass};
use kube::ResourceExt;
use kube::api::DynamicObject;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::Event;
use sidecar::contract::{CONFIRMER_SERVICE, NAMESPACE};
use tokio::sync::watch as level;
use tokio::time::Instant;

use super::bindings::{Bindings, Origin};
use super::budget::Deletion;
use super::endpoints::{Endpoints, Sender};
use super::sender::SenderSeen;
use super::services::Services;

mod run;
mod slow;

pub use self::run::run;

/// What the watches last said of a gated pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodState {
    /// It exists and isn't being deleted, as far as this replica heard: no proof.
    Running,
    /// It is being deleted.
    Terminating(Deletion),
}

/// What is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Source {
    /// EndpointSlices.
    EndpointSlices,
    /// Gated pods.
    Pods,
    /// Services.
    Services,
    /// Ingresses.
    Ingresses,
    /// `IngressClasses`.
    IngressClasses,
    /// `TargetGroupBindings` of one kind.
    Bindings(Origin),
}

impl Source {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::EndpointSlices,
        Self::Pods,
        Self::Services,
        Self::Ingresses,
        Self::IngressClasses,
        Self::Bindings(Origin::Controller),
        Self::Bindings(Origin::AutoMode),
    ];

    /// Those without which pods can still be held, if less well.
    pub const OPTIONAL: [Self; 5] = [
        Self::Services,
        Self::Ingresses,
        Self::IngressClasses,
        Self::Bindings(Origin::Controller),
        Self::Bindings(Origin::AutoMode),
    ];

    /// As RBAC names it.
    pub const fn resource(self) -> &'static str {
        match self {
            Self::EndpointSlices => "endpointslices.discovery.k8s.io",
            Self::Pods => "pods",
            Self::Services => "services",
            Self::Ingresses => "ingresses.networking.k8s.io",
            Self::IngressClasses => "ingressclasses.networking.k8s.io",
            Self::Bindings(Origin::Controller) => "targetgroupbindings.elbv2.k8s.aws",
            Self::Bindings(Origin::AutoMode) => "targetgroupbindings.eks.amazonaws.com",
        }
    }
}

/// How far a watch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Its list was complete once.
    Listed,
    /// The cluster has no such kind.
    Absent,
    /// We may not look: nothing is known, which is not the same as "there is none".
    Forbidden,
}

/// The shared knowledge; cloning shares it.
#[derive(Debug, Clone, Default)]
pub struct World(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    endpoints: Endpoints,
    services: Services,
    bindings: Bindings,
    pods: HashMap<String, PodState>,
    pods_listed: Option<HashMap<String, PodState>>,
    /// A watch that is missing here isn't complete yet.
    progress: BTreeMap<Source, Progress>,
    /// Since when every watch is complete.
    synced_at: level::Sender<Option<Instant>>,
    /// Marks a change of what refers to Services.
    references: level::Sender<()>,
    holds: HashMap<String, level::Sender<()>>,
}

/// What is known of one pod.
#[derive(Debug, Clone)]
pub struct Observation {
    /// Since when every watch is complete, or known never to be.
    pub synced_at: Option<Instant>,
    /// What the pod watch last said; `None`: no such gated pod.
    pub pod: Option<PodState>,
    /// What sends to it.
    pub senders: Vec<SenderSeen>,
    /// Which permission is missing to know the target groups of these, as a sentence.
    pub bindings_forbidden: Option<String>,
}

impl World {
    /// Knows nothing yet; what went is remembered for `memory`, which must be longer than any hold: a pod may have lost
    /// its Service (a selector switch), or that its target group, just before its deletion.
    pub fn new(memory: Duration) -> Self {
        let inner = Inner {
            endpoints: Endpoints::new(memory),
            services: Services::new(memory),
            bindings: Bindings::new(memory),
            ..Inner::default()
        };
        Self(Arc::new(Mutex::new(inner)))
    }

    /// What is known of the pod with this UID.
    pub fn observe(&self, uid: &str, now: Instant) -> Observation {
        let inner = self.lock();
        let mut senders = inner.endpoints.of_pod(uid, now);
        for seen in &mut senders {
            let of_service = inner.services.family(&seen.sender);
            seen.bindings = inner.bindings.of(&seen.sender, now);
            seen.node_bindings = inner.bindings.of_nodes(&seen.sender);
            for bound in &mut seen.bindings {
                bound.family = bound.family.or(of_service);
            }
            seen.unknown_controller = inner.services.unknown_controller(&seen.sender);
        }
        Observation {
            synced_at: *inner.synced_at.borrow(),
            pod: inner.pods.get(uid).copied(),
            senders,
            bindings_forbidden: inner.bindings_forbidden(),
        }
    }

    /// How many replicas of ours answer holds, by the confirmer's own endpoints; at least this one.
    pub fn ready_replicas(&self) -> usize {
        let confirmer = Sender {
            namespace: NAMESPACE.to_owned(),
            name: CONFIRMER_SERVICE.to_owned(),
        };
        self.lock().endpoints.ready(&confirmer).max(1)
    }

    /// Tells the hold of this pod that something changed.
    pub fn notify(&self, uid: &str) {
        self.lock().notify(uid);
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
                inner.note(Source::EndpointSlices, Progress::Listed, now);
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
                inner.note(Source::Pods, Progress::Listed, now);
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

    /// Takes an event of the watch on Services.
    pub fn on_service(&self, event: Event<Service>, now: Instant) {
        let mut inner = self.lock();
        let is_listed = matches!(event, Event::InitDone);
        inner.services.on_service(event, now);
        inner.refer(Source::Services, is_listed, now);
    }

    /// Takes an event of the watch on Ingresses.
    pub fn on_ingress(&self, event: Event<Ingress>, now: Instant) {
        let mut inner = self.lock();
        let is_listed = matches!(event, Event::InitDone);
        inner.services.on_ingress(event, now);
        inner.refer(Source::Ingresses, is_listed, now);
    }

    /// Takes an event of the watch on `IngressClasses`.
    pub fn on_ingress_class(&self, event: Event<IngressClass>, now: Instant) {
        let mut inner = self.lock();
        let is_listed = matches!(event, Event::InitDone);
        inner.services.on_ingress_class(event, now);
        inner.refer(Source::IngressClasses, is_listed, now);
    }

    /// Takes an event of the watch on one kind of `TargetGroupBindings`.
    pub fn on_binding(&self, origin: Origin, event: Event<DynamicObject>, now: Instant) {
        let mut inner = self.lock();
        let is_listed = matches!(event, Event::InitDone);
        let changed = inner.bindings.on_event(origin, event, now);
        inner.notify_pods_of(&changed);
        inner.refer(Source::Bindings(origin), is_listed, now);
    }

    /// Takes that a watch can't be had: there is no such kind, or we may not look.
    pub fn on_unavailable(&self, source: Source, why: Progress, now: Instant) {
        let mut inner = self.lock();
        if let (Source::Bindings(origin), Progress::Absent) = (source, why) {
            let changed = inner.bindings.on_absent(origin, now);
            inner.notify_pods_of(&changed);
        }
        inner.note(source, why, now);
    }

    /// How far a watch is; `None` while nothing is known of it.
    pub fn progress(&self, source: Source) -> Option<Progress> {
        self.lock().progress.get(&source).copied()
    }

    /// Since when every watch is complete, or known never to be.
    pub fn synced(&self) -> level::Receiver<Option<Instant>> {
        self.lock().synced_at.subscribe()
    }

    /// Marks a change of what refers to Services.
    pub fn references(&self) -> level::Receiver<()> {
        self.lock().references.subscribe()
    }

    /// Forgets what no hold can still ask for.
    pub fn prune(&self, now: Instant) {
        let mut inner = self.lock();
        inner.endpoints.prune(now);
        inner.services.prune(now);
        inner.bindings.prune(now);
        inner.holds.retain(|_, sender| !sender.is_closed());
    }

    /// Knowledge that a panic elsewhere left behind is still the best there is.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn note(&mut self, source: Source, progress: Progress, now: Instant) {
        let before = self.progress.insert(source, progress);
        if before != Some(progress) {
            self.references.send_replace(());
        }
        let is_synced = Source::ALL.iter().all(|s| self.progress.contains_key(s));
        if is_synced && self.synced_at.borrow().is_none() {
            self.synced_at.send_replace(Some(now));
            self.notify_all();
        }
    }

    /// Something changed that refers to Services.
    fn refer(&mut self, source: Source, is_listed: bool, now: Instant) {
        if is_listed {
            self.note(source, Progress::Listed, now);
        }
        self.references.send_replace(());
    }

    fn bindings_forbidden(&self) -> Option<String> {
        let missing: Vec<_> = Source::ALL
            .into_iter()
            .filter(|source| matches!(source, Source::Bindings(_)))
            .filter(|source| self.progress.get(source) == Some(&Progress::Forbidden))
            .map(Source::resource)
            .collect();
        (!missing.is_empty()).then(|| {
            format!(
                "the ClusterRole prestop-gate must allow list and watch on {}",
                missing.join(" and ")
            )
        })
    }

    /// Wakes the holds of the pods of these Services. By way of the holds, which are fewer than a Service's pods may be.
    fn notify_pods_of(&self, services: &[Sender]) {
        for (uid, hold) in &self.holds {
            let mut services = services.iter();
            if services.any(|service| self.endpoints.sends(service, uid)) {
                hold.send_replace(());
            }
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

#[cfg(test)]
mod tests;
