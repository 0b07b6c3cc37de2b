//! The longest that a hold behind the gate may last. Pure.
//!
//! `hold ≤ (E − start) + max(S + 10 s, lastNew − E + Q) + 5 s`, where start is the deletion, E the evidence, S and Q
//! the load balancer's settle and quiet times, and lastNew the last new connection that is no probe's and no
//! scraper's: one that is only makes a hold too long.

use super::statistics::seconds_between;

/// What a load balancer of requests may add for bytes on old connections, and the formula grants to all.
const OLD_CONNECTIONS_SECONDS: f64 = 10.0;
/// For the last look before the release, the way to the pod, and the kubelet's own pause before SIGTERM.
const SLACK_SECONDS: f64 = 5.0;
/// The replicas ask by turns, and only the fake's answers are known, not to which of them: the one that holds the pod
/// may see the evidence with the second answer instead of the first, but no later than this after it.
const OTHER_REPLICA_MS: u64 = 10_000;

/// When the confirmer saw at the latest that a target group's API had accepted the deregistration at `accepted`, given
/// when it was answered about that group. Where it never was, the hold counts from the acceptance: it is then settled
/// by time, from the endpoint's drop, which came before.
pub fn evidence(accepted: u64, answers: &[u64]) -> u64 {
    let mut after: Vec<_> = answers.iter().filter(|at| **at >= accepted).collect();
    after.sort_unstable();
    match after[..] {
        [] => accepted,
        [only] => *only,
        [first, second, ..] => *second.min(&(first + OTHER_REPLICA_MS)),
    }
}

/// The longest hold in seconds. Times are in Unix milliseconds, `settle` and `quiet` in seconds.
pub fn longest_hold(
    start: u64,
    evidence: u64,
    last_new: Option<u64>,
    settle: f64,
    quiet: f64,
) -> f64 {
    let settled = settle + OLD_CONNECTIONS_SECONDS;
    let quieted = last_new.map_or(0.0, |at| seconds_between(evidence, at) + quiet);
    seconds_between(start, evidence).max(0.0) + settled.max(quieted) + SLACK_SECONDS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evidence_is_what_the_slower_replica_saw_but_not_much_later() {
        assert_eq!(evidence(1_000, &[]), 1_000);
        assert_eq!(evidence(1_000, &[200, 900]), 1_000);
        assert_eq!(evidence(1_000, &[900, 3_000]), 3_000);
        assert_eq!(evidence(1_000, &[5_000, 3_000, 9_000]), 5_000);
        assert_eq!(evidence(1_000, &[3_000, 60_000]), 13_000);
    }

    #[test]
    fn hold_may_last_for_the_settle_time_or_until_it_was_quiet() {
        let close = |value: f64, expected: f64| assert!((value - expected).abs() < 1e-6, "{value}");
        close(longest_hold(1_000, 3_000, None, 20.0, 10.0), 37.0);
        close(longest_hold(1_000, 3_000, Some(20_000), 20.0, 10.0), 37.0);
        close(longest_hold(1_000, 3_000, Some(43_000), 20.0, 10.0), 57.0);
    }
}
