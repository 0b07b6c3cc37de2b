//! Which Services send traffic to which pod, from EndpointSlices. Pure: objects and time go in, nothing comes from outside.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::discovery::v1 as discovery;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt;

/// `tokio`'s instant, so that tests can pause the clock.
use tokio::time::Instant;

use self::crowd::{Change, Crowd};
use super::sender::SenderSeen;

mod crowd;

/// Label by which the controller names the Service of a slice.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Who sends traffic: a Service, or a slice that no Service explains.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sender {
    /// Namespace of the Service or slice.
    pub namespace: String,
    /// Name of the Service, or of the slice where it names none.
    pub name: String,
}

impl fmt::Display for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Service {}/{}", self.namespace, self.name)
    }
}

/// What one slice says of one pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Endpoint {
    /// `ready`: new connections come.
    Ready { terminating: bool },
    /// Neither ready nor to be sent to.
    NotReady { terminating: bool },
    /// No longer in the slice.
    Gone,
}

/// An endpoint as a slice lists it.
#[derive(Debug)]
struct Listed {
    endpoint: Endpoint,
    addresses: Vec<IpAddr>,
    is_pod: bool,
}

/// What a [`Sender`] does with a pod, over all its slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// The endpoint is ready in a slice: traffic comes.
    Registered,
    /// The endpoint is terminating and still published as ready (`publishNotReadyAddresses`): no evidence can come.
    PublishedNotReady,
    /// The endpoint is not ready, or gone, in every slice.
    Dropped {
        /// How long this replica has known it.
        age: Duration,
        /// Whether it saw the change itself, so that `age` is all there is to know.
        witnessed: bool,
    },
}

/// Namespace and name; shared, since every endpoint names its slices.
type SliceKey = Arc<(String, String)>;

/// UID of a pod, or the address of an endpoint that is none.
type Id = Arc<str>;

#[derive(Debug)]
struct Slice {
    sender: Arc<Sender>,
    endpoints: HashSet<Id>,
}

/// All endpoints of the cluster, by Service and by pod.
#[derive(Debug, Default)]
pub struct Endpoints {
    services: HashMap<Arc<Sender>, Crowd>,
    /// What sends to each pod.
    pods: HashMap<Id, Vec<Arc<Sender>>>,
    slices: HashMap<SliceKey, Slice>,
    listed: Option<HashSet<SliceKey>>,
    memory: Duration,
}

impl Endpoints {
    /// Knows nothing yet; endpoints that left their slice are remembered for `memory`.
    pub fn new(memory: Duration) -> Self {
        Self {
            memory,
            ..Self::default()
        }
    }

    /// Takes a slice as it is now; returns the UIDs of the pods for which something changed: their own endpoint, or,
    /// where that isn't ready, who else could take their traffic.
    pub fn apply(&mut self, slice: &EndpointSlice, now: Instant) -> Vec<String> {
        let key = slice_key(slice);
        if let Some(listed) = &mut self.listed {
            listed.insert(Arc::clone(&key));
        }
        let sender = Arc::new(sender(slice));
        let mut changed = Vec::new();
        if self
            .slices
            .get(&key)
            .is_some_and(|known| known.sender != sender)
        {
            changed.extend(self.forget(&key, now));
        }
        // A first list tells what is so, not when it began.
        let witnessed = self.listed.is_none() || self.slices.contains_key(&key);
        let present = endpoints(slice);
        let ports: Arc<[u16]> = ports(slice).into();
        let before = self.slices.remove(&key);
        let crowd = self.services.entry(Arc::clone(&sender)).or_default();
        let class = crowd.class();
        for (id, listed) in &present {
            let change = Change {
                slice: &key,
                listed,
                ports: &ports,
                witnessed,
            };
            let is_new = !crowd.contains(id);
            if crowd.set(id, &change, now) {
                changed.push(id.to_string());
            }
            if is_new && listed.is_pod {
                let senders = self.pods.entry(Arc::clone(id)).or_default();
                senders.push(Arc::clone(&sender));
            }
        }
        for id in before.into_iter().flat_map(|slice| slice.endpoints) {
            if !present.contains_key(&id) && crowd.leave(&id, &key, now) {
                changed.push(id.to_string());
            }
        }
        if crowd.class() != class {
            changed.extend(crowd.waiting());
        }
        let endpoints = present.into_keys().collect();
        self.slices.insert(key, Slice { sender, endpoints });
        self.pods_of(changed)
    }

    /// Takes a slice's deletion; returns as [`Self::apply`] does.
    pub fn delete(&mut self, slice: &EndpointSlice, now: Instant) -> Vec<String> {
        let changed = self.forget(&slice_key(slice), now);
        self.pods_of(changed)
    }

    /// A new list begins.
    pub fn list_begins(&mut self) {
        self.listed = Some(HashSet::new());
    }

