//! The one look at the clock of what goes over the network.

use std::time::Duration;

use tokio::time::Instant;

/// Returns the moment after a while, for what no caller gave a deadline.
pub(crate) fn after(wait: Duration) -> Instant {
    now() + wait
}

/// Returns this moment.
#[expect(
    clippy::disallowed_methods,
    reason = "messages of our own and connections that wait have a limit, and limits are moments"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}
