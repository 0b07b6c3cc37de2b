//! The longest that a hold behind the gate may last. Pure.
//!
//! `hold ≤ (E − start) + max(S + 10 s, lastNew − E + Q) + 5 s`, where start is the deletion, E the evidence, S and Q
//! the load balancer's settle and quiet times, and lastNew the last new connection that is no probe's and no
//! scraper's: one that is only makes a hold too long.

use std::net::IpAddr;

use super::statistics::seconds_between;

/// What a load balancer of requests may add for bytes on old connections, and the formula grants to all.
const OLD_CONNECTIONS_SECONDS: f64 = 10.0;
/// For the last look before the release, the way to the pod, and the kubelet's own pause before SIGTERM.
const SLACK_SECONDS: f64 = 5.0;
/// The replicas ask by turns: the one that holds the pod may see the evidence with the second answer instead of the
/// first, but no later than this after it.
const OTHER_REPLICA_MS: u64 = 10_000;

/// An answer that the confirmer got about a target group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// When the question came, in Unix milliseconds.
    pub at: u64,
    /// The replica's address.
    pub to: Option<IpAddr>,
}

/// When the confirmer saw at the latest that a target group's API had accepted the deregistration at `accepted`, given
/// its answers about that group and, where it is known, the replica that released the pod: the first answer to that one
/// is what it saw. Where there was no answer, the hold counts from the acceptance: it is then settled
/// by time, from the endpoint's drop, which came before.
pub fn evidence(accepted: u64, answers: &[Answer], replica: Option<IpAddr>) -> u64 {
    let mut after: Vec<_> = answers
        .iter()
        .filter(|answer| answer.at >= accepted)
        .collect();
    after.sort_unstable_by_key(|answer| answer.at);
    let latest = match after[..] {
        [] => accepted,
        [only] => only.at,
        [first, second, ..] => second.at.min(first.at + OTHER_REPLICA_MS),
    };
    let own = after
        .iter()
        .find(|answer| replica.is_some() && answer.to == replica);
    own.map_or(latest, |answer| answer.at.min(latest))
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

    fn mk_answer(at: u64, to: u8) -> Answer {
        let to = Some([198, 18, 0, to].into());
        Answer { at, to }
    }

    #[test]
    fn evidence_is_what_the_slower_replica_saw_but_not_much_later() {
        let evidence = |times: &[u64]| {
            let answers: Vec<_> = times.iter().map(|at| mk_answer(*at, 1)).collect();
            evidence(1_000, &answers, None)
        };
        assert_eq!(evidence(&[]), 1_000);
        assert_eq!(evidence(&[200, 900]), 1_000);
        assert_eq!(evidence(&[900, 3_000]), 3_000);
        assert_eq!(evidence(&[5_000, 3_000, 9_000]), 5_000);
        assert_eq!(evidence(&[3_000, 60_000]), 13_000);
    }

    #[test]
    fn evidence_is_the_first_answer_to_the_replica_that_released_where_that_is_known() {
        let answers = [(900, 1), (3_000, 1), (5_000, 2), (60_000, 3)];
        let answers = answers.map(|(at, to)| mk_answer(at, to));
        let evidence = |to: u8| evidence(1_000, &answers, mk_answer(0, to).to);
        assert_eq!(evidence(1), 3_000);
        assert_eq!(evidence(2), 5_000);
        // It was told by another one, or isn't any of them.
        assert_eq!(evidence(3), 5_000);
        assert_eq!(evidence(9), 5_000);
    }

    #[test]
    fn hold_may_last_for_the_settle_time_or_until_it_was_quiet() {
        let close = |value: f64, expected: f64| assert!((value - expected).abs() < 1e-6, "{value}");
        close(longest_hold(1_000, 3_000, None, 20.0, 10.0), 37.0);
        close(longest_hold(1_000, 3_000, Some(20_000), 20.0, 10.0), 37.0);
        close(longest_hold(1_000, 3_000, Some(43_000), 20.0, 10.0), 57.0);
    }
}
