//! Tables, then a seeded random walk against rules that are written down a second time.

use super::*;
use crate::contract::{Evidence, Progress, ReleaseReason as R, Verdict};

mod lives_on;
mod walk;

const LIMITS: Limits = Limits {
    max_wait: s(60),
    min_hold: s(0),
    fallback_wait: s(15),
};
const WITH_MINIMUM: Limits = Limits {
    min_hold: s(20),
    ..LIMITS
};

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn answer(verdict: Verdict, reason: Option<R>, seconds_left: f64) -> Observation {
    Observation::Answered(HoldResponse {
        protocol: 1,
        verdict,
        reason,
        awaiting: Vec::new(),
        seconds_left,
        progress: Progress::new(),
    })
}

fn hold(seconds_left: f64) -> Observation {
    answer(Verdict::Hold, None, seconds_left)
}

fn go(reason: R) -> Observation {
    answer(Verdict::Go, Some(reason), 0.0)
}

fn wait(reason: R, seconds: f64) -> Observation {
    answer(Verdict::Wait, Some(reason), seconds)
}

fn restart() -> Observation {
    answer(Verdict::Restart, Some(R::Restart), 0.0)
}

fn release(reason: R, held: Duration) -> Vec<Effect> {
    vec![Effect::Release { reason, held }]
}

fn let_go(hooks: &[HookId], reason: R, held: Duration) -> Vec<Effect> {
    vec![Effect::LetGo {
        hooks: hooks.to_vec(),
        reason,
        held,
    }]
}

/// A machine, and a clock that only moves forward.
struct Machine {
    state: State,
    limits: Limits,
    now: Duration,
}

impl Machine {
    /// Idle at a time that isn't zero.
    fn idle(limits: Limits) -> Self {
        Self {
            state: State::Idle,
            limits,
            now: s(1000),
        }
    }

    /// One hook, number 1, said HELLO at time 0, and the confirmer is being asked.
    fn asked(limits: Limits) -> Self {
        let mut machine = Self::idle(limits);
        assert_eq!(machine.at(0, Observation::HookArrived(1)), []);
        assert_eq!(machine.at(0, Observation::Asked), []);
        machine
    }

    /// What happens at `seconds` after the start of the test.
    fn at(&mut self, seconds: u64, observation: Observation) -> Vec<Effect> {
        let now = s(1000 + seconds);
        assert!(now >= self.now, "time must not run backwards");
        self.now = now;
        self.state.step(observation, &self.limits, now)
    }

    fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle)
    }

    /// Nothing happens until the wake-up, which is at `seconds`; what then happens.
    fn wakes_at(&mut self, seconds: u64) -> Vec<Effect> {
        assert_eq!(self.state.wake(&self.limits), Some(s(1000 + seconds)));
        assert_eq!(
            self.at(seconds - 1, Observation::Tick),
            [],
            "a second too early"
        );
        self.at(seconds, Observation::Tick)
    }
}

#[test]
fn deleting_pod_is_held_until_it_is_confirmed() {
    let mut machine = Machine::asked(LIMITS);
    assert_eq!(machine.at(1, hold(60.0)), [Effect::Terminating]);
    assert_eq!(machine.at(1, Observation::Asked), []);
    assert_eq!(machine.at(20, hold(41.0)), [], "terminating is said once");
    assert_eq!(
        machine.at(30, go(R::Confirmed)),
        release(R::Confirmed, s(30))
    );
    assert!(matches!(machine.state, State::Released(R::Confirmed)));
}

#[test]
fn first_answer_may_be_go() {
    assert_eq!(
        Machine::asked(LIMITS).at(1, go(R::NoAttachment)),
        release(R::NoAttachment, s(1))
    );
}

#[test]
fn deadline_is_the_latest_one_that_was_told() {
    let mut machine = Machine::asked(LIMITS);
    machine.at(1, hold(50.0));
    machine.at(10, hold(5.0));
    assert_eq!(machine.wakes_at(16), release(R::MaxWait, s(16)));

    let mut machine = Machine::asked(LIMITS);
    machine.at(1, hold(5.0));
    machine.at(2, hold(40.0));
    assert_eq!(machine.wakes_at(43), release(R::MaxWait, s(43)));
}

#[test]
fn hold_that_never_ends_is_ended_by_the_cap() {
    let mut machine = Machine::asked(LIMITS);
    machine.at(1, hold(1e300));
    assert_eq!(machine.wakes_at(65), release(R::MaxWait, s(65)));
    assert_eq!(WITH_MINIMUM.cap(), s(65));
    assert_eq!(
        Limits {
            min_hold: s(100),
            ..LIMITS
        }
        .cap(),
        s(105)
    );
}

