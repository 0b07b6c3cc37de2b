//! From when to when a certificate holds, and when it is due.

use std::time::{Duration, SystemTime};

/// A certificate's time, by the wall clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// First instant at which it holds.
    pub not_before: SystemTime,
    /// Last instant at which it holds.
    pub not_after: SystemTime,
}

impl Validity {
    /// Back-dating of what we issue: clients' clocks may lag by this much.
    const CLOCK_SKEW: Duration = Duration::from_mins(5);

    /// The validity of a certificate issued at `now` for `life`; none where that is beyond what a clock can tell.
    ///
    /// It is back-dated by 5 minutes, for lives under 50 minutes by a tenth of the life.
    pub fn issued(now: SystemTime, life: Duration) -> Option<Self> {
        let skew = Self::CLOCK_SKEW.min(life / 10);
        Some(Self {
            not_before: now.checked_sub(skew)?,
            not_after: now.checked_add(life)?,
        })
    }

    /// Whether it is over at `now`.
    pub fn is_expired(&self, now: SystemTime) -> bool {
        now > self.not_after
    }

    /// Whether two thirds of it are over at `now`, or it hasn't begun (it was written by a clock ahead of ours).
    ///
    /// It goes by the wall clock that the clients go by too: after a jump of the clock or a night in
    /// hibernation the answer is right at once, where a timer would be late.
    pub fn needs_renewal(&self, now: SystemTime) -> bool {
        let Ok(age) = now.duration_since(self.not_before) else {
            return true;
        };
        let life = self
            .not_after
            .duration_since(self.not_before)
            .unwrap_or_default();
        age >= life / 3 * 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds)
    }

    #[test]
    fn renewal_is_due_at_two_thirds_of_life_by_the_wall_clock() {
        let validity = Validity {
            not_before: at(0),
            not_after: at(900),
        };
        for (now, due, why) in [
            (at(0), false, "fresh"),
            (at(599), false, "just before two thirds"),
            (at(600), true, "two thirds"),
            (at(900), true, "its last second"),
            (at(901), true, "expired"),
            (at(1_000_000), true, "the clock jumped far past its end"),
            (
                at(0) - Duration::from_secs(1),
                true,
                "the clock jumped back before its begin",
            ),
        ] {
            assert_eq!(validity.needs_renewal(now), due, "{why}");
        }
        assert!(!validity.is_expired(at(900)));
        assert!(validity.is_expired(at(901)));
    }

    #[test]
    fn validity_that_ends_before_it_begins_is_due() {
        let validity = Validity {
            not_before: at(10),
            not_after: at(0),
        };
        assert!(validity.needs_renewal(at(10)));
    }

    #[test]
    fn what_is_issued_is_back_dated_for_clients_whose_clock_lags() {
        let year = Validity::issued(at(1_000), Duration::from_hours(365 * 24)).unwrap();
        assert_eq!(year.not_before, at(700));
        let short = Validity::issued(at(1_000), Duration::from_secs(10)).unwrap();
        assert_eq!((short.not_before, short.not_after), (at(999), at(1_010)));
        assert!(
            !short.needs_renewal(at(1_000)),
            "a short life isn't due at its very begin"
        );
        assert_eq!(Validity::issued(at(0), Duration::MAX), None);
    }
}
