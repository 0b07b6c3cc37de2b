//! One hold: who waits, what the confirmer said, and when it ends.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Effect, HookId, Limits, Observation};
use crate::contract::{
    Evidence, HoldParams, HoldRequest, HoldResponse, PROTOCOL, Progress, ReleaseReason, Verdict,
};

/// Between two questions while a release only waits for the minimum hold: the confirmer answers at once then, and
/// the one thing that may change is that the deletion's grace is shortened.
const MINIMUM_PACE: Duration = Duration::from_secs(2);
/// What a hold's deadline is exceeded by for a confirmer that is there: it then says itself that the time is over, in an
/// answer that is on its way at that very moment, and tells everybody else why. The budget leaves at least 2 s.
const LAST_WORD: Duration = Duration::from_secs(1);
/// Longest time that an answer can name; beyond any grace period, and below any overflow.
const LONGEST: Duration = Duration::from_hours(7 * 24);

/// A hold under way.
#[derive(Debug)]
pub struct Hold {
    /// The hooks that wait, and when each said HELLO.
    waiting: BTreeMap<HookId, Duration>,
    /// The first HELLO.
    since: Duration,
    /// The last hook whose HELLO came before the latest question.
    asked: Option<HookId>,
    /// Whether an answer said that the pod is terminating.
    terminating: bool,
    /// Whether an answer was [`Verdict::Hold`].
    held_before: bool,
    /// The confirmer's latest word on when the hooks must go whatever is awaited.
    deadline: Option<Duration>,
    /// The release that the latest answer announced.
    plan: Option<Plan>,
    /// Since when the confirmer hasn't answered. Not since its last good answer: a turn may take
    /// [`crate::contract::HOLD_TURN`], and a silent turn is no outage.
    failing_since: Option<Duration>,
    progress: Progress,
    progress_at: Duration,
}

/// A release to come.
#[derive(Debug, Clone, Copy)]
struct Plan {
    at: Duration,
    reason: ReleaseReason,
    /// While the pod isn't known to be terminating: the last hook that it covers.
    covers: Option<HookId>,
    /// Whether the confirmer has more to say.
    ask: bool,
}

/// Whether a release for this reason waits for the minimum hold. `node`, `forced` and `max-wait` say that no time is
/// left, and a restart isn't what the sleep that we replaced was meant for.
const fn minimum_binds(reason: ReleaseReason) -> bool {
    use ReleaseReason as R;
    match reason {
        R::Confirmed
        | R::Settled
        | R::NoAttachment
        | R::UnknownController
        | R::Unconfirmable
        | R::Fallback => true,
        R::MaxWait | R::Restart | R::Node | R::Forced => false,
    }
}

/// Whether an answer with this reason says that the pod is terminating.
const fn proves_termination(reason: ReleaseReason) -> bool {
    use ReleaseReason as R;
    match reason {
        R::Confirmed
        | R::Settled
        | R::NoAttachment
        | R::UnknownController
        | R::Unconfirmable
        | R::MaxWait
        | R::Forced => true,
        R::Restart | R::Node | R::Fallback => false,
    }
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).map_or(
        if seconds > 0.0 {
            LONGEST
        } else {
            Duration::ZERO
        },
        |d| d.min(LONGEST),
    )
}

impl Hold {
    pub(super) fn new(first: HookId, now: Duration) -> Self {
        Self {
            waiting: BTreeMap::from([(first, now)]),
            since: now,
            asked: None,
            terminating: false,
            held_before: false,
            deadline: None,
            plan: None,
            failing_since: None,
            progress: Progress::new(),
            progress_at: now,
        }
    }

    pub(super) fn is_terminating(&self) -> bool {
        self.terminating
    }

