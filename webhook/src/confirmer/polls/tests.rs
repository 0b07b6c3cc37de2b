//! The budget, at every size.

use super::*;
use crate::confirmer::target_group::GroupId;

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn mk_group(name: impl Into<String>) -> TargetGroup {
    TargetGroup {
        id: GroupId::Name(name.into()),
        role: None,
    }
}

/// Questions at these moments, driven to `end`; each is answered at once.
fn drive(polls: &mut Polls, replicas: usize, begin: Instant, end: Instant) -> Vec<(u64, String)> {
    let mut asked = Vec::new();
    let mut now = begin;
    while now < end {
        match polls.next(replicas, 0.5, now) {
            Next::Ask(group) => {
                polls.answered(&group, now);
                let at = now.duration_since(begin).as_millis();
                asked.push((u64::try_from(at).expect("short"), group.to_string()));
            }
            Next::At(at) => now = at.max(now + Duration::from_millis(1)),
            Next::Idle => break,
        }
    }
    asked
}

#[test]
fn nobody_waits_and_nobody_is_asked() {
    let now = Instant::now();
    assert_eq!(Polls::new(now).next(1, 0.5, now), Next::Idle);
}

#[test]
fn question_comes_when_it_is_due_and_meets_every_wish_that_was() {
    let now = Instant::now();
    let mut polls = Polls::new(now);
    let group = mk_group("a");
    polls.wish(&group, "u1", Some(now + s(3)), now);
    polls.wish(&group, "u2", Some(now + s(2)), now);
    assert_eq!(polls.next(1, 0.5, now), Next::At(now + s(2)));
    assert_eq!(polls.next(1, 0.5, now + s(2)), Next::Ask(group.clone()));
    polls.answered(&group, now + s(2));
    assert_eq!(
        polls.next(1, 0.5, now + s(3)),
        Next::At(now + s(4)),
        "2 s apart"
    );
    polls.wish(&group, "u1", None, now + s(3));
    assert!(matches!(polls.next(1, 0.5, now + s(5)), Next::Idle));
}

#[test]
fn all_replicas_together_ask_twice_a_second_at_most() {
    let now = Instant::now();
    for (groups, replicas) in [(1, 1), (50, 1), (400, 1), (400, 2), (400, 5)] {
        let mut polls = Polls::new(now);
        for group in 0..groups {
            // Each wants an answer all the time: its wish is never met.
            for pod in 0..3 {
                polls.wish(
                    &mk_group(format!("g{group}")),
                    &format!("u{pod}"),
                    Some(now),
                    now,
                );
            }
        }
        let mut calls: u32 = 0;
        let mut at = now;
        while at < now + s(50) {
            match polls.next(replicas, 0.5, at) {
                Next::Ask(group) => {
                    calls += 1;
                    // Asked before any wish was due: none is met.
                    polls.answered(&group, now.checked_sub(s(1)).expect("late enough"));
                }
                Next::At(next) => at = next,
                Next::Idle => break,
            }
        }
        let most = (100 / u32::try_from(replicas).expect("few")) + 1;
        assert!(
            calls <= most,
            "{groups} groups, {replicas} replicas: {calls} calls in 50 s"
        );
        assert!(
            calls + 1 >= most.min(26),
            "{groups} groups, {replicas} replicas: only {calls} calls"
        );
    }
}

#[test]
fn longest_waiting_group_comes_first_and_none_starves() {
    let now = Instant::now();
    let mut polls = Polls::new(now);
    for group in 0..20_u64 {
        polls.wish(
            &mk_group(format!("g{group:02}")),
            "u",
            Some(now + s(20 - group)),
            now,
        );
    }
    let asked = drive(&mut polls, 1, now + s(30), now + s(50));
    let names: Vec<_> = asked.iter().map(|(_, name)| name.clone()).collect();
    let wanted: Vec<_> = (0..20).rev().map(|group| format!("g{group:02}")).collect();
    assert_eq!(names, wanted);
    assert_eq!(asked[19].0, 19 * 500);
}

