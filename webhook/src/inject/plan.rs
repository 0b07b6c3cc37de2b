//! Decides what happens to each container, and with that how long the pod's waits are.

use std::time::Duration;

use sidecar::contract::{CONTAINER, annotation};

use super::hooks::PreStop;
use super::options::{Options, quoted};
use super::skip;
use super::view::{Container, PodView, Text};
use super::waits::{Waits, for_people, original_grace};

/// What becomes of the pod.
#[derive(Debug)]
pub(super) struct Plan<'p> {
    pub(super) waits: Waits,
    /// Why max-wait is what it is, where the pod doesn't say.
    pub(super) max_wait_because: Option<String>,
    pub(super) waiter: Waiter<'p>,
    /// Containers that are gated, also those that were before.
    pub(super) gated: Vec<Gated<'p>>,
    /// Main containers that aren't: name and why.
    pub(super) left_alone: Vec<(&'p str, String)>,
    pub(super) warnings: Vec<String>,
}

/// Whether the pod has our sidecar.
#[derive(Debug)]
pub(super) enum Waiter<'p> {
    Missing,
    Present {
        /// Where among the init containers.
        index: usize,
        arguments: Vec<Text<'p>>,
        /// The minimum hold that these arguments say.
        min_hold: Duration,
    },
}

/// A main container that waits.
#[derive(Debug)]
pub(super) struct Gated<'p> {
    /// Where among the containers.
    pub(super) index: usize,
    pub(super) container: &'p Container<'p>,
    /// What its hook wraps; `None` where it has the hook already.
    pub(super) wrap: Option<Wrap<'p>>,
}

/// What a new hook takes over from the old handler.
#[derive(Debug, Default)]
pub(super) struct Wrap<'p> {
    pub(super) min_hold: Duration,
    pub(super) original: Vec<Text<'p>>,
}

/// Our sidecar in a pod that passes for the second time, with the waits that the first pass gave it.
///
/// The grace before us can only be told from there: the pod's own number has grown, and annotations get copied.
pub(super) fn find_waiter<'p>(pod: &'p PodView<'p>) -> Option<(Waiter<'p>, Waits)> {
    let inits = pod.spec.init_containers.as_deref()?;
    let index = inits
        .iter()
        .position(|container| &*container.name == CONTAINER)?;
    let arguments: Vec<Text<'p>> = serde_json::from_str(inits[index].args?.get()).ok()?;
    let waits = Waits::from_run_arguments(&arguments)?;
    Some((
        Waiter::Present {
            index,
            arguments,
            min_hold: waits.min_hold,
        },
        waits,
    ))
}

/// Plans for a pod and its options; `found` is what [`find_waiter`] found.
pub(super) fn plan<'p>(
    pod: &'p PodView<'p>,
    options: &Options<'_>,
    found: Option<(Waiter<'p>, Waits)>,
    warnings: Vec<String>,
) -> Plan<'p> {
    let (waiter, waits) = found.unwrap_or_else(|| {
        let waits = Waits {
            original_grace: original_grace(pod.spec.termination_grace_period_seconds),
            max_wait: options.max_wait,
            fallback_wait: options.fallback_wait,
            min_hold: Duration::ZERO,
            settle: options.settle,
            quiet: options.quiet,
        };
        (Waiter::Missing, waits)
    });
    // The waits of an earlier pass were perhaps found otherwise.
    let max_wait_because = options
        .max_wait_because
        .clone()
        .filter(|_| waits.max_wait == options.max_wait);
    let mut plan = Plan {
        waits,
        max_wait_because,
        waiter,
        gated: Vec::new(),
        left_alone: Vec::new(),
        warnings,
    };
    let containers = pod.spec.containers.as_deref().unwrap_or_default();
    for (index, container) in containers.iter().enumerate() {
        if options
            .containers
            .as_ref()
            .is_some_and(|listed| !listed.contains(&&*container.name))
        {
            plan.left_alone.push((
                &container.name,
                format!("not listed in {}", annotation::CONTAINERS),
            ));
        } else {
            plan.add(index, container);
        }
    }
    plan.warn_of_unknown_names(options, containers);
    plan
}

impl<'p> Plan<'p> {
    fn add(&mut self, index: usize, container: &'p Container<'p>) {
        let pre_stop = PreStop::read(
            container
                .lifecycle
                .as_ref()
                .and_then(|lifecycle| lifecycle.pre_stop),
        );
        let wrap = match pre_stop {
            PreStop::LeftAlone(kind) => {
                self.warnings.push(format!(
                    "container {} is not gated: its preStop is {kind}",
                    &*container.name
                ));
                self.left_alone
                    .push((&container.name, format!("its preStop is {kind}")));
                return;
            }
            PreStop::Ours { .. } if matches!(self.waiter, Waiter::Present { .. }) => None,
            // A hook of ours without its waiter: somebody copied it, or took the waiter away.
            PreStop::Ours { min_hold, original } => Some(Wrap { min_hold, original }),
            PreStop::Absent => Some(Wrap::default()),
            PreStop::Command(original) => Some(Wrap {
                original,
                ..Wrap::default()
            }),
            PreStop::Sleep(sleep) => Some(Wrap {
                min_hold: self.hold_of_sleep(sleep, container),
                ..Wrap::default()
            }),
        };
        // A pod that is gated already isn't un-gated for the sake of a container that came later.
        if matches!(self.waiter, Waiter::Present { .. })
            && wrap.is_some()
            && let Some(collision) = skip::path_collision(container)
        {
            self.warnings.push(format!("not gated: {collision}"));
            self.left_alone.push((&container.name, collision));
            return;
        }
        self.waits.min_hold = self
            .waits
            .min_hold
            .max(wrap.as_ref().map_or(Duration::ZERO, |wrap| wrap.min_hold));
        self.gated.push(Gated {
            index,
            container,
            wrap,
        });
    }

    /// The kubelet never let a sleep last beyond the grace period, so neither do we.
    fn hold_of_sleep(&mut self, sleep: Duration, container: &Container<'_>) -> Duration {
        let grace = self.waits.original_grace;
        if sleep > grace {
            self.warnings.push(format!(
                "container {} sleeps {} in its preStop, longer than the grace period: it is held at least {} instead",
                &*container.name,
                for_people(sleep),
                for_people(grace)
            ));
        }
        sleep.min(grace)
    }

    fn warn_of_unknown_names(&mut self, options: &Options<'_>, containers: &[Container<'_>]) {
        let known: Vec<&str> = containers
            .iter()
            .map(|container| &*container.name)
            .collect();
        for name in options
            .containers
            .iter()
            .flatten()
            .filter(|name| !known.contains(name))
        {
            self.warnings.push(format!(
                "{} names {}, which is none of {}",
                annotation::CONTAINERS,
                quoted(name),
                known.join(", ")
            ));
        }
    }
}
