//! The state directory: owner token, session key, lock and the record of the running gateway.

mod instances;
pub mod private_file;

#[cfg(test)]
mod tests;

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use bowline_core::hex::to_hex;
use bowline_host::broker::CredentialSource;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::EnvVars;

/// Random bytes of the owner token, written as twice as many hex digits.
const OWNER_TOKEN_BYTES: usize = 32;
/// Maximum size of `run.json`.
const RUN_BYTES_MAX: u64 = 64 * 1024;
/// Maximum length of a token text, from any source.
const TOKEN_TEXT_BYTES_MAX: u64 = 4096;

/// A state directory owned by this user and writable by no other user.
#[derive(Clone, Debug)]
pub struct StateDir {
    path: PathBuf,
}

/// The owner's credential. Debug output hides the text.
#[derive(Clone, PartialEq, Eq)]
pub struct OwnerCredential(String);

/// The contents of `run.json`: how other processes reach a running gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRecord {
    /// Version of this record.
    pub v: u32,
    /// Process id of the gateway.
    pub pid: u32,
    /// Start time in milliseconds since the epoch.
    pub started_at_ms: u64,
    /// Base URL, without a trailing slash.
    pub url: String,
    /// URL for MCP clients.
    pub mcp: String,
    /// Path of the owner token.
    pub token_file: PathBuf,
}

/// An exclusive file lock. The gateway's lock makes this process the only gateway of the state
/// directory.
#[derive(Debug)]
pub struct InstanceLock {
    file: File,
}

