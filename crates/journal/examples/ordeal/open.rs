//! Opens the journal under test, and reads the clocks for it.

use std::path::Path;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use bowline_core::time::Now;
use bowline_journal::{At, Health, Journal, Memory};

/// Opens the journal of a directory.
pub(crate) fn open(_dir: &Path) -> Result<Arc<dyn Journal>> {
    Ok(Arc::new(Memory::default()))
}

/// What the engine reported of damage that it met, where it did.
pub(crate) fn reported(journal: &dyn Journal) -> Option<String> {
    match journal.health() {
        Health::Good | Health::Full => None,
        Health::Poisoned(reason) => Some(reason.to_string()),
    }
}

/// Runs a future to its end on this thread.
pub(crate) fn wait<T>(future: impl Future<Output = T>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    Ok(runtime.block_on(future))
}

/// Both clocks of this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    /// Starts now.
    pub(crate) fn new() -> Self {
        Self { start: instant() }
    }

    /// This moment.
    pub(crate) fn at(self) -> At {
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        At {
            now: Now(now),
            unix_ms: unix_ms(),
        }
    }
}

/// The one place that reads the monotonic clock.
#[expect(
    clippy::disallowed_methods,
    reason = "measures real time, and is no part of the product"
)]
pub(crate) fn instant() -> Instant {
    Instant::now()
}

#[expect(
    clippy::disallowed_methods,
    reason = "stands in for the clock of the product"
)]
fn unix_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
