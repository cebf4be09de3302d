//! Runs a program that prints a secret: no shell, a bare environment, a deadline, a bound.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bowline_core::redact::Redactor;
use bowline_host::spec::CHILD_ENV;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use zeroize::Zeroizing;

use super::{VALUE_BYTES_MAX, Value, keychain};
use crate::config::Env;

/// How long a program may take.
const RUN_TIMEOUT: Duration = Duration::from_secs(30);

/// How much of what it writes to stderr is kept.
const STDERR_BYTES_MAX: usize = 4 * 1024;

/// Variables that lead to the keychain of a desktop.
const DESKTOP_ENV: [&str; 4] = [
    "DBUS_SESSION_BUS_ADDRESS",
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "XDG_RUNTIME_DIR",
];

/// Why a program gave no secret.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be started.
    #[error("`{program}` cannot be started: {reason}")]
    Start {
        /// The program.
        program: String,
        /// What the system said.
        reason: String,
    },
    /// It ended in failure.
    #[error("`{program}` ended with {status}{said}")]
    Failed {
        /// The program.
        program: String,
        /// How it ended.
        status: ExitStatus,
        /// What it wrote to stderr, after a colon.
        said: String,
    },
    /// It took too long and was ended.
    #[error("`{0}` took longer than 30 s")]
    Late(String),
    /// It printed too much, or no text.
    #[error("`{0}` printed what is no text of at most 64 KiB")]
    Odd(String),
    /// It printed nothing.
    #[error("it printed nothing")]
    Nothing,
}

/// A program that gives one secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Tool {
    /// One that the config file names.
    Command(Arc<super::Command>),
    /// The keychain's own; a secret that is set again has another version.
    Keychain { name: Arc<str>, version: u64 },
}

/// What tells tools apart: those with the same one give the same secret.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Command(Arc<super::Command>),
    Keychain(Arc<str>),
}

impl Tool {
    pub(super) fn key(&self) -> Key {
        match self {
            Self::Command(command) => Key::Command(Arc::clone(command)),
            Self::Keychain { name, .. } => Key::Keychain(Arc::clone(name)),
        }
    }

    /// Returns which version of the secret it gives.
    pub(super) const fn version(&self) -> u64 {
        match self {
            Self::Command(_) => 0,
            Self::Keychain { version, .. } => *version,
        }
    }

    /// Returns how old its output may become.
    pub(super) fn every(&self) -> Option<Duration> {
        match self {
            Self::Command(command) => Some(command.every),
            Self::Keychain { .. } => None,
        }
    }

    /// Runs it and waits for its end.
    pub(super) fn run(&self, env: &Env) -> Result<Value, Error> {
        match self {
            Self::Command(command) => {
                let run = Run {
                    program: command.program.clone(),
                    args: command.args.iter().map(OsString::from).collect(),
                    directory: Some(command.directory.clone()),
                    input: Value::default(),
                    wants: Wants::Line,
                };
                run.wait(env)
            }
            Self::Keychain { name, .. } => keychain::lookup(name, env),
        }
    }
}

/// Which part of what is printed is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wants {
    /// The first line, without space around it.
    Line,
    /// All of it.
    Whole,
    /// None: only its exit counts.
    Exit,
}

/// One run of a program.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) program: OsString,
    pub(super) args: Vec<OsString>,
    pub(super) directory: Option<PathBuf>,
    /// What it reads.
    pub(super) input: Value,
    pub(super) wants: Wants,
}

