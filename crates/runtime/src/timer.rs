//! Timers, and the only clock access of network code.

use std::time::Duration;

use bowline_core::time::MonotonicTime;
use tokio::time::Instant;

use crate::Clock;

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

/// Sleeps until `due`; forever without a time.
pub async fn sleep_until_due(clock: &dyn Clock, due: Option<MonotonicTime>) {
    match due {
        Some(due) => tokio::time::sleep_until(clock.instant(due)).await,
        None => std::future::pending().await,
    }
}
