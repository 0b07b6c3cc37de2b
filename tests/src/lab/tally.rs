//! What clients sent and what came of it.

use std::collections::BTreeMap;

use super::failure::Failure;
use super::statistics::{percentile, seconds_between};
use super::verdict::{Miss, Verdict, judge};

/// What is near a point in time.
const NEAR_SECONDS: f64 = 5.0;

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
    /// Tasks of the load that broke down: what became of their requests is unknown.
    pub lost: u64,
    /// When each request left, in Unix milliseconds, and by how many seconds late.
    lateness: Vec<(u64, f64)>,
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
    /// A request left at `at` (Unix milliseconds), `late` by so many seconds.
    pub fn sent(&mut self, at: u64, late: f64) {
        self.requests += 1;
        self.lateness.push((at, late));
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
        let lateness: Vec<_> = self.lateness.iter().map(|(_, late)| *late).collect();
        percentile(&lateness, 0.99).unwrap_or_default()
    }

    /// The largest lateness in seconds of what was due or left within 5 s of any of `times` (Unix milliseconds).
    pub fn lateness_near(&self, times: &[u64]) -> f64 {
        let is_near = |at: u64, late: f64| {
            times.iter().any(|time| {
                let after = seconds_between(*time, at);
                after >= -NEAR_SECONDS && after - late <= NEAR_SECONDS
            })
        };
        let near = self
            .lateness
            .iter()
            .filter(|(at, late)| is_near(*at, *late));
        near.map(|(_, late)| *late).fold(0.0, f64::max)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_near_a_time_is_that_of_what_was_due_or_left_around_it() {
        let mut tally = Tally::default();
        tally.sent(10_000, 9.0);
        tally.sent(15_100, 0.2);
        tally.sent(20_000, 0.4);
        // It was due at 24.9 s, within 5 s of 20 s.
        tally.sent(25_900, 1.0);
        tally.sent(40_000, 8.0);
        let close = |times: &[u64], expected: f64| {
            let late = tally.lateness_near(times);
            assert!((late - expected).abs() < 1e-9, "{times:?}: {late}");
        };
        close(&[], 0.0);
        close(&[20_000], 1.0);
        close(&[19_000], 0.4);
        close(&[20_000, 35_000], 8.0);
    }
}
