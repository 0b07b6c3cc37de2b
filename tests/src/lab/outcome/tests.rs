use std::net::SocketAddr;
use std::time::Duration;

use super::super::balancer::Balancer;
use super::super::cell::Drawn;
use super::super::schedule::Step;
use super::super::seen::{AppEvent, Seen};
use super::super::traffic::Traffic;
use super::*;

const LAGS: &[Lags] = &[[Duration::from_secs(7); 3]];

/// A run behind the gate in which pods `a`, `b` and `c` were deleted at 1 s, deregistered at 1.1 s and held for `hold`
/// milliseconds each.
pub(in super::super) struct Run {
    ledger: Ledger,
    released: BTreeMap<String, Released>,
    pub(in super::super) tally: Tally,
    calls: Calls,
    replicas: BTreeMap<String, IpAddr>,
}

fn mk_answer((at, to): (u64, u8)) -> Answer {
    let to = Some([198, 18, 1, to].into());
    Answer { at, to }
}

pub(in super::super) fn mk_run(hold: u64) -> Run {
    let mut ledger = Ledger::default();
    let mut released = BTreeMap::new();
    let mut sources = Vec::new();
    let mut tally = Tally::default();
    for (last, pod) in (1..).zip(["a", "b", "c"]) {
        let ip = [198, 18, 0, last].into();
        tally.served(pod, 0, 7_000);
        for source in 0..SOURCES {
            let target = SocketAddr::new(ip, 8080);
            for (step, at) in [(Step::Add(target), 0), (Step::Remove(target), 8_150)] {
                let source = (0, source);
                sources.push(Seen::Source { source, step, at });
            }
        }
        let pod = pod.to_owned();
        ledger.note(Seen::Address {
            pod: pod.clone(),
            ip,
        });
        ledger.note(Seen::Terminating {
            pod: pod.clone(),
            at: 1_000,
        });
        ledger.note(Seen::Deregistered {
            group: 0,
            ip,
            at: 1_100,
        });
        let event = AppEvent {
            event: "sigterm".to_owned(),
            unix_ms: 1_000 + hold,
            last_request_unix_ms: Some(15_000),
            last_connection_unix_ms: Some(15_000),
            last_cluster_connection_unix_ms: None,
        };
        ledger.note(Seen::Said {
            pod: pod.clone(),
            event,
        });
        let (reason, note) = ("confirmed".to_owned(), "Released.".to_owned());
        let replica = Some("gate-1".to_owned());
        let told = Released {
            reason,
            note,
            replica,
        };
        released.insert(pod, told);
    }
    for seen in sources {
        ledger.note(seen);
    }
    for _ in 0..40 {
        tally.served("a", 1, 14_000);
    }
    Run {
        ledger,
        released,
        tally,
        calls: Calls {
            all: 5,
            answered: [(2_000, 1), (9_000, 2)].map(mk_answer).into(),
        },
        replicas: BTreeMap::new(),
    }
}

impl Run {
    pub(in super::super) fn observed(&self, variant: Variant) -> Observed<'_> {
        let cell = Cell {
            balancer: Balancer::Alb,
            variant,
            traffic: Traffic::Short,
            seed: 1,
            drawn: Drawn::Within,
        };
        Observed {
            cell,
            build: "1",
            replicas: &self.replicas,
            lags: LAGS,
            tally: &self.tally,
            ledger: &self.ledger,
            released: &self.released,
            calls: std::slice::from_ref(&self.calls),
        }
    }

    fn row(&self, variant: Variant) -> Row {
        self.observed(variant).row()
    }
}

#[test]
fn row_tells_holds_wastes_calls_and_reasons() {
    let row = mk_run(29_000).row(Variant::Gate);
    assert_eq!((row.terminations, row.api_calls), (3, 5));
    assert_eq!(
        (row.hold_seconds_p50, row.waste_seconds_max),
        (Some(29.0), Some(15.0))
    );
    assert_eq!(row.reasons, [("confirmed".to_owned(), 3)].into());
    assert_eq!((row.over_bound, row.doubts), (0, Vec::<String>::new()));
}

