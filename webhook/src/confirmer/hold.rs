//! One turn of a hold: classify once, then wait for news until there is something to answer.

use std::time::Duration;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::ListParams;
use kube::{Api, Client};
use sidecar::contract::{HOLD_TURN, HoldRequest, HoldResponse, PROTOCOL, ReleaseReason, Verdict};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::attachment::{Attachment, Kind};
use super::auth::PodIdentity;
use super::budget::{Deletion, Waits};
use super::classify::{self, Class, Found, classify, find};
use super::decide::Decision;
use super::events::Events;
use super::groups::Groups;
use super::memory::Memory;
use super::settles::Settles;
use super::watches::{Observation, PodState, World};
use super::weigh::{Question, Weighed, weigh};
use crate::error_chain::chain;
use crate::metrics::Metrics;

/// Least time between two questions to the API server about a terminating pod that no watch knows.
const ASK_EVERY: Duration = Duration::from_secs(5);

/// Longest wait for a list that has to confirm that nothing sends to a pod: it delays a release.
const LIST_TIMEOUT: Duration = Duration::from_secs(1);

/// Longest hold that a waiter may claim to have served: far beyond any, but no number that spoils a histogram.
const LONGEST_ELAPSED: Duration = Duration::from_hours(24);

/// Answers holds; one per process.
pub struct Holds {
    /// Reads pods and nodes.
    pub client: Client,
    /// What the watches know.
    pub world: World,
    /// Where Events go.
    pub events: Events,
    /// Where numbers go.
    pub metrics: Metrics,
    /// What target groups say.
    pub groups: Groups,
    /// What was said and seen of each hold.
    pub memory: Memory,
    /// Settles of pods that name none.
    pub settles: Settles,
    /// Longest hold on a failing node.
    pub node_wait: Duration,
    /// Cancelled when this replica stops answering: turns then end at once.
    pub closing: CancellationToken,
}

impl std::fmt::Debug for Holds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Holds")
            .field("settles", &self.settles)
            .finish_non_exhaustive()
    }
}

/// A turn that can't be answered.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request's numbers make no sense.
    #[error("{0}")]
    Request(String),
    /// The API server couldn't be asked, and no watch says that the pod is terminating.
    #[error("pod can't be classified now")]
    Unclassified(#[source] classify::Error),
}

/// One turn's own state.
#[derive(Debug)]
struct Turn<'a> {
    pod: &'a PodIdentity,
    request: &'a HoldRequest,
    waits: Waits,
    began: Instant,
    /// How long the hooks had waited when the turn began.
    elapsed: Duration,
    deletion: Option<Deletion>,
    /// When the API server was last asked about the pod.
    asked: Option<Instant>,
}

impl Turn<'_> {
    fn served(&self) -> Duration {
        self.elapsed + self.began.elapsed()
    }

    /// In how long the API server has to be asked about the pod: a watch that is complete doesn't know it, or is
    /// behind and the deletion isn't known otherwise either.
    fn ask_in(&self, seen: &Observation) -> Option<Duration> {
        let is_unknown = seen.pod.is_none() && seen.synced_at.is_some();
        (is_unknown || self.deletion.is_none()).then(|| {
            self.asked
                .map_or(Duration::ZERO, |at| ASK_EVERY.saturating_sub(at.elapsed()))
        })
    }

    /// How long to wait for news, `longest` at most.
    fn pause(&self, seen: &Observation, longest: Duration) -> Duration {
        self.ask_in(seen).map_or(longest, |ask| ask.min(longest))
    }
}

