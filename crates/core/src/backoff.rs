//! How long to wait before the next try.

use std::time::Duration;

/// Doubling of the wait stops here, so that the shift below cannot overflow.
const EXPONENT_MAX: u32 = 20;

/// The bounds of a wait that doubles with each failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The wait after the first failure.
    pub base: Duration,
    /// No wait is longer.
    pub cap: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            base: Duration::from_millis(100),
            cap: Duration::from_secs(5),
        }
    }
}

impl Backoff {
    /// Returns the wait after `failures` failures in a row, shortened by up to a quarter.
    ///
    /// `jitter` is any number; callers pass a random one so that many servers that fell together
    /// do not rise together.
    #[must_use]
    pub fn wait(&self, failures: u32, jitter: u64) -> Duration {
        let exponent = failures.saturating_sub(1).min(EXPONENT_MAX);
        let full = self.base.saturating_mul(1 << exponent).min(self.cap);
        let quarter = full / 4;
        let parts = u32::try_from(jitter % 256).unwrap_or(0);
        full.saturating_sub(quarter * parts / 256)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_and_never_exceed_the_cap() {
        let backoff = Backoff::default();
        let waits: Vec<_> = (1..=9).map(|n| backoff.wait(n, 0).as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000]);
    }

    #[test]
    fn jitter_takes_at_most_a_quarter() {
        let backoff = Backoff::default();
        for jitter in 0..600 {
            let wait = backoff.wait(3, jitter).as_millis();
            assert!((300..=400).contains(&wait), "{wait}");
        }
    }
}
