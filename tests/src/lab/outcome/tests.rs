use std::time::Duration;

use super::super::balancer::Balancer;
use super::super::cell::Drawn;
use super::super::seen::{AppEvent, Seen};
use super::super::traffic::Traffic;
use super::*;

const LAGS: &[Lags] = &[[Duration::from_secs(7); 3]];

/// A run behind the gate in which pods `a`, `b` and `c` were deleted at 1 s, deregistered at 1.1 s and held for `hold`
/// milliseconds each.
pub(in super::super) struct Run {
    ledger: Ledger,
    released: BTreeMap<String, Released>,
    tally: Tally,
    calls: Calls,
}

pub(in super::super) fn mk_run(hold: u64) -> Run {
    let mut ledger = Ledger::default();
    let mut released = BTreeMap::new();
    for (last, pod) in (1..).zip(["a", "b", "c"]) {
        let ip = [198, 18, 0, last].into();
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
        released.insert(pod, Released { reason, note });
    }
    let mut tally = Tally::default();
    for _ in 0..40 {
        tally.served("a", 1, 14_000);
    }
    Run {
        ledger,
        released,
        tally,
        calls: Calls {
            all: 5,
            answered: vec![2_000, 9_000],
        },
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
