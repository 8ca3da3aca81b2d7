//! A token bucket. It counts in whole numbers, so that the wait it names is exact.

use std::time::{Duration, Instant};

/// Holds up to `capacity` tokens; a number of them comes back in each period. May be in debt.
#[derive(Debug)]
pub(crate) struct Bucket {
    /// Here and in `level`: tokens times the nanoseconds of the period.
    capacity: i128,
    level: i128,
    /// Tokens that come back in a period, which is what `level` gains in a nanosecond.
    refill: i128,
    period: i128,
    read_at: Instant,
}

impl Bucket {
    /// A full one. `refill` tokens come back in each `period`; neither may be 0.
    pub fn new(capacity: u64, refill: u64, period: Duration, now: Instant) -> Self {
        let nanos = period.as_nanos() as i128;
        Self {
            capacity: i128::from(capacity) * nanos,
            level: i128::from(capacity) * nanos,
            refill: i128::from(refill),
            period: nanos,
            read_at: now,
        }
    }

    /// The time until `tokens` may be taken. More than it can hold may be taken when it is full.
    pub fn wait(&self, tokens: u64, now: Instant) -> Option<Duration> {
        let needed = (i128::from(tokens) * self.period).min(self.capacity);
        let missing = needed - self.level_at(now);
        (missing > 0).then(|| {
            let nanos = (missing + self.refill - 1) / self.refill;
            Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
        })
    }

    /// Takes tokens whether they are there or not.
    pub fn take(&mut self, tokens: u64, now: Instant) {
        self.level = self.level_at(now) - i128::from(tokens) * self.period;
        self.read_at = self.read_at.max(now);
    }

    /// Puts back tokens that were taken.
    pub fn give(&mut self, tokens: u64, now: Instant) {
        let level = self.level_at(now) + i128::from(tokens) * self.period;
        self.level = level.min(self.capacity);
        self.read_at = self.read_at.max(now);
    }

    pub fn is_full(&self, now: Instant) -> bool {
        self.level_at(now) == self.capacity
    }

    fn level_at(&self, now: Instant) -> i128 {
        let nanos = now.saturating_duration_since(self.read_at).as_nanos() as i128;
        (self.level + nanos * self.refill).min(self.capacity)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, reason = "tests need some moment to begin with")]

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_wait_it_names_is_the_shortest_that_suffices() {
        let start = Instant::now();
        let mut bucket = Bucket::new(7, 7, SECOND * 60, start);
        bucket.take(7, start);
        let wait = bucket.wait(3, start).unwrap();
        assert!(bucket.wait(3, start + wait).is_none());
        assert!(bucket.wait(3, start + wait - Duration::from_nanos(1)).is_some());
        assert_eq!(wait.as_secs(), 25);
    }

    #[test]
    fn it_never_holds_more_than_its_capacity() {
        let start = Instant::now();
        let mut bucket = Bucket::new(2, 1, SECOND, start);
        bucket.give(5, start);
        let later = start + SECOND * 100;
        bucket.take(2, later);
        assert_eq!(bucket.wait(1, later), Some(SECOND));
        assert!(!bucket.is_full(later) && bucket.is_full(later + SECOND * 2));
    }

    #[test]
    fn more_than_it_holds_leaves_a_debt() {
        let start = Instant::now();
        let mut bucket = Bucket::new(10, 10, SECOND, start);
        assert_eq!(bucket.wait(30, start), None);
        bucket.take(30, start);
        assert_eq!(bucket.wait(1, start), Some(Duration::from_millis(2100)));
    }

    #[test]
    fn a_clock_that_steps_back_gives_nothing_twice() {
        let start = Instant::now();
        let mut bucket = Bucket::new(10, 10, SECOND, start);
        bucket.take(10, start + SECOND);
        bucket.take(0, start);
        assert_eq!(bucket.wait(10, start + SECOND), Some(SECOND));
    }
}
