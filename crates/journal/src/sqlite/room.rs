//! Room that is kept free on the disk, so that work can be ended when the disk is full.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, OFlags};

/// Size of the file that is given up when the disk is full, in bytes.
pub(super) const BALLAST_BYTES: u64 = 8 * 1024 * 1024;

/// A file that holds nothing but room.
#[derive(Debug)]
pub(super) struct Ballast {
    path: PathBuf,
}

impl Ballast {
    pub(super) const fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Takes up the room. Where that cannot be done nothing is left behind.
    pub(super) fn make(&self) -> std::io::Result<()> {
        let made = self.fill();
        if made.is_err() {
            self.free();
        }
        made
    }

    fn fill(&self) -> std::io::Result<()> {
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(false).mode(0o600);
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let file = options.custom_flags(flags).open(&self.path)?;
        if file.metadata()?.len() == BALLAST_BYTES {
            return Ok(());
        }
        match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, BALLAST_BYTES) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::OPNOTSUPP) => zeros(file),
            Err(error) => Err(error.into()),
        }
    }

    /// Gives the room up.
    pub(super) fn free(&self) {
        // That it was not there is as good.
        let _gone = std::fs::remove_file(&self.path);
    }

    /// Whether there is room for the ballast and as much again.
    pub(super) fn has_room(&self) -> bool {
        let directory = self.path.parent().unwrap_or_else(|| Path::new("."));
        let stat = rustix::fs::statvfs(directory);
        stat.is_ok_and(|stat| stat.f_bavail.saturating_mul(stat.f_frsize) >= 2 * BALLAST_BYTES)
    }
}

fn zeros(mut file: File) -> std::io::Result<()> {
    let block = [0; 64 * 1024];
    for _ in 0..BALLAST_BYTES / block.len() as u64 {
        file.write_all(&block)?;
    }
    Ok(())
}