impl Drop for InstanceLock {
    fn drop(&mut self) {
        // Closing is not enough: a child process being started may hold a copy of the descriptor
        // until its exec. If the unlock fails, the close that follows is the fallback.
        let _unlocked = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

/// Reason why the state directory is unusable.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Neither a flag nor the environment gives a state directory.
    #[error("no state directory is known: set --state, BOWLINE_STATE or HOME")]
    NoLocation,
    /// An operation of the file system failed.
    #[error("cannot {action} `{path}`")]
    Io {
        /// The attempted operation.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A symbolic link, whose target may change.
    #[error("`{0}` is a symbolic link")]
    Symlink(PathBuf),
    /// The path exists but is no directory.
    #[error("`{0}` is not a directory")]
    NotDirectory(PathBuf),
    /// The path belongs to another user, who could change it.
    #[error("`{0}` belongs to another user")]
    Foreign(PathBuf),
    /// Other users may read a secret or write into the directory.
    #[error("`{path}` is open to other users (mode {mode:03o})")]
    Exposed {
        /// The file or directory.
        path: PathBuf,
        /// The current permissions.
        mode: u32,
        /// The required permissions.
        required_mode: u32,
    },
    /// A file of the state directory has unexpected content.
    #[error("`{0}` does not hold what it should")]
    Malformed(PathBuf),
    /// A file that must be trusted completely is damaged.
    #[error("`{path}` does not hold what it should: {reason}")]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Description of the damage.
        reason: String,
        /// The repair, and its cost.
        fix: String,
    },
    /// A record cannot be serialized.
    #[error("a record cannot be written as JSON")]
    Unwritable(#[source] serde_json::Error),
    /// The kernel provides no random bytes.
    #[error("no random bytes from the system: {0}")]
    Random(getrandom::Error),
    /// Another gateway uses the directory.
    #[error("{}", locked_message(*pid, url.as_deref()))]
    Locked {
        /// Process id of the other gateway, if known.
        pid: Option<u32>,
        /// URL of the other gateway, if known.
        url: Option<String>,
    },
}

impl StateError {
    /// Returns the command to repair the problem, if one exists.
    #[must_use]
    pub fn suggest_fix(&self) -> Option<String> {
        match self {
            Self::Exposed {
                path,
                required_mode,
                ..
            } => Some(format!("chmod {required_mode:o} {}", path.display())),
            Self::Malformed(path) => Some(format!("rm {}", path.display())),
            Self::Corrupt { fix, .. } => Some(fix.clone()),
            _ => None,
        }
    }
}

fn locked_message(pid: Option<u32>, url: Option<&str>) -> String {
    match (pid, url) {
        (Some(pid), Some(url)) => format!("bowline is already running (pid {pid}, {url})"),
        (Some(pid), None) => format!("bowline is already running (pid {pid})"),
        (None, _) => "bowline is already running and has not said where yet".to_owned(),
    }
}

/// Locates the state directory: `explicit`, else `$BOWLINE_STATE`, else the XDG state directory.
pub fn locate_state_dir(explicit: Option<&Path>, env: &EnvVars) -> Result<PathBuf, StateError> {
    let path = explicit
        .map(Path::to_owned)
        .or_else(|| env.path("BOWLINE_STATE"))
        .or_else(|| env.xdg_directory("XDG_STATE_HOME", ".local/state"))
        .ok_or(StateError::NoLocation)?;
    // The path is written into run.json and read from other working directories.
    std::path::absolute(&path).map_err(|source| StateError::Io {
        action: "resolve",
        path,
        source,
    })
}

impl StateDir {
    /// Opens the directory, creating it (mode 0700) when missing.
    pub fn open(path: PathBuf) -> Result<Self, StateError> {
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(|source| StateError::Io {
                action: "create",
                path: path.clone(),
                source,
            })?;
        }
        make_directory(&path)?;
        Ok(Self { path })
    }

    /// Opens a subdirectory in the same way.
    pub fn open_subdirectory(&self, name: &str) -> Result<PathBuf, StateError> {
        let path = self.file_path(name);
        make_directory(&path)?;
        Ok(path)
    }

    /// Returns the path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of a file inside.
    fn file_path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Returns the path of the owner token.
    #[must_use]
    pub fn token_file(&self) -> PathBuf {
        self.file_path("token")
    }

    /// Returns the path of the file with all issued tokens.
    #[must_use]
    pub fn tokens_file(&self) -> PathBuf {
        self.file_path("tokens.json")
    }

    /// Returns the path of the key that seals session ids.
    #[must_use]
    pub fn session_key_file(&self) -> PathBuf {
        self.file_path("session.key")
    }

    /// Returns the path of the file with ended sessions.
    #[must_use]
    pub fn ended_file(&self) -> PathBuf {
        self.file_path("ended.bin")
    }

    /// Returns the path of the file with the contexts of narrowed sessions.
    #[must_use]
    pub fn contexts_file(&self) -> PathBuf {
        self.file_path("contexts.json")
    }

    /// Returns the owner token, created at the first start.
    pub fn owner_token(&self) -> Result<OwnerCredential, StateError> {
        let path = self.token_file();
        private_file::create_once(&path, || Ok(format!("{}\n", new_token()?.expose()).into()))?;
        read_token(&path)
    }

    /// Returns the key that seals session ids, created at the first start.
    pub fn session_key(&self) -> Result<[u8; 32], StateError> {
        let path = self.session_key_file();
        private_file::create_once(&path, || Ok(random_bytes::<32>()?.to_vec()))?;
        let bytes =
            private_file::read_private(&path, 33)?.ok_or_else(|| missing_file_error(&path))?;
        <[u8; 32]>::try_from(bytes).map_err(|_bytes| StateError::Malformed(path))
    }

    /// Takes the gateway lock, or fails with the record of the gateway in place.
    pub fn lock_gateway(&self) -> Result<InstanceLock, StateError> {
        match self.try_lock("lock")? {
            Some(lock) => Ok(lock),
            None => {
                let run = read_run(&self.path).ok().flatten();
                let pid = run.as_ref().map(|run| run.pid);
                Err(StateError::Locked {
                    pid,
                    url: run.map(|run| run.url),
                })
            }
        }
    }

    /// Takes the lock for starting a gateway in the background; `None` while another process
    /// holds the lock.
    pub fn try_lock_start(&self) -> Result<Option<InstanceLock>, StateError> {
        self.try_lock("start.lock")
    }

    fn try_lock(&self, name: &str) -> Result<Option<InstanceLock>, StateError> {
        let path = self.file_path(name);
        let file = private_file::open_private(&path)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(InstanceLock { file })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(StateError::Io {
                action: "lock",
                path,
                source: error.into(),
            }),
        }
    }

    /// Waits for the lock of this name and takes it.
    pub(crate) fn wait_for_lock(&self, name: &str) -> Result<InstanceLock, StateError> {
        let path = self.file_path(name);
        let file = private_file::open_private(&path)?;
        match rustix::fs::flock(&file, FlockOperation::LockExclusive) {
            Ok(()) => Ok(InstanceLock { file }),
            Err(error) => Err(StateError::Io {
                action: "lock",
                path,
                source: error.into(),
            }),
        }
    }

    /// Opens a log file for appending, for a gateway in the background.
    pub fn open_log_file(&self, name: &str) -> Result<File, StateError> {
        private_file::open_private(&self.file_path(name))
    }

    /// Writes `run.json`. Readers see the old record or the new one, never a part.
    pub fn write_run(&self, run: &RunRecord) -> Result<(), StateError> {
        private_file::replace_file(&self.file_path("run.json"), &to_json_line(run)?)
    }

