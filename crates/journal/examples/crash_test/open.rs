//! Opens the journal under test and reads the clocks.

use std::fs::{DirBuilder, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use bowline_core::time::MonotonicTime;
use bowline_journal::{Journal, JournalHealth, SqliteJournal, Timestamps};

/// Journal file and its WAL.
pub(crate) const FILE: &str = "state.db";
pub(crate) const WAL: &str = "state.db-wal";

/// Opens the journal of a directory.
pub(crate) fn open_journal(dir: &Path) -> Result<Arc<dyn Journal>> {
    let journal = SqliteJournal::open(&dir.join(FILE))?;
    Ok(Arc::new(journal))
}

/// Creates a private directory.
pub(crate) fn create_private_dir(path: &Path) -> Result<()> {
    Ok(DirBuilder::new().mode(0o700).create(path)?)
}

/// Writes a private file.
pub(crate) fn write_private_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut options = OpenOptions::new();
    let options = options.write(true).create_new(true).mode(0o600);
    Ok(options.open(path)?.write_all(bytes)?)
}

/// Returns damage reported by the engine, if any.
pub(crate) fn reported_damage(journal: &dyn Journal) -> Option<String> {
    match journal.health() {
        JournalHealth::Good | JournalHealth::DiskFull => None,
        JournalHealth::Poisoned(reason) => Some(reason.to_string()),
        JournalHealth::Replaced => Some("its files were replaced".to_owned()),
    }
}

/// Runs a future to its end on this thread.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    Ok(runtime.block_on(future))
}

/// Monotonic and wall clock of this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    /// Starts the monotonic clock.
    pub(crate) fn new() -> Self {
        Self { start: instant() }
    }

    /// Returns the current moment.
    pub(crate) fn timestamps(self) -> Timestamps {
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        Timestamps {
            now: MonotonicTime(now),
            unix_ms: unix_ms(),
        }
    }
}

/// Reads the monotonic clock; the only place to do so.
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