/// A hold says "now" at every look while it waits for its last answer.
#[test]
fn wishes_that_are_said_again_and_again_keep_their_place() {
    let begin = Instant::now();
    let mut polls = Polls::new(begin);
    let mut names = std::collections::BTreeSet::new();
    for second in 0..10 {
        let now = begin + s(second);
        for group in 0..20 {
            polls.wish(&mk_group(format!("g{group:02}")), "u", Some(now), now);
        }
        let asked = drive(&mut polls, 1, now, now + s(1));
        names.extend(asked.into_iter().map(|(_, name)| name));
    }
    assert_eq!(names.len(), 20, "{names:?}");
}

#[test]
fn throttling_doubles_the_pause_of_that_account_alone_and_an_answer_ends_it() {
    let now = Instant::now();
    let mut polls = Polls::new(now);
    let own = mk_group("own");
    let foreign = TargetGroup {
        role: Some(Role {
            arn: "arn:aws:iam::444455556666:role/reader".to_owned(),
            external_id: None,
        }),
        ..mk_group("foreign")
    };
    polls.wish(&own, "u", Some(now), now);
    polls.wish(&foreign, "u", Some(now), now);
    let mut pauses = Vec::new();
    for _ in 0..8 {
        polls.throttled(&own, 1.0, now);
        polls.groups.get_mut(&own).expect("waited on").asked = None;
        pauses.push(
            polls
                .allowed(&own, &polls.groups[&own])
                .expect("due")
                .duration_since(now)
                .as_secs(),
        );
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 32, 32]);
    assert_eq!(
        polls.next(1, 0.5, now),
        Next::Ask(foreign),
        "another account is asked"
    );
    polls.answered(&own, now.checked_sub(s(1)).expect("late enough"));
    assert_eq!(polls.allowed(&own, &polls.groups[&own]), Some(now));
}

#[test]
fn group_is_asked_once_at_a_time() {
    let now = Instant::now();
    let mut polls = Polls::new(now);
    let group = mk_group("a");
    polls.wish(&group, "u", Some(now), now);
    assert_eq!(polls.next(1, 0.5, now), Next::Ask(group.clone()));
    polls.wish(&group, "u2", Some(now), now);
    assert_eq!(
        polls.next(1, 0.5, now + s(5)),
        Next::Idle,
        "the answer is still awaited"
    );
    polls.failed(&group, 0.0, now + s(5));
    assert!(matches!(polls.next(1, 0.5, now + s(5)), Next::At(_)));
}

#[test]
fn wish_that_nobody_repeats_is_forgotten() {
    let now = Instant::now();
    let mut polls = Polls::new(now);
    polls.wish(&mk_group("a"), "u", Some(now + s(300)), now);
    assert!(matches!(polls.next(1, 0.5, now + s(59)), Next::At(_)));
    assert_eq!(polls.next(1, 0.5, now + s(60)), Next::Idle);
    assert!(!polls.knows(&mk_group("a")));
}

/// A binding that anybody may write can name a group that always fails.
#[test]
fn group_that_always_fails_keeps_no_other_waiting() {
    let begin = Instant::now();
    let mut polls = Polls::new(begin);
    let (bad, good) = (mk_group("a-bad-one"), mk_group("good"));
    let mut answered = 0;
    let mut now = begin;
    while now < begin + s(60) {
        polls.wish(&bad, "u1", Some(begin), now);
        polls.wish(&good, "u2", Some(now), now);
        match polls.next(1, 0.5, now) {
            Next::Ask(group) if group == bad => polls.failed(&group, 0.5, now),
            Next::Ask(group) => {
                polls.answered(&group, now);
                answered += 1;
            }
            Next::At(at) => now = at.max(now + Duration::from_millis(1)),
            Next::Idle => break,
        }
    }
    assert!(
        answered >= 25,
        "{answered} of the good one's answers in 60 s"
    );
}