    /// Removes `run.json` at a clean stop.
    pub fn remove_run(&self) -> Result<(), StateError> {
        let path = self.file_path("run.json");
        match std::fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(StateError::Io {
                action: "remove",
                path,
                source,
            }),
            _ => Ok(()),
        }
    }
}

/// Reads the record of the gateway of a state directory, if its process is alive.
pub fn read_run(directory: &Path) -> Result<Option<RunRecord>, StateError> {
    match std::fs::symlink_metadata(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        _ => check_directory(directory)?,
    }
    let path = directory.join("run.json");
    let Some(bytes) = private_file::read_private(&path, RUN_BYTES_MAX)? else {
        return Ok(None);
    };
    let run: RunRecord =
        serde_json::from_slice(&bytes).map_err(|_error| StateError::Malformed(path))?;
    Ok(is_process_alive(run.pid).then_some(run))
}

/// Generates an owner token.
pub fn new_token() -> Result<OwnerCredential, StateError> {
    Ok(OwnerCredential(to_hex(
        &random_bytes::<OWNER_TOKEN_BYTES>()?
    )))
}

/// Returns a credential read from the file for every connection, so the file can be replaced.
#[must_use]
pub fn token_file_credential(file: &Path) -> CredentialSource {
    let file = file.to_owned();
    CredentialSource::from_fn(move || {
        let token = read_token(&file).map_err(io::Error::other)?;
        Ok(token.expose().to_owned())
    })
}

/// Reads a token file; a file readable by other users is refused.
pub fn read_token(path: &Path) -> Result<OwnerCredential, StateError> {
    let bytes = private_file::read_private(path, TOKEN_TEXT_BYTES_MAX)?
        .ok_or_else(|| missing_file_error(path))?;
    let text = String::from_utf8(bytes).map_err(|_bytes| StateError::Malformed(path.to_owned()))?;
    let text = text.trim_end_matches(['\n', '\r']);
    // The token becomes a header value, so only visible ASCII is valid.
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(StateError::Malformed(path.to_owned()));
    }
    Ok(OwnerCredential(text.to_owned()))
}

impl OwnerCredential {
    /// Returns the token text, for a header or a comparison.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for OwnerCredential {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("OwnerCredential(…)")
    }
}

fn missing_file_error(path: &Path) -> StateError {
    let source = io::ErrorKind::NotFound.into();
    StateError::Io {
        action: "read",
        path: path.to_owned(),
        source,
    }
}

fn make_directory(path: &Path) -> Result<(), StateError> {
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Err(source) if source.kind() != io::ErrorKind::AlreadyExists => Err(StateError::Io {
            action: "create",
            path: path.to_owned(),
            source,
        }),
        _ => check_directory(path),
    }
}

fn check_directory(path: &Path) -> Result<(), StateError> {
    let metadata = std::fs::symlink_metadata(path).map_err(|source| StateError::Io {
        action: "look at",
        path: path.to_owned(),
        source,
    })?;
    if metadata.is_symlink() {
        return Err(StateError::Symlink(path.to_owned()));
    }
    if !metadata.is_dir() {
        return Err(StateError::NotDirectory(path.to_owned()));
    }
    private_file::check_owner(path, &metadata)?;
    // Others may list names, since every file is private, but must not add or swap files.
    let mode = metadata.mode() & 0o777;
    if mode & 0o022 != 0 {
        return Err(StateError::Exposed {
            path: path.to_owned(),
            mode,
            required_mode: 0o700,
        });
    }
    Ok(())
}

fn is_process_alive(pid: u32) -> bool {
    let pid = i32::try_from(pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    pid.is_some_and(|pid| match rustix::process::test_kill_process(pid) {
        Ok(()) => true,
        Err(error) => error == rustix::io::Errno::PERM,
    })
}

/// Serializes a record as one line of JSON.
pub fn to_json_line(record: &impl Serialize) -> Result<Vec<u8>, StateError> {
    let mut text = serde_json::to_vec(record).map_err(StateError::Unwritable)?;
    text.push(b'\n');
    Ok(text)
}

pub fn random_bytes<const N: usize>() -> Result<[u8; N], StateError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(StateError::Random)?;
    Ok(bytes)
}

/// Decodes exactly `N` bytes from the output of [`hex`].
pub fn decode_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != N || !rest.is_empty() {
        return None;
    }
    let mut bytes = [0; N];
    for (to, pair) in bytes.iter_mut().zip(pairs) {
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        let [high, low] = *pair;
        *to = (digit(high)? << 4) | digit(low)?;
    }
    Some(bytes)
}
