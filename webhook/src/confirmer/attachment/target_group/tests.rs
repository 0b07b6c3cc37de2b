//! Every state of a target, by every history.

use sidecar::contract::Progress;

use super::super::Quiet;
use super::super::tests::{dropped, mk_context, mk_progress, mk_sender, s};
use super::*;
use crate::confirmer::endpoints::Seen;
use crate::confirmer::sender::Others;
use crate::confirmer::target_group::{GroupId, TargetGroup};

const KEY: &str = "TargetGroup tg";

/// A pod behind an ALB (or what `family` says), whose endpoint was dropped at second 0.
struct Fixture {
    begin: Instant,
    sender: SenderSeen,
    bound: Bound,
    family: Option<Family>,
    progress: Progress,
    settle: Option<Duration>,
}

fn mk() -> Fixture {
    Fixture {
        // Far enough from the clock's own beginning.
        begin: Instant::now() + s(10_000),
        sender: mk_sender(Seen::Registered),
        bound: Bound {
            binding: "shop/binding".to_owned(),
            group: TargetGroup {
                id: GroupId::Name("tg".to_owned()),
                role: None,
            },
            family: None,
            checkpoint: None,
            is_gone: false,
            manages_rules: false,
        },
        family: Some(Family::Alb),
        progress: Progress::new(),
        settle: None,
    }
}

/// A checkpoint that was changed at this second.
const fn checkpoint(at: u64, is_blank: bool) -> (u64, bool) {
    (at, is_blank)
}

impl Fixture {
    fn at(&self, second: u64) -> Instant {
        self.begin + s(second)
    }

    /// Where it stands at `now`; the hold began at second 0 too.
    fn judge(&self, now: u64, standing: Standing) -> (Attachment, Option<u64>) {
        self.judge_with(now, now, None, standing)
    }

    fn judge_with(
        &self,
        now: u64,
        served: u64,
        checkpoint: Option<(u64, bool)>,
        standing: Standing,
    ) -> (Attachment, Option<u64>) {
        let sender = SenderSeen {
            seen: dropped(now, true),
            ..self.sender.clone()
        };
        let bound = Bound {
            checkpoint: checkpoint.map(|(at, is_blank)| Checkpoint {
                is_blank,
                age: s(now + 100).saturating_sub(s(at + 100)),
                witnessed: true,
            }),
            ..self.bound.clone()
        };
        let mut context = mk_context(self.at(now), &self.progress);
        context.served = s(served);
        context.settles = context.settles.overridden(self.settle, None);
        let (found, ask) = of_group(&sender, &bound, self.family, |_| standing, &context);
        (
            found,
            ask.map(|at| at.saturating_duration_since(self.begin).as_secs()),
        )
    }

    fn gone(&self, how: Gone, since: u64, asked: u64) -> Standing {
        Standing::Gone {
            how,
            since: self.at(since),
            asked: self.at(asked),
            was_there: true,
            came_back: false,
        }
    }

    fn registered(&self, asked: u64, failure: Option<Failure>) -> Standing {
        Standing::Registered {
            asked: self.at(asked),
            failure,
        }
    }
}

const fn settled(age: u64, proven: bool) -> State {
    State::Settled {
        age: s(age),
        proven,
    }
}

const fn settling(age: u64, left: u64) -> State {
    State::Settling {
        age: s(age),
        left: s(left),
    }
}

const UNASKED: Standing = Standing::Unasked { failure: None };

#[test]
fn endpoint_that_is_ready_is_registered_and_nobody_is_asked() {
    let fixture = mk();
    let progress = Progress::new();
    let context = mk_context(fixture.begin, &progress);
    let (found, ask) = of_group(
        &fixture.sender,
        &fixture.bound,
        fixture.family,
        |_| panic!("nothing was dropped"),
        &context,
    );
    assert_eq!((found.state, ask), (State::Registered, None));
}

/// Each way to be gone starts the settle, and none ends it; the last answer comes at its end.
#[test]
fn every_way_to_be_gone_settles_from_its_first_answer_and_is_confirmed_by_the_last() {
    let fixture = mk();
    for how in [Gone::Draining, Gone::Absent, Gone::Unused, Gone::Group] {
        let (found, ask) = fixture.judge(12, fixture.gone(how, 2, 10));
        assert_eq!((found.state, ask), (settling(10, 14), Some(21)), "{how:?}");
        // The last answer is a second early: then time is all that is needed.
        let (found, ask) = fixture.judge(21, fixture.gone(how, 2, 21));
        assert_eq!((found.state, ask), (settling(19, 1), None), "{how:?}");
        let (found, _) = fixture.judge(22, fixture.gone(how, 2, 21));
        assert_eq!(found.state, settled(20, true), "{how:?}");
    }
}

