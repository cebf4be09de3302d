//! The state directory: token, session key, lock, and where the running gateway is.

pub(crate) mod file;
mod instances;

#[cfg(test)]
mod tests;

use std::fmt;
use std::fs::File;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

pub(crate) use bowline_core::hex::hex;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::config::Env;

/// Random bytes of a token, which is written as twice as many hex digits.
const TOKEN_BYTES: usize = 32;
/// Largest `run.json`.
const RUN_BYTES_MAX: u64 = 64 * 1024;
/// Longest token text that is read, from whatever source it comes.
const TOKEN_TEXT_BYTES_MAX: u64 = 4096;

/// A directory that belongs to us and that only we may write.
#[derive(Clone, Debug)]
pub struct State {
    path: PathBuf,
}

/// The owner's credential. Debug output hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

/// What a running gateway tells others about itself, in `run.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Version of this record.
    pub v: u32,
    /// Process id of the gateway.
    pub pid: u32,
    /// When it began to serve, in milliseconds since the epoch.
    pub started_at_ms: u64,
    /// Base of all its addresses, without a slash at the end.
    pub url: String,
    /// Where MCP clients connect.
    pub mcp: String,
    /// Where the owner's token is.
    pub token_file: PathBuf,
}

/// Held as long as this process is the one gateway of its state directory.
#[derive(Debug)]
pub struct Lock {
    file: File,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing is not enough: a child that is just being started may hold a copy of the file
        // until it runs its own program. Failing, the close that follows is the next best thing.
        let _unlocked = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

/// Why the state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Neither a flag nor the environment says where state should be.
    #[error("no state directory is known: set --state, BOWLINE_STATE or HOME")]
    Homeless,
    /// An operation of the file system failed.
    #[error("cannot {action} `{path}`")]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A link could point anywhere tomorrow.
    #[error("`{0}` is a symbolic link")]
    Symlink(PathBuf),
    /// It is a file, or something else again.
    #[error("`{0}` is not a directory")]
    NotDirectory(PathBuf),
    /// Another user could change it under us.
    #[error("`{0}` belongs to another user")]
    Foreign(PathBuf),
    /// Others may read a secret, or write where secrets are.
    #[error("`{path}` is open to other users (mode {mode:03o})")]
    Exposed {
        /// The file or directory.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
        /// Those it must have.
        wanted: u32,
    },
    /// A file that we wrote does not hold what we wrote.
    #[error("`{0}` does not hold what it should")]
    Malformed(PathBuf),
    /// A file that must be believed whole cannot be.
    #[error("`{path}` does not hold what it should: {reason}")]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
        /// The way out, and what it costs.
        fix: String,
    },
    /// A record cannot be put into words.
    #[error("a record cannot be written as JSON")]
    Unwritable(#[source] serde_json::Error),
    /// The kernel gives no random bytes.
    #[error("no random bytes from the system: {0}")]
    Random(getrandom::Error),
    /// Another gateway uses this directory.
    #[error("{}", locked(*pid, url.as_deref()))]
    Locked {
        /// Its process, when it has said so.
        pid: Option<u32>,
        /// Its address, when it has said so.
        url: Option<String>,
    },
}

impl Error {
    /// The command that mends it, when there is one.
    #[must_use]
    pub fn fix(&self) -> Option<String> {
        match self {
            Self::Exposed { path, wanted, .. } => {
                Some(format!("chmod {wanted:o} {}", path.display()))
            }
            Self::Malformed(path) => Some(format!("rm {}", path.display())),
            Self::Corrupt { fix, .. } => Some(fix.clone()),
            _ => None,
        }
    }
}

fn locked(pid: Option<u32>, url: Option<&str>) -> String {
    match (pid, url) {
        (Some(pid), Some(url)) => format!("bowline is already running (pid {pid}, {url})"),
        (Some(pid), None) => format!("bowline is already running (pid {pid})"),
        (None, _) => "bowline is already running and has not said where yet".to_owned(),
    }
}

