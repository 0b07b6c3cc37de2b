//! The API's token bucket of one account, which everything in that account shares. Pure: time is passed in.

use std::time::{Duration, Instant};

use fastrand::Rng;

/// How many calls at once, and how many a second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Tokens of a full bucket.
    pub burst: f64,
    /// Tokens that come back each second.
    pub per_second: f64,
}

/// A bucket that starts full, and the other users of the account, who help themselves to it.
#[derive(Debug)]
pub(super) struct Bucket {
    rate: Rate,
    tokens: f64,
    filled: Instant,
    foreign_per_second: f64,
    /// When the others' next call comes.
    foreign_next: Option<Instant>,
    rng: Rng,
}

impl Bucket {
    pub(super) fn new(rate: Rate, seed: u64, now: Instant) -> Self {
        Self {
            rate,
            tokens: rate.burst,
            filled: now,
            foreign_per_second: 0.0,
            foreign_next: None,
            rng: Rng::with_seed(seed),
        }
    }

    /// Takes a token; false when there is none.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        self.let_others_take(now);
        self.take_at(now)
    }

    /// From now on others make `calls_per_second`, at random moments (a Poisson process), throttled like everybody.
    pub(super) fn set_foreign_load(&mut self, calls_per_second: f64, now: Instant) {
        self.let_others_take(now);
        self.foreign_per_second = calls_per_second.max(0.0);
        self.foreign_next = None;
        self.foreign_next = self.next_foreign(now);
    }

    fn let_others_take(&mut self, now: Instant) {
        while let Some(at) = self.foreign_next.filter(|at| *at <= now) {
            self.take_at(at);
            self.foreign_next = self.next_foreign(at);
        }
    }

    fn next_foreign(&mut self, after: Instant) -> Option<Instant> {
        let gap = -(1.0 - self.rng.f64()).ln() / self.foreign_per_second;
        // No load gives an endless gap.
        let gap = Duration::try_from_secs_f64(gap).ok()?;
        after.checked_add(gap)
    }

    fn take_at(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.filled).as_secs_f64();
        self.filled = self.filled.max(now);
        self.tokens = (self.tokens + passed * self.rate.per_second).min(self.rate.burst);
        let has_one = self.tokens >= 1.0;
        if has_one {
            self.tokens -= 1.0;
        }
        has_one
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DESCRIBE: Rate = Rate {
        burst: 40.0,
        per_second: 10.0,
    };

    fn taken(bucket: &mut Bucket, calls: usize, now: Instant) -> usize {
        (0..calls).filter(|_| bucket.take(now)).count()
    }

    #[test]
    fn burst_of_forty_then_ten_a_second() {
        let start = Instant::now();
        let mut bucket = Bucket::new(DESCRIBE, 1, start);
        assert_eq!(taken(&mut bucket, 100, start), 40);
        assert_eq!(taken(&mut bucket, 100, start + Duration::from_secs(1)), 10);
        assert_eq!(taken(&mut bucket, 100, start + Duration::from_mins(1)), 40);
    }

    #[test]
    fn others_leave_little_and_stop_when_told() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut bucket = Bucket::new(DESCRIBE, 1, start);
        bucket.set_foreign_load(30.0, start);
        let won = (0..1000)
            .filter(|call| bucket.take(at(10_000 + call * 500)))
            .count();
        // They make fifteen calls for each of ours and get ten tokens a second less what we win.
        assert!((100..600).contains(&won), "{won}");
        bucket.set_foreign_load(0.0, at(600_000));
        assert_eq!(taken(&mut bucket, 100, at(700_000)), 40);
    }
}
