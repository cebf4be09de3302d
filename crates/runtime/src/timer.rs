//! The only clock access of network code.

use std::time::Duration;

use tokio::time::Instant;

/// Returns the deadline after `wait`, for operations without a deadline of their caller.
pub fn deadline_after(wait: Duration) -> Instant {
    now() + wait
}

/// Returns the current time.
#[expect(
    clippy::disallowed_methods,
    reason = "messages of our own and connections that wait have a limit, and limits are moments"
)]
pub fn now() -> Instant {
    Instant::now()
}
