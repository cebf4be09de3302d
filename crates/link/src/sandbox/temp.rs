//! A directory for temporary files that one server has to itself.

use std::fmt::Write as _;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// Random bytes in its name, so that nobody makes it before us.
const NAME_BYTES: usize = 8;

/// The directory; dropped, it is removed with all in it.
#[derive(Debug)]
pub(crate) struct PrivateTemp(PathBuf);

impl PrivateTemp {
    /// Makes one that only its owner can look into.
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

impl Drop for PrivateTemp {
    fn drop(&mut self) {
        // What cannot be removed is left to whatever clears the system's own directory.
        let _ = fs::remove_dir_all(&self.0);
    }
}
