//! Detects that the files of an open journal were deleted, moved or replaced. SQLite goes on
//! writing to a file that its path no longer names, and the next start would not find that file.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::OpenError;
use super::files::beside;

/// The database file and its log, as they were opened. The log holds every commit until the next
/// checkpoint, so losing it loses as much.
#[derive(Debug)]
pub(super) struct OpenFiles {
    database: FileIdentity,
    log: FileIdentity,
}

/// Device and inode of a file that is open. An open file keeps its inode, so no other file can
/// have the same pair.
#[derive(Debug)]
struct FileIdentity {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl OpenFiles {
    /// Reads the identity of the files of the open journal at `path`.
    pub(super) fn read(path: &Path) -> Result<Self, OpenError> {
        Ok(Self {
            database: FileIdentity::read(path.to_owned())?,
            log: FileIdentity::read(beside(path, "-wal"))?,
        })
    }

    /// Returns the path that no longer names the file that is open there, if there is one.
    pub(super) fn find_replaced(&self) -> Option<&Path> {
        let files = [&self.database, &self.log];
        let replaced = files.into_iter().find(|file| !file.is_in_place());
        replaced.map(|file| file.path.as_path())
    }
}

impl FileIdentity {
    fn read(path: PathBuf) -> Result<Self, OpenError> {
        match path.symlink_metadata() {
            Ok(found) => Ok(Self {
                device: found.dev(),
                inode: found.ino(),
                path,
            }),
            Err(source) => Err(OpenError::Io {
                action: "look at",
                path,
                source,
            }),
        }
    }

    /// A path that cannot be read names nothing that the next start could open.
    fn is_in_place(&self) -> bool {
        let found = self.path.symlink_metadata();
        found.is_ok_and(|found| (found.dev(), found.ino()) == (self.device, self.inode))
    }
}
