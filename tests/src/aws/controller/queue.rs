//! What is to be reconciled, and when. Pure: time is passed in.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::binding::Key;

/// The wait after a first error.
const FIRST_BACKOFF: Duration = Duration::from_millis(5);

/// The work queue: each binding at most once.
#[derive(Debug)]
pub(super) struct Queue {
    due: BTreeMap<Key, Instant>,
    failures: BTreeMap<Key, u32>,
    max_backoff: Duration,
}

impl Queue {
    pub(super) fn new(max_backoff: Duration) -> Self {
        Self {
            due: BTreeMap::new(),
            failures: BTreeMap::new(),
            max_backoff,
        }
    }

    /// A change at `now`, to be seen to `delay` later. It does not wait for a back-off to end.
    pub(super) fn add(&mut self, key: Key, delay: Duration, now: Instant) {
        let at = now + delay;
        self.due
            .entry(key)
            .and_modify(|due| *due = at.min(*due))
            .or_insert(at);
    }

    /// Takes the binding that has been due for longest.
    pub(super) fn take(&mut self, now: Instant) -> Option<Key> {
        let (key, due) = self.due.iter().min_by_key(|(_, due)| **due)?;
        let key = (*due <= now).then(|| key.clone())?;
        self.due.remove(&key);
        Some(key)
    }

    /// When something is due next.
    pub(super) fn next(&self) -> Option<Instant> {
        self.due.values().min().copied()
    }

    /// Forgets former errors.
    pub(super) fn succeeded(&mut self, key: &Key) {
        self.failures.remove(key);
    }

    /// Puts it back for later: 5 ms, then twice as long each time.
    pub(super) fn failed(&mut self, key: Key, now: Instant) {
        let failures = self.failures.entry(key.clone()).or_default();
        let backoff = FIRST_BACKOFF.saturating_mul(2_u32.saturating_pow(*failures));
        *failures += 1;
        self.add(key, backoff.min(self.max_backoff), now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aws::crds::Group;

    fn mk_key(name: &str) -> Key {
        Key {
            group: Group::EksAutoMode,
            namespace: "a".to_owned(),
            name: name.to_owned(),
        }
    }

    #[test]
    fn errors_wait_twice_as_long_each_time_up_to_the_cap() {
        let start = Instant::now();
        let mut queue = Queue::new(Duration::from_millis(30));
        let mut waits = Vec::new();
        for _ in 0..5 {
            queue.failed(mk_key("a"), start);
            waits.push((queue.next().unwrap() - start).as_millis());
            assert_eq!(queue.take(start), None);
            queue.take(start + Duration::from_secs(1)).unwrap();
        }
        assert_eq!(waits, [5, 10, 20, 30, 30]);
        queue.succeeded(&mk_key("a"));
        queue.failed(mk_key("a"), start);
        assert_eq!(queue.next(), Some(start + FIRST_BACKOFF));
    }

    #[test]
    fn changes_are_taken_once_in_their_order_and_do_not_wait_for_a_back_off() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut queue = Queue::new(Duration::from_hours(1));
        queue.add(mk_key("b"), Duration::from_secs(2), start);
        queue.add(mk_key("b"), Duration::from_secs(2), at(1));
        queue.add(mk_key("a"), Duration::from_secs(2), at(1));
        assert_eq!(queue.take(at(1)), None);
        assert_eq!(queue.take(at(9)), Some(mk_key("b")));
        assert_eq!(queue.take(at(9)), Some(mk_key("a")));
        assert_eq!(queue.take(at(9)), None);
        for _ in 0..20 {
            queue.failed(mk_key("a"), start);
            queue.take(at(100_000)).unwrap();
        }
        queue.failed(mk_key("a"), start);
        queue.add(mk_key("a"), Duration::ZERO, at(1));
        assert_eq!(queue.take(at(1)), Some(mk_key("a")));
    }
}
