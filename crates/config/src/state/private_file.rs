//! Private files: mode 0600, never opened through a link, written atomically.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use bowline_core::name;
use rustix::fs::OFlags;

use super::{StateError, random_bytes, to_hex};

/// Refuses a file of another user.
pub(super) fn check_owner(path: &Path, metadata: &Metadata) -> Result<(), StateError> {
    if metadata.uid() == rustix::process::geteuid().as_raw() {
        Ok(())
    } else {
        Err(StateError::Foreign(path.to_owned()))
    }
}

/// Returns the file of a server in `directory`; `None` for a name that could escape the directory.
pub fn server_file_path(directory: &Path, server: &str) -> Option<PathBuf> {
    name::is_server_name(server).then(|| directory.join(format!("{server}.json")))
}

/// Reads a private file; `None` when the file is missing.
pub fn read_private(path: &Path, bytes_max: u64) -> Result<Option<Vec<u8>>, StateError> {
    let file = match private_open_options().read(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(to_open_error("read", path, error)),
    };
    check_private(path, &file)?;
    let mut bytes = Vec::new();
    file.take(bytes_max + 1)
        .read_to_end(&mut bytes)
        .map_err(|source| StateError::Io {
            action: "read",
            path: path.to_owned(),
            source,
        })?;
    if bytes.len() as u64 > bytes_max {
        return Err(StateError::Malformed(path.to_owned()));
    }
    Ok(Some(bytes))
}

/// Opens a private file for appending or locking, creating it when missing.
pub(super) fn open_private(path: &Path) -> Result<File, StateError> {
    let file = private_open_options()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)
        .map_err(|error| to_open_error("open", path, error))?;
    check_private(path, &file)?;
    Ok(file)
}

/// Creates the file unless it exists. Of two concurrent writers one wins, and both see its content.
pub(crate) fn create_once(
    path: &Path,
    content: impl FnOnce() -> Result<Vec<u8>, StateError>,
) -> Result<(), StateError> {
    if std::fs::symlink_metadata(path).is_ok() {
        return Ok(());
    }
    let draft = DraftFile::write_draft(path, &content()?)?;
    // Unlike a rename, a hard link never replaces a file just created by another process.
    match std::fs::hard_link(&draft.path, path) {
        Err(source) if source.kind() != std::io::ErrorKind::AlreadyExists => Err(StateError::Io {
            action: "create",
            path: path.to_owned(),
            source,
        }),
        _ => Ok(()),
    }
}

/// Replaces the file atomically; the change is durable on return.
pub fn replace_file(path: &Path, content: &[u8]) -> Result<(), StateError> {
    let draft = DraftFile::write_draft(path, content)?;
    let failed = |source| StateError::Io {
        action: "replace",
        path: path.to_owned(),
        source,
    };
    std::fs::rename(&draft.path, path).map_err(failed)?;
    // Until the directory is synced too, a power cut may restore the old file.
    match path.parent() {
        Some(directory) => File::open(directory)
            .and_then(|directory| directory.sync_all())
            .map_err(failed),
        None => Ok(()),
    }
}

/// A complete file under a temporary name, removed on drop.
struct DraftFile {
    path: PathBuf,
}

impl DraftFile {
    fn write_draft(target: &Path, content: &[u8]) -> Result<Self, StateError> {
        let mut name = target.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.tmp", to_hex(&random_bytes::<8>()?)));
        let path = target.with_file_name(name);
        let failed = |source| StateError::Io {
            action: "write",
            path: path.clone(),
            source,
        };
        let mut file = private_open_options()
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

impl Drop for DraftFile {
    fn drop(&mut self) {
        // After a rename the temporary name no longer exists, so errors are ignored.
        let _gone = std::fs::remove_file(&self.path);
    }
}

fn private_open_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed());
    options
}

fn check_private(path: &Path, file: &File) -> Result<(), StateError> {
    let metadata = file.metadata().map_err(|source| StateError::Io {
        action: "look at",
        path: path.to_owned(),
        source,
    })?;
    if !metadata.is_file() {
        return Err(StateError::Malformed(path.to_owned()));
    }
    check_owner(path, &metadata)?;
    let mode = metadata.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(StateError::Exposed {
            path: path.to_owned(),
            mode,
            required_mode: 0o600,
        });
    }
    Ok(())
}

fn to_open_error(action: &'static str, path: &Path, source: std::io::Error) -> StateError {
    if source.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) {
        return StateError::Symlink(path.to_owned());
    }
    StateError::Io {
        action,
        path: path.to_owned(),
        source,
    }
}
