//! The doors to the outside. Everything else is reachable without I/O.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bowline_core::caller::SessionKey;
use bowline_core::time::Now;
use bytes::Bytes;
use tokio::time::Instant;

/// Tells the time; tests and the simulator hold the hands.
pub trait Clock: fmt::Debug + Send + Sync {
    /// The moment on the monotonic clock.
    fn now(&self) -> Now;
    /// The same, finer.
    fn moment(&self) -> Moment {
        Moment {
            micros: self.now().0.saturating_mul(1_000),
        }
    }
    /// The same moment as a timer wants it.
    fn instant(&self, at: Now) -> Instant;
    /// The wall clock, in milliseconds since 1970; for people only.
    fn unix_ms(&self) -> u64;
}

/// One reading of the monotonic clock, fine enough to tell how long a call took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    /// Microseconds since the start of the clock.
    pub micros: u64,
}

impl Moment {
    /// Returns the moment by which everything else goes.
    #[must_use]
    pub const fn now(self) -> Now {
        Now(self.micros / 1_000)
    }

    /// Returns how many microseconds have passed since `earlier`; zero when it lies ahead.
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
    /// Starts counting now.
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
    fn now(&self) -> Now {
        self.moment().now()
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that reads a clock"
    )]
    fn moment(&self) -> Moment {
        let since = Instant::now() - self.origin;
        Moment {
            micros: u64::try_from(since.as_micros()).unwrap_or(u64::MAX),
        }
    }

    fn instant(&self, at: Now) -> Instant {
        self.origin + Duration::from_millis(at.0)
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that reads a clock"
    )]
    fn unix_ms(&self) -> u64 {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, bowline_core::time::millis)
    }
}

/// Those who listen to what servers say outside calls; the edge's sessions.
pub trait Audience: fmt::Debug + Send + Sync {
    /// Hands one whole JSON-RPC notification to a session, without waiting; `false` when there
    /// is no such session or it has no room.
    fn tell(&self, session: SessionKey, notification: Bytes) -> bool;
}

/// Nobody listens.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Audience for Silent {
    fn tell(&self, _session: SessionKey, _notification: Bytes) -> bool {
        false
    }
}
