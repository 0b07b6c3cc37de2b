use super::*;

/// A row of an ALB's short connections, seed 1, as good as can be.
pub(in super::super) fn mk_row(variant: Variant, failed: u64) -> Row {
    let failures = (failed > 0).then(|| ("503".to_owned(), failed));
    Row {
        build: "1".to_owned(),
        load_balancer: Balancer::Alb,
        variant,
        traffic: Traffic::Short,
        seed: 1,
        drawn: Drawn::Within,
        operation: Operation::ScaleIn,
        drains: false,
        lag_seconds: vec![vec![5.5, 11.0, 19.25]],
        requests: 1_000,
        failed,
        flows_cut: 0,
        failures: failures.into_iter().collect(),
        terminations: 3,
        hold_seconds_p50: Some(30.04),
        hold_seconds_max: Some(31.5),
        waste_seconds_p50: None,
        waste_seconds_max: None,
        api_calls: 7,
        reasons: [("confirmed".to_owned(), 3)].into(),
        over_bound: 0,
        unexplained: 0,
        lateness_p99_seconds: 0.01,
        lateness_at_sigterm_max_seconds: 0.25,
        doubts: Vec::new(),
    }
}

#[test]
fn report_has_the_agreed_keys() {
    let row = serde_json::to_value(mk_row(Variant::Sleep5s, 3)).unwrap();
    let keys = [
        "load_balancer",
        "variant",
        "traffic",
        "seed",
        "drawn",
        "requests",
        "failed",
        "flows_cut",
        "terminations",
        "hold_seconds_p50",
        "hold_seconds_max",
        "waste_seconds_p50",
        "waste_seconds_max",
        "api_calls",
        "reasons",
    ];
    for key in keys {
        assert!(row.get(key).is_some(), "{key}");
    }
    assert_eq!(
        (&row["variant"], &row["drawn"]),
        (&"sleep-5s".into(), &"within".into())
    );
}

#[test]
fn gate_may_fail_nothing_within_its_settle_times_and_controls_must_fail() {
    let objects = |row: Row| !row.objections().is_empty();
    assert!(!objects(mk_row(Variant::Gate, 0)));
    assert!(objects(mk_row(Variant::Gate, 1)));
    let beyond = |row| Row {
        drawn: Drawn::Beyond,
        ..row
    };
    assert!(!objects(beyond(mk_row(Variant::Gate, 1))));
    let over = Row {
        over_bound: 1,
        ..mk_row(Variant::Gate, 0)
    };
    assert!(objects(beyond(over)));
    let unexplained = Row {
        unexplained: 1,
        ..mk_row(Variant::Gate, 0)
    };
    assert!(objects(beyond(unexplained)));
    for variant in [Variant::None, Variant::Sleep5s, Variant::NoSettle] {
        assert!(objects(mk_row(variant, 0)), "{variant:?}");
        assert!(!objects(mk_row(variant, 1)), "{variant:?}");
    }
    for variant in [Variant::Sleep15s, Variant::Sleep30s] {
        assert!(!objects(mk_row(variant, 0)) && !objects(mk_row(variant, 1)));
    }
}

#[test]
fn sleep_that_every_lag_outlasts_must_fail() {
    let objects = |variant, shortest: f64, failed| {
        let row = Row {
            lag_seconds: vec![vec![19.0, shortest, 20.0]],
            ..mk_row(variant, failed)
        };
        !row.objections().is_empty()
    };
    assert!(objects(Variant::Sleep15s, 16.5, 0));
    assert!(!objects(Variant::Sleep15s, 16.5, 1));
    assert!(!objects(Variant::Sleep15s, 15.5, 0));
    assert!(!objects(Variant::Sleep30s, 16.5, 0));
}

#[test]
fn gate_must_release_by_proof_but_for_what_its_row_is_about() {
    let objects = |reason: &str, load_balancer, drawn| {
        let row = Row {
            load_balancer,
            drawn,
            reasons: [(reason.to_owned(), 1), ("confirmed".to_owned(), 2)].into(),
            ..mk_row(Variant::Gate, 0)
        };
        row.objections()
    };
    let (within, beyond) = (Drawn::Within, Drawn::Beyond);
    for reason in ["settled", "max-wait", "fallback", "no-attachment"] {
        let sentence = format!("1 pods were released as {reason}.");
        assert_eq!(objects(reason, Balancer::Alb, within), [sentence]);
    }
    assert!(objects("settled", Balancer::AlbThrottled, within).is_empty());
    assert!(objects("max-wait", Balancer::Nlb, beyond).is_empty());
    assert_eq!(objects("max-wait", Balancer::AlbThrottled, within).len(), 1);
    assert_eq!(objects("settled", Balancer::Nlb, beyond).len(), 1);
}

#[test]
fn hold_beyond_its_bound_or_unexplained_is_an_objection_as_is_doubt_or_a_late_load() {
    let change = |change: &dyn Fn(&mut Row)| {
        let mut row = mk_row(Variant::Gate, 0);
        change(&mut row);
        row.objections().len()
    };
    assert_eq!(change(&|row| row.over_bound = 1), 1);
    assert_eq!(change(&|row| row.unexplained = 1), 1);
    assert_eq!(
        change(&|row| row.doubts.push("a pod was lost.".to_owned())),
        1
    );
    assert_eq!(change(&|row| row.lateness_p99_seconds = 1.01), 1);
    assert_eq!(change(&|row| row.lateness_p99_seconds = 0.99), 0);
    let late = |late| change(&|row| row.lateness_at_sigterm_max_seconds = late);
    assert_eq!((late(1.49), late(1.51)), (0, 1));
}

#[test]
fn planned_cell_without_a_row_is_an_objection_and_other_rows_are_judged_too() {
    let good = mk_row(Variant::Gate, 0);
    let other = Cell {
        seed: 2,
        ..good.cell()
    };
    let failed = mk_row(Variant::NoSettle, 0);
    let objections = objections(&[good.clone(), failed], &[good.cell(), other].into());
    assert_eq!(
        objections,
        [
            "alb-no-settle-short-1: no request failed, so this run could not have shown a failure.",
            "alb-gate-short-2: there is no row of it."
        ]
    );
}

#[test]
fn rows_are_read_as_they_were_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lab/report.json");
    assert_eq!(read(&path).unwrap(), Vec::new());
    let rows = vec![mk_row(Variant::None, 2), mk_row(Variant::Gate, 0)];
    write(&path, &rows).unwrap();
    assert_eq!(read(&path).unwrap(), rows);
    assert_eq!(read_earlier(&path, "1").unwrap(), rows);
    let refused = read_earlier(&path, "2").unwrap_err().to_string();
    assert!(refused.contains("alb-none-short-1"), "{refused}");
}
