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

/// The waits of something that is started again whenever it ends, well or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restarts {
    backoff: Backoff,
    steady: Duration,
    /// Runs in a row that did not last.
    short: u32,
}

impl Restarts {
    /// Returns the waits of a thing that did not run yet. A run that lasts `steady` is a good one.
    #[must_use]
    pub const fn new(backoff: Backoff, steady: Duration) -> Self {
        Self {
            backoff,
            steady,
            short: 0,
        }
    }

    /// Returns the wait after a run that lasted so long: twice the one before, and the shortest
    /// again after a good run. `jitter` is as for [`Backoff::wait`].
    pub fn wait(&mut self, lasted: Duration, jitter: u64) -> Duration {
        if lasted >= self.steady {
            self.short = 0;
        }
        self.short = self.short.saturating_add(1);
        self.backoff.wait(self.short, jitter)
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

    #[test]
    fn waits_between_runs_double_and_begin_anew_after_a_good_run() {
        let backoff = Backoff {
            base: Duration::from_millis(500),
            cap: Duration::from_secs(30),
        };
        let mut restarts = Restarts::new(backoff, Duration::from_secs(10));
        let mut wait = |lasted_ms| {
            let lasted = Duration::from_millis(lasted_ms);
            restarts.wait(lasted, 0).as_millis()
        };
        let short: Vec<_> = (0..9).map(|_| wait(9_999)).collect();
        assert_eq!(
            short,
            [
                500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000
            ]
        );
        assert_eq!([wait(10_000), wait(0), wait(0)], [500, 1_000, 2_000]);
    }
}
