use super::super::follower::Target;
use super::*;

fn mk_sigterm(at: u64, last: Option<u64>) -> AppEvent {
    AppEvent {
        event: "sigterm".to_owned(),
        unix_ms: at,
        requests: 5,
        last_request_unix_ms: last,
    }
}

fn mk_target(pod: &str) -> Target {
    Target {
        address: ([198, 18, 0, 1], 8080).into(),
        pod: pod.to_owned(),
    }
}

#[test]
fn hold_and_waste_are_measured_from_deletion_and_last_request() {
    let mut ledger = Ledger::default();
    assert_eq!(
        ledger
            .note(Seen::Terminating {
                pod: "a".into(),
                at: 1_000
            })
            .unwrap(),
        "a is terminating"
    );
    assert_eq!(
        ledger.note(Seen::Terminating {
            pod: "a".into(),
            at: 9_000
        }),
        None
    );
    assert_eq!(ledger.without_sigterm(), ["a"]);
    let told = ledger
        .note(Seen::Said {
            pod: "a".into(),
            event: mk_sigterm(21_500, Some(18_000)),
        })
        .unwrap();
    assert_eq!(
        told,
        "a got SIGTERM 20.5 s after its deletion, 3.5 s after its last request"
    );
    assert_eq!((ledger.holds(), ledger.wastes()), (vec![20.5], vec![3.5]));
    assert!(ledger.without_sigterm().is_empty());
    assert_eq!(ledger.gone(), 0);
    ledger.note(Seen::Gone {
        pod: "a".into(),
        at: 22_000,
    });
    assert_eq!((ledger.gone(), ledger.terminations()), (1, 1));
}

#[test]
fn sigterm_before_the_watch_told_of_the_deletion_counts_all_the_same() {
    let mut ledger = Ledger::default();
    ledger.note(Seen::Said {
        pod: "a".into(),
        event: mk_sigterm(990, None),
    });
    ledger.note(Seen::Terminating {
        pod: "a".into(),
        at: 1_000,
    });
    assert_eq!((ledger.holds(), ledger.wastes()), (vec![0.0], vec![]));
}

#[test]
fn restarted_container_is_no_termination() {
    let mut ledger = Ledger::default();
    ledger.note(Seen::Said {
        pod: "a".into(),
        event: mk_sigterm(990, Some(900)),
    });
    assert_eq!(
        (ledger.terminations(), ledger.holds(), ledger.wastes()),
        (0, vec![], vec![])
    );
}

#[test]
fn requests_go_to_a_pod_until_the_load_balancer_removed_it() {
    let mut ledger = Ledger::default();
    ledger.note(Seen::Balancer {
        change: Change::Add(mk_target("a")),
        at: 1,
    });
    ledger.note(Seen::Terminating {
        pod: "a".into(),
        at: 1_000,
    });
    ledger.note(Seen::Balancer {
        change: Change::Leave(mk_target("a")),
        at: 1_100,
    });
    assert_eq!((ledger.in_balancer(), ledger.still_in_balancer()), (1, 1));
    ledger.note(Seen::Said {
        pod: "a".into(),
        event: mk_sigterm(1_200, None),
    });
    let told = ledger
        .note(Seen::Balancer {
            change: Change::Remove(mk_target("a")),
            at: 18_200,
        })
        .unwrap();
    assert_eq!(
        told,
        "a gets nothing more from the load balancer, 17.0 s after its SIGTERM"
    );
    assert_eq!((ledger.in_balancer(), ledger.still_in_balancer()), (0, 0));
}
