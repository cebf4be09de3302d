//! The port for time. Everything else takes time as an argument.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bowline_core::time::MonotonicTime;
use tokio::time::Instant;

/// Time source, controlled by tests and the simulator.
pub trait Clock: fmt::Debug + Send + Sync {
    /// Monotonic time.
    fn now(&self) -> MonotonicTime;
    /// Monotonic time in microseconds.
    fn reading(&self) -> ClockReading {
        ClockReading {
            micros: self.now().0.saturating_mul(1_000),
        }
    }
    /// Converts a time for a Tokio timer.
    fn instant(&self, at: MonotonicTime) -> Instant;
    /// Wall-clock milliseconds since 1970; for display only.
    fn unix_ms(&self) -> u64;
}

/// A monotonic clock reading, precise enough for call durations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClockReading {
    /// Microseconds since the start of the clock.
    pub micros: u64,
}

impl ClockReading {
    /// Returns the reading in milliseconds.
    #[must_use]
    pub const fn now(self) -> MonotonicTime {
        MonotonicTime(self.micros / 1_000)
    }

    /// Returns the microseconds since `earlier`; zero if `earlier` is later.
    #[must_use]
    pub const fn micros_since(self, earlier: Self) -> u64 {
        self.micros.saturating_sub(earlier.micros)
    }
}

/// The clocks of this machine.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    origin: Instant,
}

impl SystemClock {
    /// Starts the clock now.
    #[must_use]
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that reads a clock"
    )]
    pub fn start() -> Self {
        Self {
            origin: Instant::now(),
        }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> MonotonicTime {
        self.reading().now()
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that reads a clock"
    )]
    fn reading(&self) -> ClockReading {
        let since = Instant::now() - self.origin;
        ClockReading {
            micros: u64::try_from(since.as_micros()).unwrap_or(u64::MAX),
        }
    }

    fn instant(&self, at: MonotonicTime) -> Instant {
        self.origin + Duration::from_millis(at.0)
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that reads a clock"
    )]
    fn unix_ms(&self) -> u64 {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, bowline_core::time::to_millis)
    }
}