/// Nobody asks while a target settles, unless its controller was at the group again.
#[test]
fn settling_target_is_asked_about_when_its_controller_has_been_at_the_group_since() {
    let fixture = mk();
    let asked = |checkpoint| {
        fixture
            .judge_with(12, 12, checkpoint, fixture.gone(Gone::Draining, 2, 4))
            .1
    };
    assert_eq!(asked(None), Some(21));
    assert_eq!(asked(Some(checkpoint(1, false))), Some(21));
    assert_eq!(asked(Some(checkpoint(8, false))), Some(12));
    assert_eq!(
        asked(Some(checkpoint(8, true))),
        Some(21),
        "it isn't done yet"
    );
}

/// Another account's group, or another region's, is not found either.
#[test]
fn group_that_was_never_seen_settles_and_proves_nothing() {
    let fixture = mk();
    let gone = |was_there| Standing::Gone {
        how: Gone::Group,
        since: fixture.at(2),
        asked: fixture.at(21),
        was_there,
        came_back: false,
    };
    assert_eq!(fixture.judge(22, gone(false)).0.state, settled(20, false));
    assert_eq!(fixture.judge(22, gone(true)).0.state, settled(20, true));
}

#[test]
fn last_answer_that_does_not_come_is_waited_for_briefly_and_then_time_has_to_do() {
    let fixture = mk();
    let (found, ask) = fixture.judge(22, fixture.gone(Gone::Draining, 2, 10));
    assert_eq!((found.state, ask), (settling(20, 4), Some(22)));
    let (found, _) = fixture.judge(26, fixture.gone(Gone::Draining, 2, 10));
    assert_eq!(found.state, settled(24, false));
}

#[test]
fn nlb_and_a_family_that_nobody_knows_are_given_180_s() {
    for family in [Some(Family::Nlb), None] {
        let fixture = Fixture { family, ..mk() };
        let (found, ask) = fixture.judge(102, fixture.gone(Gone::Draining, 2, 3));
        assert_eq!((found.state, ask), (settling(100, 84), Some(181)));
        assert_eq!(found.quiet.time, s(30));
        assert_eq!(found.quiet.bytes_left, s(0), "only SIGTERM ends a flow");
    }
}

#[test]
fn registered_target_holds_for_however_long() {
    let fixture = mk();
    let (found, ask) = fixture.judge(1000, fixture.registered(999, None));
    assert_eq!((found.state, ask), (State::Registered, Some(1001)));
    assert_eq!(
        found.describe(),
        "TargetGroup tg: still registered 1.0 s ago"
    );
}

#[test]
fn unhealthy_draining_is_given_40_s_and_asked_about_meanwhile() {
    let fixture = mk();
    let (found, ask) = fixture.judge(12, fixture.gone(Gone::UnhealthyDraining, 2, 10));
    assert_eq!((found.state, ask), (settling(10, 34), Some(25)));
    let (found, _) = fixture.judge(42, fixture.gone(Gone::UnhealthyDraining, 2, 41));
    assert_eq!(found.state, settled(40, true));
    let fixture = Fixture {
        family: Some(Family::Nlb),
        ..fixture
    };
    let (found, _) = fixture.judge(42, fixture.gone(Gone::UnhealthyDraining, 2, 41));
    assert_eq!(found.state, settling(40, 144));
}

#[test]
fn target_that_was_never_seen_needs_two_answers_15_s_apart() {
    let fixture = Fixture {
        settle: Some(s(5)),
        ..mk()
    };
    let never = |asked| Standing::Gone {
        how: Gone::Absent,
        since: fixture.at(2),
        asked: fixture.at(asked),
        was_there: false,
        came_back: false,
    };
    assert_eq!(fixture.judge(8, never(7)).0.state, settling(6, 13));
    assert_eq!(fixture.judge(17, never(16)).0.state, settled(15, true));
    // One that was seen draining needs none but the settle.
    assert_eq!(
        fixture.judge(8, fixture.gone(Gone::Draining, 2, 7)).0.state,
        settled(6, true)
    );
}