impl Holds {
    /// Answers one turn.
    ///
    /// # Errors
    /// [`Error`]: the waiter then goes on as if we couldn't be reached.
    pub async fn turn(
        &self,
        pod: &PodIdentity,
        request: &HoldRequest,
    ) -> Result<HoldResponse, Error> {
        let waits = Waits::from_params(&request.params).map_err(Error::Request)?;
        let elapsed = Duration::try_from_secs_f64(request.elapsed_seconds)
            .ok()
            .filter(|elapsed| *elapsed <= LONGEST_ELAPSED)
            .ok_or_else(|| {
                Error::Request(format!(
                    "elapsedSeconds is {}; allowed is a number of seconds from 0 to {}",
                    request.elapsed_seconds,
                    LONGEST_ELAPSED.as_secs()
                ))
            })?;
        let mut turn = Turn {
            pod,
            request,
            waits,
            began: Instant::now(),
            elapsed,
            deletion: None,
            asked: None,
        };
        // Before anything is looked at, so that no change is missed in between.
        let mut news = self.world.subscribe(&pod.uid);
        if !request.terminating {
            match self.classify(pod).await? {
                Class::Terminating(deletion) => turn.deletion = Some(deletion),
                class => return Ok(self.unheld(&turn, class)),
            }
            turn.asked = Some(Instant::now());
        }
        loop {
            news.mark_unchanged();
            let seen = self.world.observe(&pod.uid, Instant::now());
            if let Some(gone) = self.look_for(&mut turn, &seen).await {
                return Ok(gone);
            }
            let weighed = self.weigh(&turn, &seen);
            let Weighed {
                attachments,
                mut decision,
                ..
            } = weighed;
            if decision.release == Some(ReleaseReason::NoAttachment)
                && !self.is_unattached(pod).await
            {
                decision = decision.doubted(turn.waits.fallback_wait.saturating_sub(turn.served()));
            }
            if let Some(reason) = decision.release {
                self.end(&turn, &attachments);
                self.tell_release(&turn, reason, Duration::ZERO, &decision.because);
                return Ok(answer(Verdict::Go, Some(reason), decision));
            }
            let turn_left = HOLD_TURN.saturating_sub(turn.began.elapsed());
            if !request.terminating {
                info!(namespace = pod.namespace, pod = pod.name, awaiting = ?decision.because, "Hold began");
                self.events
                    .hold_began(pod, &decision.because, decision.left);
            }
            let is_over = turn_left.is_zero() || decision.wants_report;
            if !request.terminating || is_over || self.closing.is_cancelled() {
                return Ok(answer(Verdict::Hold, None, decision));
            }
            tokio::select! {
                _ = news.changed() => {}
                () = self.closing.cancelled() => {}
                () = sleep(turn.pause(&seen, turn_left.min(decision.look_again))) => {}
            }
        }
    }

    /// Classifies by the API server, or, while that can't be asked, by a watch that already says "deleting".
    async fn classify(&self, pod: &PodIdentity) -> Result<Class, Error> {
        let error = match classify(&self.client, pod).await {
            Ok(class) => return Ok(class),
            Err(error) => error,
        };
        // Only a cached "no" isn't proof.
        match self.world.observe(&pod.uid, Instant::now()).pod {
            Some(PodState::Terminating(deletion)) => {
                warn!(
                    error = chain(&error),
                    "Classified by the watch, since the API server can't be asked"
                );
                Ok(Class::Terminating(deletion))
            }
            _ => Err(Error::Unclassified(error)),
        }
    }

    /// Takes the deletion from the watch, or asks for what no watch tells; `Some` when the pod is gone.
    async fn look_for(&self, turn: &mut Turn<'_>, seen: &Observation) -> Option<HoldResponse> {
        if let Some(PodState::Terminating(deletion)) = seen.pod {
            turn.deletion = Some(deletion);
            return None;
        }
        if turn.ask_in(seen) != Some(Duration::ZERO) {
            return None;
        }
        turn.asked = Some(Instant::now());
        match find(&self.client, turn.pod).await {
            Ok(Found::Gone) => return Some(self.unheld(turn, Class::Gone)),
            Ok(Found::Terminating(deletion)) => turn.deletion = Some(deletion),
            Ok(Found::Running { .. }) => {}
            Err(error) => {
                warn!(
                    error = chain(&error),
                    "Failed to look for a terminating pod that no watch knows"
                );
            }
        }
        None
    }

    /// Whether nothing sends to the pod, by the API server rather than by a watch that may have died unnoticed.
    async fn is_unattached(&self, pod: &PodIdentity) -> bool {
        let slices = Api::<EndpointSlice>::namespaced(self.client.clone(), &pod.namespace);
        // From the API server's watch cache: as fresh as a watch that works, and cheap.
        let params = ListParams::default().match_any();
        match timeout(LIST_TIMEOUT, slices.list(&params)).await {
            Ok(Ok(slices)) => !slices
                .iter()
                .flat_map(|slice| &slice.endpoints)
                .any(|endpoint| {
                    let target = endpoint.target_ref.as_ref();
                    target.and_then(|target| target.uid.as_deref()) == Some(&pod.uid)
                }),
            Ok(Err(error)) => {
                warn!(%error, "Failed to make sure that nothing sends to a pod");
                false
            }
            Err(error) => {
                warn!(%error, "Failed to make sure that nothing sends to a pod");
                false
            }
        }
    }

