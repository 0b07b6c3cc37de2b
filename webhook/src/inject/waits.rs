//! A pod's waits: how they become the waiter's arguments and the pod's grace periods, and back.

use std::time::Duration;

use sidecar::contract::{GRACE_MARGIN, flag, format_seconds, parse_seconds};

use super::hooks::{flag_value, seconds};
use super::view::{Container, Probe, Text};

/// terminationGracePeriodSeconds that the API server fills in.
const DEFAULT_GRACE: Duration = Duration::from_secs(30);

/// Everything about time that is fixed at admission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Waits {
    /// terminationGracePeriodSeconds before us.
    pub(super) original_grace: Duration,
    pub(super) max_wait: Duration,
    pub(super) fallback_wait: Duration,
    /// The longest pure sleep that we replaced.
    pub(super) min_hold: Duration,
    pub(super) settle: Option<Duration>,
    pub(super) quiet: Option<Duration>,
}

/// The grace period of a pod that we haven't touched; negative means 1 s to the API server.
pub(super) fn original_grace(seconds: Option<i64>) -> Duration {
    seconds.map_or(DEFAULT_GRACE, |seconds| {
        Duration::from_secs(u64::try_from(seconds).unwrap_or(1))
    })
}

impl Waits {
    /// The pod's new terminationGracePeriodSeconds: the app keeps all it had, after the longest possible hold.
    pub(super) fn grace_seconds(&self) -> i64 {
        whole_seconds(
            self.original_grace
                .saturating_add(self.max_wait.max(self.min_hold))
                .saturating_add(GRACE_MARGIN),
        )
    }

    /// terminationGracePeriodSeconds for liveness and startup probes that have none, so that the pod's longer one
    /// doesn't slow a restart. A gated container's hook is let go within a few seconds then: that is the margin.
    pub(super) fn probe_grace_seconds(&self, gated: bool) -> i64 {
        whole_seconds(if gated {
            self.original_grace.saturating_add(GRACE_MARGIN)
        } else {
            self.original_grace
        })
        .max(1)
    }

    /// Half of a gated container's smallest liveness or startup grace: how long its hook may wait while nobody can say
    /// whether the pod is terminating. Absent without such a probe.
    pub(super) fn liveness_cap(&self, container: &Container<'_>) -> Option<Duration> {
        let grace = |probe: &Probe| {
            probe
                .termination_grace_period_seconds
                .unwrap_or_else(|| self.probe_grace_seconds(true))
        };
        let probes = container
            .liveness_probe
            .iter()
            .chain(&container.startup_probe);
        let smallest = probes.map(grace).min()?;
        Some(Duration::from_secs(u64::try_from(smallest).unwrap_or(0)) / 2)
    }

    /// Arguments of the waiter.
    pub(super) fn run_arguments(&self, server_name: &str) -> Vec<String> {
        let mut arguments = vec![
            flag::RUN.to_owned(),
            seconds(flag::ORIGINAL_GRACE, self.original_grace),
            seconds(flag::MAX_WAIT, self.max_wait),
            seconds(flag::FALLBACK_WAIT, self.fallback_wait),
        ];
        if !self.min_hold.is_zero() {
            arguments.push(seconds(flag::MIN_HOLD, self.min_hold));
        }
        if let Some(settle) = self.settle {
            arguments.push(seconds(flag::SETTLE, settle));
        }
        if let Some(quiet) = self.quiet {
            arguments.push(seconds(flag::QUIET, quiet));
        }
        arguments.push(format!("--{}={server_name}", flag::SERVER_NAME));
        arguments
    }

    /// Reads back what [`Self::run_arguments`] wrote, perhaps in another version; `None` where it isn't ours.
    pub(super) fn from_run_arguments(arguments: &[Text<'_>]) -> Option<Self> {
        let required =
            |name| flag_value(arguments, name).and_then(|value| parse_seconds(value).ok());
        if arguments.first().map(|argument| &**argument) != Some(flag::RUN) {
            return None;
        }
        Some(Self {
            original_grace: required(flag::ORIGINAL_GRACE)?,
            max_wait: required(flag::MAX_WAIT)?,
            fallback_wait: required(flag::FALLBACK_WAIT)?,
            min_hold: required(flag::MIN_HOLD).unwrap_or_default(),
            settle: required(flag::SETTLE),
            quiet: required(flag::QUIET),
        })
    }

    /// The arguments of a waiter that exists, with this minimum hold; all others stay, also those of a newer version.
    pub(super) fn with_min_hold(&self, arguments: &[Text<'_>]) -> Vec<String> {
        let min_hold = format!("--{}=", flag::MIN_HOLD);
        let mut kept: Vec<String> = arguments
            .iter()
            .filter(|argument| !argument.starts_with(&min_hold))
            .map(|argument| String::from(&**argument))
            .collect();
        kept.push(seconds(flag::MIN_HOLD, self.min_hold));
        kept
    }
}

fn whole_seconds(duration: Duration) -> i64 {
    let seconds = duration
        .as_secs()
        .saturating_add(u64::from(duration.subsec_nanos() > 0));
    i64::try_from(seconds).unwrap_or(i64::MAX)
}

/// A duration for people, as an annotation would spell it.
pub(super) fn for_people(duration: Duration) -> String {
    format!("{}s", format_seconds(duration))
}
