//! Private temporary directory of a server.

use std::fmt::Write as _;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// Random bytes in the name, against precreation by an attacker.
const NAME_BYTES: usize = 8;

/// The directory; removed with all content on drop.
#[derive(Debug)]
pub(crate) struct PrivateTempDir(PathBuf);

impl PrivateTempDir {
    /// Creates a directory with access for the owner only.
    pub(crate) fn new() -> io::Result<Self> {
        let mut random = [0; NAME_BYTES];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        let mut name = String::from("bowline-");
        for byte in random {
            let _ = write!(name, "{byte:02x}");
        }
        let path = std::env::temp_dir().join(name);
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for PrivateTempDir {
    fn drop(&mut self) {
        // Leftovers are removed by the system's own cleanup.
        let _ = fs::remove_dir_all(&self.0);
    }
}
