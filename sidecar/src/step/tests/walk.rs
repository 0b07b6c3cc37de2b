//! A random walk: hooks come and go, the confirmer says anything at any time. Each end of a hold is checked against a
//! record of what happened, which knows nothing of the machine's inside.

use std::collections::BTreeMap;

use super::*;

/// An answer that counts, and when it came.
struct Answer {
    at: Duration,
    verdict: Verdict,
    reason: Option<R>,
    seconds_left: f64,
    /// The hooks whose HELLO came before the question.
    covered: Vec<HookId>,
}

impl Answer {
    fn proves_termination(&self) -> bool {
        let by_reason = !matches!(self.reason, None | Some(R::Restart | R::Node | R::Fallback));
        self.verdict == Verdict::Hold || (self.is_release() && by_reason)
    }

    /// Whether it announces a release for its reason.
    fn is_release(&self) -> bool {
        matches!(self.verdict, Verdict::Wait | Verdict::Go)
    }

    fn is_over(&self, now: Duration) -> bool {
        now >= self.at + Duration::from_secs_f64(self.seconds_left.max(0.0))
    }
}

/// What happened in the present hold, as far as the rules below need it.
#[derive(Default)]
struct Record {
    /// Hooks that wait: when they arrived.
    waiting: BTreeMap<HookId, Duration>,
    /// Hooks whose HELLO came before the question that is open.
    asked: Vec<HookId>,
    answers: Vec<Answer>,
    failures: Vec<Duration>,
    since: Option<Duration>,
}

impl Record {
    fn terminating(&self) -> bool {
        self.answers.iter().any(Answer::proves_termination)
    }

    /// Whether there is a ground to let this hook (or all, for good) go for `reason` at `now`.
    fn allows(&self, limits: &Limits, hook: Option<HookId>, reason: R, now: Duration) -> bool {
        let since = self.since.unwrap();
        let arrived = hook.map_or(since, |hook| self.waiting[&hook]);
        let minimum = |from: Duration| now >= from + limits.min_hold;
        let covers = |answer: &Answer| hook.is_none_or(|hook| answer.covered.contains(&hook));
        let announced = self.answers.iter().any(|answer| {
            let over = answer.verdict == Verdict::Go || answer.is_over(now);
            answer.is_release() && answer.reason == Some(reason) && over && covers(answer)
        });
        match reason {
            R::MaxWait => {
                let has_deadline =
                    |answer: &Answer| matches!(answer.verdict, Verdict::Hold | Verdict::Go);
                let told = self
                    .answers
                    .iter()
                    .any(|answer| has_deadline(answer) && answer.is_over(now));
                announced || told || now >= arrived + limits.cap()
            }
            R::Restart => {
                let restart =
                    |answer: &Answer| answer.verdict == Verdict::Restart && covers(answer);
                announced || self.answers.iter().any(restart)
            }
            R::Node | R::Forced => announced,
            R::Fallback => {
                let unanswered = !self.terminating() && now >= arrived + limits.fallback_wait;
                let lost = self
                    .failures
                    .iter()
                    .any(|at| now >= *at + limits.fallback_wait);
                (minimum(arrived) && unanswered) || (minimum(since) && (lost || announced))
            }
            _ => minimum(since) && announced,
        }
    }

    fn ended(&mut self, hooks: &[HookId]) {
        self.waiting.retain(|id, _| !hooks.contains(id));
        if self.waiting.is_empty() {
            self.answers.clear();
            self.failures.clear();
        }
        self.since = self.waiting.values().min().copied();
    }

    fn hook_arrives(&mut self, id: HookId, now: Duration) -> Observation {
        self.waiting.insert(id, now);
        self.since.get_or_insert(now);
        Observation::HookArrived(id)
    }

    fn hook_leaves(&mut self, random: &mut fastrand::Rng) -> Observation {
        let ids: Vec<HookId> = self.waiting.keys().copied().collect();
        let id = random.choice(ids).unwrap_or(0);
        self.waiting.remove(&id);
        Observation::HookLeft(id)
    }

