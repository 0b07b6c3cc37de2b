//! What slices alone tell, and the reason that all attachments give together.

use std::time::Duration;

use super::*;
use crate::confirmer::endpoints::{Seen, Sender};
use crate::confirmer::sender::Others;

pub(super) const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(super) const fn dropped(age: u64, witnessed: bool) -> Seen {
    Seen::Dropped {
        age: s(age),
        witnessed,
    }
}

pub(super) fn mk_sender(seen: Seen) -> SenderSeen {
    SenderSeen {
        sender: Sender {
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
        },
        seen,
        addresses: ["192.0.2.7".parse().expect("the address must be valid")].into(),
        ports: [8080].into(),
        others: Others::Ready { age: s(3600) },
        bindings: Vec::new(),
        node_bindings: Vec::new(),
        unknown_controller: None,
    }
}

/// A context 4 s into the hold, with the default settles.
pub(super) fn mk_context(now: Instant, progress: &Progress) -> Context<'_> {
    Context {
        now,
        served: s(4),
        settles: Settles::default(),
        fallback_wait: s(15),
        host_network: false,
        echo: Echo {
            progress,
            turn: s(0),
        },
    }
}

pub(super) fn mk_progress(key: &str, age_seconds: f64) -> Progress {
    [(key.to_owned(), Evidence { age_seconds })].into()
}

fn of_service(sender: &SenderSeen, progress: &Progress) -> Attachment {
    let context = mk_context(Instant::now(), progress);
    of_sender(sender, &context).remove(0)
}

fn state(seen: Seen, echoed: Option<f64>) -> State {
    let progress = echoed.map_or_else(Progress::new, |age| mk_progress("Service shop/web", age));
    of_service(&mk_sender(seen), &progress).state
}

const fn settled(age: u64) -> State {
    State::Settled {
        age: s(age),
        proven: false,
    }
}

const fn settling(age: u64, left: u64) -> State {
    State::Settling {
        age: s(age),
        left: s(left),
    }
}

#[test]
fn dropped_endpoint_settles_and_is_then_settled() {
    assert_eq!(state(Seen::Registered, None), State::Registered);
    assert_eq!(state(dropped(2, true), None), settling(2, 3));
    assert_eq!(state(dropped(5, true), None), settled(5));
}

#[test]
fn replica_that_did_not_see_the_drop_goes_on_counting_from_the_echo() {
    assert_eq!(state(dropped(1, false), Some(4.0)), settling(4, 1));
    assert_eq!(state(dropped(1, false), Some(9.0)), settled(9));
    assert_eq!(state(dropped(3, false), Some(1.0)), settling(3, 2));
}

#[test]
fn echo_never_overrules_what_this_replica_saw() {
    assert_eq!(state(dropped(1, true), Some(9.0)), settling(1, 4));
    assert_eq!(state(Seen::Registered, Some(9.0)), State::Registered);
}

#[test]
fn echo_that_is_no_duration_is_ignored() {
    assert_eq!(state(dropped(1, false), Some(-3.0)), settling(1, 4));
    assert_eq!(
        state(dropped(1, false), Some(f64::INFINITY)),
        settling(1, 4)
    );
}

#[test]
fn echo_ages_with_the_turn() {
    let progress = mk_progress("a", 3.0);
    let echo = Echo {
        progress: &progress,
        turn: s(2),
    };
    assert_eq!((echo.age("a"), echo.age("b")), (Some(s(5)), None));
}

#[test]
fn published_endpoint_waits_the_longer_of_settle_and_fallback_and_says_why_behind_a_balancer() {
    let mut sender = mk_sender(Seen::PublishedNotReady);
    let found = of_service(&sender, &Progress::new());
    assert_eq!(found.state, State::Unconfirmable { left: s(11) });
    assert_eq!(found.quiet, Quiet::default(), "its traffic never ends");
    assert_eq!(found.trouble, None, "nothing balances by it");
    sender.unknown_controller = Some("loadBalancerClass example.com/lb".to_owned());
    let found = of_service(&sender, &Progress::new());
    assert!(matches!(found.trouble, Some(Trouble::PublishNotReady(_))));
}

