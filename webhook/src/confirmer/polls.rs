//! Which target group is asked when. Pure: wishes, answers and time go in.
//!
//! One question lists a whole group, so what a group costs doesn't depend on how many pods wait on it. All replicas
//! together ask twice a second at most, however many groups there are: an account may ask 10 times a second, and its
//! other users must never feel us. A group that isn't reached in time is settled by time.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::target_group::{GroupId, Role, TargetGroup};

/// Between two questions of all replicas together.
const PACE: Duration = Duration::from_millis(500);

/// Between two questions about one group: a quarter of a group's pods may be let go of within it.
const GROUP_PACE: Duration = Duration::from_secs(2);

/// First and longest pause after throttling and other failures; it doubles in between.
const BACK_OFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(32));

/// How long a wish counts that nobody repeats: longer than a turn of a hold.
const WISH: Duration = Duration::from_mins(1);

/// How often wishes are looked through for those that nobody repeats.
const FORGET_EVERY: Duration = Duration::from_secs(1);

/// The plan of one replica.
#[derive(Debug)]
pub struct Polls {
    groups: HashMap<TargetGroup, Group>,
    /// Whose calls are throttled together: an account's in a region.
    throttled: HashMap<(Option<Role>, String), BackOff>,
    /// No question before this.
    next: Instant,
    forgot: Instant,
}

#[derive(Debug, Default)]
struct Group {
    /// By pod UID.
    wishes: HashMap<String, Wish>,
    /// The earliest of the wishes, or of those that there were, where one was taken back since.
    due: Option<Instant>,
    is_due_stale: bool,
    /// After a failure of its own.
    back_off: Option<BackOff>,
    asked: Option<Instant>,
    /// A question is under way: a second one could overtake it.
    is_asked: bool,
}

#[derive(Debug, Clone, Copy)]
struct Wish {
    due: Instant,
    said: Instant,
}

#[derive(Debug)]
struct BackOff {
    pause: Duration,
    until: Instant,
}

impl BackOff {
    fn new(now: Instant) -> Self {
        Self {
            pause: BACK_OFF.0,
            until: now,
        }
    }

