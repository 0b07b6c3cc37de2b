//! Which target group is asked when. Pure: wishes, answers and time go in.
//!
//! One question lists a whole group, so what a group costs doesn't depend on how many pods wait on it. All replicas
//! together ask twice a second at most, however many groups there are: an account may ask 10 times a second, and its
//! other users must never feel us. A group that isn't reached in time is settled by time.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::target_group::{Role, TargetGroup};

/// Between two questions of all replicas together.
const PACE: Duration = Duration::from_millis(500);

/// Between two questions about one group: a quarter of a group's pods may be let go of within it.
const GROUP_PACE: Duration = Duration::from_secs(2);

/// First and longest pause after throttling and other failures; it doubles in between.
const BACK_OFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(32));

/// How long a wish counts that nobody repeats: longer than a turn of a hold.
const WISH: Duration = Duration::from_mins(1);

/// The plan of one replica.
#[derive(Debug)]
pub struct Polls {
    groups: HashMap<TargetGroup, Group>,
    accounts: HashMap<Option<Role>, Account>,
    /// No question before this.
    next: Instant,
}

#[derive(Debug, Default)]
struct Group {
    /// By pod UID.
    wishes: HashMap<String, Wish>,
    asked: Option<Instant>,
    /// A question is under way: a second one could overtake it.
    is_asked: bool,
}

#[derive(Debug, Clone, Copy)]
struct Wish {
    due: Instant,
    said: Instant,
}

/// Whoever's calls are throttled together.
#[derive(Debug)]
struct Account {
    pause: Duration,
    until: Instant,
}

/// What to do now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Ask about this group.
    Ask(TargetGroup),
    /// Nothing before this; sooner if a wish comes.
    At(Instant),
    /// Nothing until a wish comes.
    Idle,
}

impl Polls {
    /// Nobody waits yet.
    pub fn new(now: Instant) -> Self {
        Self {
            groups: HashMap::new(),
            accounts: HashMap::new(),
            next: now,
        }
    }

    /// A pod wants an answer about a group that is no older than `due`, or, with `None`, none for now. A wish that is
    /// due already keeps its time when it is said again.
    pub fn wish(&mut self, group: &TargetGroup, uid: &str, due: Option<Instant>, now: Instant) {
        match due {
            Some(due) => {
                if !self.groups.contains_key(group) {
                    self.groups.insert(group.clone(), Group::default());
                }
                if let Some(group) = self.groups.get_mut(group) {
                    // Who says "now" again and again must not lose its place to groups that were asked meanwhile.
                    let before = group.wishes.get(uid).map(|wish| wish.due);
                    let due = before
                        .filter(|before| *before <= now)
                        .map_or(due, |before| before.min(due));
                    group.wishes.insert(uid.to_owned(), Wish { due, said: now });
                }
            }
            None => {
                if let Some(group) = self.groups.get_mut(group) {
                    group.wishes.remove(uid);
                }
            }
        }
    }

    /// What comes next, with so many replicas ready, ours included.
    ///
    /// What has waited the longest is asked first, so that no group starves. `jitter` is a random number from 0 to 1:
    /// replicas must not ask in step.
    pub fn next(&mut self, replicas: usize, jitter: f64, now: Instant) -> Next {
        self.forget(now);
        let first = self
            .groups
            .iter()
            .filter_map(|(key, group)| Some((self.due(key, group)?, key)))
            .min_by_key(|(due, key)| (*due, *key));
        let Some((due, key)) = first else {
            return Next::Idle;
        };
        let at = due.max(self.next);
        if at > now {
            return Next::At(at);
        }
        let key = key.clone();
        let replicas = u32::try_from(replicas.max(1)).unwrap_or(u32::MAX);
        // From a half to one and a half of the pace: on average the pace itself.
        self.next = now
            + PACE
                .saturating_mul(replicas)
                .mul_f64(0.5 + jitter.clamp(0.0, 1.0));
        if let Some(group) = self.groups.get_mut(&key) {
            group.asked = Some(now);
            group.is_asked = true;
        }
        Next::Ask(key)
    }

    /// Whose pods wait on a group.
    pub fn waiting(&self, group: &TargetGroup) -> impl Iterator<Item = &String> {
        self.groups
            .get(group)
            .into_iter()
            .flat_map(|group| group.wishes.keys())
    }

    /// A question that was asked then was answered: wishes that were due are met, and the account isn't throttled.
    pub fn answered(&mut self, key: &TargetGroup, asked: Instant) {
        self.accounts.remove(&key.role);
        if let Some(group) = self.groups.get_mut(key) {
            group.is_asked = false;
            group.wishes.retain(|_, wish| wish.due > asked);
        }
    }

    /// A question about the group itself came to an end: no wish is met by it.
    pub fn described(&mut self, key: &TargetGroup) {
        if let Some(group) = self.groups.get_mut(key) {
            group.is_asked = false;
            group.asked = None;
        }
    }

    /// A question failed: its account is left alone for up to twice as long as the last time. Others use the account
    /// too, and what is down isn't helped by being asked.
    pub fn failed(&mut self, key: &TargetGroup, jitter: f64, now: Instant) {
        if let Some(group) = self.groups.get_mut(key) {
            group.is_asked = false;
        }
        let account = self.accounts.entry(key.role.clone()).or_insert(Account {
            pause: BACK_OFF.0,
            until: now,
        });
        // At least half of it, so that a lucky draw isn't another call at once.
        account.until = now + account.pause.mul_f64(0.5 + jitter.clamp(0.0, 1.0) / 2.0);
        account.pause = (account.pause * 2).min(BACK_OFF.1);
    }

    /// Whether anybody waits on a group.
    pub fn knows(&self, group: &TargetGroup) -> bool {
        self.groups.contains_key(group)
    }

    fn due(&self, key: &TargetGroup, group: &Group) -> Option<Instant> {
        if group.is_asked {
            return None;
        }
        let due = group.wishes.values().map(|wish| wish.due).min()?;
        let spaced = group.asked.map(|asked| asked + GROUP_PACE);
        let allowed = self.accounts.get(&key.role).map(|account| account.until);
        Some(due.max(spaced.unwrap_or(due)).max(allowed.unwrap_or(due)))
    }

    fn forget(&mut self, now: Instant) {
        self.groups.retain(|_, group| {
            group
                .wishes
                .retain(|_, wish| now.saturating_duration_since(wish.said) < WISH);
            // The pace of a group that is wished for again at once still counts.
            group.is_asked
                || !group.wishes.is_empty()
                || group
                    .asked
                    .is_some_and(|asked| now.saturating_duration_since(asked) < GROUP_PACE)
        });
    }
}

#[cfg(test)]
mod tests;
