//! When the waiter lets its hooks go: a pure state machine, driven by [`crate::run`].
//!
//! ```text
//!            first HELLO                    the pod is terminating, and its hold is over
//!   Idle ───────────────────► Holding ───────────────────────────────────────────────────► Released
//!    ▲                          │  ▲ │                                  (release file; later hooks go at once)
//!    │   the pod lives on, or   │  └─┘ hooks that a verdict doesn't cover
//!    └──────────────────────────┘
//!        nobody could say
//! ```
//!
//! * **Only a pod that is known to be terminating gets a release file.** It ends the gate for good, so a hook that
//!   ran for a container's restart (or may have: the confirmer couldn't be asked, the node is under pressure) is let
//!   go over the socket alone, and the next deletion is held like the first.
//! * **A verdict that the pod isn't terminating covers the hooks that had said HELLO when it was asked for**, and no
//!   later one: that one may belong to a deletion which came in between. It is asked for anew.
//! * **Hooks that leave by themselves** (liveness cap, killed with their container): while the pod isn't known to be
//!   terminating nobody waits any more, so the hold is abandoned. A terminating pod's hold goes on without hooks:
//!   the kubelet may run them again, and they must join the same clock.
//! * **The minimum hold** binds every release but those that say that no time is left.
//! * Everything ends at the cap, max(max-wait, minimum hold) + [`CAP_MARGIN`] since the first HELLO.

mod hold;

use std::time::Duration;

pub use self::hold::Hold;
use crate::contract::{CAP_MARGIN, HoldParams, HoldRequest, HoldResponse, ReleaseReason};

/// A hook's connection; later ones have higher numbers.
pub type HookId = u64;

/// A pod's bounds, fixed at admission.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Longest hold.
    pub max_wait: Duration,
    /// Shortest hold.
    pub min_hold: Duration,
    /// Hold when nothing can be confirmed.
    pub fallback_wait: Duration,
}

impl Limits {
    /// What ends any hold, whatever the confirmer says.
    pub fn cap(&self) -> Duration {
        self.max_wait.max(self.min_hold) + CAP_MARGIN
    }
}

/// What happened.
#[derive(Debug, Clone)]
pub enum Observation {
    /// A hook said HELLO.
    HookArrived(HookId),
    /// A hook's connection ended, whether or not it was let go.
    HookLeft(HookId),
    /// The confirmer is being asked now.
    Asked,
    /// The confirmer answered.
    Answered(HoldResponse),
    /// The confirmer couldn't be asked, or its answer couldn't be understood.
    Failed,
    /// Nothing but that time went by.
    Tick,
}

/// What the waiter does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Tell the hooks that wait that the pod is terminating.
    Terminating,
    /// Let these hooks go over the socket, without a release file.
    LetGo {
        /// Who.
        hooks: Vec<HookId>,
        /// Why.
        reason: ReleaseReason,
        /// How long the hold lasted.
        held: Duration,
    },
    /// Write the release file, then let every hook go, now and in future.
    Release {
        /// Why.
        reason: ReleaseReason,
        /// How long the hold lasted.
        held: Duration,
    },
    /// No hook is left and the pod isn't known to be terminating: the hold is over.
    Abandon {
        /// How long the hold lasted.
        held: Duration,
    },
}

/// Where the waiter stands. All times are since the waiter's start, by a monotonic clock.
#[derive(Debug, Default)]
pub enum State {
    /// No hook waits.
    #[default]
    Idle,
    /// Hooks wait, or the pod is terminating and they may come again.
    Holding(Hold),
    /// The release file was written.
    Released(ReleaseReason),
}

impl State {
    /// Takes in what happened at `now`, and says what to do.
    pub fn step(
        &mut self,
        observation: Observation,
        limits: &Limits,
        now: Duration,
    ) -> Vec<Effect> {
        let was_terminating = self.is_terminating();
        let mut effects = Vec::new();
        match (&mut *self, observation) {
            (Self::Idle, Observation::HookArrived(id)) => *self = Self::Holding(Hold::new(id, now)),
            (Self::Holding(hold), observation) => effects.extend(hold.observe(observation, now)),
            (Self::Idle | Self::Released(_), _) => {}
        }
        self.settle(limits, now, &mut effects);
        if matches!(self, Self::Holding(_)) && self.is_terminating() && !was_terminating {
            effects.push(Effect::Terminating);
        }
        effects
    }

    /// When [`Self::step`] must be called with [`Observation::Tick`] if nothing happens before.
    pub fn wake(&self, limits: &Limits) -> Option<Duration> {
        match self {
            Self::Holding(hold) => Some(hold.due(limits).0),
            Self::Idle | Self::Released(_) => None,
        }
    }

    /// Whether the confirmer has something to say, and how long after its last answer it should be asked.
    pub fn ask_after(&self) -> Option<Duration> {
        match self {
            Self::Holding(hold) => hold.ask_after(),
            Self::Idle | Self::Released(_) => None,
        }
    }

    /// The question to the confirmer as it stands at `now`, without the pod's traffic: that isn't part of the state.
    pub fn request(&self, epoch: &str, params: &HoldParams, now: Duration) -> Option<HoldRequest> {
        match self {
            Self::Holding(hold) => Some(hold.request(epoch, params, now)),
            Self::Idle | Self::Released(_) => None,
        }
    }

    /// Whether the pod is known to be terminating.
    pub fn is_terminating(&self) -> bool {
        match self {
            Self::Idle => false,
            Self::Holding(hold) => hold.is_terminating(),
            Self::Released(_) => true,
        }
    }

    /// Carries out what is due or over.
    fn settle(&mut self, limits: &Limits, now: Duration, effects: &mut Vec<Effect>) {
        let Self::Holding(hold) = self else { return };
        loop {
            let elapsed = hold.elapsed(now);
            let (at, reason) = hold.due(limits);
            if hold.is_terminating() {
                if now >= at {
                    effects.push(Effect::Release {
                        reason,
                        held: elapsed,
                    });
                    *self = Self::Released(reason);
                }
                return;
            }
            if hold.is_deserted() {
                // Whoever was let go needs no second farewell.
                if effects.is_empty() {
                    effects.push(Effect::Abandon { held: elapsed });
                }
                *self = Self::Idle;
                return;
            }
            if now < at {
                return;
            }
            effects.extend(hold.let_go_due(limits, now));
        }
    }
}

#[cfg(test)]
mod tests;
