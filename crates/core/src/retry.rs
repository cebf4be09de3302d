//! Retries of one owner: the failures in a row, and the wait before the next attempt.

use std::hash::{BuildHasher as _, DefaultHasher, Hash, Hasher as _, RandomState};
use std::time::Duration;

use crate::backoff::Backoff;

/// Source of well-mixed numbers that shorten the waits of one owner: components that failed
/// together must not retry together.
#[derive(Clone, Copy, Debug, Default)]
pub struct JitterSource(Option<u64>);

impl JitterSource {
    /// Creates a source that shortens no wait, for tests of exact times.
    #[must_use]
    pub const fn none() -> Self {
        Self(None)
    }

    /// Creates a source that differs between owners and is reproducible on the same clock.
    #[must_use]
    pub fn from_owner(owner: impl Hash) -> Self {
        let mut mixer = DefaultHasher::new();
        owner.hash(&mut mixer);
        Self(Some(mixer.finish()))
    }

    /// Creates a source that differs between processes, for owners without a unique name.
    #[must_use]
    pub fn random() -> Self {
        Self(Some(RandomState::new().hash_one(0)))
    }

    /// Returns the source of a part of the owner.
    #[must_use]
    pub fn for_part(self, part: impl Hash) -> Self {
        Self(self.0.and_then(|seed| Self::from_owner((seed, part)).0))
    }

    /// Returns the number for a wait that begins at `at`.
    fn jitter(self, at: impl Hash) -> u64 {
        self.for_part(at).0.unwrap_or_default()
    }
}

/// The failures of one owner in a row, and the waits between its attempts.
#[derive(Clone, Debug)]
pub struct Retry {
    backoff: Backoff,
    jitter: JitterSource,
    /// A run of at least this length counts as a success.
    steady_run: Duration,
    failures: u32,
}

impl Retry {
    /// Returns the state before the first attempt.
    #[must_use]
    pub const fn new(backoff: Backoff, jitter: JitterSource) -> Self {
        Self {
            backoff,
            jitter,
            steady_run: Duration::MAX,
            failures: 0,
        }
    }

    /// Sets the length of a run that counts as a success, for [`Self::next_wait_after_run`].
    #[must_use]
    pub const fn with_steady_run(mut self, steady_run: Duration) -> Self {
        self.steady_run = steady_run;
        self
    }

    /// Sets the failures so far, for an owner that counts them itself.
    #[must_use]
    pub const fn with_failures(mut self, failures: u32) -> Self {
        self.failures = failures;
        self
    }

    /// Returns the failures in a row.
    #[must_use]
    pub const fn failures(&self) -> u32 {
        self.failures
    }

    /// Counts a failure.
    pub const fn count_failure(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }

    /// Forgets the failures after a success.
    pub const fn reset(&mut self) {
        self.failures = 0;
    }

    /// Returns the wait after the failures so far, at least the first wait of the backoff.
    #[must_use]
    pub fn wait(&self, now: impl Hash) -> Duration {
        self.wait_within(self.backoff, now)
    }

    /// Like [`Self::wait`], with other bounds.
    #[must_use]
    pub fn wait_within(&self, backoff: Backoff, now: impl Hash) -> Duration {
        backoff.wait_after(self.failures, self.jitter.jitter(now))
    }

    /// Counts a failure and returns the wait before the next attempt.
    pub fn next_wait(&mut self, now: impl Hash) -> Duration {
        self.count_failure();
        self.wait(now)
    }

    /// Like [`Self::next_wait`], for a task that is restarted after every end, clean or not: a
    /// steady run forgets the failures before it.
    pub fn next_wait_after_run(&mut self, lasted: Duration, now: impl Hash) -> Duration {
        if lasted >= self.steady_run {
            self.reset();
        }
        self.next_wait(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff = Backoff {
        base: Duration::from_millis(500),
        cap: Duration::from_secs(30),
    };

    #[test]
    fn owners_and_times_have_different_jitter() {
        let (ann, bob) = (
            JitterSource::from_owner("ann"),
            JitterSource::from_owner("bob"),
        );
        let (first, second) = (1_u64, 2_u64);
        assert_eq!(
            ann.jitter(first),
            JitterSource::from_owner("ann").jitter(first)
        );
        assert_ne!(ann.jitter(first), ann.jitter(second));
        assert_ne!(ann.jitter(first), bob.jitter(first));
        assert_ne!(ann.jitter(first), ann.for_part("lane").jitter(first));
        assert_ne!(
            JitterSource::random().jitter(first),
            JitterSource::random().jitter(first)
        );
        assert_eq!(JitterSource::none().for_part("lane").jitter(first), 0);
    }

    #[test]
    fn wait_grows_with_failures_until_reset() {
        let mut retry = Retry::new(BACKOFF, JitterSource::none());
        assert_eq!(retry.wait(0), BACKOFF.base);
        let waits: Vec<_> = (0..3).map(|now| retry.next_wait(now).as_millis()).collect();
        assert_eq!(waits, [500, 1_000, 2_000]);
        assert_eq!((retry.failures(), retry.wait(3).as_millis()), (3, 2_000));
        let short = Backoff {
            cap: Duration::from_secs(1),
            ..BACKOFF
        };
        assert_eq!(retry.wait_within(short, 3).as_millis(), 1_000);
        retry.reset();
        assert_eq!(retry.next_wait(4), BACKOFF.base);
    }

    #[test]
    fn restart_wait_resets_after_steady_run() {
        let retry = Retry::new(BACKOFF, JitterSource::none());
        let mut retry = retry.with_steady_run(Duration::from_secs(10));
        let mut wait = |lasted_ms| {
            let lasted = Duration::from_millis(lasted_ms);
            retry.next_wait_after_run(lasted, 0).as_millis()
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
