//! Which target groups are bound to which Service, from `TargetGroupBindings` of the AWS Load Balancer Controller and of
//! EKS Auto Mode. Pure.
//!
//! Only groups that pods are registered in themselves: bindings of type `instance` register nodes, and kube-proxy does
//! the rest, so that a pod has no registration there to wait for.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use kube::ResourceExt as _;
use kube::api::DynamicObject;
use kube::runtime::watcher::Event;
use serde::Deserialize;
use tokio::time::Instant;
use tracing::warn;

use super::endpoints::Sender;
use super::sender::{Bound, Checkpoint};
use super::target_group::{Family, GroupId, Role, TargetGroup};

/// Blank while the controller changes the target group, a hash of what it registered otherwise.
const CHECKPOINT: &str = "elbv2.k8s.aws/checkpoint";

/// How the labels begin that a controller puts on the bindings it makes for a Service of its own (NLB), by the AWS
/// Load Balancer Controller's `tracking` package and what EKS Auto Mode calls the same.
const SERVICE_LABELS: [&str; 2] = ["service.k8s.aws/stack", "service.eks.amazonaws.com/stack"];

/// The same for Ingresses (ALB).
const INGRESS_LABELS: [&str; 2] = ["ingress.k8s.aws/stack", "ingress.eks.amazonaws.com/stack"];

/// Which of the two kinds a binding is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Origin {
    /// `elbv2.k8s.aws/v1beta1`: the AWS Load Balancer Controller.
    Controller,
    /// `eks.amazonaws.com/v1`: EKS Auto Mode.
    AutoMode,
}

impl Origin {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Controller, Self::AutoMode];

    /// API group.
    pub const fn group(self) -> &'static str {
        match self {
            Self::Controller => "elbv2.k8s.aws",
            Self::AutoMode => "eks.amazonaws.com",
        }
    }

    /// Version in the group.
    pub const fn version(self) -> &'static str {
        match self {
            Self::Controller => "v1beta1",
            Self::AutoMode => "v1",
        }
    }
}

/// Both kinds may have a binding of one name.
type Key = (Origin, String, String);

/// A target group that is bound to a Service, or was of late.
#[derive(Debug)]
struct Entry {
    key: Key,
    group: TargetGroup,
    family: Option<Family>,
    manages_rules: bool,
    checkpoint: Option<Mark>,
    gone: Option<Instant>,
}

/// A checkpoint's present value.
#[derive(Debug)]
struct Mark {
    value: Box<str>,
    since: Instant,
    witnessed: bool,
}

/// What of a binding's spec matters.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    #[serde(rename = "targetGroupARN")]
    target_group_arn: Option<String>,
    target_group_name: Option<String>,
    target_type: Option<String>,
    target_group_protocol: Option<String>,
    service_ref: ServiceRef,
    networking: Option<serde::de::IgnoredAny>,
    iam_role_arn_to_assume: Option<String>,
    assume_role_external_id: Option<String>,
}

#[derive(Debug, Deserialize)]
struct ServiceRef {
    name: String,
}

/// All bindings of the cluster, by Service.
#[derive(Debug, Default)]
pub struct Bindings {
    by_service: HashMap<Sender, Vec<Entry>>,
    /// The Service of each binding that is there.
    services: HashMap<Key, Sender>,
    listed: BTreeMap<Origin, HashSet<Key>>,
    /// The Services whose nodes a binding registers.
    nodes: BTreeMap<Key, Sender>,
    memory: Duration,
}

impl Bindings {
    /// Knows nothing yet; bindings that went, or were changed to another Service or group, are remembered for `memory`.
    pub fn new(memory: Duration) -> Self {
        Self {
            memory,
            ..Self::default()
        }
    }

    /// Takes an event of the watch on one kind; returns the Services for which something changed.
    pub fn on_event(
        &mut self,
        origin: Origin,
        event: Event<DynamicObject>,
        now: Instant,
    ) -> Vec<Sender> {
        match event {
            Event::Init => {
                self.listed.insert(origin, HashSet::new());
                Vec::new()
            }
            Event::InitApply(binding) | Event::Apply(binding) => self.apply(origin, &binding, now),
            Event::Delete(binding) => self
                .leave(&key(origin, &binding), now)
                .into_iter()
                .collect(),
            Event::InitDone => {
                let listed = self.listed.remove(&origin).unwrap_or_default();
                self.retain(origin, &listed, now)
            }
        }
    }

