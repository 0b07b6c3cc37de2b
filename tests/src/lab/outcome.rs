//! A run's row, made of what was seen. Pure.

use std::collections::BTreeMap;

use super::bound::{evidence, longest_hold};
use super::cell::Cell;
use super::draw::Lags;
use super::ledger::{Ledger, Record};
use super::released::Released;
use super::report::Row;
use super::statistics::{largest, median};
use super::tally::Tally;
use super::variant::Variant;
use super::workload::ENDED;

/// A reason for pods that are gated and on which no `Released` Event was found.
const NO_EVENT: &str = "none seen";

/// All that is known when a run is over.
#[derive(Debug)]
pub struct Observed<'a> {
    /// What was run.
    pub cell: Cell,
    /// Each target group's lags.
    pub lags: &'a [Lags],
    /// The clients' side.
    pub tally: &'a Tally,
    /// The pods' side.
    pub ledger: &'a Ledger,
    /// The confirmer's word, by pod.
    pub released: &'a BTreeMap<String, Released>,
    /// Each target group's calls by the confirmer, in Unix milliseconds: all, and those that were answered.
    pub calls: &'a [Calls],
}

/// The confirmer's calls about one target group.
#[derive(Debug, Default)]
pub struct Calls {
    /// All of them.
    pub all: usize,
    /// When each that was answered came, in Unix milliseconds.
    pub answered: Vec<u64>,
}

impl Observed<'_> {
    /// The row.
    pub fn row(&self) -> Row {
        let Self {
            cell,
            tally,
            ledger,
            ..
        } = self;
        let judged = tally.judge(|pod| ledger.sigterm(pod));
        let pods = ledger.terminations();
        let holds: Vec<_> = pods.values().filter_map(Record::hold).collect();
        let layer = cell.balancer.layer();
        let wastes = pods.values().filter_map(|record| record.waste(layer));
        let wastes: Vec<_> = wastes.collect();
        let failures = judged.failures.iter();
        let failures = failures.map(|(kind, count)| (kind.to_string(), *count));
        let over_bound = pods.values().filter(|record| self.is_over_bound(record));
        let unexplained = pods.keys().filter_map(|pod| self.released.get(pod));
        Row {
            load_balancer: cell.balancer,
            variant: cell.variant,
            traffic: cell.traffic,
            seed: cell.seed,
            drawn: cell.drawn,
            operation: cell.operation(),
            drains: cell.drains(),
            lag_seconds: self
                .lags
                .iter()
                .map(|lags| lags.map(|lag| lag.as_secs_f64()).to_vec())
                .collect(),
            requests: tally.requests,
            failed: judged.failed(),
            flows_cut: judged.flows_cut,
            failures: failures.collect(),
            terminations: pods.len(),
            hold_seconds_p50: median(&holds),
            hold_seconds_max: largest(&holds),
            waste_seconds_p50: median(&wastes),
            waste_seconds_max: largest(&wastes),
            api_calls: self.calls.iter().map(|calls| calls.all).sum(),
            reasons: self.reasons(pods.keys()),
            over_bound: count(over_bound),
            unexplained: count(unexplained.filter(|released| released.is_unexplained())),
            lateness_p99_seconds: tally.lateness_p99(),
            doubts: self.doubts(&pods),
        }
    }

    fn reasons<'a>(&self, pods: impl Iterator<Item = &'a String>) -> BTreeMap<String, u64> {
        let mut reasons = BTreeMap::new();
        if self.cell.variant.is_gated() {
            for pod in pods {
                let reason = self.released.get(pod);
                let reason = reason.map_or(NO_EVENT, |released| &released.reason);
                *reasons.entry(reason.to_owned()).or_default() += 1;
            }
        }
        reasons
    }

    fn is_over_bound(&self, record: &Record) -> bool {
        let (Some(start), Some(hold)) = (record.terminating, record.hold()) else {
            return false;
        };
        if self.cell.variant != Variant::Gate {
            return false;
        }
        // All target groups must be confirmed, so the last evidence counts.
        let evidence = self.calls.iter().enumerate().map(|(group, calls)| {
            let accepted = record.deregistered.get(&group).copied();
            evidence(accepted.unwrap_or(start), &calls.answered)
        });
        let evidence = evidence.max().unwrap_or(start);
        let balancer = self.cell.balancer;
        let settle = balancer.settle().as_secs_f64();
        let quiet = balancer.quiet().as_secs_f64();
        hold > longest_hold(start, evidence, record.last_new(), settle, quiet)
    }

    fn doubts(&self, pods: &BTreeMap<String, Record>) -> Vec<String> {
        let mut doubts = Vec::new();
        if pods.len() != ENDED {
            let deleted = pods.len();
            doubts.push(format!("{deleted} pods were deleted rather than {ENDED}."));
        }
        let silent = self.ledger.without_sigterm();
        if !silent.is_empty() {
            doubts.push(format!("no SIGTERM was recorded by {}.", silent.join(", ")));
        }
        let kept = pods
            .iter()
            .filter(|(_, record)| record.deregistered.len() < self.lags.len());
        let kept: Vec<_> = kept.map(|(pod, _)| pod.as_str()).collect();
        if !kept.is_empty() {
            doubts.push(format!("{} were never deregistered.", kept.join(", ")));
        }
        if self.tally.unsent > 0 {
            let unsent = self.tally.unsent;
            doubts.push(format!("{unsent} requests were due but not sent."));
        }
        if self.cell.variant == Variant::Gate && self.reasons(pods.keys()).contains_key(NO_EVENT) {
            doubts.push("a pod has no Event that tells of its release.".to_owned());
        }
        doubts
    }
}

fn count<T>(items: impl Iterator<Item = T>) -> u64 {
    u64::try_from(items.count()).unwrap_or(u64::MAX)
}

#[cfg(test)]
pub(super) mod tests;
