//! The one look at the clock in this room.

use std::time::Duration;

use tokio::time::Instant;

/// Returns the moment after a while, for what no caller gave a deadline.
pub(super) fn after(wait: Duration) -> Instant {
    now() + wait
}

/// Returns this moment.
#[expect(
    clippy::disallowed_methods,
    reason = "messages of our own and connections that wait have a limit, and limits are moments"
)]
pub(super) fn now() -> Instant {
    Instant::now()
}
