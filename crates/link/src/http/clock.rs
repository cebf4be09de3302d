//! The one look at the clock in this room.

use std::time::Duration;

use tokio::time::Instant;

/// Returns the moment after a while, for what no caller gave a deadline.
#[expect(
    clippy::disallowed_methods,
    reason = "messages of our own have a limit, and deadlines are moments"
)]
pub(super) fn after(wait: Duration) -> Instant {
    Instant::now() + wait
}