#[test]
fn hold_is_over_its_bound_from_the_second_answer_on() {
    // 8 s to the second answer, 20 s to settle, 10 s for old connections, 5 s of slack.
    assert_eq!(mk_run(43_000).row(Variant::Gate).over_bound, 0);
    assert_eq!(mk_run(43_001).row(Variant::Gate).over_bound, 3);
    assert_eq!(mk_run(43_001).row(Variant::NoSettle).over_bound, 0);
}

#[test]
fn hold_counts_from_the_first_answer_to_the_replica_that_ended_it() {
    let mut run = mk_run(36_000);
    assert_eq!(run.row(Variant::Gate).over_bound, 0);
    let first = mk_answer((0, 1)).to.unwrap();
    run.replicas.insert("gate-1".to_owned(), first);
    // 1 s to that answer, 20 s to settle, 10 s for old connections, 5 s of slack.
    assert_eq!(run.row(Variant::Gate).over_bound, 0);
    let mut run = mk_run(36_001);
    assert_eq!(run.row(Variant::Gate).over_bound, 0);
    run.replicas.insert("gate-1".to_owned(), first);
    assert_eq!(run.row(Variant::Gate).over_bound, 3);
}

#[test]
fn target_group_that_the_confirmer_was_never_told_of_is_a_doubt() {
    let mut run = mk_run(29_000);
    run.calls.answered = vec![mk_answer((1_000, 1))];
    assert_eq!(run.row(Variant::Gate).doubts.len(), 1);
    assert_eq!(run.row(Variant::None).doubts.len(), 0);
    let observed = Observed {
        cell: Cell {
            balancer: Balancer::AlbThrottled,
            ..run.observed(Variant::Gate).cell
        },
        ..run.observed(Variant::Gate)
    };
    assert_eq!(observed.row().doubts.len(), 0);
}

#[test]
fn source_that_did_not_keep_its_lag_is_a_doubt() {
    // Deregistered at 1.1 s, to be dropped 7 s later.
    for (at, doubts) in [(8_050, 1), (8_100, 0), (10_100, 0), (10_101, 1)] {
        let mut run = mk_run(29_000);
        let (source, ip) = ((0, 2), [198, 18, 0, 2].into());
        let step = Step::Remove(SocketAddr::new(ip, 8080));
        run.ledger.note(Seen::Source { source, step, at });
        assert_eq!(run.row(Variant::None).doubts.len(), doubts, "{at}");
    }
}

#[test]
fn pod_that_got_nothing_is_a_doubt() {
    let mut run = mk_run(29_000);
    run.tally.served.remove("b");
    run.tally.served("b", 0, 1_050);
    assert_eq!(run.row(Variant::Gate).doubts.len(), 1);
    // It may have got SIGTERM before.
    assert_eq!(run.row(Variant::None).doubts.len(), 0);
    run.tally.lost = 1;
    assert_eq!(run.row(Variant::None).doubts.len(), 1);
}

#[test]
fn pod_without_its_event_its_sigterm_or_its_deregistration_is_a_doubt() {
    let mut run = mk_run(29_000);
    run.released.remove("b");
    let row = run.row(Variant::Gate);
    assert_eq!(row.reasons[NO_EVENT], 1);
    assert_eq!(row.doubts.len(), 1);
    assert_eq!(run.row(Variant::None).reasons, BTreeMap::new());

    let mut run = mk_run(29_000);
    run.ledger.note(Seen::Terminating {
        pod: "d".into(),
        at: 2_000,
    });
    // One too many, without SIGTERM, never deregistered, and without an Event.
    assert_eq!(run.row(Variant::Gate).doubts.len(), 4);
}
