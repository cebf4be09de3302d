//! Detects that the files of an open journal were deleted, moved or replaced. SQLite goes on
//! writing to a file that its path no longer names, and the next start would not find that file.

use std::path::{Path, PathBuf};

use super::OpenError;
use crate::file_identity::{FileIdentity, beside};

/// The database file and its log, as they were opened. The log holds every commit until the next
/// checkpoint, so losing it loses as much.
#[derive(Debug)]
pub(super) struct OpenFiles {
    database: FileIdentity,
    log: FileIdentity,
}

impl OpenFiles {
    /// Reads the identity of the files of the open journal at `path`.
    pub(super) fn read(path: &Path) -> Result<Self, OpenError> {
        let read = |path: PathBuf| {
            let identity = FileIdentity::read(path.clone());
            identity.map_err(|source| OpenError::Io {
                action: "look at",
                path,
                source,
            })
        };
        Ok(Self {
            database: read(path.to_owned())?,
            log: read(beside(path, "-wal"))?,
        })
    }

    /// Returns the path that no longer names the file that is open there, if there is one.
    pub(super) fn find_replaced(&self) -> Option<&Path> {
        let files = [&self.database, &self.log];
        let replaced = files.into_iter().find(|file| !file.is_in_place());
        replaced.map(FileIdentity::path)
    }
}
