//! Whether a terminating pod is held on or let go. Pure: facts in, decision out.

use std::time::Duration;

use sidecar::contract::{Progress, ReleaseReason};

use super::attachment::{self, Attachment, State};
use super::budget::Budget;
use super::quiet::Inbound;

/// How often what couldn't be made sure of is looked at again.
const DOUBT_EVERY: Duration = Duration::from_secs(1);

/// How old a report of the pod's connections may be when it lets the pod go.
const FRESH: Duration = Duration::from_millis(1500);

/// What is known of a terminating pod at one moment.
#[derive(Debug, Clone)]
pub struct Facts<'a> {
    /// What sends to it; `None` while this replica's caches are not complete.
    pub attachments: Option<&'a [Attachment]>,
    /// How long this replica's caches have been complete.
    pub synced_for: Duration,
    /// Settle of its endpoints.
    pub settle: Duration,
    /// Its inbound connections, where its waiter can see them.
    pub inbound: Option<Inbound<'a>>,
    /// Until the shortest hold is over: a sleep of the pod's own that was replaced.
    pub min_left: Duration,
    /// Time left.
    pub budget: Budget,
}

/// What to do with the hold.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// `Some`: let the hooks go, and why.
    pub release: Option<ReleaseReason>,
    /// What is still awaited, or, at a release, what was seen.
    pub because: Vec<String>,
    /// Time left of the budget.
    pub left: Duration,
    /// When to look again though nothing was heard.
    pub look_again: Duration,
    /// Whether the waiter must report its connections anew before anything else can be decided.
    pub wants_report: bool,
    /// The ages of the evidence.
    pub progress: Progress,
}

impl Decision {
    /// The same where "no attachment" couldn't be made sure of: a hold for `wait`, and a release after it.
    #[must_use]
    pub fn doubted(self, wait: Duration) -> Self {
        if wait.is_zero() {
            return self;
        }
        let because = vec!["no endpoint known, but the API server couldn't confirm it".to_owned()];
        Self {
            release: None,
            because,
            look_again: wait.min(DOUBT_EVERY),
            ..self
        }
    }
}

/// Decides.
pub fn decide(facts: &Facts<'_>) -> Decision {
    let attachments = facts.attachments.unwrap_or_default();
    let progress = attachment::progress(attachments);
    let left = facts.budget.left;
    let hold = |because: Vec<String>, wait: Option<Duration>| Decision {
        release: None,
        because,
        left,
        look_again: wait.unwrap_or(left).min(left),
        wants_report: false,
        progress: progress.clone(),
    };
    let go = |reason, because| Decision {
        release: Some(reason),
        because,
        left,
        look_again: Duration::ZERO,
        wants_report: false,
        progress: progress.clone(),
    };
    if left.is_zero() {
        return go(facts.budget.reason, awaited(attachments));
    }
    if facts.attachments.is_none() {
        return hold(
            vec!["this replica's watches are not complete yet".to_owned()],
            None,
        );
    }
    // A pod that lost its Service before this replica began to watch looks as if it never had one.
    if attachments.is_empty() && facts.synced_for < facts.settle {
        let wait = facts.settle.saturating_sub(facts.synced_for);
        return hold(
            vec!["no endpoint known, but this replica has only just started".to_owned()],
            Some(wait),
        );
    }
    let waits: Vec<_> = attachments.iter().map(Attachment::left).collect();
    if !facts.min_left.is_zero() {
        let mut because = awaited(attachments);
        because.push(format!(
            "the sleep that was replaced, for {:.1} s more",
            facts.min_left.as_secs_f64()
        ));
        return hold(because, Some(facts.min_left));
    }
    if waits.iter().all(|wait| *wait == Some(Duration::ZERO)) {
        let noise = facts
            .inbound
            .and_then(|inbound| Noise::at(attachments, &inbound));
        if let Some(noise) = noise {
            return Decision {
                wants_report: noise.is_stale,
                ..hold(vec![noise.text], Some(noise.left))
            };
        }
        return go(
            attachment::reason(attachments),
            attachments.iter().map(Attachment::describe).collect(),
        );
    }
    // Where an attachment gives no time, only news of it can help.
    let wait = if waits.contains(&None) {
        None
    } else {
        waits.into_iter().flatten().max()
    };
    hold(awaited(attachments), wait)
}

/// Why it isn't quiet yet.
#[derive(Debug, PartialEq, Eq)]
struct Noise {
    /// Until it will be, if nobody comes.
    left: Duration,
    /// The report is too old to tell.
    is_stale: bool,
    text: String,
}

impl Noise {
    fn at(attachments: &[Attachment], inbound: &Inbound<'_>) -> Option<Self> {
        let heard: Vec<_> = attachments
            .iter()
            .filter(|a| !a.quiet.time.is_zero())
            .collect();
        if heard.is_empty() {
            return None;
        }
        let new = |a: &&Attachment| inbound.new_left(&a.quiet);
        let bytes = |a: &&Attachment| inbound.bytes_left(&a.quiet).min(a.quiet.bytes_left);
        let new_left = heard.iter().map(new).max().unwrap_or_default();
        let bytes_left = heard.iter().map(bytes).max().unwrap_or_default();
        let left = new_left.max(bytes_left);
        let text = match left {
            Duration::ZERO if inbound.age < FRESH => return None,
            Duration::ZERO => "word of its latest connections".to_owned(),
            left if new_left >= bytes_left => {
                format!(
                    "new connections still come, quiet in {:.0} s at the earliest",
                    left.as_secs_f64()
                )
            }
            left => format!(
                "older connections are still used, for {:.0} s more at most",
                left.as_secs_f64()
            ),
        };
        Some(Self {
            left,
            is_stale: left.is_zero(),
            text,
        })
    }
}

fn awaited(attachments: &[Attachment]) -> Vec<String> {
    attachments
        .iter()
        .filter(|a| !matches!(a.state, State::Settled { .. }))
        .map(Attachment::describe)
        .collect()
}

#[cfg(test)]
mod tests;
