//! Objects of one kind as a watch tells them, remembered for a while after they went. Pure.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::time::Duration;

use tokio::time::Instant;

/// What a watch told of objects of one kind.
#[derive(Debug)]
pub(super) struct Remembered<K, V> {
    kept: HashMap<K, Kept<V>>,
    listed: Option<HashSet<K>>,
    memory: Duration,
}

#[derive(Debug)]
struct Kept<V> {
    value: V,
    gone: Option<Instant>,
}

impl<K, V> Default for Remembered<K, V> {
    fn default() -> Self {
        Self {
            kept: HashMap::new(),
            listed: None,
            memory: Duration::ZERO,
        }
    }
}

impl<K: Eq + Hash + Clone, V> Remembered<K, V> {
    /// Knows nothing yet; objects that went are remembered for `memory`.
    pub(super) fn new(memory: Duration) -> Self {
        Self {
            memory,
            ..Self::default()
        }
    }

    /// A new list begins.
    pub(super) fn list_begins(&mut self) {
        self.listed = Some(HashSet::new());
    }

    /// Takes an object as it is now.
    pub(super) fn apply(&mut self, key: K, value: V) {
        if let Some(listed) = &mut self.listed {
            listed.insert(key.clone());
        }
        self.kept.insert(key, Kept { value, gone: None });
    }

    /// Takes an object's deletion.
    pub(super) fn delete(&mut self, key: &K, now: Instant) {
        if let Some(kept) = self.kept.get_mut(key) {
            kept.gone.get_or_insert(now);
        }
    }

    /// The list is complete: what it didn't hold is gone.
    pub(super) fn list_ends(&mut self, now: Instant) {
        let listed = self.listed.take().unwrap_or_default();
        for (key, kept) in &mut self.kept {
            if !listed.contains(key) {
                kept.gone.get_or_insert(now);
            }
        }
    }

    /// An object that is there, or was of late.
    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.kept.get(key).map(|kept| &kept.value)
    }

    /// All that are there.
    pub(super) fn present(&self) -> impl Iterator<Item = (&K, &V)> {
        let present = self.kept.iter().filter(|(_, kept)| kept.gone.is_none());
        present.map(|(key, kept)| (key, &kept.value))
    }

    /// Forgets what went longer ago than `memory`.
    pub(super) fn prune(&mut self, now: Instant) {
        let memory = self.memory;
        self.kept.retain(|_, kept| {
            kept.gone
                .is_none_or(|gone| now.duration_since(gone) < memory)
        });
    }
}
