//! A stand-in for the AWS Load Balancer Controller: the part of it that decides when an ip target is
//! registered and deregistered, and the faults that delay it in the field.
//!
//! ```text
//! bindings, EndpointSlices ─► queue ─► reconcile ─► checkpoint "" ─► Deregister ─► Register ─► checkpoint
//!   watches                     ▲          │ error: again after 5 ms, 10 ms, … the cap
//!                               └──────────┘
//! ```
//!
//! Left out: instance targets, pod readiness gates, security groups, finalizers (a deleted binding's
//! targets are deregistered as long as this runs), and the cluster's `ConfigMap` of a shared target
//! group, which is kept in memory.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aws_config::SdkConfig;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

mod binding;
mod endpoints;
mod queue;
mod run;
mod sync;

/// How the controller behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Whose bindings it looks after; empty: everybody's.
    pub namespaces: Vec<String>,
    /// Longest wait after errors, by default 1000 s as the real one's
    /// `--targetgroupbinding-max-exponential-backoff-delay`.
    pub max_backoff: Duration,
    /// From a change until it is reconciled, as if the queue were so long.
    pub delay: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            namespaces: Vec::new(),
            max_backoff: Duration::from_secs(1000),
            delay: Duration::ZERO,
        }
    }
}

/// What came of a reconcile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// By a fault, nothing was done and nothing will be until the next change.
    Skipped,
    /// The checkpoint says that nothing has changed.
    Unchanged,
    /// AWS was asked, and brought in line.
    Synced {
        /// What was taken out, first.
        deregistered: Vec<SocketAddr>,
        /// What was put in, then.
        registered: Vec<SocketAddr>,
    },
    /// It will be tried again.
    Failed(String),
}

/// A reconcile that is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reconcile {
    /// When it ended.
    pub at: Instant,
    /// The binding's namespace.
    pub namespace: String,
    /// The binding's name.
    pub binding: String,
    /// What came of it.
    pub outcome: Outcome,
}

/// What tests change while it runs.
#[derive(Debug)]
struct Knobs {
    delay: Duration,
    /// Until then nobody leads.
    paused_until: Option<Instant>,
    skips: u32,
    /// Changes with each restart.
    generation: u64,
    reconciles: Vec<Reconcile>,
}

#[derive(Debug)]
struct Shared {
    knobs: Mutex<Knobs>,
    turned: Notify,
}

impl Shared {
    fn knobs(&self) -> MutexGuard<'_, Knobs> {
        self.knobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running controller; it ends when this is dropped.
#[derive(Debug)]
pub struct Controller {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Starts a controller that calls AWS by `aws`, whose keys tell its calls apart.
pub fn start(kube: kube::Client, aws: SdkConfig, options: Options) -> Controller {
    let knobs = Knobs {
        delay: options.delay,
        paused_until: None,
        skips: 0,
        generation: 0,
        reconciles: Vec::new(),
    };
    let shared = Arc::new(Shared {
        knobs: Mutex::new(knobs),
        turned: Notify::new(),
    });
    let task = tokio::spawn(run::run(kube, aws, options, Arc::clone(&shared)));
    Controller { shared, task }
}

impl Controller {
    /// Each change is reconciled so much later from now on.
    pub fn set_delay(&self, delay: Duration) {
        self.shared.knobs().delay = delay;
    }

    /// Nothing is reconciled for so long; then a new leader, who remembers nothing, looks at everything.
    pub fn pause(&self, time: Duration) {
        self.shared.knobs().paused_until = Some(now() + time);
        self.restart();
    }

    /// The next so many reconciles do nothing and leave it at that, as if an event had been lost.
    pub fn skip(&self, reconciles: u32) {
        self.shared.knobs().skips = reconciles;
    }

    /// Forgets everything, cutting a reconcile short, and starts anew.
    pub fn restart(&self) {
        self.shared.knobs().generation += 1;
        self.shared.turned.notify_one();
    }

    /// Every reconcile so far, oldest first.
    pub fn reconciles(&self) -> Vec<Reconcile> {
        self.shared.knobs().reconciles.clone()
    }
}

fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

#[cfg(test)]
mod tests;