#[test]
fn endpoint_dropped_for_longer_than_the_settle_before_the_hold_is_confirmed_at_once() {
    let fixture = mk();
    let absent = || fixture.gone(Gone::Absent, 60, 60);
    assert_eq!(
        fixture.judge_with(60, 1, None, absent()).0.state,
        settled(60, true)
    );
    // Not where the target is still draining, nor where the controller was at it of late, nor within the hold.
    let draining = fixture.gone(Gone::Draining, 60, 60);
    assert_eq!(
        fixture.judge_with(60, 1, None, draining).0.state,
        settling(0, 24)
    );
    assert_eq!(
        fixture
            .judge_with(60, 1, Some(checkpoint(50, false)), absent())
            .0
            .state,
        settling(0, 24)
    );
    assert_eq!(
        fixture
            .judge_with(60, 1, Some(checkpoint(10, true)), absent())
            .0
            .state,
        settling(0, 24)
    );
    assert_eq!(
        fixture.judge_with(60, 50, None, absent()).0.state,
        settling(0, 24)
    );
    assert_eq!(
        fixture
            .judge_with(60, 1, Some(checkpoint(10, false)), absent())
            .0
            .state,
        settled(60, true)
    );
}

#[test]
fn first_question_waits_for_the_controller() {
    let fixture = mk();
    // Without a checkpoint there is nothing to wait for but a moment.
    assert_eq!(fixture.judge(0, UNASKED).1, Some(1));
    // At work, or not begun: seldom.
    assert_eq!(
        fixture
            .judge_with(3, 3, Some(checkpoint(2, true)), UNASKED)
            .1,
        Some(15)
    );
    assert_eq!(
        fixture.judge_with(3, 3, Some((0, false)), UNASKED).1,
        Some(15)
    );
    // Done: now.
    assert_eq!(
        fixture
            .judge_with(3, 3, Some(checkpoint(2, false)), UNASKED)
            .1,
        Some(1)
    );
    let registered = fixture.registered(4, None);
    assert_eq!(
        fixture
            .judge_with(7, 7, Some(checkpoint(6, false)), registered)
            .1,
        Some(7)
    );
    let registered = fixture.registered(4, None);
    assert_eq!(
        fixture
            .judge_with(5, 5, Some(checkpoint(2, false)), registered)
            .1,
        Some(6)
    );
    let registered = fixture.registered(4, None);
    assert_eq!(
        fixture
            .judge_with(5, 5, Some(checkpoint(2, true)), registered)
            .1,
        Some(19)
    );
}

#[test]
fn group_that_nobody_could_ask_settles_by_time_once_its_controller_was_done() {
    let fixture = mk();
    // No checkpoint: from the drop.
    assert_eq!(fixture.judge(19, UNASKED).0.state, settling(19, 1));
    assert_eq!(fixture.judge(20, UNASKED).0.state, settled(20, false));
    // A checkpoint that came later: from that.
    let done = Some(checkpoint(12, false));
    assert_eq!(
        fixture.judge_with(20, 20, done, UNASKED).0.state,
        settling(8, 12)
    );
    assert_eq!(
        fixture.judge_with(32, 32, done, UNASKED).0.state,
        settled(20, false)
    );
    // Blank: it is at it, and fails.
    let blank = Some(checkpoint(2, true));
    assert_eq!(
        fixture.judge_with(50, 50, blank, UNASKED).0.state,
        State::Registered
    );
    // Unchanged since before the drop: it is given half a minute to begin.
    let unchanged = Some(Checkpoint {
        is_blank: false,
        age: s(900),
        witnessed: true,
    });
    for (now, state) in [
        (20, State::Registered),
        (40, settling(10, 10)),
        (50, settled(20, false)),
    ] {
        let sender = SenderSeen {
            seen: dropped(now, true),
            ..fixture.sender.clone()
        };
        let bound = Bound {
            checkpoint: unchanged,
            ..fixture.bound.clone()
        };
        let progress = Progress::new();
        let context = mk_context(fixture.at(now), &progress);
        let (found, _) = of_group(&sender, &bound, fixture.family, |_| UNASKED, &context);
        assert_eq!(found.state, state, "{now}");
    }
}

