//! Detects changes of a file: written, replaced, or swapped behind a link.
//!
//! The watch polls twice a second instead of using inotify: a killed process waits up to a second
//! for the teardown of the inotify queue before connections close, so clients of a dead
//! gateway would still see a live peer. Polling also sees changes on network file systems.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Poll interval.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Changes closer together than this count as one: editors write in several steps.
const SETTLE_TIME: Duration = Duration::from_millis(200);

/// Maximum polls of a constantly changing file before a read.
const SETTLE_POLLS_MAX: u32 = 10;

/// Watches a file.
#[derive(Debug)]
pub(super) struct FileWatch {
    path: PathBuf,
    /// Stamp of the file at the last reported change.
    last_stamp: Option<FileStamp>,
}

/// Identifies the content of a file without a read: device, inode, mtime, ctime and length.
pub(crate) type FileStamp = [i128; 7];

/// Returns the current stamp of a file; `None` while the file is missing.
pub(crate) fn file_stamp(path: &Path) -> Option<FileStamp> {
    let data = std::fs::metadata(path).ok()?;
    Some([
        data.dev().into(),
        data.ino().into(),
        data.mtime().into(),
        data.mtime_nsec().into(),
        data.ctime().into(),
        data.ctime_nsec().into(),
        data.len().into(),
    ])
}

impl FileWatch {
    /// Starts a watch; an existing file counts as the first change.
    pub(super) fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            last_stamp: None,
        }
    }

    /// Waits until the file has changed and is stable again.
    pub(super) async fn wait_changed(&mut self) {
        while self.current_stamp() == self.last_stamp {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        for _ in 0..SETTLE_POLLS_MAX {
            // Later changes are reported separately.
            self.last_stamp = self.current_stamp();
            tokio::time::sleep(SETTLE_TIME).await;
            if self.current_stamp() == self.last_stamp {
                return;
            }
        }
    }

    fn current_stamp(&self) -> Option<FileStamp> {
        file_stamp(&self.path)
    }
}
