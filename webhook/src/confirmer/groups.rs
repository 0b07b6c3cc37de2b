//! Asks for target groups on behalf of all pods that wait, by the plan of [`polls`](super::polls), and knows what was
//! answered.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::polls::{Next, Polls};
use super::target_group::{
    AskTargetGroups, Failure, Family, GroupDetails, GroupId, Target, TargetGroup,
};
use super::track::{Standing, Track};
use super::watches::World;
use crate::metrics::Metrics;

/// How long a group's answers are kept that nobody waits on: the next pod of a rollout comes within it.
const KEEP: Duration = Duration::from_mins(5);

/// How long a group that couldn't be described is taken as it is.
const DETAILS_AGAIN: Duration = Duration::from_mins(10);

/// All target groups; cloning shares them.
#[derive(Clone)]
pub struct Groups(Arc<Shared>);

struct Shared {
    inner: Mutex<Inner>,
    wished: Notify,
    /// Who asks; nobody where AWS support isn't built in.
    ask: Option<Arc<dyn AskTargetGroups>>,
}

struct Inner {
    polls: Polls,
    tracks: HashMap<TargetGroup, Track>,
    details: HashMap<TargetGroup, Known>,
    /// How the latest question about a group failed.
    failing: HashMap<TargetGroup, &'static str>,
}

/// What is known of a group beside its targets.
#[derive(Debug, Clone)]
enum Known {
    /// Somebody wants to know.
    Wanted,
    Details(GroupDetails),
    /// Asked then, in vain.
    Failed(Instant),
}

/// A question and its answer.
struct Asked {
    group: TargetGroup,
    at: Instant,
    answer: Answer,
}

/// What to ask about a group.
enum Question {
    Details,
    /// Of this one: a name's ARN, where it is known.
    Targets(TargetGroup),
}

enum Answer {
    Details(Result<GroupDetails, Failure>),
    Targets(Result<Vec<Target>, Failure>),
}

impl std::fmt::Debug for Groups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Groups").finish_non_exhaustive()
    }
}

impl Groups {
    /// Groups that are asked by `ask`; without it each settles by time.
    pub fn new(ask: Option<Arc<dyn AskTargetGroups>>) -> Self {
        Self(Arc::new(Shared {
            inner: Mutex::new(Inner {
                polls: Polls::new(Instant::now()),
                tracks: HashMap::new(),
                details: HashMap::new(),
                failing: HashMap::new(),
            }),
            wished: Notify::new(),
            ask,
        }))
    }

    /// Where a pod stands whose endpoint was dropped at `dropped`, see [`Track::standing`].
    pub fn standing(
        &self,
        group: &TargetGroup,
        addresses: &BTreeSet<IpAddr>,
        ports: Option<&BTreeSet<u16>>,
        dropped: Instant,
    ) -> Standing {
        let inner = self.lock();
        match inner.tracks.get(group) {
            Some(track) => track.standing(addresses.iter().copied(), ports, dropped),
            None => Standing::Unasked { failure: None },
        }
    }

    /// The group's family by AWS's own word; it is asked for where it isn't known yet.
    pub fn family(&self, group: &TargetGroup) -> Option<Family> {
        let mut inner = self.lock();
        match inner.details.entry(group.clone()).or_insert(Known::Wanted) {
            Known::Details(details) => details.family,
            Known::Wanted | Known::Failed(_) => None,
        }
    }

    /// Whether what is to be known of the group beside its targets has been wanted, but not asked for yet.
    pub fn wants_details(&self, group: &TargetGroup) -> bool {
        matches!(self.lock().details.get(group), Some(Known::Wanted))
    }

    /// A pod wants an answer no older than `due`, or none for now.
    pub fn wish(&self, group: &TargetGroup, uid: &str, due: Option<Instant>) {
        if self.0.ask.is_none() {
            return;
        }
        if self.lock().polls.wish(group, uid, due, Instant::now()) {
            self.0.wished.notify_one();
        }
    }