    /// The list is complete: slices that it didn't hold are gone. Returns as [`Self::apply`] does.
    pub fn list_ends(&mut self, now: Instant) -> Vec<String> {
        let listed = self.listed.take().unwrap_or_default();
        let lost: Vec<_> = self
            .slices
            .keys()
            .filter(|key| !listed.contains(*key))
            .cloned()
            .collect();
        let changed = lost.iter().flat_map(|key| self.forget(key, now)).collect();
        self.pods_of(changed)
    }

    /// What sends to the pod with this UID, or did so of late; who refers to these Services isn't known here.
    pub fn of_pod(&self, uid: &str, now: Instant) -> Vec<SenderSeen> {
        let senders = self.pods.get(uid).into_iter().flatten();
        let mut seen: Vec<_> = senders
            .filter_map(|sender| self.services.get(sender)?.look(sender, uid, now))
            .collect();
        seen.sort_by(|a, b| a.sender.cmp(&b.sender));
        seen
    }

    /// Whether this sends to the pod with this UID, or did so of late.
    pub fn sends(&self, sender: &Sender, uid: &str) -> bool {
        self.services
            .get(sender)
            .is_some_and(|crowd| crowd.contains(uid))
    }

    /// How many ready endpoints a Service has.
    pub fn ready(&self, sender: &Sender) -> usize {
        self.services.get(sender).map_or(0, Crowd::ready)
    }

    /// Forgets endpoints that left their slice longer ago than any hold lasts.
    pub fn prune(&mut self, now: Instant) {
        let Self { pods, memory, .. } = self;
        self.services.retain(|sender, crowd| {
            for id in crowd.prune(now, *memory) {
                if let Some(senders) = pods.get_mut(&id) {
                    senders.retain(|known| known != sender);
                    if senders.is_empty() {
                        pods.remove(&id);
                    }
                }
            }
            !crowd.is_empty()
        });
    }

    /// Each only once, and only pods: nobody holds for other endpoints.
    fn pods_of(&self, mut ids: Vec<String>) -> Vec<String> {
        ids.retain(|id| self.pods.contains_key(&**id));
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    fn forget(&mut self, key: &SliceKey, now: Instant) -> Vec<String> {
        let Some(slice) = self.slices.remove(key) else {
            return Vec::new();
        };
        let Some(crowd) = self.services.get_mut(&slice.sender) else {
            return Vec::new();
        };
        let class = crowd.class();
        let mut changed = Vec::new();
        for id in &slice.endpoints {
            crowd.leave(id, key, now);
            changed.push(id.to_string());
        }
        if crowd.class() != class {
            changed.extend(crowd.waiting());
        }
        changed
    }
}

/// The endpoints of a slice by who they are.
fn endpoints(slice: &EndpointSlice) -> HashMap<Id, Listed> {
    let mut present: HashMap<Id, Listed> = HashMap::new();
    for endpoint in &slice.endpoints {
        let uid = endpoint
            .target_ref
            .as_ref()
            .and_then(|target| target.uid.as_deref());
        let Some(id) = uid.or_else(|| endpoint.addresses.first().map(String::as_str)) else {
            continue;
        };
        // FQDN slices have names instead, which no target group has.
        let addresses = endpoint.addresses.iter().filter_map(|a| a.parse().ok());
        let state = state(endpoint);
        match present.get_mut(id) {
            None => {
                let listed = Listed {
                    endpoint: state,
                    addresses: addresses.collect(),
                    is_pod: uid.is_some(),
                };
                present.insert(id.into(), listed);
            }
            // A dual address may list a pod twice: any ready entry counts.
            Some(listed) => {
                listed.addresses.extend(addresses);
                if matches!(state, Endpoint::Ready { .. }) {
                    listed.endpoint = state;
                }
            }
        }
    }
    present
}

fn state(endpoint: &discovery::Endpoint) -> Endpoint {
    let conditions = endpoint.conditions.as_ref();
    let terminating = conditions.and_then(|c| c.terminating).unwrap_or(false);
    // The API reads an absent `ready` as true.
    if conditions.and_then(|c| c.ready).unwrap_or(true) {
        Endpoint::Ready { terminating }
    } else {
        Endpoint::NotReady { terminating }
    }
}

fn ports(slice: &EndpointSlice) -> Vec<u16> {
    let ports = slice.ports.iter().flatten();
    ports
        .filter_map(|port| u16::try_from(port.port?).ok())
        .collect()
}

fn slice_key(slice: &EndpointSlice) -> SliceKey {
    Arc::new((slice.namespace().unwrap_or_default(), slice.name_any()))
}

fn sender(slice: &EndpointSlice) -> Sender {
    let name = slice
        .labels()
        .get(SERVICE_NAME)
        .cloned()
        .unwrap_or_else(|| slice.name_any());
    Sender {
        namespace: slice.namespace().unwrap_or_default(),
        name,
    }
}

#[cfg(test)]
mod tests;