/// `explicit`, else `$BOWLINE_STATE`, else `$XDG_STATE_HOME/bowline` or its usual place.
pub fn locate(explicit: Option<&Path>, env: &Env) -> Result<PathBuf, Error> {
    let path = explicit
        .map(Path::to_owned)
        .or_else(|| env.path("BOWLINE_STATE"))
        .or_else(|| env.directory("XDG_STATE_HOME", ".local/state"))
        .ok_or(Error::Homeless)?;
    // The path is written into run.json and read from other directories.
    std::path::absolute(&path).map_err(|source| Error::Io {
        action: "resolve",
        path,
        source,
    })
}

impl State {
    /// Opens the directory, making it (mode 0700) when it is missing.
    pub fn open(path: PathBuf) -> Result<Self, Error> {
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(|source| Error::Io {
                action: "create",
                path: path.clone(),
                source,
            })?;
        }
        make_directory(&path)?;
        Ok(Self { path })
    }

    /// A directory inside, made likewise.
    pub(crate) fn directory(&self, name: &str) -> Result<PathBuf, Error> {
        let path = self.join(name);
        make_directory(&path)?;
        Ok(path)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A file inside.
    fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The owner's token file.
    #[must_use]
    pub fn token_file(&self) -> PathBuf {
        self.join("token")
    }

    /// The file of all other tokens.
    #[must_use]
    pub fn tokens_file(&self) -> PathBuf {
        self.join("tokens.json")
    }

    /// The file of the key that seals session ids.
    #[must_use]
    pub fn session_key_file(&self) -> PathBuf {
        self.join("session.key")
    }

    /// The file of the sessions that were ended.
    #[must_use]
    pub fn ended_file(&self) -> PathBuf {
        self.join("ended.bin")
    }

    /// The file of what sessions are narrowed by.
    #[must_use]
    pub fn contexts_file(&self) -> PathBuf {
        self.join("contexts.json")
    }

    /// The owner's token, made at the first start.
    pub fn token(&self) -> Result<Token, Error> {
        let path = self.token_file();
        file::create_once(&path, || Ok(format!("{}\n", new_token()?.expose()).into()))?;
        read_token(&path)
    }

    /// The key that seals session ids, made at the first start.
    pub fn session_key(&self) -> Result<[u8; 32], Error> {
        let path = self.session_key_file();
        file::create_once(&path, || Ok(random::<32>()?.to_vec()))?;
        let bytes = file::read_private(&path, 33)?.ok_or_else(|| missing(&path))?;
        <[u8; 32]>::try_from(bytes).map_err(|_bytes| Error::Malformed(path))
    }

    /// Becomes the one gateway of this directory, or says which one is.
    pub fn lock(&self) -> Result<Lock, Error> {
        match self.flock("lock")? {
            Some(lock) => Ok(lock),
            None => {
                let run = read_run(&self.path).ok().flatten();
                let pid = run.as_ref().map(|run| run.pid);
                Err(Error::Locked {
                    pid,
                    url: run.map(|run| run.url),
                })
            }
        }
    }

    /// Becomes the one that starts a gateway in the background; nothing while another does.
    pub fn starter(&self) -> Result<Option<Lock>, Error> {
        self.flock("start.lock")
    }

    fn flock(&self, name: &str) -> Result<Option<Lock>, Error> {
        let path = self.join(name);
        let file = file::open_private(&path)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Lock { file })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(Error::Io {
                action: "lock",
                path,
                source: error.into(),
            }),
        }
    }

    /// Waits until nobody else holds the lock of this name, and holds it.
    pub(crate) fn wait_for(&self, name: &str) -> Result<Lock, Error> {
        let path = self.join(name);
        let file = file::open_private(&path)?;
        match rustix::fs::flock(&file, FlockOperation::LockExclusive) {
            Ok(()) => Ok(Lock { file }),
            Err(error) => Err(Error::Io {
                action: "lock",
                path,
                source: error.into(),
            }),
        }
    }

    /// A file of log lines that is appended to, for a gateway in the background.
    pub fn append(&self, name: &str) -> Result<File, Error> {
        file::open_private(&self.join(name))
    }

    /// Says where the gateway is. Readers see the old record or the new one, never a part.
    pub fn write_run(&self, run: &Run) -> Result<(), Error> {
        file::replace(&self.join("run.json"), &json(run)?)
    }

    /// Takes the record back at a clean stop.
    pub fn remove_run(&self) -> Result<(), Error> {
        let path = self.join("run.json");
        match std::fs::remove_file(&path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => Err(Error::Io {
                action: "remove",
                path,
                source,
            }),
            _ => Ok(()),
        }
    }
}

