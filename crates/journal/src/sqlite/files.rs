//! The files of a journal: private, on a local disk, and open once.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags};

use super::OpenError;
pub(super) use crate::file_identity::beside;

/// Held as long as this is the one journal on its file.
#[derive(Debug)]
pub(super) struct Lock {
    file: File,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A child that is just being started may hold a copy of the file, which closing would
        // leave locked. Failing, the close that follows is the next best thing.
        let _unlocked = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

/// Makes the directory where it is missing, sees that all is private, and locks the journal.
/// Returns the path under which no part is a link.
pub(super) fn prepare(path: &Path) -> Result<(PathBuf, Lock), OpenError> {
    let failed = |action, path: &Path| {
        let path = path.to_owned();
        move |source| OpenError::Io {
            action,
            path,
            source,
        }
    };
    let name = path
        .file_name()
        .ok_or_else(|| OpenError::NotFile(path.to_owned()))?;
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut builder = DirBuilder::new();
    let made = builder.recursive(true).mode(0o700).create(parent);
    made.map_err(failed("make", parent))?;
    let directory = parent.canonicalize().map_err(failed("find", parent))?;
    local(&directory)?;
    let metadata = directory
        .metadata()
        .map_err(failed("look at", &directory))?;
    // The files are private by themselves; nobody else may put others in their place.
    private(&directory, &metadata, 0o700, 0o022)?;
    let path = directory.join(name);
    let lock = Lock {
        file: open_private(&beside(&path, ".lock"))?,
    };
    match rustix::fs::flock(&lock.file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Err(OpenError::InUse(path)),
        Err(error) => return Err(failed("lock", &path)(error.into())),
    }
    drop(open_private(&path)?);
    for suffix in ["-wal", "-shm"] {
        let other = beside(&path, suffix);
        if std::fs::symlink_metadata(&other).is_ok() {
            drop(open_private(&other)?);
        }
    }
    Ok((path, lock))
}

/// Writes the names of the files, once they are all there: until then, a power cut may take a new
/// one away with all that is in it. SQLite tries to, and does not look at what comes of it.
pub(super) fn settle(path: &Path) -> Result<(), OpenError> {
    let directory = path.parent().unwrap_or_else(|| Path::new("."));
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(|source| OpenError::Io {
        action: "write",
        path: directory.to_owned(),
        source,
    })
}

/// Opens a file that only we may read, made where it is missing.
fn open_private(path: &Path) -> Result<File, OpenError> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(false);
    let opened = options.mode(0o600).custom_flags(flags).open(path);
    let file = opened.map_err(|source| {
        let is_link = source.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error());
        match is_link {
            true => OpenError::Symlink(path.to_owned()),
            false => OpenError::Io {
                action: "open",
                path: path.to_owned(),
                source,
            },
        }
    })?;
    let metadata = file.metadata().map_err(|source| OpenError::Io {
        action: "look at",
        path: path.to_owned(),
        source,
    })?;
    if !metadata.is_file() {
        return Err(OpenError::NotFile(path.to_owned()));
    }
    private(path, &metadata, 0o600, 0o077)?;
    Ok(file)
}

/// Refuses what belongs to another user or allows others what they must not.
fn private(path: &Path, metadata: &Metadata, wanted: u32, never: u32) -> Result<(), OpenError> {
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(OpenError::Foreign(path.to_owned()));
    }
    match metadata.mode() & 0o777 {
        mode if mode & never != 0 => Err(OpenError::Exposed {
            path: path.to_owned(),
            mode,
            wanted,
        }),
        _ => Ok(()),
    }
}

/// File systems on which locks and syncs do not mean what they mean on a disk, by the number that
/// the kernel gives them.
const NETWORK: &[(u32, &str)] = &[
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

/// Returns the name of a file system that is not local.
pub(super) fn network(kind: u32) -> Option<&'static str> {
    let found = NETWORK.iter().find(|(number, _)| *number == kind);
    found.map(|(_, name)| *name)
}

#[cfg(target_os = "linux")]
fn local(directory: &Path) -> Result<(), OpenError> {
    let stat = rustix::fs::statfs(directory).map_err(|error| OpenError::Io {
        action: "look at",
        path: directory.to_owned(),
        source: error.into(),
    })?;
    // The kernel's numbers have 32 bits; on some machines the field is wider and signed.
    let bits = i128::from(stat.f_type) & 0xFFFF_FFFF;
    match u32::try_from(bits).ok().and_then(network) {
        Some(kind) => Err(OpenError::Network {
            path: directory.to_owned(),
            kind,
        }),
        None => Ok(()),
    }
}

#[cfg(not(target_os = "linux"))]
fn local(_directory: &Path) -> Result<(), OpenError> {
    Ok(())
}
