//! Detects deleted, moved or replaced files of an open journal. SQLite keeps writing to an unlinked
//! or moved file, and the next start would not find the data.

use std::path::{Path, PathBuf};

use super::JournalOpenError;
use crate::file_identity::{FileIdentity, sibling_path};

/// Identities of the open database file and its WAL. The WAL holds every commit until the next
/// checkpoint, so losing the WAL loses as much.
#[derive(Debug)]
pub(super) struct OpenFiles {
    database: FileIdentity,
    log: FileIdentity,
}

impl OpenFiles {
    /// Reads the identities of the files of the open journal at `path`.
    pub(super) fn read_identities(path: &Path) -> Result<Self, JournalOpenError> {
        let read = |path: PathBuf| {
            let identity = FileIdentity::read(path.clone());
            identity.map_err(|source| JournalOpenError::Io {
                action: "look at",
                path,
                source,
            })
        };
        Ok(Self {
            database: read(path.to_owned())?,
            log: read(sibling_path(path, "-wal"))?,
        })
    }

    /// Returns the first path that no longer names the open file.
    pub(super) fn find_replaced(&self) -> Option<&Path> {
        let files = [&self.database, &self.log];
        let replaced = files.into_iter().find(|file| !file.is_in_place());
        replaced.map(FileIdentity::path)
    }
}