    /// There is no such kind any more, and with it none of its bindings; returns as [`Self::on_event`] does.
    pub fn on_absent(&mut self, origin: Origin, now: Instant) -> Vec<Sender> {
        self.listed.remove(&origin);
        self.retain(origin, &HashSet::new(), now)
    }

    /// The target groups of a Service.
    pub fn of(&self, service: &Sender, now: Instant) -> Vec<Bound> {
        let entries = self.by_service.get(service).into_iter().flatten();
        entries.map(|entry| entry.bound(now)).collect()
    }

    /// The bindings by which the nodes of this Service's pods are registered, rather than the pods.
    pub fn of_nodes(&self, service: &Sender) -> Vec<String> {
        let own = self.nodes.iter().filter(|(_, own)| *own == service);
        own.map(|((_, namespace, name), _)| format!("{namespace}/{name}"))
            .collect()
    }

    /// A binding that is there and ties a target group to this Service which isn't an ALB's for sure, and its family;
    /// `of_service` is the Service's, for bindings that name none. One that is an NLB's for sure comes first.
    pub fn slow(
        &self,
        service: &Sender,
        of_service: Option<Family>,
    ) -> Option<(String, Option<Family>)> {
        let entries = self.by_service.get(service).into_iter().flatten();
        let slow = entries
            .filter(|entry| entry.gone.is_none())
            .map(|entry| (entry.name(), entry.family.or(of_service)))
            .filter(|(_, family)| *family != Some(Family::Alb));
        // By name, so that the same bindings give the same answer in whatever order they came.
        slow.min_by_key(|(name, family)| (family.is_none(), name.clone()))
    }

    /// Forgets what no hold can still ask for.
    pub fn prune(&mut self, now: Instant) {
        let memory = self.memory;
        self.by_service.retain(|_, entries| {
            entries.retain(|entry| {
                entry
                    .gone
                    .is_none_or(|gone| now.duration_since(gone) < memory)
            });
            !entries.is_empty()
        });
    }

    fn apply(&mut self, origin: Origin, binding: &DynamicObject, now: Instant) -> Vec<Sender> {
        let key = key(origin, binding);
        let is_listing = if let Some(listed) = self.listed.get_mut(&origin) {
            listed.insert(key.clone());
            true
        } else {
            false
        };
        let mut changed = Vec::new();
        let Some(read) = read(binding) else {
            changed.extend(self.leave(&key, now));
            return changed;
        };
        let service = Sender {
            namespace: key.1.clone(),
            name: read.service,
        };
        let (family, manages_rules) = (read.family, read.manages_rules);
        let Some(group) = read.group else {
            changed.extend(self.leave(&key, now));
            self.nodes.insert(key, service.clone());
            changed.push(service);
            return changed;
        };
        self.nodes.remove(&key);
        // A switch to another Service or group: the old one keeps it.
        let before = self.services.get(&key).and_then(|old| {
            let entries = self.by_service.get(old)?.iter();
            let entry = entries.rev().find(|e| e.key == key && e.gone.is_none())?;
            Some((
                old == &service && entry.group == group,
                entry.checkpoint.is_some(),
            ))
        });
        if before.is_some_and(|(is_same, _)| !is_same) {
            changed.extend(self.leave(&key, now));
        }
        self.services.insert(key.clone(), service.clone());
        let entries = self.by_service.entry(service.clone()).or_default();
        let index = entries
            .iter()
            .position(|entry| entry.key == key && entry.group == group)
            .unwrap_or_else(|| {
                entries.push(Entry {
                    key: key.clone(),
                    group,
                    family,
                    manages_rules,
                    checkpoint: None,
                    gone: None,
                });
                entries.len() - 1
            });
        let entry = &mut entries[index];
        // A first list tells what is so, not when it began.
        let witnessed = before.is_some() || entry.gone.is_some() || !is_listing;
        entry.gone = None;
        (entry.family, entry.manages_rules) = (family, manages_rules);
        let value = binding.annotations().get(CHECKPOINT).map(String::as_str);
        let was_there =
            entry.checkpoint.is_some() || before.is_some_and(|(_, was_there)| was_there);
        // One that vanished says no more than a blank one.
        let value = value.or_else(|| was_there.then_some(""));
        if let Some(value) = value
            && entry.checkpoint.as_ref().is_none_or(|m| &*m.value != value)
        {
            entry.checkpoint = Some(Mark {
                value: value.into(),
                since: now,
                witnessed,
            });
        }
        changed.push(service);
        changed
    }

