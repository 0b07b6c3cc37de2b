//! Whether a terminating pod is held on or let go. Pure: facts in, decision out.

use std::time::Duration;

use sidecar::contract::{Progress, ReleaseReason};

use super::attachment::{self, Attachment, State};
use super::budget::Budget;

/// How often what couldn't be made sure of is looked at again.
const DOUBT_EVERY: Duration = Duration::from_secs(1);

/// What is known of a terminating pod at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// What sends to it; `None` while this replica's caches are not complete.
    pub attachments: Option<Vec<Attachment>>,
    /// How long this replica's caches have been complete.
    pub synced_for: Duration,
    /// Settle of the pod.
    pub settle: Duration,
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
pub fn decide(facts: &Facts) -> Decision {
    let attachments = facts.attachments.as_deref().unwrap_or_default();
    let progress = attachment::progress(attachments);
    let left = facts.budget.left;
    let hold = |because: Vec<String>, wait: Option<Duration>| Decision {
        release: None,
        because,
        left,
        look_again: wait.unwrap_or(left).min(left),
        progress: progress.clone(),
    };
    let go = |reason, because| Decision {
        release: Some(reason),
        because,
        left,
        look_again: Duration::ZERO,
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

fn awaited(attachments: &[Attachment]) -> Vec<String> {
    attachments
        .iter()
        .filter(|a| !matches!(a.state, State::Settled { .. }))
        .map(Attachment::describe)
        .collect()
}

#[cfg(test)]
mod tests {
    use sidecar::contract::Evidence;

    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn at(key: &str, state: State) -> Attachment {
        Attachment {
            key: key.to_owned(),
            state,
        }
    }

    fn facts(attachments: Vec<Attachment>) -> Facts {
        Facts {
            attachments: Some(attachments),
            synced_for: s(3600),
            settle: s(5),
            min_left: s(0),
            budget: Budget {
                left: s(50),
                reason: ReleaseReason::MaxWait,
            },
        }
    }

    #[test]
    fn registered_attachment_holds_until_the_budget_ends() {
        let found = decide(&facts(vec![at("a", State::Registered)]));
        assert_eq!((found.release, found.look_again), (None, s(50)));
        assert_eq!(found.because, ["a: endpoint still ready"]);
    }

    #[test]
    fn all_attachments_must_settle() {
        let settled = at("a", State::Settled { age: s(6) });
        let settling = at(
            "b",
            State::Settling {
                age: s(2),
                left: s(3),
            },
        );
        let found = decide(&facts(vec![settled.clone(), settling]));
        assert_eq!((found.release, found.look_again), (None, s(3)));
        assert_eq!(
            found.progress.get("b"),
            Some(&Evidence { age_seconds: 2.0 })
        );
        assert_eq!(found.progress.len(), 2);
        let found = decide(&facts(vec![settled]));
        assert_eq!(found.release, Some(ReleaseReason::Settled));
        assert_eq!(found.because, ["a: endpoint dropped 6.0 s ago"]);
    }

    #[test]
    fn pod_that_nothing_points_at_goes_at_once() {
        assert_eq!(
            decide(&facts(vec![])).release,
            Some(ReleaseReason::NoAttachment)
        );
    }

    #[test]
    fn replica_without_complete_caches_never_says_no_attachment() {
        let found = decide(&Facts {
            attachments: None,
            ..facts(vec![])
        });
        assert_eq!(found.release, None);
    }

    #[test]
    fn replica_that_has_just_started_waits_a_settle_before_it_says_no_attachment() {
        let found = decide(&Facts {
            synced_for: s(2),
            ..facts(vec![])
        });
        assert_eq!((found.release, found.look_again), (None, s(3)));
    }

    #[test]
    fn replaced_sleep_holds_a_pod_that_has_nothing_else_to_wait_for() {
        let found = decide(&Facts {
            min_left: s(3),
            ..facts(vec![])
        });
        assert_eq!((found.release, found.look_again), (None, s(3)));
        assert_eq!(
            found.because,
            ["the sleep that was replaced, for 3.0 s more"]
        );
    }

    #[test]
    fn budget_that_is_over_releases_with_its_reason_and_what_was_awaited() {
        let budget = Budget {
            left: s(0),
            reason: ReleaseReason::MaxWait,
        };
        let found = decide(&Facts {
            budget,
            ..facts(vec![at("a", State::Registered)])
        });
        assert_eq!(found.release, Some(ReleaseReason::MaxWait));
        assert_eq!(found.because, ["a: endpoint still ready"]);
        let budget = Budget {
            left: s(0),
            reason: ReleaseReason::Forced,
        };
        assert_eq!(
            decide(&Facts {
                budget,
                ..facts(vec![])
            })
            .release,
            Some(ReleaseReason::Forced)
        );
    }

    #[test]
    fn unconfirmable_attachment_is_released_by_time_and_says_so() {
        let found = decide(&facts(vec![at("a", State::Unconfirmable { left: s(15) })]));
        assert_eq!((found.release, found.look_again), (None, s(15)));
        let done = vec![
            at("a", State::Unconfirmable { left: s(0) }),
            at("b", State::Settled { age: s(5) }),
        ];
        assert_eq!(
            decide(&facts(done)).release,
            Some(ReleaseReason::Unconfirmable)
        );
    }
}
