//! Byte rate per principal: a leaky bucket that may overflow.
//!
//! Received bytes are charged in full, even beyond the burst; the next message waits until the
//! excess has leaked. So no message is refused for size alone.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;

use crate::time::MonotonicTime;

/// Number of buckets from which empty buckets are removed.
const SWEEP_BUCKETS_MIN: usize = 1_024;

/// Leak rate and capacity of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRate {
    /// Bytes leaked per second.
    pub bytes_per_second: u64,
    /// Capacity in bytes.
    pub burst_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct ByteBucket {
    bytes: u64,
    updated_at: MonotonicTime,
}

impl ByteBucket {
    fn leak_until(&mut self, rate: ByteRate, now: MonotonicTime) {
        let leaked = now
            .millis_since(self.updated_at)
            .saturating_mul(rate.bytes_per_second)
            / 1_000;
        // An interval too short to leak a byte stays accounted for.
        if leaked > 0 {
            self.bytes = self.bytes.saturating_sub(leaked);
            self.updated_at = now;
        }
    }
}

/// The buckets of all principals.
#[derive(Debug)]
pub struct ByteRateLimiter {
    rate: ByteRate,
    buckets: HashMap<Arc<str>, ByteBucket, RandomState>,
}

impl ByteRateLimiter {
    /// Returns empty buckets.
    #[must_use]
    pub fn new(rate: ByteRate) -> Self {
        Self {
            rate,
            buckets: HashMap::default(),
        }
    }

    /// Charges bytes to a principal, even beyond the burst.
    pub fn charge_bytes(&mut self, principal: &Arc<str>, bytes: u64, now: MonotonicTime) {
        let rate = self.rate;
        if self.buckets.len() >= SWEEP_BUCKETS_MIN && !self.buckets.contains_key(principal) {
            self.buckets.retain(|_, bucket| {
                bucket.leak_until(rate, now);
                bucket.bytes > 0
            });
        }
        let bucket = self.buckets.entry(Arc::clone(principal));
        let bucket = bucket.or_insert(ByteBucket {
            bytes: 0,
            updated_at: now,
        });
        bucket.leak_until(rate, now);
        bucket.bytes = bucket.bytes.saturating_add(bytes);
    }

    /// Returns the wait before a principal may continue; zero if the bucket has room.
    pub fn wait_time(&mut self, principal: &Arc<str>, now: MonotonicTime) -> Duration {
        let rate = self.rate;
        let Some(bucket) = self.buckets.get_mut(principal) else {
            return Duration::ZERO;
        };
        bucket.leak_until(rate, now);
        let excess = bucket.bytes.saturating_sub(rate.burst_bytes);
        match excess {
            0 => Duration::ZERO,
            excess => {
                let per_second = rate.bytes_per_second.max(1);
                Duration::from_millis(excess.saturating_mul(1_000).div_ceil(per_second).max(1))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burst_passes_then_rate_applies() {
        let rate = ByteRate {
            bytes_per_second: 1_000,
            burst_bytes: 5_000,
        };
        let mut rates = ByteRateLimiter::new(rate);
        let (ann, bob): (Arc<str>, Arc<str>) = ("ann".into(), "bob".into());
        let start = MonotonicTime(0);
        rates.charge_bytes(&ann, 5_000, start);
        assert_eq!(rates.wait_time(&ann, start), Duration::ZERO);
        rates.charge_bytes(&ann, 2_000, start);
        assert_eq!(rates.wait_time(&ann, start), Duration::from_secs(2));
        assert_eq!(rates.wait_time(&bob, start), Duration::ZERO);
        let later = start.plus(Duration::from_millis(1_500));
        assert_eq!(rates.wait_time(&ann, later), Duration::from_millis(500));
        let end = start.plus(Duration::from_secs(2));
        assert_eq!(rates.wait_time(&ann, end), Duration::ZERO);
    }

    #[test]
    fn short_steps_still_leak_bytes() {
        let rate = ByteRate {
            bytes_per_second: 100,
            burst_bytes: 0,
        };
        let mut rates = ByteRateLimiter::new(rate);
        let ann: Arc<str> = "ann".into();
        rates.charge_bytes(&ann, 100, MonotonicTime(0));
        let waits = (1..=1_000).map(|at| rates.wait_time(&ann, MonotonicTime(at)));
        assert_eq!(waits.last(), Some(Duration::ZERO));
    }
}
