//! What a hold's facts come to: from what the watches and the target groups know to one decision.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sidecar::contract::HoldRequest;
use tokio::time::Instant;

use super::attachment::{
    Attachment, Context, Echo, GROUP_KEY, Kind, Quiet, State, of_group, of_sender,
};
use super::budget::{Deletion, Waits, budget};
use super::decide::{Decision, Facts, decide};
use super::groups::Groups;
use super::quiet::Inbound;
use super::settles::Settles;
use super::target_group::TargetGroup;
use super::trouble::Trouble;
use super::watches::Observation;

/// Attachments that are believed to be known to another replica alone.
const ELSEWHERE: usize = 16;

/// A hold at one moment.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// What the waiter said.
    pub request: &'a HoldRequest,
    /// The pod's waits.
    pub waits: &'a Waits,
    /// The confirmer's settles.
    pub settles: Settles,
    /// How long the hold has lasted.
    pub served: Duration,
    /// How long the turn has lasted.
    pub turn: Duration,
    /// The deletion, where it is known.
    pub deletion: Option<Deletion>,
}

/// What follows.
#[derive(Debug)]
pub struct Weighed {
    /// What sends to the pod.
    pub attachments: Vec<Attachment>,
    /// What its owner should know.
    pub troubles: Vec<Trouble>,
    /// What to do.
    pub decision: Decision,
    /// When each group should be asked next on the pod's behalf.
    pub wishes: BTreeMap<TargetGroup, Option<Instant>>,
    /// How long ago the last new connection came that no prober explains, where that is known and recent.
    pub last_new: Option<Duration>,
}

/// Weighs what is known.
pub fn weigh(
    question: &Question<'_>,
    seen: &Observation,
    groups: &Groups,
    now: Instant,
) -> Weighed {
    let Question {
        request,
        waits,
        served,
        turn,
        ..
    } = *question;
    let settles = question.settles.overridden(waits.settle, waits.quiet);
    let context = Context {
        now,
        served,
        settles,
        fallback_wait: waits.fallback_wait,
        host_network: request.params.host_network,
        echo: Echo {
            progress: &request.progress,
            turn,
        },
    };
    let (mut attachments, mut wishes, mut troubles) = (Vec::new(), BTreeMap::new(), Vec::new());
    for sender in &seen.senders {
        attachments.extend(of_sender(sender, &context));
        for bound in &sender.bindings {
            let group = &bound.group;
            let family = bound.family.or_else(|| groups.family(group));
            let ports = context.host_network.then_some(&sender.ports);
            let standing = |dropped| groups.standing(group, &sender.addresses, ports, dropped);
            let (attachment, mut ask) = of_group(sender, bound, family, standing, &context);
            // Evidence that another replica saw leaves nothing to ask for long, with a settle that may be too long.
            if attachment.age().is_some() && groups.wants_details(group) {
                ask = Some(now);
            }
            attachments.push(attachment);
            // A group that two bindings name: the earlier wish counts.
            let wish = wishes.entry(group.clone()).or_insert(ask);
            *wish = wish.iter().copied().chain(ask).min();
        }
        let nodes = sender.node_bindings.iter().cloned();
        troubles.extend(nodes.map(|binding| Trouble::NodeTargets { binding }));
    }
    let unknown: Vec<_> = elsewhere(&context, &attachments).collect();
    attachments.extend(unknown);
    if let (Some(text), false) = (&seen.bindings_forbidden, attachments.is_empty()) {
        attachments.push(unreadable(text, &context));
    }
    troubles.extend(attachments.iter().filter_map(|a| a.trouble.clone()));
    troubles.sort_unstable();
    troubles.dedup();
    let inbound = request.traffic.as_ref().map(|traffic| Inbound {
        traffic,
        age: turn,
        probes_per_minute: &request.params.probes_per_minute,
    });
    let heard = attachments.iter().filter(|a| !a.quiet.time.is_zero());
    let last_new =
        inbound.and_then(|inbound| heard.filter_map(|a| inbound.last_new(&a.quiet)).min());
    let decision = decide(&Facts {
        attachments: seen.synced_at.map(|_| attachments.as_slice()),
        synced_for: seen.synced_at.map_or(Duration::ZERO, |at| at.elapsed()),
        settle: settles.service.settle,
        inbound,
        min_left: waits.min_hold.saturating_sub(served),
        budget: budget(waits, question.deletion, served, wall()),
    });
    Weighed {
        attachments,
        troubles,
        decision,
        wishes,
        last_new,
    }
}

/// What another replica counted and this one knows nothing of: a Service, or a binding, that was gone before it began to
/// watch. It settles by the age that was counted.
fn elsewhere<'a>(
    context: &'a Context<'_>,
    known: &'a [Attachment],
) -> impl Iterator<Item = Attachment> + 'a {
    let keys = context.echo.progress.keys();
    let unknown = keys.filter(|key| known.iter().all(|a| a.key != **key));
    // The waiter's word is believed as far as its own pod goes.
    unknown.take(ELSEWHERE).filter_map(|key| {
        let age = context.echo.age(key)?;
        let is_group = key.starts_with(GROUP_KEY);
        let settle = if is_group {
            context.settles.nlb
        } else {
            context.settles.service
        };
        let state = match settle.settle.saturating_sub(age) {
            Duration::ZERO => State::Settled { age, proven: false },
            left => State::Settling { age, left },
        };
        Some(Attachment {
            key: key.clone(),
            service: String::new(),
            kind: if is_group {
                Kind::TargetGroup
            } else {
                Kind::Service
            },
            group: None,
            by_time: false,
            state,
            detail: "seen gone by another replica".to_owned(),
            quiet: Quiet::default(),
            trouble: None,
        })
    })
}

/// What stands for the target groups that we may not know of.
fn unreadable(text: &str, context: &Context<'_>) -> Attachment {
    let longest = context.settles.service.settle.max(context.fallback_wait);
    Attachment {
        key: "TargetGroupBindings".to_owned(),
        service: String::new(),
        kind: Kind::TargetGroup,
        group: None,
        by_time: false,
        state: State::Unconfirmable {
            left: longest.saturating_sub(context.served),
        },
        detail: text.to_owned(),
        quiet: Quiet::default(),
        trouble: Some(Trouble::BindingsForbidden(text.to_owned())),
    }
}

fn wall() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}
