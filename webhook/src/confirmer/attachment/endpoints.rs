//! What EndpointSlices alone tell.

use std::time::Duration;

use super::{Attachment, Context, Kind, Quiet, State};
use crate::confirmer::endpoints::Seen;
use crate::confirmer::sender::{Others, SenderSeen};
use crate::confirmer::settles::Settle;
use crate::confirmer::trouble::Trouble;

/// Health checks that a target group's load balancer makes in a minute: of three nodes, one in each zone, each 10 s.
/// Its true count isn't told by any API; what there is more of counts as traffic, which can only lengthen a hold.
const CHECKS_PER_MINUTE: f64 = 18.0;

/// Whether the slices let go of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Slices {
    /// Its endpoint is ready.
    Ready,
    /// It stays ready until the pod is gone.
    Published,
    /// It is dropped, but the one that is to take over isn't ready yet.
    AwaitsAnother,
    /// It is dropped.
    Dropped {
        /// For how long, or for how long another has been ready if that came later.
        age: Duration,
        /// Whether nobody else is there.
        alone: bool,
    },
}

/// Reads the slices.
///
/// The echo counts only where this replica didn't see the drop itself, so a re-registration that it saw resets the
/// evidence whatever another replica said before.
pub(super) fn slices(sender: &SenderSeen, context: &Context<'_>) -> Slices {
    let (age, witnessed) = match sender.seen {
        Seen::Registered => return Slices::Ready,
        Seen::PublishedNotReady => return Slices::Published,
        Seen::Dropped { age, witnessed } => (age, witnessed),
    };
    let (age, alone) = match sender.others {
        Others::Ready { age: other } => (age.min(other), false),
        Others::Starting => return Slices::AwaitsAnother,
        Others::None => (age, true),
    };
    // What happened to the other endpoints within this turn is news to whoever counted before it.
    let is_news = matches!(sender.others, Others::Ready { age } if age < context.echo.turn);
    let echoed = context.echo.age(&key(sender));
    let echoed = echoed.filter(|_| !witnessed && !is_news);
    Slices::Dropped {
        age: echoed.map_or(age, |echoed| age.max(echoed)),
        alone,
    }
}

/// Whoever follows the slices: kube-proxy, in-cluster proxies, clients.
pub(super) fn of_service(sender: &SenderSeen, context: &Context<'_>) -> Attachment {
    settle_by_time(
        sender,
        context,
        Kind::Service,
        key(sender),
        context.settles.service,
    )
}

/// A controller that can't be asked.
pub(super) fn of_unknown_controller(
    sender: &SenderSeen,
    context: &Context<'_>,
) -> Option<Attachment> {
    let controller = sender.unknown_controller.as_ref()?;
    let key = format!("{controller} of {}", key(sender));
    Some(settle_by_time(
        sender,
        context,
        Kind::UnknownController,
        key,
        context.settles.unknown,
    ))
}

fn settle_by_time(
    sender: &SenderSeen,
    context: &Context<'_>,
    kind: Kind,
    key: String,
    settle: Settle,
) -> Attachment {
    let slices = slices(sender, context);
    let (state, detail) = match slices {
        Slices::Ready => (State::Registered, "endpoint still ready"),
        Slices::AwaitsAnother => (
            State::Registered,
            "no other endpoint is ready yet, and one is starting",
        ),
        Slices::Published => (
            unconfirmable(settle, context.served, context),
            "publishNotReadyAddresses keeps the endpoint ready until the pod is gone, so it can't be confirmed",
        ),
        Slices::Dropped { age, .. } => {
            let state = match settle.settle.saturating_sub(age) {
                Duration::ZERO => State::Settled { age, proven: false },
                left => State::Settling { age, left },
            };
            (state, "endpoint dropped")
        }
    };
    Attachment {
        key,
        service: super::endpoints::key(sender),
        kind,
        group: None,
        state,
        by_time: false,
        detail: detail.to_owned(),
        quiet: quiet(sender, slices, settle),
        trouble: trouble(sender, slices),
    }
}

/// The state where nothing can be confirmed and `waited` is over.
pub(super) fn unconfirmable(settle: Settle, waited: Duration, context: &Context<'_>) -> State {
    State::Unconfirmable {
        left: settle
            .settle
            .max(context.fallback_wait)
            .saturating_sub(waited),
    }
}

/// Traffic lengthens a hold only where somebody else could take it.
pub(super) fn quiet(sender: &SenderSeen, slices: Slices, settle: Settle) -> Quiet {
    match slices {
        Slices::Dropped { alone: false, .. } => Quiet {
            time: settle.quiet,
            ports: sender.ports.clone(),
            checks_per_minute: sender.bindings.iter().map(|_| CHECKS_PER_MINUTE).sum(),
            bytes_left: Duration::ZERO,
        },
        _ => Quiet::default(),
    }
}

pub(super) fn trouble(sender: &SenderSeen, slices: Slices) -> Option<Trouble> {
    match slices {
        // Clients that hold the address on purpose (a headless Service's) are no trouble.
        Slices::Published if is_balanced(sender) => {
            Some(Trouble::PublishNotReady(sender.sender.clone()))
        }
        Slices::Dropped { alone: true, .. } => Some(Trouble::NoOtherEndpoint {
            service: sender.sender.clone(),
            managed_rules: managed_rules(sender),
        }),
        _ => None,
    }
}

fn is_balanced(sender: &SenderSeen) -> bool {
    !sender.bindings.is_empty()
        || !sender.node_bindings.is_empty()
        || sender.unknown_controller.is_some()
}

fn managed_rules(sender: &SenderSeen) -> Vec<String> {
    let managed = sender.bindings.iter().filter(|bound| bound.manages_rules);
    managed.map(|bound| bound.binding.clone()).collect()
}

pub(super) fn key(sender: &SenderSeen) -> String {
    sender.sender.to_string()
}