    /// Asks until `closing`, and tells the holds in `world`. A replica that is going isn't among those that share the
    /// budget any more.
    pub async fn run(self, world: World, metrics: Metrics, closing: CancellationToken) {
        let Some(ask) = self.0.ask.clone() else {
            return std::future::pending().await;
        };
        let mut questions = JoinSet::new();
        loop {
            let now = Instant::now();
            let next = self
                .lock()
                .polls
                .next(world.ready_replicas(), fastrand::f64(), now);
            let until = match next {
                Next::Ask(group) => {
                    let question = self.lock().question(&group, now);
                    questions.spawn(put(Arc::clone(&ask), group, question, now));
                    continue;
                }
                Next::At(at) => Some(at),
                Next::Idle => None,
            };
            let due = async {
                match until {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = closing.cancelled() => return std::future::pending().await,
                () = due => {}
                () = self.0.wished.notified() => {}
                Some(asked) = questions.join_next() => match asked {
                    Ok(asked) => self.answered(asked, &world, &metrics),
                    Err(error) => warn!(%error, "A question about a target group broke off"),
                },
            }
        }
    }

    fn answered(&self, asked: Asked, world: &World, metrics: &Metrics) {
        let Asked { group, at, answer } = asked;
        let now = Instant::now();
        let (operation, result) = answer.words();
        metrics
            .load_balancer_calls
            .get_or_create(&[("operation", operation), ("result", result)])
            .inc();
        let waiting: Vec<String> = {
            let mut inner = self.lock();
            // Before the answer meets their wishes: whom it was for is told of it.
            let waiting = inner.polls.waiting(&group).cloned().collect();
            inner.note(&group, at, answer, now);
            waiting
        };
        for uid in &waiting {
            world.notify(uid);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // What a panic elsewhere left behind is still the best there is.
        self.0.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// What has to be asked first: a name is no ARN, and somebody may want to know the family.
    fn question(&self, group: &TargetGroup, now: Instant) -> Question {
        let is_name = matches!(group.id, GroupId::Name(_));
        match self.details.get(group) {
            Some(Known::Details(details)) => Question::Targets(TargetGroup {
                id: GroupId::Arn(details.arn.clone()),
                role: group.role.clone(),
            }),
            Some(Known::Wanted) => Question::Details,
            Some(Known::Failed(at)) if now.saturating_duration_since(*at) >= DETAILS_AGAIN => {
                Question::Details
            }
            None | Some(Known::Failed(_)) if is_name => Question::Details,
            None | Some(Known::Failed(_)) => Question::Targets(group.clone()),
        }
    }

    fn note(&mut self, group: &TargetGroup, asked: Instant, answer: Answer, now: Instant) {
        if let Some(failure) = answer.failure() {
            // Once for each kind of failure in a row; a permission that is missing goes on being missing.
            if self.failing.insert(group.clone(), answer.words().1) == Some(answer.words().1) {
                debug!(%group, %failure, "Target group not told");
            } else {
                warn!(%group, %failure, "Target group not told");
            }
        } else {
            self.failing.remove(group);
        }
        match answer {
            Answer::Details(Ok(details)) => {
                self.details.insert(group.clone(), Known::Details(details));
                // Nothing was learned of its targets: every wish stays.
                self.polls.described(group);
            }
            Answer::Details(Err(failure)) => {
                let is_name = matches!(group.id, GroupId::Name(_));
                let will_pass = matches!(failure, Failure::Throttled | Failure::Unavailable(_));
                if !will_pass {
                    self.details.insert(group.clone(), Known::Failed(now));
                }
                if is_name || will_pass {
                    self.note_failure(group, failure, asked, now);
                } else {
                    self.polls.described(group);
                }
            }
            // Another group may bear the name by now.
            Answer::Targets(Err(Failure::NotFound)) if matches!(group.id, GroupId::Name(_)) => {
                self.details.insert(group.clone(), Known::Wanted);
                self.polls.described(group);
            }
            Answer::Targets(Ok(targets)) => {
                self.track(group).answered(&targets, asked, now);
                self.polls.answered(group, asked);
            }
            Answer::Targets(Err(failure)) => self.note_failure(group, failure, asked, now),
        }
        let polls = &self.polls;
        self.tracks.retain(|group, track| {
            let is_fresh = |at: Instant| now.saturating_duration_since(at) < KEEP;
            polls.knows(group) || track.last_answer().is_some_and(is_fresh)
        });
        let tracks = &self.tracks;
        let is_used = |group: &TargetGroup| polls.knows(group) || tracks.contains_key(group);
        self.details.retain(|group, _| is_used(group));
        self.failing.retain(|group, _| is_used(group));
    }

    fn note_failure(
        &mut self,
        group: &TargetGroup,
        failure: Failure,
        asked: Instant,
        now: Instant,
    ) {
        match failure {
            Failure::NotFound => {
                self.track(group).not_found(asked, now);
                self.polls.answered(group, asked);
            }
            Failure::Throttled => {
                self.track(group).failed(failure, now);
                self.polls.throttled(group, fastrand::f64(), now);
            }
            Failure::Denied(_) | Failure::Credentials(_) | Failure::Unavailable(_) => {
                self.track(group).failed(failure, now);
                self.polls.failed(group, fastrand::f64(), now);
            }
        }
    }

    fn track(&mut self, group: &TargetGroup) -> &mut Track {
        self.tracks.entry(group.clone()).or_default()
    }
}

impl Answer {
    fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Details(result) => result.as_ref().err(),
            Self::Targets(result) => result.as_ref().err(),
        }
    }

    /// The metric's labels.
    fn words(&self) -> (&'static str, &'static str) {
        let operation = match self {
            Self::Details(_) => "DescribeTargetGroups",
            Self::Targets(_) => "DescribeTargetHealth",
        };
        let result = match self.failure() {
            None => "answered",
            Some(Failure::NotFound) => "not-found",
            Some(Failure::Throttled) => "throttled",
            Some(Failure::Denied(_)) => "denied",
            Some(Failure::Credentials(_)) => "no-credentials",
            Some(Failure::Unavailable(_)) => "unavailable",
        };
        (operation, result)
    }
}

async fn put(
    ask: Arc<dyn AskTargetGroups>,
    group: TargetGroup,
    question: Question,
    at: Instant,
) -> Asked {
    let answer = match question {
        Question::Details => Answer::Details(ask.details(&group).await),
        Question::Targets(resolved) => Answer::Targets(ask.targets(&resolved).await),
    };
    Asked { group, at, answer }
}

#[cfg(test)]
mod tests;
