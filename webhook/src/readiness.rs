//! Readiness as a set of named guards: ready is when none is held, and `/readyz` says which ones are.
//!
//! Whoever must have done something before traffic may come registers a guard and drops it when that is done; one
//! that is registered later (at shutdown) makes the process unready again.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// What the process still waits for; cloning shares it.
#[derive(Debug, Clone, Default)]
pub struct Readiness {
    pending: Arc<Mutex<Vec<&'static str>>>,
}

/// Blocks readiness until it is dropped.
#[must_use = "readiness is blocked only as long as this is held"]
pub struct BlockReady {
    name: &'static str,
    readiness: Readiness,
}

impl Readiness {
    /// Ready, until the first [`Readiness::register`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Blocks readiness until the guard is dropped; `name` says what is awaited.
    pub fn register(&self, name: &'static str) -> BlockReady {
        self.lock().push(name);
        BlockReady {
            name,
            readiness: self.clone(),
        }
    }

    /// What is awaited, in the order of registration; empty when ready.
    pub fn pending(&self) -> Vec<&'static str> {
        self.lock().clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<&'static str>> {
        // No code that could panic runs under the lock.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for BlockReady {
    fn drop(&mut self) {
        let mut pending = self.readiness.lock();
        if let Some(index) = pending.iter().position(|name| *name == self.name) {
            pending.remove(index);
        }
    }
}

impl fmt::Debug for BlockReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BlockReady").field(&self.name).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_when_every_guard_is_dropped() {
        let readiness = Readiness::new();
        assert!(readiness.pending().is_empty());
        let (secrets, watches) = (readiness.register("secrets"), readiness.register("watches"));
        assert_eq!(readiness.pending(), ["secrets", "watches"]);
        drop(secrets);
        assert_eq!(readiness.pending(), ["watches"]);
        drop(watches);
        assert!(readiness.pending().is_empty());
        let _shutdown = readiness.register("shutdown");
        assert_eq!(readiness.pending(), ["shutdown"]);
    }

    #[test]
    fn guards_of_one_name_are_counted() {
        let readiness = Readiness::new();
        let (first, second) = (readiness.register("watches"), readiness.register("watches"));
        drop(first);
        assert_eq!(readiness.pending(), ["watches"]);
        drop(second);
        assert!(readiness.pending().is_empty());
    }
}
