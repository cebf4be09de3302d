//! Reserved disk space, so that messages can still be settled on a full disk.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, OFlags};

/// Size of the reserve file in bytes.
pub(super) const RESERVE_BYTES: u64 = 8 * 1024 * 1024;

/// File that only reserves disk space.
#[derive(Debug)]
pub(super) struct DiskReserve {
    path: PathBuf,
}

impl DiskReserve {
    pub(super) const fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Allocates the reserve. A failed allocation leaves no file behind.
    pub(super) fn allocate(&self) -> std::io::Result<()> {
        let made = self.fill_file();
        if made.is_err() {
            self.release();
        }
        made
    }

    fn fill_file(&self) -> std::io::Result<()> {
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(false).mode(0o600);
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let file = options.custom_flags(flags).open(&self.path)?;
        if file.metadata()?.len() == RESERVE_BYTES {
            return Ok(());
        }
        match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, RESERVE_BYTES) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::OPNOTSUPP) => write_zeros(file),
            Err(error) => Err(error.into()),
        }
    }

    /// Deletes the reserve file and frees the space.
    pub(super) fn release(&self) {
        // A missing file is fine.
        let _gone = std::fs::remove_file(&self.path);
    }

    /// Returns whether the disk has room for twice the reserve.
    pub(super) fn has_room(&self) -> bool {
        let directory = self.path.parent().unwrap_or_else(|| Path::new("."));
        let stat = rustix::fs::statvfs(directory);
        stat.is_ok_and(|stat| stat.f_bavail.saturating_mul(stat.f_frsize) >= 2 * RESERVE_BYTES)
    }
}

fn write_zeros(mut file: File) -> std::io::Result<()> {
    let block = [0; 64 * 1024];
    for _ in 0..RESERVE_BYTES / block.len() as u64 {
        file.write_all(&block)?;
    }
    Ok(())
}
