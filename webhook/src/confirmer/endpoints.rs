//! Which Services send traffic to which pod, from EndpointSlices. Pure: objects and time go in, nothing comes from outside.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt;

/// `tokio`'s instant, so that tests can pause the clock.
use tokio::time::Instant;

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

/// What one slice says of one pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Endpoint {
    /// `ready`: new connections come.
    Ready { terminating: bool },
    /// Neither ready nor to be sent to.
    NotReady,
    /// No longer in the slice.
    Gone,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    endpoint: Endpoint,
    /// When `endpoint` was first seen so.
    since: Instant,
    /// Whether this replica saw the change, rather than finding it so in its first list.
    witnessed: bool,
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

type SliceKey = (String, String);

/// All endpoints of the cluster, by pod.
#[derive(Debug, Default)]
pub struct Endpoints {
    pods: HashMap<String, HashMap<SliceKey, (Sender, Known)>>,
    slices: HashMap<SliceKey, HashSet<String>>,
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

    /// Takes a slice as it is now; returns the UIDs of the pods whose endpoint changed.
    pub fn apply(&mut self, slice: &EndpointSlice, now: Instant) -> Vec<String> {
        let key = slice_key(slice);
        if let Some(listed) = &mut self.listed {
            listed.insert(key.clone());
        }
        let sender = sender(slice);
        // A first list tells what is so, not when it began.
        let witnessed = self.listed.is_none() || self.slices.contains_key(&key);
        let mut changed = Vec::new();
        let mut present = HashMap::new();
        for endpoint in &slice.endpoints {
            let Some(uid) = endpoint
                .target_ref
                .as_ref()
                .and_then(|target| target.uid.clone())
            else {
                continue;
            };
            let conditions = endpoint.conditions.as_ref();
            // The API reads an absent `ready` as true.
            let ready = conditions.and_then(|c| c.ready).unwrap_or(true);
            let terminating = conditions.and_then(|c| c.terminating).unwrap_or(false);
            let endpoint = if ready {
                Endpoint::Ready { terminating }
            } else {
                Endpoint::NotReady
            };
            // A dual address may list a pod twice: any ready entry counts.
            let entry = present.entry(uid).or_insert(endpoint);
            if ready {
                *entry = endpoint;
            }
        }
        for (uid, endpoint) in &present {
            if self.set(uid, &key, &sender, *endpoint, witnessed, now) {
                changed.push(uid.clone());
            }
        }
        for uid in self.slices.remove(&key).unwrap_or_default() {
            if !present.contains_key(&uid)
                && self.set(&uid, &key, &sender, Endpoint::Gone, true, now)
            {
                changed.push(uid);
            }
        }
        self.slices.insert(key, present.into_keys().collect());
        changed
    }

    /// Takes a slice's deletion; returns the UIDs of its pods.
    pub fn delete(&mut self, slice: &EndpointSlice, now: Instant) -> Vec<String> {
        self.forget(&slice_key(slice), now)
    }

    /// A new list begins.
    pub fn list_begins(&mut self) {
        self.listed = Some(HashSet::new());
    }

    /// The list is complete: slices that it didn't hold are gone. Returns the UIDs of their pods.
    pub fn list_ends(&mut self, now: Instant) -> Vec<String> {
        let listed = self.listed.take().unwrap_or_default();
        let lost: Vec<_> = self
            .slices
            .keys()
            .filter(|key| !listed.contains(*key))
            .cloned()
            .collect();
        lost.iter().flat_map(|key| self.forget(key, now)).collect()
    }

    /// What sends to the pod with this UID, or did so of late.
    pub fn of_pod(&self, uid: &str, now: Instant) -> Vec<(Sender, Seen)> {
        let mut by_sender: HashMap<&Sender, Vec<&Known>> = HashMap::new();
        for (sender, known) in self.pods.get(uid).into_iter().flat_map(HashMap::values) {
            by_sender.entry(sender).or_default().push(known);
        }
        let mut seen: Vec<_> = by_sender
            .into_iter()
            .map(|(sender, known)| (sender.clone(), merge(&known, now)))
            .collect();
        seen.sort_by(|a, b| a.0.cmp(&b.0));
        seen
    }

    /// Forgets endpoints that left their slice longer ago than any hold lasts.
    pub fn prune(&mut self, now: Instant) {
        let memory = self.memory;
        self.pods.retain(|_, slices| {
            slices.retain(|_, (_, known)| {
                known.endpoint != Endpoint::Gone || now.duration_since(known.since) < memory
            });
            !slices.is_empty()
        });
    }

    fn forget(&mut self, key: &SliceKey, now: Instant) -> Vec<String> {
        let uids = self.slices.remove(key).unwrap_or_default();
        for uid in &uids {
            if let Some((_, known)) = self
                .pods
                .get_mut(uid)
                .and_then(|slices| slices.get_mut(key))
            {
                leave(known, now);
            }
        }
        uids.into_iter().collect()
    }

    fn set(
        &mut self,
        uid: &str,
        key: &SliceKey,
        sender: &Sender,
        endpoint: Endpoint,
        witnessed: bool,
        now: Instant,
    ) -> bool {
        let slices = self.pods.entry(uid.to_owned()).or_default();
        match slices.get_mut(key) {
            Some((_, known)) if known.endpoint == endpoint => false,
            Some((_, known)) if endpoint == Endpoint::Gone => {
                leave(known, now);
                true
            }
            slot => {
                // An endpoint that is first seen not ready may have been so for long; one that was there may not.
                let known = Known {
                    endpoint,
                    since: now,
                    witnessed: witnessed || slot.is_some(),
                };
                match slot {
                    Some(entry) => entry.1 = known,
                    None => {
                        slices.insert(key.clone(), (sender.clone(), known));
                    }
                }
                true
            }
        }
    }
}

/// An endpoint leaves its slice: what was not ready already keeps its age.
fn leave(known: &mut Known, now: Instant) {
    if matches!(known.endpoint, Endpoint::Ready { .. }) {
        known.since = now;
        known.witnessed = true;
    }
    known.endpoint = Endpoint::Gone;
}

fn merge(known: &[&Known], now: Instant) -> Seen {
    if known
        .iter()
        .any(|k| k.endpoint == Endpoint::Ready { terminating: false })
    {
        return Seen::Registered;
    }
    if known
        .iter()
        .any(|k| k.endpoint == Endpoint::Ready { terminating: true })
    {
        return Seen::PublishedNotReady;
    }
    let last = known.iter().max_by_key(|k| k.since);
    last.map_or(Seen::Registered, |k| Seen::Dropped {
        age: now.duration_since(k.since),
        witnessed: k.witnessed,
    })
}

fn slice_key(slice: &EndpointSlice) -> SliceKey {
    (slice.namespace().unwrap_or_default(), slice.name_any())
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
