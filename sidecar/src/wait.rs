//! When one hook goes: a pure state machine, driven by [`crate::hook`].
//!
//! The waiter decides for as long as it is there; the hook's own rules only take over when it is not, and bound it:
//!
//! | state | goes |
//! |---|---|
//! | welcomed by a waiter | when told, at the latest at the cap |
//! | not welcomed, or the waiter was lost | when a release file counts; else at max(fallback-wait, minimum hold) since the hook's own start, but not before [`RECONNECT`] has passed since the loss |
//! | not known to be terminating | in either state never after the liveness cap |
//!
//! The waits count from the hook's own start: a hook that starts late must not hold longer than the one the waiter
//! knew first, and the kubelet counts from there too. An original that runs first takes its time out of them; so what
//! came meanwhile is taken in ([`Wait::observe`]) before the time counts ([`Wait::step`]): a hook that looks up late
//! isn't one without a waiter.

use std::time::Duration;

use crate::contract::{CAP_MARGIN, GoFile, ReleaseReason};

/// How long a lost waiter is given to come back before the fallback may end the wait.
pub const RECONNECT: Duration = Duration::from_secs(1);

/// A hook's bounds, fixed at admission.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Longest hold.
    pub max_wait: Duration,
    /// Shortest hold.
    pub min_hold: Duration,
    /// Hold when nothing can be confirmed.
    pub fallback_wait: Duration,
    /// Longest wait while it isn't known whether the pod is terminating.
    pub liveness_cap: Option<Duration>,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Observation {
    /// The waiter answered the HELLO.
    Welcomed {
        /// Only a release file of this epoch counts from now on.
        epoch: String,
    },
    /// The waiter says that the pod is terminating.
    Terminating,
    /// The waiter lets the hook go.
    Go(ReleaseReason),
    /// The connection ended.
    Lost,
    /// There is a release file.
    GoFile(GoFile),
    /// Nothing but that time went by.
    Tick,
}

/// What the hook does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Block on the socket, at the latest until then.
    Listen(Duration),
    /// Look at the release file and for a waiter every now and then, at the latest until then.
    Seek(Duration),
    /// The wait is over.
    Leave(ReleaseReason),
}

/// A hook's wait. All times are since the hook's start, by a monotonic clock.
#[derive(Debug)]
pub struct Wait {
    limits: Limits,
    welcomed: bool,
    epoch: Option<String>,
    terminating: bool,
    lost_at: Duration,
    left: Option<ReleaseReason>,
}

impl Wait {
    /// A wait that begins now, with no waiter met yet.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            welcomed: false,
            epoch: None,
            terminating: false,
            lost_at: Duration::ZERO,
            left: None,
        }
    }

    /// Takes in what happened at `now` and says what to do next.
    pub fn step(&mut self, observation: Observation, now: Duration) -> Step {
        self.observe(observation, now);
        let (until, reason) = self.due();
        match self.left {
            Some(reason) => Step::Leave(reason),
            None if now >= until => {
                self.left = Some(reason);
                Step::Leave(reason)
            }
            None if self.welcomed => Step::Listen(until),
            None => Step::Seek(until),
        }
    }

    /// Whether the wait is over already, whatever else happens.
    pub fn is_over(&self) -> bool {
        self.left.is_some()
    }

    /// Takes in what happened at `now`, without looking at what is due.
    pub fn observe(&mut self, observation: Observation, now: Duration) {
        match observation {
            _ if self.is_over() => {}
            Observation::Welcomed { epoch } => {
                self.welcomed = true;
                self.epoch = Some(epoch);
            }
            Observation::Terminating => self.terminating = true,
            Observation::Go(reason) => self.left = Some(reason),
            Observation::Lost => {
                // A connection that ends before its welcome is no waiter that was lost anew.
                if self.welcomed {
                    self.lost_at = now;
                }
                self.welcomed = false;
            }
            // A waiter removes the file at its start, so one that we find before we met any is of the present one.
            Observation::GoFile(go)
                if self.epoch.as_ref().is_none_or(|epoch| *epoch == go.epoch) =>
            {
                self.left = Some(go.reason);
            }
            Observation::GoFile(_) | Observation::Tick => {}
        }
    }

    /// When the wait ends if nothing more happens, and why.
    fn due(&self) -> (Duration, ReleaseReason) {
        let Limits {
            max_wait,
            min_hold,
            fallback_wait,
            liveness_cap,
        } = self.limits;
        let mut due = (max_wait.max(min_hold) + CAP_MARGIN, ReleaseReason::MaxWait);
        let fallback = fallback_wait.max(min_hold).max(self.lost_at + RECONNECT);
        if !self.welcomed && fallback < due.0 {
            due = (fallback, ReleaseReason::Fallback);
        }
        if let Some(cap) = liveness_cap
            && !self.terminating
            && cap < due.0
        {
            due = (cap, ReleaseReason::Fallback);
        }
        due
    }
}

#[cfg(test)]
mod tests;
