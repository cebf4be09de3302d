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
    /// `jitter` is any number. Callers pass a random number, so that many servers that failed
    /// together do not restart together.
    #[must_use]
    pub fn wait_after(&self, failures: u32, jitter: u64) -> Duration {
        let exponent = failures.saturating_sub(1).min(EXPONENT_MAX);
        let full = self.base.saturating_mul(1 << exponent).min(self.cap);
        let quarter = full / 4;
        let parts = u32::try_from(jitter % 256).unwrap_or(0);
        full.saturating_sub(quarter * parts / 256)
    }
}

/// Backoff for a task that is restarted after every end, clean or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartBackoff {
    backoff: Backoff,
    steady_run: Duration,
    /// Consecutive runs shorter than `steady_run`.
    short_runs: u32,
}

impl RestartBackoff {
    /// Returns the backoff before the first run. A run of at least `steady` counts as good.
    #[must_use]
    pub const fn new(backoff: Backoff, steady_run: Duration) -> Self {
        Self {
            backoff,
            steady_run,
            short_runs: 0,
        }
    }

    /// Returns the wait after a run of length `lasted`: double the previous wait, or the shortest
    /// wait after a good run. `jitter` works as in [`Backoff::wait_after`].
    pub fn wait_after_run(&mut self, lasted: Duration, jitter: u64) -> Duration {
        if lasted >= self.steady_run {
            self.short_runs = 0;
        }
        self.short_runs = self.short_runs.saturating_add(1);
        self.backoff.wait_after(self.short_runs, jitter)
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

    #[test]
    fn restart_wait_resets_after_steady_run() {
        let backoff = Backoff {
            base: Duration::from_millis(500),
            cap: Duration::from_secs(30),
        };
        let mut restarts = RestartBackoff::new(backoff, Duration::from_secs(10));
        let mut wait = |lasted_ms| {
            let lasted = Duration::from_millis(lasted_ms);
            restarts.wait_after_run(lasted, 0).as_millis()
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
