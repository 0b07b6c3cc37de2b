//! Which of the load balancer's fixed server slots stands for which target.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

/// A fixed number of slots, counted from 1 as `HAProxy`'s templates do.
#[derive(Debug)]
pub struct Slots {
    /// The slot that was free longest comes first: fewest of its former target's connections are still open.
    free: VecDeque<usize>,
    used: BTreeMap<SocketAddr, usize>,
}

impl Slots {
    /// `count` free slots.
    pub fn new(count: usize) -> Self {
        Self {
            free: (1..=count).collect(),
            used: BTreeMap::new(),
        }
    }

    /// The slot for `target`, a new one unless it has one; nothing when all are in use.
    pub fn take(&mut self, target: SocketAddr) -> Option<usize> {
        if let Some(slot) = self.used.get(&target) {
            return Some(*slot);
        }
        let slot = self.free.pop_front()?;
        self.used.insert(target, slot);
        Some(slot)
    }

    /// Frees the slot of `target` and answers which it was.
    pub fn release(&mut self, target: SocketAddr) -> Option<usize> {
        let slot = self.used.remove(&target)?;
        self.free.push_back(slot);
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_target(last: u8) -> SocketAddr {
        ([198, 18, 0, last], 8080).into()
    }

    #[test]
    fn freed_slot_is_used_again_last() {
        let mut slots = Slots::new(3);
        assert_eq!(slots.take(mk_target(1)), Some(1));
        assert_eq!(slots.take(mk_target(1)), Some(1));
        assert_eq!(slots.release(mk_target(1)), Some(1));
        assert_eq!(slots.release(mk_target(1)), None);
        let taken: Vec<_> = (2..=5).map(|last| slots.take(mk_target(last))).collect();
        assert_eq!(taken, [Some(2), Some(3), Some(1), None]);
    }
}
