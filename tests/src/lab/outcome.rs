//! A run's row, made of what was seen. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::balancer::Balancer;
use super::bound::{Answer, evidence, longest_hold};
use super::cell::Cell;
use super::draw::{Lags, SOURCES};
use super::ledger::{Ledger, Record};
use super::released::{NO_EVENT, Released};
use super::report::Row;
use super::statistics::{largest, median, seconds_between};
use super::tally::Tally;
use super::traffic::Traffic;
use super::variant::Variant;
use super::workload::ENDED;

/// A source may obey so much later than its lag: the time that `HAProxy` takes on a busy machine.
const OBEDIENCE_SECONDS: f64 = 2.0;
/// Both of its times are cut to milliseconds.
const ROUNDING_SECONDS: f64 = 0.01;

/// All that is known when a run is over.
#[derive(Debug)]
pub struct Observed<'a> {
    /// What was run.
    pub cell: Cell,
    /// Which images run, see [`images::digest`](crate::images::digest).
    pub build: &'a str,
    /// Each target group's lags.
    pub lags: &'a [Lags],
    /// The clients' side.
    pub tally: &'a Tally,
    /// The pods' side.
    pub ledger: &'a Ledger,
    /// The confirmer's word, by pod.
    pub released: &'a BTreeMap<String, Released>,
    /// The addresses of the confirmer's replicas, by pod.
    pub replicas: &'a BTreeMap<String, IpAddr>,
    /// Each target group's calls by the confirmer.
    pub calls: &'a [Calls],
}

/// The confirmer's calls about one target group.
#[derive(Debug, Default)]
pub struct Calls {
    /// All of them.
    pub all: usize,
    /// The answers that told of targets' health.
    pub answered: Vec<Answer>,
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
        let over_bound = pods
            .iter()
            .filter(|(pod, record)| self.is_over_bound(pod, record));
        let sigterms = pods.keys().filter_map(|pod| ledger.sigterm(pod));
        let sigterms: Vec<_> = sigterms.collect();
        let unexplained = pods.keys().filter_map(|pod| self.released.get(pod));
        Row {
            build: self.build.to_owned(),
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
            lateness_at_sigterm_max_seconds: tally.lateness_near(&sigterms),
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

    fn is_over_bound(&self, pod: &str, record: &Record) -> bool {
        let (Some(start), Some(hold)) = (record.terminating, record.hold()) else {
            return false;
        };
        if self.cell.variant != Variant::Gate {
            return false;
        }
        let replica = self.released.get(pod);
        let replica = replica.and_then(|released| released.replica.as_ref());
        let replica = replica.and_then(|name| self.replicas.get(name)).copied();
        // All target groups must be confirmed, so the last evidence counts.
        let evidence = self.calls.iter().enumerate().map(|(group, calls)| {
            let accepted = record.deregistered.get(&group).copied();
            evidence(accepted.unwrap_or(start), &calls.answered, replica)
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
        if self.tally.lost > 0 {
            let lost = self.tally.lost;
            doubts.push(format!("{lost} tasks of the load broke down."));
        }
        if self.cell.variant == Variant::Gate {
            doubts.extend(self.unasked(pods));
        }
        doubts.extend(pods.iter().flat_map(|(pod, record)| {
            let disobedience = self.disobedience(pod, record);
            disobedience.into_iter().chain(self.idleness(pod, record))
        }));
        doubts
    }

    /// Target groups about which the confirmer was told nothing once a pod was deregistered: then nothing proved it.
    /// Where the account is throttled, that is what the row is about.
    fn unasked(&self, pods: &BTreeMap<String, Record>) -> Vec<String> {
        if self.cell.balancer == Balancer::AlbThrottled {
            return Vec::new();
        }
        let unasked = self.calls.iter().enumerate().filter(|(group, calls)| {
            let accepted = pods.values();
            let accepted = accepted.filter_map(|record| record.deregistered.get(group));
            let first = accepted.min().copied().unwrap_or_default();
            !calls.answered.iter().any(|answer| answer.at >= first)
        });
        let sentence = |group| format!("the confirmer was never told of target group {group}.");
        unasked.map(|(group, _)| sentence(group)).collect()
    }

    /// Sources that didn't drop the pod when they were to.
    fn disobedience(&self, pod: &str, record: &Record) -> Vec<String> {
        let lags = self.lags.concat();
        let mut sentences = Vec::new();
        for (number, lag) in lags.iter().enumerate() {
            let (group, source) = (number / SOURCES, number % SOURCES);
            // That it is missing is said of the pod as a whole.
            let Some(accepted) = record.deregistered.get(&group) else {
                continue;
            };
            let lag = lag.as_secs_f64();
            let Some(dropped) = record.dropped.get(&(group, source)) else {
                sentences.push(format!("source {number} never dropped {pod}."));
                continue;
            };
            let late = seconds_between(*accepted, *dropped);
            if late < lag - ROUNDING_SECONDS || late > lag + OBEDIENCE_SECONDS {
                sentences.push(format!(
                    "source {number} dropped {pod} after {late:.2} s rather than {lag:.2} s."
                ));
            }
        }
        sentences
    }

    /// What a pod that was under load must have got, if its row is to show anything.
    fn idleness(&self, pod: &str, record: &Record) -> Option<String> {
        if self.cell.traffic == Traffic::Slow || record.sigterm.is_none() {
            return None;
        }
        if record.waste(self.cell.balancer.layer()).is_none() {
            return Some(format!("the load balancer never sent anything to {pod}."));
        }
        // Whatever isn't gated may end before it is deregistered.
        let accepted = record.deregistered.values().min()?;
        let served = self.tally.served.get(pod).into_iter().flatten();
        let is_idle = !served
            .map(|((_, second), _)| *second)
            .any(|second| second > accepted / 1000);
        (is_idle && self.cell.variant == Variant::Gate)
            .then(|| format!("{pod} answered nothing after its deregistration."))
    }
}

fn count<T>(items: impl Iterator<Item = T>) -> u64 {
    u64::try_from(items.count()).unwrap_or(u64::MAX)
}

#[cfg(test)]
pub(super) mod tests;
