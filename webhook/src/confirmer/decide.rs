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
    pub attachments: Option<Vec<Attachment>>,
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
    let attachments = facts.attachments.as_deref().unwrap_or_default();
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
mod tests {
    use sidecar::contract::{Evidence, Traffic};

    use super::*;
    use crate::confirmer::attachment::{Kind, Quiet};

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn at(key: &str, state: State) -> Attachment {
        Attachment {
            key: key.to_owned(),
            service: key.to_owned(),
            kind: Kind::Service,
            group: None,
            by_time: false,
            state,
            detail: match state {
                State::Registered => "endpoint still ready",
                _ => "endpoint dropped",
            }
            .to_owned(),
            quiet: Quiet {
                time: s(10),
                ports: [8080].into(),
                checks_per_minute: 0.0,
                bytes_left: s(0),
            },
            trouble: None,
        }
    }

    fn facts(attachments: Vec<Attachment>) -> Facts<'static> {
        Facts {
            attachments: Some(attachments),
            synced_for: s(3600),
            settle: s(5),
            inbound: None,
            min_left: s(0),
            budget: Budget {
                left: s(50),
                reason: ReleaseReason::MaxWait,
            },
        }
    }

    const fn settled(age: u64) -> State {
        State::Settled {
            age: s(age),
            proven: false,
        }
    }

    /// New connections on port 8080 in each second past.
    fn mk_traffic(seconds: &[u32]) -> Traffic {
        Traffic {
            watched_seconds: 60.0,
            new_connections: [(8080, seconds.to_vec())].into(),
            last_byte_seconds: [(8080, 2.0)].into(),
        }
    }

    static NO_PROBES: std::collections::BTreeMap<u16, f64> = std::collections::BTreeMap::new();

    const fn inbound(traffic: &Traffic, age: Duration) -> Inbound<'_> {
        Inbound {
            traffic,
            age,
            probes_per_minute: &NO_PROBES,
        }
    }

    #[test]
    fn new_connections_hold_a_settled_pod_until_it_is_quiet() {
        let traffic = mk_traffic(&[0, 0, 0, 7, 7]);
        let noisy = Facts {
            inbound: Some(inbound(&traffic, s(0))),
            ..facts(vec![at("a", settled(6))])
        };
        let found = decide(&noisy);
        assert_eq!(
            (found.release, found.look_again, found.wants_report),
            (None, s(7), false)
        );
        assert_eq!(
            found.because,
            ["new connections still come, quiet in 7 s at the earliest"]
        );
        let over = Facts {
            budget: Budget {
                left: s(0),
                reason: ReleaseReason::MaxWait,
            },
            ..noisy.clone()
        };
        assert_eq!(
            decide(&over).release,
            Some(ReleaseReason::MaxWait),
            "up to the deadline and no longer"
        );
        // Traffic never shortens: what hasn't settled goes on settling though it is quiet.
        let quiet = mk_traffic(&[]);
        let settling = State::Settling {
            age: s(2),
            left: s(3),
        };
        let found = decide(&Facts {
            inbound: Some(inbound(&quiet, s(0))),
            ..facts(vec![at("a", settling)])
        });
        assert_eq!((found.release, found.look_again), (None, s(3)));
    }

    #[test]
    fn pod_is_let_go_only_by_a_report_that_is_fresh() {
        let traffic = mk_traffic(&[]);
        let with_age = |age| {
            decide(&Facts {
                inbound: Some(inbound(&traffic, age)),
                ..facts(vec![at("a", settled(6))])
            })
        };
        assert_eq!(with_age(s(1)).release, Some(ReleaseReason::Settled));
        let stale = with_age(s(20));
        assert_eq!((stale.release, stale.wants_report), (None, true));
        assert_eq!(
            decide(&facts(vec![at("a", settled(6))])).release,
            Some(ReleaseReason::Settled)
        );
    }

    #[test]
    fn bytes_on_older_connections_count_as_long_as_the_attachment_lets_them() {
        let traffic = mk_traffic(&[]);
        let with_bytes = |bytes_left| {
            let mut attachment = at("a", settled(6));
            attachment.quiet.bytes_left = bytes_left;
            decide(&Facts {
                inbound: Some(inbound(&traffic, s(0))),
                ..facts(vec![attachment])
            })
        };
        assert_eq!(with_bytes(s(0)).release, Some(ReleaseReason::Settled));
        assert_eq!(
            (with_bytes(s(3)).release, with_bytes(s(3)).look_again),
            (None, s(3))
        );
        assert_eq!(
            with_bytes(s(60)).look_again,
            s(8),
            "the last byte came 2 s ago"
        );
    }

    #[test]
    fn traffic_that_does_not_count_does_not_hold() {
        let traffic = mk_traffic(&[9; 20]);
        let mut attachment = at("a", settled(6));
        attachment.quiet = Quiet::default();
        let found = decide(&Facts {
            inbound: Some(inbound(&traffic, s(20))),
            ..facts(vec![attachment])
        });
        assert_eq!(found.release, Some(ReleaseReason::Settled));
    }

    #[test]
    fn registered_attachment_holds_until_the_budget_ends() {
        let found = decide(&facts(vec![at("a", State::Registered)]));
        assert_eq!((found.release, found.look_again), (None, s(50)));
        assert_eq!(found.because, ["a: endpoint still ready"]);
    }

    #[test]
    fn all_attachments_must_settle() {
        let settled = at("a", settled(6));
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
            at("b", settled(5)),
        ];
        assert_eq!(
            decide(&facts(done)).release,
            Some(ReleaseReason::Unconfirmable)
        );
    }
}
