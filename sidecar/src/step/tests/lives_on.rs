//! What must not be released for good, since the pod may live on.

use super::*;

#[test]
fn restart_lets_go_at_once_and_the_next_delete_is_held() {
    let mut machine = Machine::asked(WITH_MINIMUM);
    assert_eq!(machine.at(1, restart()), let_go(&[1], R::Restart, s(1)));
    assert!(machine.is_idle());
    assert_eq!(machine.at(1, Observation::HookLeft(1)), []);
    assert_eq!(machine.at(9, Observation::HookArrived(2)), []);
    assert_eq!(machine.at(9, Observation::Asked), []);
    assert_eq!(machine.at(10, hold(60.0)), [Effect::Terminating]);
    assert_eq!(machine.at(40, go(R::Settled)), release(R::Settled, s(31)));
}

#[test]
fn restart_does_not_cover_a_hook_that_came_after_the_question() {
    let mut machine = Machine::asked(LIMITS);
    machine.at(1, Observation::HookArrived(2));
    assert_eq!(machine.at(2, restart()), let_go(&[1], R::Restart, s(2)));
    assert_eq!(machine.state.ask_after(), Some(Duration::ZERO));
    machine.at(2, Observation::Asked);
    assert_eq!(machine.at(3, hold(60.0)), [Effect::Terminating]);
    assert_eq!(
        machine.at(11, go(R::Settled)),
        release(R::Settled, s(10)),
        "counted from the second HELLO"
    );
}

#[test]
fn restart_of_a_terminating_pod_is_not_believed() {
    for mistaken in [restart(), go(R::Restart), wait(R::Restart, 0.0)] {
        let mut machine = Machine::asked(LIMITS);
        machine.at(1, hold(59.0));
        assert_eq!(machine.at(2, mistaken), []);
        assert_eq!(
            machine.wakes_at(17),
            release(R::Fallback, s(17)),
            "as if the confirmer couldn't be reached"
        );
    }
}

#[test]
fn node_evidence_lets_go_without_ending_the_gate() {
    let mut machine = Machine::asked(WITH_MINIMUM);
    assert_eq!(machine.at(1, wait(R::Node, 5.0)), []);
    assert_eq!(machine.wakes_at(6), let_go(&[1], R::Node, s(6)));
    assert!(machine.is_idle());
}

#[test]
fn node_evidence_does_not_cover_a_hook_that_came_later() {
    let mut machine = Machine::asked(LIMITS);
    machine.at(1, wait(R::Node, 5.0));
    assert_eq!(machine.state.ask_after(), None);
    machine.at(3, Observation::HookArrived(2));
    assert_eq!(machine.state.ask_after(), Some(Duration::ZERO));
    assert_eq!(
        machine.at(6, Observation::Tick),
        let_go(&[1], R::Node, s(6))
    );
    assert_eq!(machine.wakes_at(18), let_go(&[2], R::Fallback, s(15)));
}

#[test]
fn node_evidence_for_a_later_hook_does_not_prolong_the_wait_of_an_earlier_one() {
    let mut machine = Machine::asked(LIMITS);
    machine.at(1, wait(R::Node, 5.0));
    machine.at(3, Observation::HookArrived(2));
    machine.at(3, Observation::Asked);
    machine.at(4, wait(R::Node, 5.0));
    assert_eq!(machine.wakes_at(6), let_go(&[1, 2], R::Node, s(6)));
}

#[test]
fn deletion_that_comes_to_light_during_a_node_wait_is_held() {
    let mut machine = Machine::asked(LIMITS);
    machine.at(1, wait(R::Node, 5.0));
    machine.at(3, Observation::HookArrived(2));
    machine.at(3, Observation::Asked);
    assert_eq!(machine.at(4, hold(60.0)), [Effect::Terminating]);
    assert_eq!(machine.at(6, Observation::Tick), []);
    assert_eq!(machine.at(30, go(R::Settled)), release(R::Settled, s(30)));
}

#[test]
fn unreachable_confirmer_means_the_fallback_without_ending_the_gate() {
    for failure in [
        Observation::Failed,
        answer(Verdict::Unknown, None, 0.0),
        answer(Verdict::Go, None, 0.0),
        Observation::Tick,
    ] {
        let mut machine = Machine::asked(LIMITS);
        for at in 1..14 {
            assert_eq!(machine.at(at, failure.clone()), []);
        }
        assert_eq!(machine.wakes_at(15), let_go(&[1], R::Fallback, s(15)));
        assert!(machine.is_idle());
    }
}

#[test]
fn every_hook_gets_its_own_fallback() {
    let mut machine = Machine::asked(LIMITS);
    machine.at(4, Observation::HookArrived(2));
    assert_eq!(machine.wakes_at(15), let_go(&[1], R::Fallback, s(15)));
    assert_eq!(machine.wakes_at(19), let_go(&[2], R::Fallback, s(15)));
    assert!(machine.is_idle());
}

#[test]
fn fallback_that_the_confirmer_advises_does_not_end_the_gate_either() {
    let mut machine = Machine::asked(LIMITS);
    machine.at(1, wait(R::Fallback, 10.0));
    assert_eq!(machine.wakes_at(11), let_go(&[1], R::Fallback, s(11)));
}
