//! Private files: mode 0600, never through a link, whole or not at all.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use bowline_core::name;
use rustix::fs::OFlags;

use super::{Error, hex, random};

/// Refuses what another user could change.
pub(super) fn check_owner(path: &Path, metadata: &Metadata) -> Result<(), Error> {
    if metadata.uid() == rustix::process::geteuid().as_raw() {
        Ok(())
    } else {
        Err(Error::Foreign(path.to_owned()))
    }
}

/// Returns the file of a server in `directory`; none where its name could lead elsewhere.
pub(crate) fn of_server(directory: &Path, server: &str) -> Option<PathBuf> {
    name::is_server(server).then(|| directory.join(format!("{server}.json")))
}

/// The content of a file that only we may read; nothing when there is no file.
pub(crate) fn read_private(path: &Path, bytes_max: u64) -> Result<Option<Vec<u8>>, Error> {
    let file = match options().read(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(refused("read", path, error)),
    };
    check(path, &file)?;
    let mut bytes = Vec::new();
    file.take(bytes_max + 1)
        .read_to_end(&mut bytes)
        .map_err(|source| Error::Io {
            action: "read",
            path: path.to_owned(),
            source,
        })?;
    if bytes.len() as u64 > bytes_max {
        return Err(Error::Malformed(path.to_owned()));
    }
    Ok(Some(bytes))
}

/// A private file to append to or to lock, made when it is missing.
pub(super) fn open_private(path: &Path) -> Result<File, Error> {
    let file = options()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)
        .map_err(|error| refused("open", path, error))?;
    check(path, &file)?;
    Ok(file)
}

/// Writes the file unless it exists. Of two that try at once, one wins and both see its content.
pub(crate) fn create_once(
    path: &Path,
    content: impl FnOnce() -> Result<Vec<u8>, Error>,
) -> Result<(), Error> {
    if std::fs::symlink_metadata(path).is_ok() {
        return Ok(());
    }
    let draft = Draft::write(path, &content()?)?;
    // Unlike a rename, a link never replaces what another process has just made.
    match std::fs::hard_link(&draft.path, path) {
        Err(source) if source.kind() != std::io::ErrorKind::AlreadyExists => Err(Error::Io {
            action: "create",
            path: path.to_owned(),
            source,
        }),
        _ => Ok(()),
    }
}

/// Replaces the file in one step, which lasts once this has returned.
pub(crate) fn replace(path: &Path, content: &[u8]) -> Result<(), Error> {
    let draft = Draft::write(path, content)?;
    let failed = |source| Error::Io {
        action: "replace",
        path: path.to_owned(),
        source,
    };
    std::fs::rename(&draft.path, path).map_err(failed)?;
    // Until the directory is written too, a power cut may bring the old file back.
    match path.parent() {
        Some(directory) => File::open(directory)
            .and_then(|directory| directory.sync_all())
            .map_err(failed),
        None => Ok(()),
    }
}

/// A finished file under a name of its own, gone when it is not needed.
struct Draft {
    path: PathBuf,
}

impl Draft {
    fn write(target: &Path, content: &[u8]) -> Result<Self, Error> {
        let mut name = target.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.tmp", hex(&random::<8>()?)));
        let path = target.with_file_name(name);
        let failed = |source| Error::Io {
            action: "write",
            path: path.clone(),
            source,
        };
        let mut file = options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        let draft = Self { path: path.clone() };
        file.write_all(content)
            .and_then(|()| file.sync_all())
            .map_err(failed)?;
        Ok(draft)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // After a rename there is nothing left under this name, which is fine.
        let _gone = std::fs::remove_file(&self.path);
    }
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed());
    options
}

fn check(path: &Path, file: &File) -> Result<(), Error> {
    let metadata = file.metadata().map_err(|source| Error::Io {
        action: "look at",
        path: path.to_owned(),
        source,
    })?;
    if !metadata.is_file() {
        return Err(Error::Malformed(path.to_owned()));
    }
    check_owner(path, &metadata)?;
    let mode = metadata.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(Error::Exposed {
            path: path.to_owned(),
            mode,
            wanted: 0o600,
        });
    }
    Ok(())
}

fn refused(action: &'static str, path: &Path, source: std::io::Error) -> Error {
    if source.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) {
        return Error::Symlink(path.to_owned());
    }
    Error::Io {
        action,
        path: path.to_owned(),
        source,
    }
}
