//! How fast bytes of each principal may come: a bucket that leaks, and that may be overfull.
//!
//! What came is charged whole, also where it is more than fits; what comes next waits until that
//! has leaked away. So a large message is never refused for its size alone.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;

use crate::time::Now;

/// Buckets that are looked through for empty ones when there are more.
const BUCKETS_MAX: usize = 1_024;

/// How fast a bucket leaks, and how much fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRate {
    /// Bytes that leak in a second.
    pub bytes_per_second: u64,
    /// Bytes that fit.
    pub burst_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    bytes: u64,
    at: Now,
}

impl Bucket {
    fn leak(&mut self, rate: ByteRate, now: Now) {
        let leaked = now
            .millis_since(self.at)
            .saturating_mul(rate.bytes_per_second)
            / 1_000;
        // A moment that is too short for a byte is not forgotten.
        if leaked > 0 {
            self.bytes = self.bytes.saturating_sub(leaked);
            self.at = now;
        }
    }
}

/// The buckets of all principals.
#[derive(Debug)]
pub struct ByteRates {
    rate: ByteRate,
    buckets: HashMap<Arc<str>, Bucket, RandomState>,
}

impl ByteRates {
    /// Returns empty buckets.
    #[must_use]
    pub fn new(rate: ByteRate) -> Self {
        Self {
            rate,
            buckets: HashMap::default(),
        }
    }

    /// Puts bytes into the bucket of a principal, whether they fit or not.
    pub fn charge(&mut self, principal: &Arc<str>, bytes: u64, now: Now) {
        let rate = self.rate;
        if self.buckets.len() >= BUCKETS_MAX && !self.buckets.contains_key(principal) {
            self.buckets.retain(|_, bucket| {
                bucket.leak(rate, now);
                bucket.bytes > 0
            });
        }
        let bucket = self.buckets.entry(Arc::clone(principal));
        let bucket = bucket.or_insert(Bucket { bytes: 0, at: now });
        bucket.leak(rate, now);
        bucket.bytes = bucket.bytes.saturating_add(bytes);
    }

    /// Returns how long it is until a principal may go on; zero where it may.
    pub fn wait(&mut self, principal: &Arc<str>, now: Now) -> Duration {
        let rate = self.rate;
        let Some(bucket) = self.buckets.get_mut(principal) else {
            return Duration::ZERO;
        };
        bucket.leak(rate, now);
        let over = bucket.bytes.saturating_sub(rate.burst_bytes);
        match over {
            0 => Duration::ZERO,
            over => {
                let per_second = rate.bytes_per_second.max(1);
                Duration::from_millis(over.saturating_mul(1_000).div_ceil(per_second).max(1))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burst_passes_and_then_rate_holds() {
        let rate = ByteRate {
            bytes_per_second: 1_000,
            burst_bytes: 5_000,
        };
        let mut rates = ByteRates::new(rate);
        let (ann, bob): (Arc<str>, Arc<str>) = ("ann".into(), "bob".into());
        let start = Now(0);
        rates.charge(&ann, 5_000, start);
        assert_eq!(rates.wait(&ann, start), Duration::ZERO);
        rates.charge(&ann, 2_000, start);
        assert_eq!(rates.wait(&ann, start), Duration::from_secs(2));
        assert_eq!(rates.wait(&bob, start), Duration::ZERO);
        let later = start.plus(Duration::from_millis(1_500));
        assert_eq!(rates.wait(&ann, later), Duration::from_millis(500));
        let end = start.plus(Duration::from_secs(2));
        assert_eq!(rates.wait(&ann, end), Duration::ZERO);
    }

    #[test]
    fn steps_too_short_for_a_byte_leak() {
        let rate = ByteRate {
            bytes_per_second: 100,
            burst_bytes: 0,
        };
        let mut rates = ByteRates::new(rate);
        let ann: Arc<str> = "ann".into();
        rates.charge(&ann, 100, Now(0));
        let waits = (1..=1_000).map(|at| rates.wait(&ann, Now(at)));
        assert_eq!(waits.last(), Some(Duration::ZERO));
    }
}