impl Run {
    /// Runs it on a thread of its own, since whoever asks may be inside a runtime.
    pub(super) fn wait(self, env: &Env) -> Result<Value, Error> {
        let name = self.program.display().to_string();
        let late = || Error::Late(name.clone());
        let ran = std::thread::scope(|scope| {
            let run = scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .map_err(|error| Error::Start {
                        program: name.clone(),
                        reason: error.to_string(),
                    })?;
                let running = async {
                    let running = self.run(env);
                    let ran = tokio::time::timeout(RUN_TIMEOUT, running).await;
                    ran.unwrap_or_else(|_| Err(late()))
                };
                runtime.block_on(running)
            });
            run.join()
        });
        ran.unwrap_or_else(|_panicked| Err(late()))
    }

    async fn run(&self, env: &Env) -> Result<Value, Error> {
        let name = || self.program.display().to_string();
        let failed = |error: std::io::Error| Error::Start {
            program: name(),
            reason: error.to_string(),
        };
        let names = CHILD_ENV.iter().chain(&DESKTOP_ENV).copied();
        let mut command = tokio::process::Command::new(&self.program);
        command
            .args(&self.args)
            .env_clear()
            .envs(names.filter_map(|name| Some((name, env.raw(name)?))))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        let mut child = command.spawn().map_err(failed)?;
        // Dropped at the deadline, it ends what the program itself started too.
        let group = Group::of(child.id());
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let input = async {
            if let Some(mut stdin) = stdin {
                // A program need not read; then the pipe breaks, which is its affair.
                let _ = stdin.write_all(self.input.as_bytes()).await;
            }
        };
        let ((), printed, said) = tokio::join!(
            input,
            start(stdout, VALUE_BYTES_MAX + 1),
            start(stderr, STDERR_BYTES_MAX),
        );
        let status = child.wait().await.map_err(failed)?;
        drop(group);
        if !status.success() {
            // A lookup that finds nothing fails without a word.
            if self.wants == Wants::Whole && said.is_empty() && printed.is_empty() {
                return Err(Error::Nothing);
            }
            return Err(Error::Failed {
                program: name(),
                status,
                said: told(&said, &printed),
            });
        }
        self.wanted(&printed, name)
    }

    fn wanted(&self, printed: &[u8], name: impl Fn() -> String) -> Result<Value, Error> {
        let part = match self.wants {
            Wants::Exit => return Ok(Value::default()),
            Wants::Whole => printed,
            Wants::Line => {
                let line = printed.split(|byte| *byte == b'\n').next();
                line.unwrap_or_default().trim_ascii()
            }
        };
        let text = std::str::from_utf8(part).map_err(|_| Error::Odd(name()))?;
        match text.len() {
            0 => Err(Error::Nothing),
            1..=VALUE_BYTES_MAX => Ok(Value::new(text.to_owned())),
            _ => Err(Error::Odd(name())),
        }
    }
}

/// Reads a stream to its end and keeps its beginning.
async fn start(stream: Option<impl AsyncRead + Unpin>, bytes_max: usize) -> Zeroizing<Vec<u8>> {
    let mut kept = Zeroizing::new(Vec::with_capacity(bytes_max));
    let Some(mut stream) = stream else {
        return kept;
    };
    let mut chunk = Zeroizing::new([0; 4096]);
    while let Ok(length @ 1..) = stream.read(&mut chunk[..]).await {
        let room = bytes_max.saturating_sub(kept.len());
        kept.extend_from_slice(chunk.get(..length.min(room)).unwrap_or_default());
    }
    kept
}

/// Returns what a program wrote to stderr, in one line and without what it printed.
fn told(said: &[u8], printed: &[u8]) -> String {
    let said = String::from_utf8_lossy(said);
    let printed = Zeroizing::new(String::from_utf8_lossy(printed).into_owned());
    let lines = printed.lines().map(|line| ("its output", line.trim()));
    let cleaned = Redactor::new(lines);
    let lines: Vec<_> = said.lines().map(str::trim).collect();
    let said = lines.join(" / ");
    match cleaned.clean(&said) {
        said if said.is_empty() => String::new(),
        said => format!(": {said}"),
    }
}

/// The process group of a program; dropped, it is ended.
struct Group(Option<rustix::process::Pid>);

impl Group {
    fn of(id: Option<u32>) -> Self {
        let id = id.and_then(|id| i32::try_from(id).ok());
        Self(id.and_then(rustix::process::Pid::from_raw))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // Mostly there is nobody left.
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
    }
}
