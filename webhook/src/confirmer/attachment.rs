//! One registration that can bring traffic to a pod, and how far it is from being confirmed. Pure.
//!
//! ```text
//!   Registered ──evidence──► Settling ──S later──► Settled (by proof, or by time)
//!       ▲                       │
//!       └────re-registration────┘          Unconfirmable: no evidence can come, only time passes
//! ```

mod endpoints;
mod target_group;

use std::collections::BTreeSet;
use std::time::Duration;

use sidecar::contract::{Evidence, Progress, ReleaseReason};
use tokio::time::Instant;

pub use self::target_group::of_group;
use super::sender::SenderSeen;
use super::settles::Settles;
use super::target_group::TargetGroup;
use super::trouble::Trouble;

/// What a target group's key begins with.
pub const GROUP_KEY: &str = "TargetGroup ";

/// Ages of evidence that another replica counted, as the waiter echoed them.
#[derive(Debug, Clone, Copy)]
pub struct Echo<'a> {
    /// The ages when the turn began.
    pub progress: &'a Progress,
    /// How long the turn has lasted.
    pub turn: Duration,
}

impl Echo<'_> {
    /// The age that another replica counted, as of now.
    pub fn age(&self, key: &str) -> Option<Duration> {
        let at_start = self.progress.get(key)?;
        let age = Duration::try_from_secs_f64(at_start.age_seconds).ok()?;
        Some(age.saturating_add(self.turn))
    }
}

/// What all attachments of a pod have in common at one moment.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// Now.
    pub now: Instant,
    /// How long the hold has lasted.
    pub served: Duration,
    /// The pod's settles.
    pub settles: Settles,
    /// The pod's hold when nothing can be confirmed.
    pub fallback_wait: Duration,
    /// Whether the pod has its node's address.
    pub host_network: bool,
    /// What other replicas counted.
    pub echo: Echo<'a>,
}

/// A registration and its state at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Attachment {
    /// Its key in [`Progress`] and its name for people.
    pub key: String,
    /// The Service by which it sends.
    pub service: String,
    /// What kind it is.
    pub kind: Kind,
    /// The target group, where it is one.
    pub group: Option<TargetGroup>,
    /// How far it is.
    pub state: State,
    /// Whether its age is that of something else, for want of evidence: another replica must not take it for some.
    pub by_time: bool,
    /// Where it stands, for people.
    pub detail: String,
    /// What traffic does to it once it has settled.
    pub quiet: Quiet,
    /// What its owner should know.
    pub trouble: Option<Trouble>,
}

/// What kind of thing sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Whoever follows `EndpointSlices`.
    Service,
    /// A load balancer that can be asked.
    TargetGroup,
    /// A controller that can't be asked.
    UnknownController,
}

/// How far an attachment is from being confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Traffic still comes.
    Registered,
    /// The evidence is there, the settle runs.
    Settling {
        /// Age of the evidence.
        age: Duration,
        /// Until the settle is over.
        left: Duration,
    },
    /// Evidence and settle are complete.
    Settled {
        /// Age of the evidence.
        age: Duration,
        /// Whether a load balancer's own word is part of it.
        proven: bool,
    },
    /// No evidence can come; only time passes.
    Unconfirmable {
        /// Until that time is over.
        left: Duration,
    },
}

/// How new connections and bytes lengthen a hold.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Quiet {
    /// Q, or zero where traffic doesn't count: nobody else could take it, or nothing can be confirmed anyway.
    pub time: Duration,
    /// The ports where it counts.
    pub ports: BTreeSet<u16>,
    /// Health checks that load balancers make there in a minute.
    pub checks_per_minute: f64,
    /// Until when bytes on older connections count: only where the load balancer chooses for each request.
    pub bytes_left: Duration,
}

impl Attachment {
    /// Until only time is needed, where that is known; zero when nothing is awaited.
    pub fn left(&self) -> Option<Duration> {
        match self.state {
            State::Registered => None,
            State::Settling { left, .. } | State::Unconfirmable { left } => Some(left),
            State::Settled { .. } => Some(Duration::ZERO),
        }
    }

    /// A sentence for people on where it stands.
    pub fn describe(&self) -> String {
        let key = &self.key;
        let detail = &self.detail;
        match self.state {
            State::Registered | State::Unconfirmable { .. } => format!("{key}: {detail}"),
            State::Settling { age, left } => format!(
                "{key}: {detail} {:.1} s ago, settling for {:.1} s more",
                age.as_secs_f64(),
                left.as_secs_f64()
            ),
            State::Settled { age, .. } => format!("{key}: {detail} {:.1} s ago", age.as_secs_f64()),
        }
    }

    /// Age of its evidence, where there is some.
    pub fn age(&self) -> Option<Duration> {
        match self.state {
            State::Settling { age, .. } | State::Settled { age, .. } => Some(age),
            State::Registered | State::Unconfirmable { .. } => None,
        }
    }
}

/// The attachments that a Service is by itself: whoever follows its slices, and a controller that can't be asked.
pub fn of_sender(sender: &SenderSeen, context: &Context<'_>) -> Vec<Attachment> {
    let mut found = vec![endpoints::of_service(sender, context)];
    found.extend(endpoints::of_unknown_controller(sender, context));
    found
}

/// The ages to be echoed.
pub fn progress(attachments: &[Attachment]) -> Progress {
    attachments
        .iter()
        .filter(|a| !a.by_time)
        .filter_map(|a| {
            let age_seconds = a.age()?.as_secs_f64();
            Some((a.key.clone(), Evidence { age_seconds }))
        })
        .collect()
}

/// The reason of a release when every attachment is done.
pub fn reason(attachments: &[Attachment]) -> ReleaseReason {
    let is_proven = |a: &Attachment| matches!(a.state, State::Settled { proven: true, .. });
    let is_unconfirmable = |a: &Attachment| matches!(a.state, State::Unconfirmable { .. });
    let groups = || attachments.iter().filter(|a| a.kind == Kind::TargetGroup);
    // A Service behind a load balancer that was asked is as good as proven itself.
    let has_proof = |a: &Attachment| groups().any(|group| group.service == a.service);
    if attachments.is_empty() {
        ReleaseReason::NoAttachment
    } else if attachments.iter().any(is_unconfirmable) {
        ReleaseReason::Unconfirmable
    } else if attachments
        .iter()
        .any(|a| a.kind == Kind::UnknownController)
    {
        ReleaseReason::UnknownController
    } else if groups().all(is_proven) && attachments.iter().all(has_proof) {
        ReleaseReason::Confirmed
    } else {
        ReleaseReason::Settled
    }
}

#[cfg(test)]
mod tests;
