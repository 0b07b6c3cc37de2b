//! When one source of a load balancer begins and ceases to send to a target: it begins at once, and ceases late.
//!
//! Pure: time is passed in. A target that is registered again within the lag stays.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// What a source does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It sends to the target from now on.
    Add(SocketAddr),
    /// It sends nothing new to the target from now on.
    Remove(SocketAddr),
}

/// The schedule of one source.
#[derive(Debug)]
pub struct Schedule {
    lag: Duration,
    /// Each target that gets traffic, and when it is dropped if it is to be.
    targets: BTreeMap<SocketAddr, Option<Instant>>,
}

impl Schedule {
    /// No targets yet; each removal comes `lag` late.
    pub fn new(lag: Duration) -> Self {
        Self {
            lag,
            targets: BTreeMap::new(),
        }
    }

    /// The control plane took `target` up.
    pub fn registered(&mut self, target: SocketAddr) -> Option<Step> {
        self.targets
            .insert(target, None)
            .is_none()
            .then_some(Step::Add(target))
    }

    /// The control plane accepted the removal of `target` at `at`. Asking twice doesn't put it off.
    pub fn deregistered(&mut self, target: SocketAddr, at: Instant) {
        if let Some(due) = self.targets.get_mut(&target) {
            due.get_or_insert(at + self.lag);
        }
    }

    /// The control plane dropped the whole group at `at`.
    pub fn deleted(&mut self, at: Instant) {
        for due in self.targets.values_mut() {
            due.get_or_insert(at + self.lag);
        }
    }

    /// The removals that are due at `now`.
    pub fn due(&mut self, now: Instant) -> Vec<Step> {
        let is_due = |_: &SocketAddr, due: &mut Option<Instant>| due.is_some_and(|due| due <= now);
        self.targets
            .extract_if(.., is_due)
            .map(|(target, _)| Step::Remove(target))
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

    const LAG: Duration = Duration::from_secs(17);

    fn mk_target(last: u8) -> SocketAddr {
        ([198, 18, 0, last], 8080).into()
    }

    #[test]
    fn additions_come_at_once_and_removals_after_the_lag() {
        let start = Instant::now();
        let mut schedule = Schedule::new(LAG);
        for last in [1, 2] {
            let step = schedule.registered(mk_target(last));
            assert_eq!(step, Some(Step::Add(mk_target(last))));
        }
        assert_eq!(schedule.next_due(), None);
        schedule.deregistered(mk_target(1), start);
        assert_eq!(schedule.next_due(), Some(start + LAG));
        assert_eq!(
            schedule.due(start + Duration::from_millis(16_999)),
            Vec::new()
        );
        assert_eq!(schedule.due(start + LAG), [Step::Remove(mk_target(1))]);
        assert_eq!(schedule.next_due(), None);
    }

    #[test]
    fn lag_counts_from_the_first_deregistration() {
        let start = Instant::now();
        let mut schedule = Schedule::new(LAG);
        schedule.registered(mk_target(1));
        schedule.deregistered(mk_target(1), start);
        schedule.deregistered(mk_target(1), start + Duration::from_secs(5));
        assert_eq!(schedule.next_due(), Some(start + LAG));
    }

    #[test]
    fn target_that_is_registered_again_in_time_stays() {
        let start = Instant::now();
        let mut schedule = Schedule::new(LAG);
        schedule.registered(mk_target(1));
        schedule.deregistered(mk_target(1), start);
        assert_eq!(schedule.registered(mk_target(1)), None);
        assert_eq!(schedule.due(start + LAG * 2), Vec::new());
    }

    #[test]
    fn deleted_group_goes_as_a_whole_and_unknown_targets_are_nobody() {
        let start = Instant::now();
        let mut schedule = Schedule::new(LAG);
        schedule.deregistered(mk_target(9), start);
        assert_eq!(schedule.next_due(), None);
        schedule.registered(mk_target(1));
        schedule.registered(mk_target(2));
        schedule.deleted(start);
        assert_eq!(schedule.due(start + LAG).len(), 2);
    }
}
