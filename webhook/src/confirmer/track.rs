//! What one target group's answers said of its targets, and when. Pure: answers and time go in.
//!
//! AWS tells no time of transition, so evidence is as old as the answer that first showed it. Only answers from after
//! the endpoint was dropped count for a pod: what an earlier one showed may have been a registration still to come.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use tokio::time::Instant;

use super::target_group::{Failure, Health, Target};

/// Answers whose times are remembered: at 2 a second more than any settle.
const ANSWERS: usize = 1024;

/// One target group, as this replica was told of it.
#[derive(Debug, Default)]
pub struct Track {
    /// When each question was asked and answered, the oldest first.
    answers: VecDeque<(Instant, Instant)>,
    targets: HashMap<IpAddr, HashMap<u16, Entry>>,
    /// The latest failure, where no answer came after it.
    failure: Option<(Instant, Failure)>,
    /// Since when the group itself is gone.
    group_gone: Option<Instant>,
}

/// A target that an answer showed.
#[derive(Debug, Clone, Copy)]
struct Entry {
    /// As the latest answer showed it; [`Health::NotRegistered`] where it showed nothing.
    health: Health,
    /// Since which answer it has been gone, or registered, in this way without a break.
    since: Instant,
    /// The latest answer that showed it registered.
    registered_at: Option<Instant>,
}

/// How a target is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Gone {
    /// The whole group is.
    Group,
    /// It isn't in the group.
    Absent,
    /// It is, but no load balancer uses it.
    Unused,
    /// It was deregistered, and is being drained.
    Draining,
    /// It fails its health checks and is being drained: it gets no new connections, but may come back.
    UnhealthyDraining,
}

/// Where a pod stands in a group, by the answers since its endpoint was dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// No answer has come since then.
    Unasked {
        /// Why the latest question failed.
        failure: Option<Failure>,
    },
    /// It may be sent to.
    Registered {
        /// When that was asked which was answered last.
        asked: Instant,
        /// Why every later question failed.
        failure: Option<Failure>,
    },
    /// It is being let go of, or was.
    Gone {
        /// How.
        how: Gone,
        /// The answer that first showed it.
        since: Instant,
        /// When that was asked which was answered last.
        asked: Instant,
        /// Whether an answer has ever shown the pod in the group.
        was_there: bool,
        /// Whether an answer since the drop showed it registered: then `since` is all there is to count from.
        came_back: bool,
    },
}

impl Track {
    /// Takes the whole group as the answer to a question of then showed it.
    pub fn answered(&mut self, targets: &[Target], asked: Instant, now: Instant) {
        let mut shown: HashMap<(IpAddr, u16), Health> = HashMap::with_capacity(targets.len());
        for target in targets {
            shown.insert((canonical(target.ip), target.port), target.health);
        }
        for (ip, ports) in &mut self.targets {
            for (port, entry) in ports {
                let health = shown.remove(&(*ip, *port)).unwrap_or(Health::NotRegistered);
                entry.note(health, now);
            }
        }
        for ((ip, port), health) in shown {
            let entry = Entry {
                health,
                since: now,
                registered_at: (health == Health::Registered).then_some(now),
            };
            self.targets.entry(ip).or_default().insert(port, entry);
        }
        self.group_gone = None;
        self.note_answer(asked, now);
    }

    /// Takes an answer that there is no such group.
    pub fn not_found(&mut self, asked: Instant, now: Instant) {
        self.group_gone.get_or_insert(now);
        self.note_answer(asked, now);
    }

    /// Takes a question that failed.
    pub fn failed(&mut self, failure: Failure, now: Instant) {
        self.failure = Some((now, failure));
    }

    /// When the latest answer came.
    pub fn last_answer(&self) -> Option<Instant> {
        self.answers.back().map(|(_, answered)| *answered)
    }

    /// Where a pod with these addresses stands whose endpoint was dropped at `dropped`.
    ///
    /// Its `ports` count only where the address isn't its own (`hostNetwork`): one address may be registered anew on
    /// another port.
    pub fn standing(
        &self,
        addresses: impl IntoIterator<Item = IpAddr>,
        ports: Option<&BTreeSet<u16>>,
        dropped: Instant,
    ) -> Standing {
        let failure = || self.failure.as_ref().map(|(_, failure)| failure.clone());
        let since_drop = self.answers.partition_point(|(asked, _)| *asked < dropped);
        let (Some((_, first)), Some((asked, _))) = (
            self.answers.get(since_drop).copied(),
            self.answers.back().copied(),
        ) else {
            return Standing::Unasked { failure: failure() };
        };
        let entries: Vec<Entry> = addresses
            .into_iter()
            .filter_map(|ip| self.targets.get(&canonical(ip)))
            .flatten()
            .filter(|(port, _)| ports.is_none_or(|own| own.contains(port)))
            .map(|(_, entry)| *entry)
            .collect();
        let came_back = entries
            .iter()
            .any(|entry| entry.registered_at.is_some_and(|at| at >= dropped));
        let was_there = !entries.is_empty();
        let gone = |how, since: Instant| Standing::Gone {
            how,
            since: since.max(first),
            asked,
            was_there,
            came_back,
        };
        if let Some(since) = self.group_gone {
            return gone(Gone::Group, since);
        }
        if entries
            .iter()
            .any(|entry| entry.health == Health::Registered)
        {
            return Standing::Registered {
                asked,
                failure: failure(),
            };
        }
        // The worst of its registrations says how, the last one to go says since when.
        let how = entries.iter().map(Entry::how).max().unwrap_or(Gone::Absent);
        let since = entries
            .iter()
            .map(|entry| entry.since)
            .max()
            .unwrap_or(first);
        gone(how, since)
    }

    fn note_answer(&mut self, asked: Instant, now: Instant) {
        self.failure = None;
        if self.answers.len() == ANSWERS {
            self.answers.pop_front();
        }
        self.answers.push_back((asked, now));
        // What has been gone for that long no hold can still ask for.
        let oldest = self.answers.front().map_or(now, |(_, answered)| *answered);
        self.targets.retain(|_, ports| {
            ports.retain(|_, entry| entry.health != Health::NotRegistered || entry.since >= oldest);
            !ports.is_empty()
        });
    }
}

impl Entry {
    fn note(&mut self, health: Health, now: Instant) {
        // Gone in another way is still gone; only a target that may be sent to again starts anew.
        let stays = self.blocks_alike(health);
        if !stays {
            self.since = now;
        }
        if health == Health::Registered {
            self.registered_at = Some(now);
        }
        self.health = health;
    }

    /// Whether the evidence goes on: `unhealthy.draining` may revert, so what follows it is new evidence.
    fn blocks_alike(&self, health: Health) -> bool {
        let rank = |health| match health {
            Health::Registered => 0,
            Health::UnhealthyDraining => 1,
            Health::Draining | Health::Unused | Health::NotRegistered => 2,
        };
        rank(self.health) == rank(health)
    }

    fn how(&self) -> Gone {
        match self.health {
            Health::UnhealthyDraining | Health::Registered => Gone::UnhealthyDraining,
            Health::Draining => Gone::Draining,
            Health::Unused => Gone::Unused,
            Health::NotRegistered => Gone::Absent,
        }
    }
}

/// One spelling for an address: `::ffff:192.0.2.1` is 192.0.2.1.
fn canonical(ip: IpAddr) -> IpAddr {
    ip.to_canonical()
}

#[cfg(test)]
mod tests;