    fn answer(&mut self, random: &mut fastrand::Rng, now: Duration) -> Observation {
        use Verdict as V;
        let verdict = random
            .choice([V::Hold, V::Hold, V::Wait, V::Go, V::Restart, V::Unknown])
            .unwrap();
        let reason = if random.u8(..12) == 0 {
            None
        } else {
            random.choice(R::ALL)
        };
        let seconds_left = match (verdict, random.u8(..10)) {
            (V::Go, 0..8) => 0.0,
            (_, 0) => -1.0,
            _ => random.f64() * 40.0,
        };
        let covered = self.asked.clone();
        let answer = Answer {
            at: now,
            verdict,
            reason,
            seconds_left,
            covered,
        };
        let says_restart =
            verdict == V::Restart || (answer.is_release() && reason == Some(R::Restart));
        let senseless = verdict == V::Unknown || (answer.is_release() && reason.is_none());
        if senseless || (says_restart && self.terminating()) {
            self.failures.push(now);
        } else {
            self.answers.push(answer);
        }
        super::answer(verdict, reason, seconds_left)
    }

    fn check(&mut self, effect: &Effect, limits: &Limits, now: Duration, context: &str) {
        match effect {
            Effect::LetGo { hooks, reason, .. } => {
                assert!(
                    !self.terminating(),
                    "a terminating pod needs a release file: {context}"
                );
                for hook in hooks {
                    let allowed = self.allows(limits, Some(*hook), *reason, now);
                    assert!(allowed, "no ground for {reason}: {context}");
                }
                self.ended(hooks);
            }
            Effect::Release { reason, .. } => {
                assert!(self.terminating(), "released for good: {context}");
                assert!(
                    self.allows(limits, None, *reason, now),
                    "no ground for {reason}: {context}"
                );
                self.ended(&self.waiting.keys().copied().collect::<Vec<_>>());
            }
            Effect::Abandon { .. } => {
                assert!(
                    self.waiting.is_empty() && !self.terminating(),
                    "abandoned: {context}"
                );
                self.ended(&[]);
            }
            Effect::Terminating => assert!(self.terminating(), "{context}"),
        }
    }
}

/// One step, and all rules; the number of holds that ended.
fn step(
    state: &mut State,
    record: &mut Record,
    observation: Observation,
    limits: &Limits,
    now: Duration,
) -> usize {
    let context = format!("{limits:?}, {observation:?} at {now:?}");
    let was_released = matches!(state, State::Released(_));
    let effects = state.step(observation, limits, now);
    for effect in &effects {
        assert!(!was_released, "released is for good: {context}");
        record.check(effect, limits, now, &context);
    }
    for (hook, arrived) in &record.waiting {
        assert!(
            now < *arrived + limits.cap(),
            "hook {hook} waits beyond the cap: {context}"
        );
    }
    match state {
        State::Holding(_) => assert!(
            state.wake(limits).is_some_and(|wake| wake > now),
            "wakes late: {context}"
        ),
        State::Idle => assert!(
            record.waiting.is_empty() && !was_released,
            "a hook is forgotten: {context}"
        ),
        State::Released(_) => {}
    }
    effects
        .iter()
        .filter(|effect| !matches!(effect, Effect::Terminating))
        .count()
}

fn walk(seed: u64) -> usize {
    let mut random = fastrand::Rng::with_seed(seed);
    let limits = Limits {
        max_wait: s(random.u64(1..60)),
        min_hold: s(random.choice([0, 0, 5, 30]).unwrap()),
        fallback_wait: s(random.u64(1..20)),
    };
    let (mut state, mut record, mut now) = (State::default(), Record::default(), s(1));
    let mut ends = 0;
    for id in 1..=40 {
        now += Duration::from_millis(random.u64(..6000));
        // The driver wakes the machine whenever it asked for that, before anything later happens.
        while let Some(wake) = state.wake(&limits).filter(|wake| *wake <= now) {
            ends += step(&mut state, &mut record, Observation::Tick, &limits, wake);
        }
        let holding = matches!(state, State::Holding(_));
        let observation = match random.u8(..8) {
            0..2 if !matches!(state, State::Released(_)) => record.hook_arrives(id, now),
            0..2 => Observation::HookArrived(id),
            2 => record.hook_leaves(&mut random),
            3 if holding => {
                record.failures.push(now);
                Observation::Failed
            }
            4 => {
                record.asked = record.waiting.keys().copied().collect();
                Observation::Asked
            }
            5.. if holding => record.answer(&mut random, now),
            _ => Observation::Tick,
        };
        ends += step(&mut state, &mut record, observation, &limits, now);
    }
    ends
}

#[test]
fn no_random_course_of_events_breaks_a_rule() {
    let mut ends = 0;
    for seed in 0..10_000 {
        let walked = std::panic::catch_unwind(|| walk(seed));
        ends += walked.unwrap_or_else(|_| panic!("seed {seed} breaks a rule, see above"));
    }
    assert!(
        ends > 20_000,
        "the walk must end holds, not only begin them: {ends}"
    );
}
