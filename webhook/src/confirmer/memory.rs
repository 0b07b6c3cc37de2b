//! What this replica said and saw of each hold, so that nothing is said twice. Lost with the replica, which costs a
//! repeated Event at most.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::trouble::Trouble;

/// Longer than any hold lasts between two turns.
const KEEP: Duration = Duration::from_mins(10);

/// What is remembered of all holds.
#[derive(Debug, Default)]
pub struct Memory(Mutex<HashMap<String, Remembered>>);

/// Holds that are remembered before those that went on elsewhere are looked for.
const MANY: usize = 1024;

#[derive(Debug)]
struct Remembered {
    told: BTreeSet<(&'static str, String)>,
    last_new: Option<Instant>,
    touched: Instant,
}

impl Memory {
    /// Whether this is the first time that the pod's owner is to be told.
    pub fn is_news(&self, uid: &str, trouble: &Trouble, now: Instant) -> bool {
        self.with(uid, now, |remembered| {
            remembered.told.insert((trouble.word(), trouble.subject()))
        })
    }

    /// A new connection came then.
    pub fn note_new(&self, uid: &str, at: Instant, now: Instant) {
        self.with(uid, now, |remembered| {
            remembered.last_new = remembered.last_new.max(Some(at));
        });
    }

    /// When the last new connection came that this replica was told of.
    pub fn last_new(&self, uid: &str) -> Option<Instant> {
        let holds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        holds.get(uid).and_then(|remembered| remembered.last_new)
    }

    /// The hold is over.
    pub fn forget(&self, uid: &str) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(uid);
    }

    fn with<T>(&self, uid: &str, now: Instant, change: impl FnOnce(&mut Remembered) -> T) -> T {
        let mut holds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if holds.len() >= MANY && !holds.contains_key(uid) {
            holds.retain(|_, remembered| now.saturating_duration_since(remembered.touched) < KEEP);
        }
        let remembered = holds.entry(uid.to_owned()).or_insert(Remembered {
            told: BTreeSet::new(),
            last_new: None,
            touched: now,
        });
        remembered.touched = now;
        change(remembered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_is_news_once_per_hold() {
        let (memory, now) = (Memory::default(), Instant::now());
        let [a, b] = ["a", "b"].map(|binding| Trouble::NodeTargets {
            binding: binding.to_owned(),
        });
        assert!(memory.is_news("u1", &a, now));
        assert!(!memory.is_news("u1", &a, now));
        let [first, second] =
            ["at 10:00", "at 10:01"].map(|text| Trouble::BindingsForbidden(text.to_owned()));
        assert!(memory.is_news("u1", &first, now));
        assert!(
            !memory.is_news("u1", &second, now),
            "the same in other words"
        );
        assert!(memory.is_news("u1", &b, now) && memory.is_news("u2", &a, now));
        memory.forget("u1");
        assert!(memory.is_news("u1", &a, now));
    }

    #[test]
    fn holds_that_went_on_elsewhere_are_forgotten() {
        let (memory, now) = (Memory::default(), Instant::now());
        for number in 0..MANY {
            memory.note_new(&format!("u{number}"), now, now);
        }
        memory.note_new("another", now, now + KEEP);
        assert_eq!(memory.last_new("u0"), None);
        assert!(memory.last_new("another").is_some());
    }

    #[test]
    fn latest_connection_is_kept() {
        let (memory, now) = (Memory::default(), Instant::now());
        assert_eq!(memory.last_new("u1"), None);
        let later = now + Duration::from_secs(5);
        memory.note_new("u1", later, later);
        memory.note_new("u1", now, later);
        assert_eq!(memory.last_new("u1"), Some(later));
    }
}
