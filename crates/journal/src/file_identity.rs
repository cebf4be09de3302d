//! Device and inode of an open file, to detect a deleted, moved or replaced path.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Device and inode of an open file. The inode stays allocated while the file is open, so the pair
/// is unique.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileIdentity {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl FileIdentity {
    /// Reads the identity of the file at `path`, which the caller has open.
    pub(crate) fn read(path: PathBuf) -> io::Result<Self> {
        let metadata = path.symlink_metadata()?;
        Ok(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            path,
        })
    }

    /// Returns whether the path still names the file. An unreadable path counts as replaced, since
    /// the next start could not open the file either.
    pub(crate) fn is_in_place(&self) -> bool {
        let metadata = self.path.symlink_metadata();
        metadata.is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == (self.device, self.inode))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Returns the path of a companion file such as the WAL.
pub(crate) fn sibling_path(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(suffix);
    path.with_file_name(name)
}