    /// Doubles the pause; at least half of it passes, so that a lucky draw isn't another call at once.
    fn again(&mut self, jitter: f64, now: Instant) {
        self.until = now + self.pause.mul_f64(0.5 + jitter.clamp(0.0, 1.0) / 2.0);
        self.pause = (self.pause * 2).min(BACK_OFF.1);
    }
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
            throttled: HashMap::new(),
            next: now,
            forgot: now,
        }
    }

    /// A pod wants an answer about a group that is no older than `due`, or, with `None`, none for now. A wish that is
    /// due already keeps its time when it is said again. Returns whether the group is due earlier than it was.
    pub fn wish(
        &mut self,
        group: &TargetGroup,
        uid: &str,
        due: Option<Instant>,
        now: Instant,
    ) -> bool {
        match due {
            Some(due) => {
                if !self.groups.contains_key(group) {
                    self.groups.insert(group.clone(), Group::default());
                }
                if let Some(group) = self.groups.get_mut(group) {
                    // Who says "now" again and again must not lose its place to groups that were asked meanwhile.
                    let before = group.wishes.get(uid).map(|wish| wish.due);
                    let due = match before {
                        Some(before) if before <= now && due <= now => before.min(due),
                        _ => due,
                    };
                    group.wishes.insert(uid.to_owned(), Wish { due, said: now });
                    let is_earlier = group.due.is_none_or(|least| due < least);
                    if is_earlier {
                        group.due = Some(due);
                    } else if before == group.due && Some(due) != group.due {
                        group.is_due_stale = true;
                    }
                    return is_earlier;
                }
            }
            None => {
                if let Some(group) = self.groups.get_mut(group) {
                    let before = group.wishes.remove(uid).map(|wish| wish.due);
                    group.is_due_stale |= before == group.due;
                }
            }
        }
        false
    }

    /// What comes next, with so many replicas ready, ours included.
    ///
    /// What has waited the longest is asked first, so that no group starves. `jitter` is a random number from 0 to 1:
    /// replicas must not ask in step.
    pub fn next(&mut self, replicas: usize, jitter: f64, now: Instant) -> Next {
        if now.saturating_duration_since(self.forgot) >= FORGET_EVERY {
            self.forget(now);
        }
        for group in self.groups.values_mut().filter(|group| group.is_due_stale) {
            group.count_due();
        }
        let first = self
            .groups
            .iter()
            .filter_map(|(key, group)| {
                let allowed = self.allowed(key, group)?;
                // Of those that may be asked now the one that has waited the longest.
                Some((allowed.max(now), group.due?, key))
            })
            .min();
        let Some((allowed, _, key)) = first else {
            return Next::Idle;
        };
        let at = allowed.max(self.next);
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
        self.throttled.remove(&account(key));
        if let Some(group) = self.groups.get_mut(key) {
            group.is_asked = false;
            group.back_off = None;
            group.wishes.retain(|_, wish| wish.due > asked);
            group.count_due();
        }
    }

    /// A question about the group itself came to an end: no wish is met by it.
    pub fn described(&mut self, key: &TargetGroup) {
        if let Some(group) = self.groups.get_mut(key) {
            group.is_asked = false;
            group.asked = None;
        }
    }

    /// A question was throttled: the whole account is left alone for up to twice as long as the last time, since its
    /// other users share it.
    pub fn throttled(&mut self, key: &TargetGroup, jitter: f64, now: Instant) {
        if let Some(group) = self.groups.get_mut(key) {
            group.is_asked = false;
        }
        self.throttled
            .entry(account(key))
            .or_insert_with(|| BackOff::new(now))
            .again(jitter, now);
    }

    /// A question failed in another way: this group alone is left alone, so that a bad one doesn't keep others waiting.
    pub fn failed(&mut self, key: &TargetGroup, jitter: f64, now: Instant) {
        if let Some(group) = self.groups.get_mut(key) {
            group.is_asked = false;
            group
                .back_off
                .get_or_insert_with(|| BackOff::new(now))
                .again(jitter, now);
        }
    }

    /// Whether anybody waits on a group.
    pub fn knows(&self, group: &TargetGroup) -> bool {
        self.groups.contains_key(group)
    }

    /// When a group that is wished for may be asked.
    fn allowed(&self, key: &TargetGroup, group: &Group) -> Option<Instant> {
        let due = group.due.filter(|_| !group.is_asked)?;
        let spaced = group.asked.map(|asked| asked + GROUP_PACE);
        let own = group.back_off.as_ref().map(|back_off| back_off.until);
        let throttled = self
            .throttled
            .get(&account(key))
            .map(|back_off| back_off.until);
        [Some(due), spaced, own, throttled]
            .into_iter()
            .flatten()
            .max()
    }

    fn forget(&mut self, now: Instant) {
        self.forgot = now;
        self.groups.retain(|_, group| {
            group
                .wishes
                .retain(|_, wish| now.saturating_duration_since(wish.said) < WISH);
            group.count_due();
            // The pace of a group that is wished for again at once still counts.
            group.is_asked
                || !group.wishes.is_empty()
                || group
                    .asked
                    .is_some_and(|asked| now.saturating_duration_since(asked) < GROUP_PACE)
        });
    }
}

impl Group {
    fn count_due(&mut self) {
        self.due = self.wishes.values().map(|wish| wish.due).min();
        self.is_due_stale = false;
    }
}

/// Whose calls are throttled together. An ARN's fourth part is its region.
fn account(key: &TargetGroup) -> (Option<Role>, String) {
    let region = match &key.id {
        GroupId::Arn(arn) => arn.split(':').nth(3).unwrap_or_default(),
        GroupId::Name(_) => "",
    };
    (key.role.clone(), region.to_owned())
}

#[cfg(test)]
mod tests;