#[test]
fn nonsense_times_count_as_none_left() {
    for seconds_left in [-1.0, f64::NAN, f64::NEG_INFINITY, 0.0] {
        let mut machine = Machine::asked(LIMITS);
        machine.at(1, hold(seconds_left));
        assert_eq!(
            machine.wakes_at(2),
            release(R::MaxWait, s(2)),
            "{seconds_left}"
        );
    }
}

#[test]
fn confirmer_has_the_last_word_on_why_a_hold_is_over() {
    let mut machine = Machine::asked(LIMITS);
    machine.at(1, hold(9.0));
    assert_eq!(machine.at(10, Observation::Tick), []);
    assert_eq!(machine.at(10, go(R::Forced)), release(R::Forced, s(10)));
}

#[test]
fn wait_is_carried_out_without_asking_again() {
    let mut machine = Machine::asked(LIMITS);
    machine.at(1, hold(59.0));
    assert_eq!(machine.at(10, wait(R::Unconfirmable, 20.0)), []);
    assert_eq!(machine.state.ask_after(), None);
    assert_eq!(machine.wakes_at(30), release(R::Unconfirmable, s(30)));
}

#[test]
fn wait_does_not_outlast_the_deadline_told_before() {
    let mut machine = Machine::asked(LIMITS);
    machine.at(1, hold(9.0));
    machine.at(5, wait(R::Unconfirmable, 20.0));
    assert_eq!(machine.wakes_at(11), release(R::MaxWait, s(11)));
}

#[test]
fn pod_that_is_gone_is_released_for_good_after_the_wait() {
    let mut machine = Machine::asked(LIMITS);
    assert_eq!(machine.at(1, wait(R::Forced, 15.0)), [Effect::Terminating]);
    assert_eq!(machine.wakes_at(16), release(R::Forced, s(16)));
}

// A confirmer that is lost during a hold.

#[test]
fn terminating_pods_fallback_counts_from_the_first_failure_and_ends_the_gate() {
    let mut machine = Machine::asked(LIMITS);
    machine.at(1, hold(59.0));
    assert_eq!(
        machine.at(26, Observation::Tick),
        [],
        "a long turn is no failure"
    );
    machine.at(30, Observation::Failed);
    machine.at(40, Observation::Failed);
    assert_eq!(machine.wakes_at(45), release(R::Fallback, s(45)));
}

#[test]
fn good_answer_ends_the_failure() {
    let mut machine = Machine::asked(LIMITS);
    machine.at(1, hold(59.0));
    machine.at(10, Observation::Failed);
    machine.at(24, hold(36.0));
    assert_eq!(machine.wakes_at(61), release(R::MaxWait, s(61)));
}

#[test]
fn fallback_does_not_outlast_the_deadline_told_before() {
    let mut machine = Machine::asked(LIMITS);
    machine.at(1, hold(19.0));
    machine.at(10, Observation::Failed);
    assert_eq!(machine.wakes_at(21), release(R::MaxWait, s(21)));
}

// The minimum hold.

#[test]
fn go_waits_for_the_minimum_hold_and_the_confirmer_may_still_object() {
    let mut machine = Machine::asked(WITH_MINIMUM);
    assert_eq!(machine.at(1, go(R::NoAttachment)), [Effect::Terminating]);
    assert_eq!(machine.state.ask_after(), Some(s(2)));
    assert_eq!(machine.wakes_at(20), release(R::NoAttachment, s(20)));

    let mut machine = Machine::asked(WITH_MINIMUM);
    machine.at(1, go(R::NoAttachment));
    machine.at(3, hold(57.0));
    assert_eq!(machine.at(20, Observation::Tick), [], "registered again");
    assert_eq!(machine.at(30, go(R::Settled)), release(R::Settled, s(30)));
}

#[test]
fn minimum_hold_binds_exactly_the_reasons_that_leave_time() {
    for reason in R::ALL {
        let binds = !matches!(reason, R::MaxWait | R::Restart | R::Node | R::Forced);
        let effects = Machine::asked(WITH_MINIMUM).at(1, go(reason));
        let ended = effects
            .iter()
            .any(|effect| matches!(effect, Effect::Release { .. } | Effect::LetGo { .. }));
        assert_eq!(ended, !binds, "{reason}");
    }
}

