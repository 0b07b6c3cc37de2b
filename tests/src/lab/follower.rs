//! When the load balancer adds and drops a target: additions at once, removals late.
//!
//! Pure: time is passed in. A target that becomes ready again within the lag stays.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How long an AWS ALB went on sending after its API said `draining`, as a user measured it:
/// `draining` at 2 s, the last request at 19 s (aws-load-balancer-controller, issue 2366).
pub const ALB_LAG: Duration = Duration::from_secs(17);

/// One pod's address at the load balancer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// Address and port that requests are sent to.
    pub address: SocketAddr,
    /// The pod's name.
    pub pod: String,
}

/// What happens to a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Ready: requests are sent to it from now on.
    Add(Target),
    /// Not ready any more, but requests still are sent to it.
    Leave(Target),
    /// Ready again before it was dropped.
    Stay(Target),
    /// No new request is sent to it from now on.
    Remove(Target),
}

/// The schedule.
#[derive(Debug)]
pub struct Follower {
    lag: Duration,
    /// Each target that gets requests, and when it is dropped if it is to be.
    targets: BTreeMap<Target, Option<Instant>>,
}

impl Follower {
    /// No targets yet; each removal comes `lag` late.
    pub fn new(lag: Duration) -> Self {
        Self {
            lag,
            targets: BTreeMap::new(),
        }
    }

    /// Takes note that exactly `ready` are ready at `now`.
    pub fn observe(&mut self, ready: &BTreeSet<Target>, now: Instant) -> Vec<Change> {
        let mut changes = Vec::new();
        for (target, due) in &mut self.targets {
            match (ready.contains(target), due.is_some()) {
                (false, false) => {
                    *due = Some(now + self.lag);
                    changes.push(Change::Leave(target.clone()));
                }
                (true, true) => {
                    *due = None;
                    changes.push(Change::Stay(target.clone()));
                }
                (true, false) | (false, true) => {}
            }
        }
        for target in ready {
            if !self.targets.contains_key(target) {
                self.targets.insert(target.clone(), None);
                changes.push(Change::Add(target.clone()));
            }
        }
        changes
    }

    /// The removals that are due at `now`.
    pub fn due(&mut self, now: Instant) -> Vec<Change> {
        let is_due = |_: &Target, due: &mut Option<Instant>| due.is_some_and(|due| due <= now);
        self.targets
            .extract_if(.., is_due)
            .map(|(target, _)| Change::Remove(target))
            .collect()
    }

    /// When the next removal is due.
    pub fn next_due(&self) -> Option<Instant> {
        self.targets.values().flatten().min().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_target(last: u8) -> Target {
        Target {
            address: ([198, 18, 0, last], 8080).into(),
            pod: format!("pod-{last}"),
        }
    }

    fn mk_ready<const N: usize>(last: [u8; N]) -> BTreeSet<Target> {
        last.into_iter().map(mk_target).collect()
    }

    #[test]
    fn additions_come_at_once_and_removals_after_the_lag() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut follower = Follower::new(ALB_LAG);
        let added = [Change::Add(mk_target(1)), Change::Add(mk_target(2))];
        assert_eq!(follower.observe(&mk_ready([1, 2]), start), added);
        assert_eq!(follower.next_due(), None);
        let changed = [Change::Leave(mk_target(1)), Change::Add(mk_target(3))];
        assert_eq!(follower.observe(&mk_ready([2, 3]), at(10)), changed);
        assert_eq!(follower.next_due(), Some(at(27)));
        assert_eq!(follower.due(start + Duration::from_millis(26_999)), []);
        assert_eq!(follower.due(at(27)), [Change::Remove(mk_target(1))]);
        assert_eq!(follower.next_due(), None);
    }

    #[test]
    fn lag_counts_from_the_first_time_a_target_was_not_ready() {
        let start = Instant::now();
        let mut follower = Follower::new(ALB_LAG);
        follower.observe(&mk_ready([1, 2]), start);
        follower.observe(&mk_ready([2]), start);
        assert_eq!(
            follower.observe(&mk_ready([]), start + Duration::from_secs(5)),
            [Change::Leave(mk_target(2))]
        );
        assert_eq!(
            follower.due(start + ALB_LAG),
            [Change::Remove(mk_target(1))]
        );
        assert_eq!(
            follower.next_due(),
            Some(start + Duration::from_secs(5) + ALB_LAG)
        );
    }

    #[test]
    fn target_that_is_ready_again_in_time_stays() {
        let start = Instant::now();
        let mut follower = Follower::new(ALB_LAG);
        follower.observe(&mk_ready([1]), start);
        follower.observe(&mk_ready([]), start);
        assert_eq!(
            follower.observe(&mk_ready([1]), start + Duration::from_secs(16)),
            [Change::Stay(mk_target(1))]
        );
        assert_eq!(follower.due(start + Duration::from_mins(1)), []);
    }
}
