//! Time as a number, passed in by the caller.

use std::time::Duration;

/// A point on the process's monotonic clock, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MonotonicTime(pub u64);

impl MonotonicTime {
    /// Returns the time `wait` after this time.
    #[must_use]
    pub fn plus(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(to_millis(wait)))
    }

    /// Returns the milliseconds since `earlier`; zero if `earlier` lies ahead.
    #[must_use]
    pub const fn millis_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the duration until `later`; zero if passed.
    #[must_use]
    pub const fn duration_until(self, later: Self) -> Duration {
        Duration::from_millis(later.0.saturating_sub(self.0))
    }
}

/// Converts a duration to whole milliseconds, saturating.
#[must_use]
pub fn to_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