#[test]
fn minimum_hold_binds_the_fallback_but_not_the_deadline() {
    assert_eq!(
        Machine::asked(WITH_MINIMUM).wakes_at(20),
        let_go(&[1], R::Fallback, s(20))
    );

    let mut machine = Machine::asked(WITH_MINIMUM);
    machine.at(1, hold(9.0));
    machine.at(2, go(R::Settled));
    assert_eq!(machine.wakes_at(11), release(R::MaxWait, s(11)));

    let mut machine = Machine::asked(WITH_MINIMUM);
    machine.at(2, answer(Verdict::Go, Some(R::NoAttachment), 6.0));
    assert_eq!(machine.wakes_at(8), release(R::MaxWait, s(8)));
}

#[test]
fn shortened_grace_ends_a_minimum_hold_under_way() {
    let mut machine = Machine::asked(WITH_MINIMUM);
    machine.at(1, go(R::NoAttachment));
    assert_eq!(machine.at(3, go(R::Forced)), release(R::Forced, s(3)));
}

// Hooks that come and go.

#[test]
fn hold_of_a_pod_that_may_live_on_is_abandoned_with_its_last_hook() {
    let mut machine = Machine::asked(LIMITS);
    machine.at(1, Observation::HookArrived(2));
    assert_eq!(machine.at(2, Observation::HookLeft(1)), []);
    assert_eq!(
        machine.at(3, Observation::HookLeft(2)),
        [Effect::Abandon { held: s(3) }]
    );
    assert!(machine.is_idle());
    assert_eq!(machine.state.ask_after(), None);
}

#[test]
fn terminating_pods_hold_goes_on_without_hooks_and_later_ones_join_its_clock() {
    let mut machine = Machine::asked(LIMITS);
    machine.at(1, hold(59.0));
    assert_eq!(machine.at(2, Observation::HookLeft(1)), []);
    assert_eq!(machine.at(9, Observation::HookArrived(2)), []);
    assert!(machine.state.is_terminating());
    assert_eq!(machine.at(30, go(R::Settled)), release(R::Settled, s(30)));
}

#[test]
fn released_stays_released() {
    let mut machine = Machine::asked(LIMITS);
    machine.at(1, go(R::NoAttachment));
    for observation in [
        Observation::HookLeft(1),
        Observation::HookArrived(2),
        hold(60.0),
        restart(),
        Observation::Failed,
        Observation::Tick,
    ] {
        assert_eq!(machine.at(2, observation), []);
        assert!(matches!(machine.state, State::Released(R::NoAttachment)));
        assert_eq!(
            (machine.state.wake(&LIMITS), machine.state.ask_after()),
            (None, None)
        );
    }
}

#[test]
fn idle_waiter_neither_wakes_nor_asks() {
    let mut machine = Machine::idle(LIMITS);
    for observation in [
        Observation::HookLeft(7),
        Observation::Failed,
        hold(60.0),
        Observation::Tick,
    ] {
        assert_eq!(machine.at(1, observation), []);
        assert!(machine.is_idle());
        assert_eq!(
            (machine.state.wake(&LIMITS), machine.state.ask_after()),
            (None, None)
        );
    }
}

// The question.

#[test]
fn question_tells_the_time_the_state_and_the_aged_progress() {
    let params = HoldParams {
        original_grace_seconds: 30.0,
        max_wait_seconds: 60.0,
        min_hold_seconds: 0.0,
        fallback_wait_seconds: 15.0,
        settle_seconds: None,
        quiet_seconds: None,
        host_network: false,
        probes_per_minute: std::collections::BTreeMap::new(),
    };
    let mut machine = Machine::asked(LIMITS);
    let first = machine.state.request("e", &params, s(1003)).unwrap();
    assert_eq!(
        (first.epoch.as_str(), first.terminating, first.params),
        ("e", false, params.clone())
    );
    assert!((first.elapsed_seconds - 3.0).abs() < 1e-9);
    assert!(first.progress.is_empty());

    let mut told = hold(60.0);
    if let Observation::Answered(answer) = &mut told {
        answer
            .progress
            .insert("slice".to_owned(), Evidence { age_seconds: 1.5 });
    }
    machine.at(4, told);
    machine.at(6, Observation::Failed);
    let second = machine.state.request("e", &params, s(1010)).unwrap();
    assert!(second.terminating);
    assert!((second.progress["slice"].age_seconds - 7.5).abs() < 1e-9);

    machine.at(11, hold(60.0));
    assert!(
        machine
            .state
            .request("e", &params, s(1011))
            .unwrap()
            .progress
            .is_empty(),
        "registered again"
    );
}
