//! What clients sent and what came of it.

use std::collections::BTreeMap;

use super::failure::Failure;
use super::statistics::percentile;
use super::verdict::{Miss, Verdict, judge};

/// Requests by pod, source and second (Unix).
pub type Served = BTreeMap<String, BTreeMap<(usize, u64), u32>>;

/// What was sent and what came of it.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// Requests that left.
    pub requests: u64,
    /// Requests that were due but not sent, since too many were waiting.
    pub unsent: u64,
    /// What wasn't got.
    pub misses: Vec<Miss>,
    /// Answers through the load balancer.
    pub served: Served,
    /// Seconds by which each request left late.
    lateness: Vec<f64>,
}

/// Misses, judged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Judged {
    /// Failed requests by kind.
    pub failures: BTreeMap<Failure, u64>,
    /// Flows that the load balancer left open, cut by SIGTERM.
    pub flows_cut: u64,
    /// Second (Unix) → requests that failed in it.
    pub seconds: BTreeMap<u64, u64>,
}

impl Tally {
    /// A request left, `late` by so many seconds.
    pub fn sent(&mut self, late: f64) {
        self.requests += 1;
        self.lateness.push(late);
    }

    /// `pod` answered through `source` at `at` (Unix milliseconds).
    pub fn served(&mut self, pod: &str, source: usize, at: u64) {
        let seconds = self.served.entry(pod.to_owned()).or_default();
        *seconds.entry((source, at / 1000)).or_default() += 1;
    }

    /// All misses, whoever's fault they are.
    pub fn missed(&self) -> u64 {
        u64::try_from(self.misses.len()).unwrap_or(u64::MAX)
    }

    /// Seconds by which 99 of 100 requests left late at most.
    pub fn lateness_p99(&self) -> f64 {
        percentile(&self.lateness, 0.99).unwrap_or_default()
    }

    /// Applies the rule of [`judge`], given when each pod got SIGTERM.
    pub fn judge(&self, sigterm: impl Fn(&str) -> Option<u64>) -> Judged {
        let mut judged = Judged::default();
        for miss in &self.misses {
            match judge(miss, &sigterm) {
                Verdict::FlowCut => judged.flows_cut += 1,
                Verdict::Failed => {
                    *judged.failures.entry(miss.failure).or_default() += 1;
                    *judged.seconds.entry(miss.at / 1000).or_default() += 1;
                }
            }
        }
        judged
    }
}

impl Judged {
    /// All failed requests.
    pub fn failed(&self) -> u64 {
        self.failures.values().sum()
    }
}
