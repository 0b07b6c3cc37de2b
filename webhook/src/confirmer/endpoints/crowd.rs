//! The endpoints of one Service over all its slices, counted as they change, so that to look at one of them costs the
//! same however many others there are.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{Endpoint, Id, Listed, Seen, Sender, SliceKey};
use crate::confirmer::sender::{Others, SenderSeen};

/// What one slice says of one endpoint, and since when.
#[derive(Debug)]
struct Known {
    slice: SliceKey,
    endpoint: Endpoint,
    /// When it was first seen so.
    since: Instant,
    /// Whether this replica saw the change, rather than finding it so in its first list.
    witnessed: bool,
    addresses: Vec<IpAddr>,
    ports: Arc<[u16]>,
}

/// News of an endpoint.
#[derive(Debug)]
pub(super) struct Change<'a> {
    pub(super) slice: &'a SliceKey,
    pub(super) listed: &'a Listed,
    /// The slice's ports.
    pub(super) ports: &'a Arc<[u16]>,
    pub(super) witnessed: bool,
}

/// What an endpoint is to the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// It takes traffic, and goes on doing so.
    Ready,
    /// It isn't ready, but isn't terminating either.
    Starting,
    /// It takes none any more.
    Out,
}

/// An endpoint that isn't ready any more, when it ceased to be.
#[derive(Debug, Clone, Copy)]
struct Left {
    at: Instant,
    /// Since when others were ready then.
    others_since: Option<Instant>,
}

#[derive(Debug)]
struct Member {
    known: Vec<Known>,
    standing: Standing,
    left: Option<Left>,
}

/// The endpoints of one Service.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    members: HashMap<Id, Member>,
    ready: usize,
    starting: usize,
    /// Since when at least one is ready.
    one_since: Option<Instant>,
    /// Since when at least two are: each of them then has another.
    two_since: Option<Instant>,
}

impl Crowd {
    /// How many are ready.
    pub(super) fn ready(&self) -> usize {
        self.ready
    }

    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub(super) fn contains(&self, id: &str) -> bool {
        self.members.contains_key(id)
    }

    /// What decides on [`Others`] of every endpoint: when it changes, so may they.
    pub(super) fn class(&self) -> (usize, usize) {
        (self.ready.min(2), self.starting.min(2))
    }

    /// Those that aren't ready: they wait for others.
    pub(super) fn waiting(&self) -> impl Iterator<Item = String> {
        self.members
            .iter()
            .filter(|(_, member)| member.standing != Standing::Ready)
            .map(|(id, _)| id.to_string())
    }

    /// Takes what a slice says of an endpoint; returns whether anything is new.
    pub(super) fn set(&mut self, id: &Id, change: &Change<'_>, now: Instant) -> bool {
        let member = self
            .members
            .entry(Arc::clone(id))
            .or_insert_with(|| Member {
                known: Vec::with_capacity(1),
                standing: Standing::Out,
                left: None,
            });
        let is_new = member.set(change, now);
        self.count(id, now);
        is_new
    }

    /// An endpoint left its slice; returns whether that is new.
    pub(super) fn leave(&mut self, id: &str, slice: &SliceKey, now: Instant) -> bool {
        let Some(member) = self.members.get_mut(id) else {
            return false;
        };
        let mut is_new = false;
        for known in member.known.iter_mut().filter(|k| k.slice == *slice) {
            is_new |= known.endpoint != Endpoint::Gone;
            // What was not ready already keeps its age.
            if matches!(known.endpoint, Endpoint::Ready { .. }) {
                known.since = now;
                known.witnessed = true;
            }
            known.endpoint = Endpoint::Gone;
        }
        self.count(id, now);
        is_new
    }

    /// What is known of one.
    pub(super) fn look(&self, sender: &Sender, id: &str, now: Instant) -> Option<SenderSeen> {
        let member = self.members.get(id)?;
        let known = member.known.iter();
        Some(SenderSeen {
            node_bindings: Vec::new(),
            sender: sender.clone(),
            seen: member.seen(now),
            addresses: known
                .clone()
                .flat_map(|k| k.addresses.iter().copied())
                .collect(),
            ports: known.flat_map(|k| k.ports.iter().copied()).collect(),
            others: self.others(member, now),
            bindings: Vec::new(),
            unknown_controller: None,
        })
    }