#[test]
fn pod_waits_for_the_one_that_takes_over_and_then_settles_anew() {
    let of = |others| {
        let sender = SenderSeen {
            others,
            ..mk_sender(dropped(30, true))
        };
        of_service(&sender, &Progress::new())
    };
    assert_eq!(of(Others::Starting).state, State::Registered);
    // The other one became ready 2 s ago, long after the drop.
    assert_eq!(of(Others::Ready { age: s(2) }).state, settling(2, 3));
    assert_eq!(of(Others::Ready { age: s(90) }).state, settled(30));
}

#[test]
fn nobody_else_is_said_aloud_and_traffic_does_not_lengthen_the_settle() {
    let alone = SenderSeen {
        others: Others::None,
        ..mk_sender(dropped(2, true))
    };
    let found = of_service(&alone, &Progress::new());
    assert_eq!(found.state, settling(2, 3));
    assert!(matches!(
        found.trouble,
        Some(Trouble::NoOtherEndpoint { .. })
    ));
    assert_eq!(found.quiet, Quiet::default());
    let usual = of_service(&mk_sender(dropped(2, true)), &Progress::new());
    assert_eq!((usual.trouble, usual.quiet.time), (None, s(5)));
    assert_eq!(usual.quiet.ports, [8080].into());
}

#[test]
fn controller_that_cannot_be_asked_is_given_a_minute() {
    let sender = SenderSeen {
        unknown_controller: Some("loadBalancerClass example.com/lb".to_owned()),
        ..mk_sender(dropped(20, true))
    };
    let progress = Progress::new();
    let found = of_sender(&sender, &mk_context(Instant::now(), &progress));
    assert_eq!(found.len(), 2);
    assert_eq!(
        (found[0].state, found[1].state),
        (settled(20), settling(20, 40))
    );
    assert_eq!(
        found[1].describe(),
        "loadBalancerClass example.com/lb of Service shop/web: endpoint dropped 20.0 s ago, settling for 40.0 s more"
    );
}

#[test]
fn reason_is_the_weakest_of_all() {
    use ReleaseReason as R;
    let at = |kind, service: &str, state| Attachment {
        key: service.to_owned(),
        service: service.to_owned(),
        kind,
        group: None,
        by_time: false,
        state,
        detail: String::new(),
        quiet: Quiet::default(),
        trouble: None,
    };
    let proven = State::Settled {
        age: s(20),
        proven: true,
    };
    let service = || at(Kind::Service, "a", settled(20));
    let group = |state| at(Kind::TargetGroup, "a", state);
    assert_eq!(reason(&[]), R::NoAttachment);
    assert_eq!(reason(&[service()]), R::Settled);
    assert_eq!(reason(&[service(), group(proven)]), R::Confirmed);
    assert_eq!(
        reason(&[service(), group(proven), group(settled(20))]),
        R::Settled
    );
    // A second Service that no load balancer is asked about.
    assert_eq!(
        reason(&[
            service(),
            group(proven),
            at(Kind::Service, "b", settled(20))
        ]),
        R::Settled
    );
    let unknown = at(Kind::UnknownController, "a", settled(60));
    assert_eq!(
        reason(&[service(), group(proven), unknown.clone()]),
        R::UnknownController
    );
    let unconfirmable = group(State::Unconfirmable { left: s(0) });
    assert_eq!(
        reason(&[service(), unknown, unconfirmable]),
        R::Unconfirmable
    );
}

#[test]
fn progress_has_the_ages_that_there_are() {
    let mk = |key: &str, state| Attachment {
        key: key.to_owned(),
        state,
        ..of_service(&mk_sender(Seen::Registered), &Progress::new())
    };
    let found = progress(&[
        mk("a", settling(2, 3)),
        mk("b", settled(7)),
        mk("c", State::Registered),
        mk("d", State::Unconfirmable { left: s(3) }),
    ]);
    let ages: Vec<_> = found
        .iter()
        .map(|(key, e)| (key.as_str(), e.age_seconds))
        .collect();
    assert_eq!(ages, [("a", 2.0), ("b", 7.0)]);
}

/// What is counted from the drop of the endpoint would pass for a target that was seen draining.
#[test]
fn progress_leaves_out_what_only_time_tells() {
    let mk = |by_time| Attachment {
        key: "TargetGroup a".to_owned(),
        service: String::new(),
        kind: Kind::TargetGroup,
        group: None,
        by_time,
        state: settling(7, 13),
        detail: String::new(),
        quiet: Quiet::default(),
        trouble: None,
    };
    assert!(progress(&[mk(true)]).is_empty());
    assert_eq!(progress(&[mk(false)]).len(), 1);
}
