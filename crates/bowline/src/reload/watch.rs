//! Notices that a file was written, replaced, or is another one behind a link.
//!
//! It looks, twice a second, and is not told by the kernel: a process that is killed waits up to a
//! second for its inotify queue to go before its connections are closed, so that clients of a dead
//! gateway would believe it alive. Looking also sees changes on network file systems.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often is looked.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Changes that follow each other this closely are one: editors write in several steps.
const QUIET: Duration = Duration::from_millis(200);

/// So often a file that never rests is looked at before it is read all the same.
const UNREST_MAX: u32 = 10;

/// Watches one file.
#[derive(Debug)]
pub(super) struct Watch {
    path: PathBuf,
    /// How the file was when it was last said to have changed.
    seen: Option<Stamp>,
}

/// What tells one content of a file from another without reading it: its device and inode, when
/// it was written and changed, and its length.
pub(crate) type Stamp = [i128; 7];

/// Returns how a file is now; none while there is no file.
pub(crate) fn stamp(path: &Path) -> Option<Stamp> {
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

impl Watch {
    /// Begins to watch; whatever is there is a change.
    pub(super) fn of(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            seen: None,
        }
    }

    /// Waits until something happened to the file and it rests again.
    pub(super) async fn changed(&mut self) {
        while self.look() == self.seen {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        for _ in 0..UNREST_MAX {
            // What happens from here on is another change.
            self.seen = self.look();
            tokio::time::sleep(QUIET).await;
            if self.look() == self.seen {
                return;
            }
        }
    }

    fn look(&self) -> Option<Stamp> {
        stamp(&self.path)
    }
}