    /// Forgets what left longer ago than `memory`; returns those of which nothing is left.
    pub(super) fn prune(&mut self, now: Instant, memory: Duration) -> Vec<Id> {
        let mut forgotten = Vec::new();
        self.members.retain(|id, member| {
            member.known.retain(|known| {
                known.endpoint != Endpoint::Gone || now.duration_since(known.since) < memory
            });
            if member.known.is_empty() {
                forgotten.push(Arc::clone(id));
            }
            !member.known.is_empty()
        });
        forgotten
    }

    fn others(&self, member: &Member, now: Instant) -> Others {
        let others = |count: usize, standing| count - usize::from(member.standing == standing);
        if others(self.ready, Standing::Ready) == 0 {
            return if others(self.starting, Standing::Starting) == 0 {
                Others::None
            } else {
                Others::Starting
            };
        }
        let since = match (member.standing, member.left) {
            (Standing::Ready, _) => self.two_since,
            // Since it left, the ready ones are all others; before, one of them was itself.
            (_, Some(left)) if self.one_since < Some(left.at) => left.others_since,
            _ => self.one_since,
        };
        Others::Ready {
            age: now.duration_since(since.or(self.one_since).unwrap_or(now)),
        }
    }

    /// Counts an endpoint anew.
    fn count(&mut self, id: &str, now: Instant) {
        let Some(member) = self.members.get_mut(id) else {
            return;
        };
        let standing = member.standing();
        let before = std::mem::replace(&mut member.standing, standing);
        match (before, standing) {
            (Standing::Ready, Standing::Starting | Standing::Out) => {
                member.left = Some(Left {
                    at: now,
                    others_since: self.two_since,
                });
            }
            (_, Standing::Ready) => member.left = None,
            _ => {}
        }
        for (is, step) in [(before, -1), (standing, 1)] {
            match is {
                Standing::Ready => self.ready = self.ready.saturating_add_signed(step),
                Standing::Starting => self.starting = self.starting.saturating_add_signed(step),
                Standing::Out => {}
            }
        }
        self.one_since = (self.ready >= 1).then(|| self.one_since.unwrap_or(now));
        self.two_since = (self.ready >= 2).then(|| self.two_since.unwrap_or(now));
    }
}

impl Member {
    fn set(&mut self, change: &Change<'_>, now: Instant) -> bool {
        let Change {
            slice,
            listed,
            ports,
            witnessed,
        } = change;
        let Some(known) = self.known.iter_mut().find(|k| k.slice == **slice) else {
            self.known.push(Known {
                slice: Arc::clone(slice),
                endpoint: listed.endpoint,
                since: now,
                // An endpoint that is first seen not ready may have been so for long; one that was there may not.
                witnessed: *witnessed,
                addresses: listed.addresses.clone(),
                ports: Arc::clone(ports),
            });
            return true;
        };
        let before = std::mem::replace(&mut known.endpoint, listed.endpoint);
        let is_moved = known.addresses != listed.addresses || known.ports != **ports;
        if is_moved {
            known.addresses.clone_from(&listed.addresses);
            known.ports = Arc::clone(ports);
        }
        // One that begins to terminate when it isn't ready has not been ready for just as long.
        let is_same = before == listed.endpoint
            || matches!(
                (before, listed.endpoint),
                (Endpoint::NotReady { .. }, Endpoint::NotReady { .. })
            );
        if !is_same {
            known.since = now;
            known.witnessed = true;
        }
        !is_same || is_moved
    }

    fn standing(&self) -> Standing {
        let is = |endpoint| self.known.iter().any(|k| k.endpoint == endpoint);
        if is(Endpoint::Ready { terminating: false }) {
            Standing::Ready
        } else if is(Endpoint::NotReady { terminating: false }) {
            Standing::Starting
        } else {
            Standing::Out
        }
    }

    fn seen(&self, now: Instant) -> Seen {
        let is = |endpoint| self.known.iter().any(|k| k.endpoint == endpoint);
        if is(Endpoint::Ready { terminating: false }) {
            return Seen::Registered;
        }
        if is(Endpoint::Ready { terminating: true }) {
            return Seen::PublishedNotReady;
        }
        let last = self.known.iter().max_by_key(|k| k.since);
        last.map_or(Seen::Registered, |k| Seen::Dropped {
            age: now.duration_since(k.since),
            witnessed: k.witnessed,
        })
    }
}