    /// Weighs what is known, has the pod's groups asked, and tells its owner of what can't be confirmed.
    fn weigh(&self, turn: &Turn<'_>, seen: &Observation) -> Weighed {
        let (pod, now) = (turn.pod, Instant::now());
        let question = Question {
            request: turn.request,
            waits: &turn.waits,
            settles: self.settles,
            served: turn.served(),
            turn: turn.began.elapsed(),
            deletion: turn.deletion,
        };
        let weighed = weigh(&question, seen, &self.groups, now);
        for (group, due) in &weighed.wishes {
            self.groups.wish(group, &pod.uid, *due);
        }
        for trouble in &weighed.troubles {
            if self.memory.is_news(&pod.uid, trouble, now) {
                warn!(
                    namespace = pod.namespace,
                    pod = pod.name,
                    trouble = trouble.text(),
                    "Can't be confirmed"
                );
                self.events.unconfirmable(pod, trouble);
            }
        }
        if let Some(at) = weighed.last_new.and_then(|ago| now.checked_sub(ago)) {
            self.memory.note_new(&pod.uid, at, now);
        }
        weighed
    }

    /// The hold is over: nothing more is asked on its behalf, and how late its load balancers were is measured.
    fn end(&self, turn: &Turn<'_>, attachments: &[Attachment]) {
        let uid = &turn.pod.uid;
        let last_new = self.memory.last_new(uid).map(|at| at.elapsed());
        for attachment in attachments.iter().filter(|a| a.kind == Kind::TargetGroup) {
            if let Some(group) = &attachment.group {
                self.groups.wish(group, uid, None);
                if let (Some(last_new), Some(age)) = (last_new, attachment.age()) {
                    self.metrics
                        .lb_lag_seconds
                        .get_or_create(&[("target_group", group.name().to_owned())])
                        .observe(age.saturating_sub(last_new).as_secs_f64());
                }
            }
        }
        self.memory.forget(uid);
    }

    /// The answer where no evidence is waited for.
    fn unheld(&self, turn: &Turn<'_>, class: Class) -> HoldResponse {
        let served = turn.served();
        let (verdict, reason, wait) = match class {
            Class::Restart => (Verdict::Restart, ReleaseReason::Restart, Duration::ZERO),
            Class::NodeFailing => (Verdict::Wait, ReleaseReason::Node, self.node_wait),
            Class::Gone | Class::Terminating(_) => (
                Verdict::Wait,
                ReleaseReason::Forced,
                turn.waits.fallback_wait,
            ),
        };
        let pause = wait.saturating_sub(served);
        self.tell_release(turn, reason, pause, &[]);
        HoldResponse {
            protocol: PROTOCOL,
            verdict,
            reason: Some(reason),
            awaiting: Vec::new(),
            seconds_left: pause.as_secs_f64(),
            progress: turn.request.progress.clone(),
        }
    }

    fn tell_release(
        &self,
        turn: &Turn<'_>,
        reason: ReleaseReason,
        pause: Duration,
        because: &[String],
    ) {
        let held = turn.served();
        let pod = turn.pod;
        info!(namespace = pod.namespace, pod = pod.name, %reason, ?held, ?pause, ?because, "Released");
        self.metrics
            .hold_seconds
            .get_or_create(&[("reason", reason.as_str())])
            .observe((held + pause).as_secs_f64());
        self.events.released(pod, reason, held, pause, because);
    }
}

fn answer(verdict: Verdict, reason: Option<ReleaseReason>, decision: Decision) -> HoldResponse {
    HoldResponse {
        protocol: PROTOCOL,
        verdict,
        reason,
        awaiting: decision.because,
        seconds_left: decision.left.as_secs_f64(),
        progress: decision.progress,
    }
}

#[cfg(test)]
mod tests;