#[test]
fn throttling_keeps_the_last_word_unless_the_controller_has_gone_on() {
    let fixture = mk();
    let registered = || fixture.registered(4, Some(Failure::Throttled));
    // Without a checkpoint the controller is given half a minute from that answer.
    assert_eq!(fixture.judge(34, registered()).0.state, State::Registered);
    assert_eq!(fixture.judge(50, registered()).0.state, settling(16, 4));
    let before = Some(checkpoint(2, false));
    assert_eq!(
        fixture.judge_with(50, 50, before, registered()).0.state,
        State::Registered
    );
    let after = Some(checkpoint(40, false));
    assert_eq!(
        fixture.judge_with(50, 50, after, registered()).0.state,
        settling(10, 10)
    );
    // Nobody failed to be asked: what it says counts, until the answer is overdue.
    let heard = || fixture.registered(4, None);
    assert_eq!(
        fixture.judge_with(50, 50, after, heard()).0.state,
        State::Registered
    );
    assert_eq!(
        fixture.judge_with(52, 52, after, heard()).0.state,
        settling(12, 8)
    );
}

#[test]
fn missing_permission_and_credentials_are_said_and_waited_for_by_time() {
    let fixture = Fixture {
        settle: Some(s(5)),
        ..mk()
    };
    let denied = || Standing::Unasked {
        failure: Some(Failure::Denied("no".to_owned())),
    };
    let (found, _) = fixture.judge(6, denied());
    assert_eq!(
        found.state,
        State::Unconfirmable { left: s(9) },
        "the fallback is the longer one"
    );
    assert!(matches!(found.trouble, Some(Trouble::Denied { .. })));
    assert_eq!(found.quiet.time, s(0));
    let credentials = Standing::Unasked {
        failure: Some(Failure::Credentials("none".to_owned())),
    };
    let (found, _) = fixture.judge(15, credentials);
    assert_eq!(found.state, State::Unconfirmable { left: s(0) });
    assert!(matches!(found.trouble, Some(Trouble::Credentials { .. })));
    // From when the controller was done.
    let (found, _) = fixture.judge_with(15, 15, Some(checkpoint(10, false)), denied());
    assert_eq!(found.state, State::Unconfirmable { left: s(10) });
    for passing in [Failure::Throttled, Failure::Unavailable("503".to_owned())] {
        let (found, _) = fixture.judge(
            1,
            Standing::Unasked {
                failure: Some(passing),
            },
        );
        assert_eq!((found.state, found.trouble), (settling(1, 4), None));
    }
}

#[test]
fn another_replicas_evidence_goes_on_and_needs_a_last_answer_here() {
    let fixture = Fixture {
        progress: mk_progress(KEY, 16.0),
        ..mk()
    };
    let (found, ask) = fixture.judge(30, UNASKED);
    assert_eq!((found.state, ask), (settling(16, 8), Some(33)));
    let (found, _) = fixture.judge(30, fixture.gone(Gone::Draining, 30, 30));
    assert_eq!(
        found.state,
        settling(16, 8),
        "that answer came 16 s into the settle"
    );
    let fixture = Fixture {
        progress: mk_progress(KEY, 20.0),
        ..mk()
    };
    let (found, _) = fixture.judge(30, fixture.gone(Gone::Draining, 30, 30));
    assert_eq!(found.state, settled(20, true));
    assert_eq!(
        fixture.judge(30, fixture.registered(30, None)).0.state,
        State::Registered
    );
    // It saw the target come back itself.
    let back = Standing::Gone {
        how: Gone::Draining,
        since: fixture.at(28),
        asked: fixture.at(30),
        was_there: true,
        came_back: true,
    };
    assert_eq!(fixture.judge(30, back).0.state, settling(2, 22));
}

#[test]
fn bytes_count_for_10_s_more_behind_an_alb() {
    let fixture = mk();
    let bytes_left = |now| {
        fixture
            .judge(now, fixture.gone(Gone::Draining, 2, now))
            .0
            .quiet
            .bytes_left
    };
    assert_eq!(
        (bytes_left(22), bytes_left(30), bytes_left(40)),
        (s(10), s(2), s(0))
    );
}

#[test]
fn nobody_else_ready_means_no_longer_hold_for_traffic() {
    let mut fixture = mk();
    fixture.sender.others = Others::None;
    fixture.bound.manages_rules = true;
    fixture.sender.bindings = vec![fixture.bound.clone()];
    let (found, _) = fixture.judge(22, fixture.gone(Gone::Draining, 2, 21));
    assert_eq!(
        (found.state, found.quiet),
        (settled(20, true), Quiet::default())
    );
    let Some(Trouble::NoOtherEndpoint { managed_rules, .. }) = found.trouble else {
        panic!("{:?}", found.trouble);
    };
    assert_eq!(managed_rules, ["shop/binding"]);
}
