//! Clocks that tests move.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bowline_core::time::MonotonicTime;
use bowline_runtime::{Clock, ClockReading, SystemClock};
use tokio::time::Instant;

/// A clock that only the test moves, for code that sets no timer.
#[derive(Debug, Default)]
pub struct ManualClock {
    micros: AtomicU64,
    /// Wall-clock time at the start.
    unix_start_ms: u64,
}

impl ManualClock {
    /// Returns a clock that starts at this wall-clock time.
    #[must_use]
    pub const fn from_unix_ms(unix_start_ms: u64) -> Self {
        Self {
            micros: AtomicU64::new(0),
            unix_start_ms,
        }
    }

    /// Sets the time since the start.
    pub fn set_now(&self, now: Duration) {
        self.micros.store(to_micros(now), Ordering::Relaxed);
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        self.micros.fetch_add(to_micros(by), Ordering::Relaxed);
    }
}

fn to_micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap()
}

impl Clock for ManualClock {
    fn now(&self) -> MonotonicTime {
        self.reading().now()
    }

    fn reading(&self) -> ClockReading {
        ClockReading {
            micros: self.micros.load(Ordering::Relaxed),
        }
    }

    fn instant(&self, _: MonotonicTime) -> Instant {
        panic!("a manual clock fires no timer")
    }

    fn unix_ms(&self) -> u64 {
        self.unix_start_ms + self.now().0
    }
}

/// The clock of a runtime whose time is paused: the wall clock moves with tokio's time.
#[derive(Debug)]
pub struct PausedClock(SystemClock);

impl PausedClock {
    /// Starts the clock now, at 1,000 seconds since 1970.
    #[must_use]
    pub fn start() -> Self {
        Self(SystemClock::start())
    }
}

impl Clock for PausedClock {
    fn now(&self) -> MonotonicTime {
        self.0.now()
    }

    fn instant(&self, at: MonotonicTime) -> Instant {
        self.0.instant(at)
    }

    fn unix_ms(&self) -> u64 {
        1_000_000 + self.0.now().0
    }
}
