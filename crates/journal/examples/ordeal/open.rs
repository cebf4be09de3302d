//! Opens the journal under test, and reads the clocks for it.

use std::fs::{DirBuilder, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use bowline_core::time::Now;
use bowline_journal::{At, Health, Journal, Sqlite};

/// The file of a journal, and its log.
pub(crate) const FILE: &str = "state.db";
pub(crate) const LOG: &str = "state.db-wal";

/// Opens the journal of a directory.
pub(crate) fn open(dir: &Path) -> Result<Arc<dyn Journal>> {
    let journal = Sqlite::open(&dir.join(FILE))?;
    Ok(Arc::new(journal))
}

/// Makes a directory that only we may read.
pub(crate) fn directory(path: &Path) -> Result<()> {
    Ok(DirBuilder::new().mode(0o700).create(path)?)
}

/// Writes a file that only we may read.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut options = OpenOptions::new();
    let options = options.write(true).create_new(true).mode(0o600);
    Ok(options.open(path)?.write_all(bytes)?)
}

/// What the engine reported of damage that it met, where it did.
pub(crate) fn reported(journal: &dyn Journal) -> Option<String> {
    match journal.health() {
        Health::Good | Health::Full => None,
        Health::Poisoned(reason) => Some(reason.to_string()),
        Health::Replaced => Some("its files were replaced".to_owned()),
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
