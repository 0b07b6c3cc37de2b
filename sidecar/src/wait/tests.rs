//! Tables, then a seeded random walk.

use super::*;
use crate::contract::ReleaseReason as R;

const LIMITS: Limits = Limits {
    max_wait: s(60),
    min_hold: s(0),
    fallback_wait: s(15),
    liveness_cap: None,
};
const WITH_CAP: Limits = Limits {
    liveness_cap: Some(s(10)),
    ..LIMITS
};

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn welcomed(epoch: &str) -> Observation {
    Observation::Welcomed {
        epoch: epoch.to_owned(),
    }
}

fn go_file(epoch: &str) -> Observation {
    Observation::GoFile(GoFile {
        epoch: epoch.to_owned(),
        reason: R::Settled,
    })
}

/// Runs the observations, `(second, what)`, and returns the last step.
fn run(limits: Limits, course: &[(u64, Observation)]) -> Step {
    let mut wait = Wait::new(limits);
    course.iter().fold(Step::Seek(s(0)), |_, (at, what)| {
        wait.step(what.clone(), s(*at))
    })
}

#[test]
fn welcomed_hook_listens_until_it_is_told_or_the_cap() {
    let listening = [(0, welcomed("e"))];
    assert_eq!(run(LIMITS, &listening), Step::Listen(s(65)));
    assert_eq!(
        run(
            Limits {
                min_hold: s(90),
                ..LIMITS
            },
            &listening
        ),
        Step::Listen(s(95))
    );
    let told = [(0, welcomed("e")), (30, Observation::Go(R::Confirmed))];
    assert_eq!(run(LIMITS, &told), Step::Leave(R::Confirmed));
    let mute = [(0, welcomed("e")), (65, Observation::Tick)];
    assert_eq!(run(LIMITS, &mute), Step::Leave(R::MaxWait));
}

#[test]
fn hook_without_a_waiter_seeks_one_for_the_fallback() {
    assert_eq!(run(LIMITS, &[(0, Observation::Tick)]), Step::Seek(s(15)));
    assert_eq!(
        run(LIMITS, &[(0, Observation::Tick), (15, Observation::Tick)]),
        Step::Leave(R::Fallback)
    );
    let minimum = Limits {
        min_hold: s(20),
        ..LIMITS
    };
    assert_eq!(
        run(minimum, &[(0, Observation::Tick)]),
        Step::Seek(s(20)),
        "the longer of the two"
    );
    let none = Limits {
        fallback_wait: s(0),
        ..LIMITS
    };
    assert_eq!(
        run(none, &[(0, Observation::Tick)]),
        Step::Seek(RECONNECT),
        "a waiter may be just coming up"
    );
}

#[test]
fn waiter_found_late_takes_over() {
    assert_eq!(
        run(LIMITS, &[(0, Observation::Tick), (14, welcomed("e"))]),
        Step::Listen(s(65))
    );
}

#[test]
fn lost_waiter_means_the_fallback_since_the_hooks_own_start() {
    let early = [(0, welcomed("e")), (3, Observation::Lost)];
    assert_eq!(run(LIMITS, &early), Step::Seek(s(15)));
    let late = [(0, welcomed("e")), (40, Observation::Lost)];
    assert_eq!(
        run(LIMITS, &late),
        Step::Seek(s(41)),
        "and a second to come back"
    );
    let last_moment = [(0, welcomed("e")), (64, Observation::Lost)];
    assert_eq!(run(LIMITS, &last_moment), Step::Seek(s(65)));
    let back = [
        (0, welcomed("e")),
        (40, Observation::Lost),
        (40, welcomed("f")),
    ];
    assert_eq!(run(LIMITS, &back), Step::Listen(s(65)));
}

#[test]
fn waiter_that_turns_hooks_away_is_no_waiter() {
    let mut wait = Wait::new(LIMITS);
    for at in 0..15 {
        assert_eq!(wait.step(Observation::Lost, s(at)), Step::Seek(s(15)));
    }
    assert_eq!(
        wait.step(Observation::Lost, s(15)),
        Step::Leave(R::Fallback)
    );
}

#[test]
fn release_file_counts_when_it_is_of_the_epoch_or_none_is_known() {
    assert_eq!(run(LIMITS, &[(0, go_file("any"))]), Step::Leave(R::Settled));
    assert_eq!(
        run(
            LIMITS,
            &[
                (0, welcomed("e")),
                (3, Observation::Lost),
                (3, go_file("e"))
            ]
        ),
        Step::Leave(R::Settled)
    );
    assert_eq!(
        run(
            LIMITS,
            &[
                (0, welcomed("e")),
                (3, Observation::Lost),
                (3, go_file("d"))
            ]
        ),
        Step::Seek(s(15))
    );
}

