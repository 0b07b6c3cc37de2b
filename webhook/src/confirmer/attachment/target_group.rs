//! What a target group's answers add to what the slices tell.

use std::time::Duration;

use tokio::time::Instant;

use super::endpoints::{self, Slices, slices, unconfirmable};
use super::{Attachment, Context, GROUP_KEY, Kind, State};
use crate::confirmer::sender::{Bound, Checkpoint, SenderSeen};
use crate::confirmer::target_group::{Failure, Family};
use crate::confirmer::track::{Gone, Standing};
use crate::confirmer::trouble::Trouble;

/// How much before the end of a settle the last answer may have come: what it says then still holds at the end.
const LEAD: Duration = Duration::from_secs(1);

/// How long the last answer is waited for once the settle is over; a busy budget must not stretch every hold.
const PATIENCE: Duration = Duration::from_secs(4);

/// The settle of `unhealthy.draining` at least: users saw an NLB send for 30 to 40 s more (containers-roadmap, 470).
const UNHEALTHY_SETTLE: Duration = Duration::from_secs(40);

/// A target that was never seen in the group may be about to appear: a registration was under way when the pod was
/// deleted. Two answers that far apart rule it out.
const RACE: Duration = Duration::from_secs(15);

/// How long a controller that writes checkpoints may take to begin, where nothing else is known: its queue, or the
/// change of its leader, took 15 s to 2 min.
const CONTROLLER: Duration = Duration::from_secs(30);

/// How long an answer is waited for after the controller was done, before time alone has to do.
const OVERDUE: Duration = Duration::from_secs(10);

/// Between two questions about a target that should be on its way out.
const OFTEN: Duration = Duration::from_secs(2);

/// Between two questions while the controller hasn't dealt with it: its own retry comes each 15 s.
const SELDOM: Duration = Duration::from_secs(15);

/// How long the controller is given before the first question: it deregisters within a second when it isn't busy.
const FIRST: Duration = Duration::from_secs(1);

/// How much longer bytes on older connections count, where requests are balanced one by one.
const BYTES: Duration = Duration::from_secs(10);

/// The attachment, and when the group should be asked next on its behalf (a time past means now).
///
/// `family` is the group's if anybody knows it.
pub fn of_group(
    sender: &SenderSeen,
    bound: &Bound,
    family: Option<Family>,
    standing: impl FnOnce(Instant) -> Standing,
    context: &Context<'_>,
) -> (Attachment, Option<Instant>) {
    let slices = slices(sender, context);
    let settle = context.settles.of_family(family);
    let key = format!("{GROUP_KEY}{}", bound.group);
    let mut attachment = Attachment {
        service: endpoints::key(sender),
        kind: Kind::TargetGroup,
        group: Some(bound.group.clone()),
        state: State::Registered,
        by_time: false,
        detail: String::new(),
        quiet: endpoints::quiet(sender, slices, settle),
        trouble: endpoints::trouble(sender, slices),
        key,
    };
    let (age, alone) = match slices {
        Slices::Ready => {
            "endpoint still ready".clone_into(&mut attachment.detail);
            return (attachment, None);
        }
        Slices::AwaitsAnother => {
            "no other endpoint is ready yet, and one is starting"
                .clone_into(&mut attachment.detail);
            return (attachment, None);
        }
        Slices::Published => {
            attachment.state = unconfirmable(settle, context.served, context);
            "publishNotReadyAddresses keeps the target registered until the pod is gone"
                .clone_into(&mut attachment.detail);
            return (attachment, None);
        }
        Slices::Dropped { age, alone } => (age, alone),
    };
    let case = Case {
        bound,
        settle: settle.settle,
        dropped: age,
        echoed: context.echo.age(&attachment.key),
        context,
    };
    let dropped_at = context.now.checked_sub(age).unwrap_or(context.now);
    let verdict = case.judge(standing(dropped_at));
    if !alone
        && family == Some(Family::Alb)
        && let State::Settling { age, .. } | State::Settled { age, .. } = verdict.state
    {
        attachment.quiet.bytes_left = (settle.settle + BYTES).saturating_sub(age);
    }
    if matches!(verdict.state, State::Unconfirmable { .. }) {
        attachment.quiet.time = Duration::ZERO;
    }
    attachment.state = verdict.state;
    attachment.by_time = verdict.by_time;
    attachment.detail = verdict.detail;
    attachment.trouble = verdict.trouble.or(attachment.trouble);
    (attachment, verdict.ask)
}

