//! How long a hold may last. Stateless, so that every replica says the same.

use std::time::Duration;

use sidecar::contract::{HoldParams, ReleaseReason};

/// How far the deletion's age by the API server's clock may lead the hook's own count before we think that a
/// clock is wrong: a hook starts within seconds of the deletion, 2.1 s was the most seen with 60 pods at once.
const START_SKEW: Duration = Duration::from_secs(10);

/// The least time that an app is left between SIGTERM and the end of its grace.
const LEAST_RESERVE: Duration = Duration::from_secs(2);

/// Longest wait that a waiter may ask for: beyond any, and below any overflow.
const LONGEST: Duration = Duration::from_hours(24 * 7);

/// A pod's waits, as durations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waits {
    /// The grace period before us.
    pub original_grace: Duration,
    /// Longest hold.
    pub max_wait: Duration,
    /// Shortest hold.
    pub min_hold: Duration,
    /// Hold when nothing can be confirmed.
    pub fallback_wait: Duration,
    /// Time after the evidence, where the pod asks for one.
    pub settle: Option<Duration>,
    /// Time after the last new connection, where the pod asks for one.
    pub quiet: Option<Duration>,
}

impl Waits {
    /// Reads what a waiter sent.
    ///
    /// # Errors
    /// A sentence that names the field, where a number is no duration.
    pub fn from_params(params: &HoldParams) -> Result<Self, String> {
        let seconds = |field: &str, value: f64| {
            let wait = Duration::try_from_secs_f64(value).ok();
            wait.filter(|wait| *wait <= LONGEST).ok_or_else(|| {
                let longest = LONGEST.as_secs();
                format!("{field} is {value}; allowed is a number of seconds from 0 to {longest}")
            })
        };
        Ok(Self {
            original_grace: seconds("originalGraceSeconds", params.original_grace_seconds)?,
            max_wait: seconds("maxWaitSeconds", params.max_wait_seconds)?,
            min_hold: seconds("minHoldSeconds", params.min_hold_seconds)?,
            fallback_wait: seconds("fallbackWaitSeconds", params.fallback_wait_seconds)?,
            settle: params
                .settle_seconds
                .map(|value| seconds("settleSeconds", value))
                .transpose()?,
            quiet: params
                .quiet_seconds
                .map(|value| seconds("quietSeconds", value))
                .transpose()?,
        })
    }
}

/// A deletion as the API server tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deletion {
    /// deletionTimestamp, since the Unix epoch, by the API server's clock.
    pub timestamp: Duration,
    /// deletionGracePeriodSeconds.
    pub grace: Duration,
}

/// Time left of a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Until the hooks must be let go, zero when that is now.
    pub left: Duration,
    /// The reason to give if nothing else releases the hold by then.
    pub reason: ReleaseReason,
}

