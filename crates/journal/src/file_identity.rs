//! Device and inode of a file that is open, to notice that its path names another one or none.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Device and inode of a file that is open. An open file keeps its inode, so no other file can
/// have the same pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileIdentity {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl FileIdentity {
    /// Reads the identity of the file that a path names, which must be the one that is open.
    pub(crate) fn read(path: PathBuf) -> io::Result<Self> {
        let found = path.symlink_metadata()?;
        Ok(Self {
            device: found.dev(),
            inode: found.ino(),
            path,
        })
    }

    /// A path that cannot be read names nothing that the next start could open.
    pub(crate) fn is_in_place(&self) -> bool {
        let found = self.path.symlink_metadata();
        found.is_ok_and(|found| (found.dev(), found.ino()) == (self.device, self.inode))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// The path of a file that belongs to another.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(suffix);
    path.with_file_name(name)
}
