//! Exponential backoff between retries.

use std::time::Duration;

/// Doubling stops at this exponent, so the shift below cannot overflow.
const EXPONENT_MAX: u32 = 20;

/// The bounds of a wait that doubles with each failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The wait after the first failure.
    pub base: Duration,
    /// The longest wait.
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
    /// `jitter` is any number.
    pub(crate) fn wait_after(&self, failures: u32, jitter: u64) -> Duration {
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
    fn waits_grow_up_to_cap() {
        let backoff = Backoff::default();
        let waits: Vec<_> = (1..=9)
            .map(|n| backoff.wait_after(n, 0).as_millis())
            .collect();
        assert_eq!(waits, [100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000]);
    }

    #[test]
    fn jitter_shortens_wait_by_at_most_quarter() {
        let backoff = Backoff::default();
        for jitter in 0..600 {
            let wait = backoff.wait_after(3, jitter).as_millis();
            assert!((300..=400).contains(&wait), "{wait}");
        }
    }
}