/// `start + min(max(W, N), G − max(2, min(orig, ⌈G/2⌉)))`, as time from now.
///
/// `served` is how long the hooks have waited by the waiter's monotonic clock and `wall` is now by ours; the
/// deletion's age is kept between `served` and `served` + 10 s, so that a wrong clock can neither end a hold
/// early nor stretch it.
pub fn budget(
    waits: &Waits,
    deletion: Option<Deletion>,
    served: Duration,
    wall: Duration,
) -> Budget {
    let longest = waits.max_wait.max(waits.min_hold);
    let Some(Deletion { timestamp, grace }) = deletion else {
        return Budget {
            left: longest.saturating_sub(served),
            reason: ReleaseReason::MaxWait,
        };
    };
    let half = Duration::from_secs(grace.as_secs().div_ceil(2));
    let usable = grace.saturating_sub(waits.original_grace.min(half).max(LEAST_RESERVE));
    let age = (wall + grace)
        .saturating_sub(timestamp)
        .clamp(served, served + START_SKEW);
    let (allowed, reason) = if usable < longest {
        (usable, ReleaseReason::Forced)
    } else {
        (longest, ReleaseReason::MaxWait)
    };
    Budget {
        left: allowed.saturating_sub(age),
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// deletionTimestamp of a deletion with grace `grace` that was asked for at second 1,000.
    const fn deletion(grace: u64) -> Deletion {
        Deletion {
            timestamp: s(1000 + grace),
            grace: s(grace),
        }
    }

    fn waits() -> Waits {
        Waits {
            original_grace: s(30),
            max_wait: s(60),
            min_hold: s(0),
            fallback_wait: s(15),
            settle: None,
            quiet: None,
        }
    }

    #[test]
    fn longest_hold_counts_from_the_deletion() {
        let found = budget(&waits(), Some(deletion(100)), s(3), s(1005));
        assert_eq!(
            found,
            Budget {
                left: s(55),
                reason: ReleaseReason::MaxWait
            }
        );
    }

    #[test]
    fn replaced_sleep_longer_than_max_wait_is_the_longest_hold() {
        let waits = Waits {
            min_hold: s(90),
            ..waits()
        };
        assert_eq!(
            budget(&waits, Some(deletion(130)), s(0), s(1000)).left,
            s(90)
        );
    }

    #[test]
    fn each_grace_leaves_the_app_its_reserve() {
        // (G, original, usable): the reserve is the original grace, at most half of G, at least 2 s.
        for (grace, original, usable) in [
            (100, 30, 60),
            (60, 30, 30),
            (40, 30, 20),
            (20, 30, 10),
            (5, 30, 2),
            (3, 30, 1),
            (1, 30, 0),
            (0, 30, 0),
            (30, 0, 28),
            (61, 600, 30),
        ] {
            let waits = Waits {
                original_grace: s(original),
                ..waits()
            };
            let found = budget(&waits, Some(deletion(grace)), s(0), s(1000));
            assert_eq!(found.left, s(usable), "G {grace}, original {original}");
            let reason = if usable < 60 {
                ReleaseReason::Forced
            } else {
                ReleaseReason::MaxWait
            };
            assert_eq!(found.reason, reason, "G {grace}, original {original}");
        }
    }

    #[test]
    fn second_delete_with_now_ends_a_running_hold() {
        let found = budget(
            &waits(),
            Some(Deletion {
                timestamp: s(1021),
                grace: s(1),
            }),
            s(20),
            s(1020),
        );
        assert_eq!(
            found,
            Budget {
                left: s(0),
                reason: ReleaseReason::Forced
            }
        );
    }

    #[test]
    fn unknown_deletion_is_bounded_by_the_longest_hold() {
        assert_eq!(
            budget(&waits(), None, s(20), s(1020)),
            Budget {
                left: s(40),
                reason: ReleaseReason::MaxWait
            }
        );
    }

    #[test]
    fn clock_an_hour_ahead_costs_at_most_ten_seconds() {
        assert_eq!(
            budget(&waits(), Some(deletion(100)), s(3), s(4600)).left,
            s(47)
        );
    }

    #[test]
    fn clock_an_hour_behind_costs_nothing() {
        assert_eq!(
            budget(&waits(), Some(deletion(100)), s(3), s(0)).left,
            s(57)
        );
    }

    #[test]
    fn no_budget_ever_exceeds_its_bounds() {
        for grace in [0, 1, 2, 3, 5, 30, 61, 100, 3600] {
            for original in [0, 1, 30, 600] {
                for max_wait in [0, 5, 60, 1800] {
                    for min_hold in [0, 15, 120] {
                        for served in [0, 1, 59, 60, 500] {
                            let waits = Waits {
                                original_grace: s(original),
                                max_wait: s(max_wait),
                                min_hold: s(min_hold),
                                ..waits()
                            };
                            let found =
                                budget(&waits, Some(deletion(grace)), s(served), s(1000 + served));
                            assert!(
                                found.left + s(served) <= s(max_wait.max(min_hold)).max(s(served))
                            );
                            assert!(
                                found.left + s(served) <= s(grace.saturating_sub(2)).max(s(served))
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn numbers_that_are_no_durations_are_named() {
        let params = HoldParams {
            original_grace_seconds: 30.0,
            max_wait_seconds: -1.0,
            min_hold_seconds: 0.0,
            fallback_wait_seconds: f64::NAN,
            settle_seconds: None,
            quiet_seconds: None,
            host_network: false,
            probes_per_minute: std::collections::BTreeMap::new(),
        };
        let error = Waits::from_params(&params).expect_err("a negative wait must be refused");
        assert_eq!(
            error,
            "maxWaitSeconds is -1; allowed is a number of seconds from 0 to 604800"
        );
        assert!(
            Waits::from_params(&HoldParams {
                max_wait_seconds: f64::MAX,
                ..params
            })
            .is_err()
        );
    }
}
