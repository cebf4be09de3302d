//! Journal files: private, on a local disk, and opened only once.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags};

use super::JournalOpenError;
pub(super) use crate::file_identity::sibling_path;

/// Exclusive lock on the journal file.
#[derive(Debug)]
pub(super) struct JournalLock {
    file: File,
}

impl Drop for JournalLock {
    fn drop(&mut self) {
        // A child process during spawn may hold a copy of the descriptor, which closing alone would
        // leave locked. If unlocking fails, the following close is the best remaining option.
        let _unlocked = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

/// Creates the directory if missing, checks permissions, and locks the journal. Returns the path
/// with all symlinks resolved.
pub(super) fn prepare_files(path: &Path) -> Result<(PathBuf, JournalLock), JournalOpenError> {
    let failed = |action, path: &Path| {
        let path = path.to_owned();
        move |source| JournalOpenError::Io {
            action,
            path,
            source,
        }
    };
    let name = path
        .file_name()
        .ok_or_else(|| JournalOpenError::NotFile(path.to_owned()))?;
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut builder = DirBuilder::new();
    let made = builder.recursive(true).mode(0o700).create(parent);
    made.map_err(failed("make", parent))?;
    let directory = parent.canonicalize().map_err(failed("find", parent))?;
    check_local(&directory)?;
    let metadata = directory
        .metadata()
        .map_err(failed("look at", &directory))?;
    // The files are private themselves; other users must not be able to replace the files.
    check_private(&directory, &metadata, 0o700, 0o022)?;
    let path = directory.join(name);
    let lock = JournalLock {
        file: open_private(&sibling_path(&path, ".lock"))?,
    };
    match rustix::fs::flock(&lock.file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Err(JournalOpenError::InUse(path)),
        Err(error) => return Err(failed("lock", &path)(error.into())),
    }
    drop(open_private(&path)?);
    for suffix in ["-wal", "-shm"] {
        let other = sibling_path(&path, suffix);
        if std::fs::symlink_metadata(&other).is_ok() {
            drop(open_private(&other)?);
        }
    }
    Ok((path, lock))
}

/// Syncs the directory once all files exist: until then, a power cut may remove a new file with its
/// content. SQLite syncs the directory too, but ignores errors.
pub(super) fn sync_directory(path: &Path) -> Result<(), JournalOpenError> {
    let directory = path.parent().unwrap_or_else(|| Path::new("."));
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(|source| JournalOpenError::Io {
        action: "write",
        path: directory.to_owned(),
        source,
    })
}

/// Opens a private file, created if missing.
fn open_private(path: &Path) -> Result<File, JournalOpenError> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(false);
    let opened = options.mode(0o600).custom_flags(flags).open(path);
    let file = opened.map_err(|source| {
        let is_link = source.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error());
        match is_link {
            true => JournalOpenError::Symlink(path.to_owned()),
            false => JournalOpenError::Io {
                action: "open",
                path: path.to_owned(),
                source,
            },
        }
    })?;
    let metadata = file.metadata().map_err(|source| JournalOpenError::Io {
        action: "look at",
        path: path.to_owned(),
        source,
    })?;
    if !metadata.is_file() {
        return Err(JournalOpenError::NotFile(path.to_owned()));
    }
    check_private(path, &metadata, 0o600, 0o077)?;
    Ok(file)
}

/// Refuses files of other users and files with excess permissions.
fn check_private(
    path: &Path,
    metadata: &Metadata,
    wanted: u32,
    never: u32,
) -> Result<(), JournalOpenError> {
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(JournalOpenError::Foreign(path.to_owned()));
    }
    match metadata.mode() & 0o777 {
        mode if mode & never != 0 => Err(JournalOpenError::Exposed {
            path: path.to_owned(),
            mode,
            wanted,
        }),
        _ => Ok(()),
    }
}

/// File systems with unreliable locks and syncs, by the kernel's magic number.
const NETWORK_FILE_SYSTEMS: &[(u32, &str)] = &[
    (0x6969, "NFS"),
    (0x517B, "SMB"),
    (0xFF53_4D42, "CIFS"),
    (0xFE53_4D42, "SMB2"),
    (0x0102_1997, "9p"),
    (0x6573_5546, "FUSE"),
    (0x7375_7245, "Coda"),
    (0x5346_414F, "AFS"),
    (0x6B41_4653, "AFS"),
    (0x00C3_6400, "Ceph"),
    (0x0BD0_0BD0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x564C, "NCP"),
    (0x786F_4256, "vboxsf"),
    (0x0116_1970, "GFS2"),
    (0x7461_636F, "OCFS2"),
];

/// Returns the name of a network file system.
pub(super) fn network_file_system(kind: u32) -> Option<&'static str> {
    let found = NETWORK_FILE_SYSTEMS
        .iter()
        .find(|(number, _)| *number == kind);
    found.map(|(_, name)| *name)
}

#[cfg(target_os = "linux")]
fn check_local(directory: &Path) -> Result<(), JournalOpenError> {
    let stat = rustix::fs::statfs(directory).map_err(|error| JournalOpenError::Io {
        action: "look at",
        path: directory.to_owned(),
        source: error.into(),
    })?;
    // The kernel's numbers have 32 bits; on some machines the field is wider and signed.
    let bits = i128::from(stat.f_type) & 0xFFFF_FFFF;
    match u32::try_from(bits).ok().and_then(network_file_system) {
        Some(kind) => Err(JournalOpenError::Network {
            path: directory.to_owned(),
            kind,
        }),
        None => Ok(()),
    }
}

#[cfg(not(target_os = "linux"))]
fn check_local(_directory: &Path) -> Result<(), JournalOpenError> {
    Ok(())
}
