use std::net::SocketAddr;

use super::*;

fn mk_sigterm(at: u64, last: Option<u64>) -> AppEvent {
    AppEvent {
        event: "sigterm".to_owned(),
        unix_ms: at,
        last_request_unix_ms: last,
        last_connection_unix_ms: last.map(|at| at - 1_000),
        last_cluster_connection_unix_ms: last.map(|at| at - 500),
    }
}

fn mk_target(last: u8) -> SocketAddr {
    ([198, 18, 0, last], 8080).into()
}

/// A ledger with one pod, `a`, that is terminating since 1 s.
fn mk_ledger() -> Ledger {
    let mut ledger = Ledger::default();
    let ip = mk_target(1).ip();
    ledger.note(Seen::Address {
        pod: "a".into(),
        ip,
    });
    ledger.note(Seen::Terminating {
        pod: "a".into(),
        at: 1_000,
    });
    ledger
}

fn say(ledger: &mut Ledger, event: AppEvent) -> Option<String> {
    ledger.note(Seen::Said {
        pod: "a".into(),
        event,
    })
}

#[test]
fn hold_and_waste_are_measured_from_deletion_and_from_what_the_layer_sends() {
    let mut ledger = mk_ledger();
    assert_eq!(ledger.without_sigterm(), ["a"]);
    let told = say(&mut ledger, mk_sigterm(21_500, Some(18_000)));
    assert_eq!(told.unwrap(), "a got SIGTERM 20.5 s after its deletion");
    let record = &ledger.terminations()["a"];
    assert_eq!(record.hold(), Some(20.5));
    assert_eq!(record.waste(Layer::Requests), Some(3.5));
    assert_eq!(record.waste(Layer::Connections), Some(4.5));
    assert_eq!(record.last_new(), Some(17_500));
    assert!(ledger.without_sigterm().is_empty());
}

#[test]
fn deletion_counts_from_the_first_time_it_was_seen() {
    let mut ledger = mk_ledger();
    let again = ledger.note(Seen::Terminating {
        pod: "a".into(),
        at: 9_000,
    });
    assert_eq!(again, None);
    say(&mut ledger, mk_sigterm(2_000, None));
    assert_eq!(ledger.terminations()["a"].hold(), Some(1.0));
}

#[test]
fn sigterm_before_the_watch_told_of_the_deletion_counts_all_the_same() {
    let mut ledger = mk_ledger();
    say(&mut ledger, mk_sigterm(990, None));
    let record = &ledger.terminations()["a"];
    assert_eq!(record.hold(), Some(0.0));
    assert_eq!(record.waste(Layer::Requests), None);
}

#[test]
fn restarted_container_is_no_termination() {
    let mut ledger = Ledger::default();
    say(&mut ledger, mk_sigterm(5_990, Some(5_900)));
    assert!(ledger.terminations().is_empty());
    assert_eq!(ledger.sigterm("a"), Some(5_990));
}

#[test]
fn pod_is_done_when_it_is_gone_and_every_source_has_dropped_it() {
    let mut ledger = mk_ledger();
    let step = |ledger: &mut Ledger, source, step, at| {
        ledger.note(Seen::Source {
            source: (0, source),
            step,
            at,
        })
    };
    for source in 0..2 {
        step(&mut ledger, source, Step::Add(mk_target(1)), 1);
        step(&mut ledger, source, Step::Add(mk_target(2)), 1);
    }
    assert_eq!((ledger.targets(2), ledger.targets(3)), (2, 0));
    let ip = mk_target(1).ip();
    ledger.note(Seen::Deregistered {
        group: 0,
        ip,
        at: 1_100,
    });
    say(&mut ledger, mk_sigterm(1_200, None));
    ledger.note(Seen::Gone { pod: "a".into() });
    assert_eq!(
        step(&mut ledger, 0, Step::Remove(mk_target(1)), 7_000),
        None
    );
    assert_eq!((ledger.targets(2), ledger.done()), (1, 0));
    let told = step(&mut ledger, 1, Step::Remove(mk_target(1)), 18_200);
    assert_eq!(
        told.unwrap(),
        "a gets nothing more from the load balancer, 17.0 s after its SIGTERM"
    );
    assert_eq!(ledger.done(), 1);
    let record = &ledger.terminations()["a"];
    assert_eq!(record.deregistered, [(0, 1_100)].into());
    assert_eq!(record.dropped, [((0, 0), 7_000), ((0, 1), 18_200)].into());
    assert_eq!(ledger.addresses(), Vec::<IpAddr>::new());
}
