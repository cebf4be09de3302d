//! The limit of every wait, and polls of what sends no event to the test, such as a process.

use std::time::{Duration, Instant};

/// Upper bound of every wait in tests: only a hanging product exceeds it.
pub const WAIT_MAX: Duration = Duration::from_secs(60);

/// Interval of a poll: short beside a test, long beside a request to a process.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Polls until the condition holds, and fails with `description` after `WAIT_MAX`.
pub fn wait_until(description: &str, holds: impl FnMut() -> bool) {
    let pace = PollPace {
        interval: POLL_INTERVAL,
        limit: WAIT_MAX,
    };
    wait_until_at(pace, description, holds);
}

/// Pace of a poll.
#[derive(Clone, Copy, Debug)]
pub struct PollPace {
    /// Pause after each look.
    pub interval: Duration,
    /// Time after which the poll fails.
    pub limit: Duration,
}

/// Like `wait_until`, at another pace.
#[expect(clippy::disallowed_methods, reason = "the bound of the poll")]
pub fn wait_until_at(pace: PollPace, description: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + pace.limit;
    while !holds() {
        assert!(Instant::now() < end, "never: {description}");
        std::thread::sleep(pace.interval);
    }
}