    pub(super) fn is_deserted(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn elapsed(&self, now: Duration) -> Duration {
        now.saturating_sub(self.since)
    }

    pub(super) fn observe(&mut self, observation: Observation, now: Duration) -> Option<Effect> {
        match observation {
            Observation::HookArrived(id) => drop(self.waiting.insert(id, now)),
            Observation::HookLeft(id) => drop(self.waiting.remove(&id)),
            Observation::Asked => {
                self.asked = self.waiting.keys().next_back().copied().max(self.asked);
            }
            Observation::Answered(answer) => return self.answered(answer, now),
            Observation::Failed => self.failed(now),
            Observation::Tick => {}
        }
        None
    }

    fn answered(&mut self, answer: HoldResponse, now: Duration) -> Option<Effect> {
        let left = seconds(answer.seconds_left);
        // A terminating pod stays one: whoever says otherwise is mistaken.
        let restart = match answer.verdict {
            Verdict::Restart => true,
            Verdict::Wait | Verdict::Go => answer.reason == Some(ReleaseReason::Restart),
            Verdict::Hold | Verdict::Unknown => false,
        };
        let verdict = if self.terminating && restart {
            Verdict::Unknown
        } else {
            answer.verdict
        };
        match (verdict, answer.reason) {
            (Verdict::Hold, _) => {
                self.terminating = true;
                self.held_before = true;
                self.deadline = Some(now + left + LAST_WORD);
                self.plan = None;
                self.failing_since = None;
            }
            (Verdict::Restart, _) => {
                let asked = self.asked;
                return self.let_go(ReleaseReason::Restart, now, |id, _| Some(id) <= asked);
            }
            (Verdict::Wait, Some(reason)) => self.plan(now + left, reason, false),
            (Verdict::Go, Some(reason)) => {
                self.plan(now, reason, true);
                // The time left is optional here, and bounds the rest of the minimum hold.
                if self.terminating && !left.is_zero() {
                    self.deadline = Some(now + left);
                }
            }
            (Verdict::Unknown, _) | (Verdict::Wait | Verdict::Go, None) => {
                self.failed(now);
                return None;
            }
        }
        self.progress = answer.progress;
        self.progress_at = now;
        None
    }

    fn failed(&mut self, now: Duration) {
        self.failing_since.get_or_insert(now);
    }

    fn plan(&mut self, at: Duration, reason: ReleaseReason, ask: bool) {
        self.terminating |= proves_termination(reason);
        // A hook that came later is covered by this answer too, but must not prolong the wait of the earlier ones.
        let same = |plan: &Plan| !self.terminating && plan.reason == reason;
        let at = self
            .plan
            .filter(same)
            .map_or(at, |earlier| earlier.at.min(at));
        self.plan = Some(Plan {
            at,
            reason,
            covers: self.asked,
            ask,
        });
        self.failing_since = None;
    }

    /// The earliest end for this reason.
    fn floor(&self, reason: ReleaseReason, limits: &Limits) -> Duration {
        if minimum_binds(reason) {
            self.since + limits.min_hold
        } else {
            Duration::ZERO
        }
    }

    /// The release that the confirmer announced, or the one that its silence means.
    fn announced(&self, limits: &Limits) -> Option<(Duration, ReleaseReason)> {
        let (at, reason) = match (self.plan, self.failing_since) {
            (Some(plan), _) => (plan.at, plan.reason),
            (None, _) if !self.terminating => {
                (self.since + limits.fallback_wait, ReleaseReason::Fallback)
            }
            (None, Some(failing)) => (failing + limits.fallback_wait, ReleaseReason::Fallback),
            (None, None) => return None,
        };
        Some((at.max(self.floor(reason, limits)), reason))
    }

    /// When the hold ends if nothing more happens, and why.
    pub(super) fn due(&self, limits: &Limits) -> (Duration, ReleaseReason) {
        let cap = (self.since + limits.cap(), ReleaseReason::MaxWait);
        let deadline = self
            .deadline
            .map(|deadline| (deadline, ReleaseReason::MaxWait));
        // Of two at the same time the more telling reason: the announced one.
        self.announced(limits)
            .into_iter()
            .chain(deadline)
            .chain([cap])
            .min_by_key(|(at, _)| *at)
            .unwrap_or(cap)
    }

    /// Lets go whom [`Self::due`] is for, while the pod isn't known to be terminating.
    pub(super) fn let_go_due(&mut self, limits: &Limits, now: Duration) -> Option<Effect> {
        let (at, reason) = self.due(limits);
        let planned = self.plan.filter(|_| {
            self.announced(limits)
                .is_some_and(|announced| announced.0 <= now)
        });
        // Without a plan each hook waits on its own clock: a later one may belong to another event than the first.
        let wait = at.saturating_sub(self.since);
        self.let_go(reason, now, |id, arrived| match planned {
            Some(plan) => Some(id) <= plan.covers,
            None => arrived + wait <= now,
        })
    }

    /// Lets go the hooks that `covered` names; for the others a hold of their own begins.
    fn let_go(
        &mut self,
        reason: ReleaseReason,
        now: Duration,
        covered: impl Fn(HookId, Duration) -> bool,
    ) -> Option<Effect> {
        let held = self.elapsed(now);
        let hooks: Vec<HookId> = self
            .waiting
            .extract_if(.., |id, arrived| covered(*id, *arrived))
            .map(|(id, _)| id)
            .collect();
        self.since = self.waiting.values().min().copied().unwrap_or(now);
        self.plan = None;
        self.deadline = None;
        (!hooks.is_empty()).then_some(Effect::LetGo {
            hooks,
            reason,
            held,
        })
    }

    pub(super) fn ask_after(&self) -> Option<Duration> {
        match self.plan {
            None => Some(Duration::ZERO),
            // A hook that the plan doesn't cover needs an answer of its own.
            Some(plan)
                if !self.terminating && self.waiting.keys().any(|id| Some(*id) > plan.covers) =>
            {
                Some(Duration::ZERO)
            }
            Some(plan) => plan.ask.then_some(MINIMUM_PACE),
        }
    }

    pub(super) fn request(&self, epoch: &str, params: &HoldParams, now: Duration) -> HoldRequest {
        let age = now.saturating_sub(self.progress_at).as_secs_f64();
        let aged = |evidence: &Evidence| Evidence {
            age_seconds: evidence.age_seconds + age,
        };
        HoldRequest {
            protocol: PROTOCOL,
            epoch: epoch.to_owned(),
            params: params.clone(),
            elapsed_seconds: self.elapsed(now).as_secs_f64(),
            terminating: self.held_before,
            progress: self
                .progress
                .iter()
                .map(|(name, evidence)| (name.clone(), aged(evidence)))
                .collect(),
            traffic: None,
        }
    }
}