#[test]
fn liveness_cap_ends_the_wait_until_the_pod_is_known_to_be_terminating() {
    assert_eq!(run(WITH_CAP, &[(0, Observation::Tick)]), Step::Seek(s(10)));
    assert_eq!(run(WITH_CAP, &[(0, welcomed("e"))]), Step::Listen(s(10)));
    assert_eq!(
        run(WITH_CAP, &[(0, welcomed("e")), (10, Observation::Tick)]),
        Step::Leave(R::Fallback)
    );
    let known = [(0, welcomed("e")), (1, Observation::Terminating)];
    assert_eq!(run(WITH_CAP, &known), Step::Listen(s(65)));
    let lost = [
        (0, welcomed("e")),
        (1, Observation::Terminating),
        (2, Observation::Lost),
    ];
    assert_eq!(
        run(WITH_CAP, &lost),
        Step::Seek(s(15)),
        "what was known stays known"
    );
    assert_eq!(
        run(
            Limits {
                min_hold: s(30),
                ..WITH_CAP
            },
            &[(0, Observation::Tick)]
        ),
        Step::Seek(s(10))
    );
}

#[test]
fn what_came_while_nobody_looked_counts_before_the_time_does() {
    let late = |course: &[Observation]| {
        let mut wait = Wait::new(WITH_CAP);
        for what in course {
            wait.observe(what.clone(), s(30));
        }
        let is_over = wait.is_over();
        (is_over, wait.step(Observation::Tick, s(30)))
    };
    let known = [welcomed("e"), Observation::Terminating];
    let with = |last: &[Observation]| late(&[&known, last].concat());
    assert_eq!(with(&[]), (false, Step::Listen(s(65))));
    assert_eq!(
        with(&[Observation::Go(R::Settled), Observation::Lost]),
        (true, Step::Leave(R::Settled))
    );
    assert_eq!(
        with(&[Observation::Lost]),
        (false, Step::Seek(s(31))),
        "the second to come back begins when the loss is seen"
    );
    assert_eq!(
        with(&[Observation::Lost, welcomed("f")]),
        (false, Step::Listen(s(65)))
    );
    let alone = (false, Step::Leave(R::Fallback));
    assert_eq!(late(&[]), alone);
    assert_eq!(late(&[welcomed("e")]), alone, "the liveness cap binds");
}

#[test]
fn hook_that_left_stays_away() {
    let mut wait = Wait::new(LIMITS);
    wait.step(Observation::Go(R::Node), s(1));
    for what in [
        welcomed("e"),
        Observation::Lost,
        Observation::Go(R::Settled),
        Observation::Tick,
    ] {
        assert_eq!(wait.step(what, s(100)), Step::Leave(R::Node));
    }
}

/// One random course: never beyond the cap, never before a ground.
fn walk(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let limits = Limits {
        max_wait: s(random.u64(..60)),
        min_hold: s(random.choice([0, 0, 10, 80]).unwrap()),
        fallback_wait: s(random.u64(..20)),
        liveness_cap: random
            .choice([None, Some(s(0)), Some(s(5)), Some(s(30))])
            .unwrap(),
    };
    let context = format!("seed {seed}, {limits:?}");
    let cap = limits.max_wait.max(limits.min_hold) + CAP_MARGIN;
    let mut wait = Wait::new(limits);
    let (mut now, mut terminating, mut connected) = (Duration::ZERO, false, false);
    loop {
        let what = match random.u8(..12) {
            0..3 => welcomed("e"),
            3 => Observation::Terminating,
            4 | 5 => Observation::Lost,
            6 => go_file("other"),
            7 if random.u8(..8) == 0 => Observation::Go(R::Confirmed),
            _ => Observation::Tick,
        };
        terminating |= what == Observation::Terminating;
        connected = what != Observation::Lost
            && (connected || matches!(what, Observation::Welcomed { .. }));
        let until = match wait.step(what.clone(), now) {
            Step::Listen(until) | Step::Seek(until) => until,
            Step::Leave(reason) => {
                let told = matches!(what, Observation::Go(_) | Observation::GoFile(_));
                let live = !terminating && limits.liveness_cap.is_some_and(|cap| now >= cap);
                let alone = !connected && now >= limits.fallback_wait.max(limits.min_hold);
                assert!(
                    told || live || alone || now >= cap,
                    "{reason} without a ground at {now:?}: {context}"
                );
                return;
            }
        };
        assert!(
            until > now && until <= cap,
            "{until:?} at {now:?}: {context}"
        );
        now = until.min(now + Duration::from_millis(random.u64(..4000)));
    }
}

#[test]
fn no_random_course_of_events_breaks_a_rule() {
    (0..20_000).for_each(walk);
}