/// The gateway of a state directory: what `run.json` says, if its process still lives.
pub fn read_run(directory: &Path) -> Result<Option<Run>, Error> {
    match std::fs::symlink_metadata(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        _ => check_directory(directory)?,
    }
    let path = directory.join("run.json");
    let Some(bytes) = file::read_private(&path, RUN_BYTES_MAX)? else {
        return Ok(None);
    };
    let run: Run = serde_json::from_slice(&bytes).map_err(|_error| Error::Malformed(path))?;
    Ok(is_alive(run.pid).then_some(run))
}

/// Makes a token of an owner.
pub(crate) fn new_token() -> Result<Token, Error> {
    Ok(Token(hex(&random::<TOKEN_BYTES>()?)))
}

/// Reads a token file; one that others may read is refused.
pub fn read_token(path: &Path) -> Result<Token, Error> {
    let bytes = file::read_private(path, TOKEN_TEXT_BYTES_MAX)?.ok_or_else(|| missing(path))?;
    let text = String::from_utf8(bytes).map_err(|_bytes| Error::Malformed(path.to_owned()))?;
    let text = text.trim_end_matches(['\n', '\r']);
    // It becomes the value of a header, and header values are visible ASCII.
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Error::Malformed(path.to_owned()));
    }
    Ok(Token(text.to_owned()))
}

impl Token {
    /// The text itself, for a header or a comparison.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Token(…)")
    }
}

fn missing(path: &Path) -> Error {
    let source = std::io::ErrorKind::NotFound.into();
    Error::Io {
        action: "read",
        path: path.to_owned(),
        source,
    }
}

fn make_directory(path: &Path) -> Result<(), Error> {
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Err(source) if source.kind() != std::io::ErrorKind::AlreadyExists => Err(Error::Io {
            action: "create",
            path: path.to_owned(),
            source,
        }),
        _ => check_directory(path),
    }
}

fn check_directory(path: &Path) -> Result<(), Error> {
    let metadata = std::fs::symlink_metadata(path).map_err(|source| Error::Io {
        action: "look at",
        path: path.to_owned(),
        source,
    })?;
    if metadata.is_symlink() {
        return Err(Error::Symlink(path.to_owned()));
    }
    if !metadata.is_dir() {
        return Err(Error::NotDirectory(path.to_owned()));
    }
    file::check_owner(path, &metadata)?;
    // Others may look at the names, for every file is private; they may not add or swap any.
    let mode = metadata.mode() & 0o777;
    if mode & 0o022 != 0 {
        return Err(Error::Exposed {
            path: path.to_owned(),
            mode,
            wanted: 0o700,
        });
    }
    Ok(())
}

fn is_alive(pid: u32) -> bool {
    let pid = i32::try_from(pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    pid.is_some_and(|pid| match rustix::process::test_kill_process(pid) {
        Ok(()) => true,
        Err(error) => error == rustix::io::Errno::PERM,
    })
}

/// Writes a record as one line of JSON.
pub(crate) fn json(record: &impl Serialize) -> Result<Vec<u8>, Error> {
    let mut text = serde_json::to_vec(record).map_err(Error::Unwritable)?;
    text.push(b'\n');
    Ok(text)
}

pub(crate) fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(Error::Random)?;
    Ok(bytes)
}

/// Reads what [`hex`] wrote of so many bytes.
pub(crate) fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
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