/// A pod whose endpoint was dropped, and one of its groups.
struct Case<'a> {
    bound: &'a Bound,
    settle: Duration,
    /// How long ago the endpoint was dropped.
    dropped: Duration,
    /// The age of the group's evidence by another replica.
    echoed: Option<Duration>,
    context: &'a Context<'a>,
}

struct Verdict {
    state: State,
    by_time: bool,
    detail: String,
    trouble: Option<Trouble>,
    ask: Option<Instant>,
}

impl Case<'_> {
    fn judge(&self, standing: Standing) -> Verdict {
        match standing {
            Standing::Unasked { failure } => match self.echoed {
                Some(age) if failure.as_ref().is_none_or(is_passing) => {
                    self.settle_proven(age, Gone::Draining, None, true)
                }
                _ => self.by_time(failure, None),
            },
            Standing::Registered { asked, failure } => self.registered(asked, failure),
            Standing::Gone {
                how,
                since,
                asked,
                was_there,
                came_back,
            } => {
                let own = self.since(since);
                // What this replica itself saw come back has no older evidence.
                let echoed = self.echoed.filter(|_| !came_back).unwrap_or_default();
                let age = if self.left_long_ago(how) {
                    self.dropped
                } else {
                    own.max(echoed)
                };
                self.settle_proven(age, how, Some(asked), was_there)
            }
        }
    }

    /// The evidence is `age` old; the settle ends with an answer that still shows it.
    fn settle_proven(
        &self,
        age: Duration,
        how: Gone,
        asked: Option<Instant>,
        was_there: bool,
    ) -> Verdict {
        let settle = match how {
            Gone::UnhealthyDraining => self.settle.max(UNHEALTHY_SETTLE),
            Gone::Absent if !was_there => self.settle.max(RACE),
            _ => self.settle,
        };
        let last = settle.saturating_sub(LEAD);
        // As an age of the evidence: when the latest answer was asked for.
        let seen_at = asked.map(|at| age.saturating_sub(self.since(at)));
        let is_seen = seen_at.is_some_and(|seen| seen >= last);
        // Of a group that was never seen we may have the wrong account or region.
        let proven = how != Gone::Group || was_there;
        let state = if age >= settle && is_seen {
            State::Settled { age, proven }
        } else if age >= settle + PATIENCE {
            State::Settled { age, proven: false }
        } else {
            let until = if is_seen { settle } else { settle + PATIENCE };
            State::Settling {
                age,
                left: until.saturating_sub(age),
            }
        };
        let again = match (how, asked) {
            // The controller was at the group since: it may have registered the target again.
            (_, Some(at)) if self.is_overtaken(at) => Some(self.context.now),
            (Gone::UnhealthyDraining, Some(at)) => Some(at + SELDOM.min(settle)),
            _ => None,
        };
        let last_at = (!is_seen).then(|| self.context.now + last.saturating_sub(age));
        Verdict {
            state,
            by_time: false,
            detail: describe(how).to_owned(),
            trouble: None,
            ask: again.into_iter().chain(last_at).min(),
        }
    }

    /// An answer since the drop shows it registered.
    fn registered(&self, asked: Instant, failure: Option<Failure>) -> Verdict {
        // The controller was done with it after that answer, and nobody has been asked since: nobody can, or the
        // budget doesn't reach the group.
        let is_late = self
            .bound
            .checkpoint
            .is_some_and(|checkpoint| failure.is_some() || checkpoint.age > OVERDUE);
        let is_silent = failure.is_some() && self.bound.checkpoint.is_none();
        if self.is_overtaken(asked) && is_late || is_silent && self.since(asked) > CONTROLLER {
            return self.by_time(failure, Some(asked));
        }
        Verdict {
            state: State::Registered,
            by_time: false,
            detail: format!(
                "still registered {:.1} s ago",
                self.since(asked).as_secs_f64()
            ),
            trouble: failure.and_then(|failure| self.trouble(failure)),
            ask: Some(self.next_question(Some(asked))),
        }
    }

    /// No answer counts, so the time since the controller dealt with the endpoint has to do.
    fn by_time(&self, failure: Option<Failure>, asked: Option<Instant>) -> Verdict {
        let ask = Some(self.next_question(asked));
        let trouble = failure.and_then(|failure| self.trouble(failure));
        let age = match self.bound.checkpoint {
            // After an answer that it is still registered the controller is given time from then.
            None => match asked {
                None => Some(self.dropped),
                Some(asked) => self.since(asked).checked_sub(CONTROLLER),
            },
            Some(checkpoint) if checkpoint.is_blank => None,
            Some(checkpoint) if checkpoint.age < self.dropped => Some(checkpoint.age),
            Some(_) => self.dropped.checked_sub(CONTROLLER),
        };
        let state = match (&trouble, age) {
            (Some(_), age) => {
                let settle = self.settle.max(self.context.fallback_wait);
                State::Unconfirmable {
                    left: settle.saturating_sub(age.unwrap_or_default()),
                }
            }
            (None, None) => State::Registered,
            (None, Some(age)) => match self.settle.saturating_sub(age) {
                Duration::ZERO => State::Settled { age, proven: false },
                left => State::Settling { age, left },
            },
        };
        let detail = match (&trouble, state) {
            (Some(_), _) => "can't be asked, so only time passes",
            (None, State::Registered) => {
                "its controller hasn't deregistered the target yet, as far as known"
            }
            (None, _) => "not asked yet; its controller dealt with the endpoint",
        };
        Verdict {
            state,
            by_time: true,
            detail: detail.to_owned(),
            trouble,
            ask,
        }
    }

    /// When to ask about a target that isn't on its way out, as far as known.
    fn next_question(&self, asked: Option<Instant>) -> Instant {
        let now = self.context.now;
        let dropped_at = now.checked_sub(self.dropped).unwrap_or(now);
        let is_dealt_with = match self.bound.checkpoint {
            None => true,
            Some(checkpoint) => {
                !checkpoint.is_blank && (checkpoint.age < self.dropped || !checkpoint.witnessed)
            }
        };
        match (asked, is_dealt_with) {
            (None, true) => dropped_at + FIRST,
            (None, false) => dropped_at + SELDOM,
            (Some(asked), dealt_with) => {
                let changed = self
                    .bound
                    .checkpoint
                    .map(|checkpoint| now.checked_sub(checkpoint.age).unwrap_or(now));
                match changed {
                    // The controller has been at it since.
                    Some(changed) if dealt_with && changed > asked => now,
                    _ if dealt_with => asked + OFTEN,
                    _ => asked + SELDOM,
                }
            }
        }
    }

    /// Whether the controller was seen to be done with the group after an answer.
    fn is_overtaken(&self, asked: Instant) -> bool {
        self.bound.checkpoint.is_some_and(|checkpoint| {
            !checkpoint.is_blank && checkpoint.witnessed && checkpoint.age < self.since(asked)
        })
    }

    /// Whether the endpoint had been dropped for longer than the settle before the hold began (a selector switch,
    /// say), with the controller done for as long: what is absent then has been so for longer than any lag.
    fn left_long_ago(&self, how: Gone) -> bool {
        let before_hold = self.dropped.saturating_sub(self.context.served);
        let is_done =
            |checkpoint: Checkpoint| !checkpoint.is_blank && checkpoint.age >= self.settle;
        how == Gone::Absent
            && before_hold > self.settle
            && self.bound.checkpoint.is_none_or(is_done)
    }

    fn trouble(&self, failure: Failure) -> Option<Trouble> {
        let group = self.bound.group.clone();
        match failure {
            Failure::Denied(text) => Some(Trouble::Denied { group, text }),
            Failure::Credentials(text) => Some(Trouble::Credentials { group, text }),
            Failure::NotFound | Failure::Throttled | Failure::Unavailable(_) => None,
        }
    }

    fn since(&self, at: Instant) -> Duration {
        self.context.now.saturating_duration_since(at)
    }
}

/// Whether a failure will pass by itself.
fn is_passing(failure: &Failure) -> bool {
    !matches!(failure, Failure::Denied(_) | Failure::Credentials(_))
}

fn describe(how: Gone) -> &'static str {
    match how {
        Gone::Group => "the group was gone",
        Gone::Absent => "target was not registered",
        Gone::Unused => "target was unused",
        Gone::Draining => "target was draining",
        Gone::UnhealthyDraining => "target was draining for its health",
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod histories;
