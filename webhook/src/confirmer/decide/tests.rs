//! What is decided of which facts.

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
        attachments: Some(attachments.leak()),
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