    /// A binding is gone, or no longer what it was; returns the Service that it leaves.
    fn leave(&mut self, key: &Key, now: Instant) -> Option<Sender> {
        let nodes = self.nodes.remove(key);
        let Some(service) = self.services.remove(key) else {
            return nodes;
        };
        let entries = self.by_service.get_mut(&service).into_iter().flatten();
        for entry in entries.filter(|entry| entry.key == *key) {
            entry.gone.get_or_insert(now);
        }
        Some(service)
    }

    fn retain(&mut self, origin: Origin, listed: &HashSet<Key>, now: Instant) -> Vec<Sender> {
        let lost: Vec<_> = self
            .services
            .keys()
            .chain(self.nodes.keys())
            .filter(|key| key.0 == origin && !listed.contains(*key))
            .cloned()
            .collect();
        lost.iter().filter_map(|key| self.leave(key, now)).collect()
    }
}

impl Entry {
    fn name(&self) -> String {
        let (_, namespace, name) = &self.key;
        format!("{namespace}/{name}")
    }

    fn bound(&self, now: Instant) -> Bound {
        Bound {
            binding: self.name(),
            group: self.group.clone(),
            family: self.family,
            checkpoint: self.checkpoint.as_ref().map(|mark| Checkpoint {
                is_blank: mark.value.is_empty(),
                age: now.duration_since(mark.since),
                witnessed: mark.witnessed,
            }),
            is_gone: self.gone.is_some(),
            manages_rules: self.manages_rules,
        }
    }
}

fn key(origin: Origin, binding: &DynamicObject) -> Key {
    let namespace = binding.namespace().unwrap_or_default();
    (origin, namespace, binding.name_any())
}

/// What a binding says.
struct Read {
    service: String,
    /// `None` where it registers nodes.
    group: Option<TargetGroup>,
    family: Option<Family>,
    manages_rules: bool,
}

/// Reads a binding; `None` where it names no group, or makes no sense.
fn read(binding: &DynamicObject) -> Option<Read> {
    let spec = match Spec::deserialize(binding.data.get("spec")?) {
        Ok(spec) => spec,
        Err(error) => {
            warn!(namespace = binding.namespace(), name = binding.name_any(), %error, "Can't read a TargetGroupBinding");
            return None;
        }
    };
    let given = |value: Option<String>| value.filter(|value| !value.is_empty());
    let id = match (given(spec.target_group_arn), given(spec.target_group_name)) {
        (Some(arn), _) => GroupId::Arn(arn),
        (None, Some(name)) => GroupId::Name(name),
        (None, None) => return None,
    };
    let external_id = given(spec.assume_role_external_id);
    let role = given(spec.iam_role_arn_to_assume).map(|arn| Role { arn, external_id });
    let is_labelled = |prefixes: [&str; 2]| {
        let mut labels = binding.labels().keys();
        labels.any(|label| prefixes.iter().any(|prefix| label.starts_with(prefix)))
    };
    let family = match spec.target_group_protocol.as_deref() {
        Some(protocol) if !protocol.is_empty() => Family::of_protocol(protocol),
        _ if is_labelled(SERVICE_LABELS) => Some(Family::Nlb),
        _ if is_labelled(INGRESS_LABELS) => Some(Family::Alb),
        _ => None,
    };
    let is_of_pods = spec.target_type.as_deref() != Some("instance");
    Some(Read {
        service: spec.service_ref.name,
        group: is_of_pods.then_some(TargetGroup { id, role }),
        family,
        manages_rules: spec.networking.is_some(),
    })
}

#[cfg(test)]
mod tests;
