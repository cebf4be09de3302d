//! Runs a program that prints a secret: no shell, minimal environment, deadline, bounded output.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bowline_core::redact::Redactor;
use bowline_host::spec::CHILD_ENV;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use zeroize::Zeroizing;

use super::{SecretValue, VALUE_BYTES_MAX, keychain};
use crate::EnvVars;

/// Maximum run time of a program.
const RUN_TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes of stderr kept for error messages.
const STDERR_BYTES_MAX: usize = 4 * 1024;

/// Environment variables needed to reach a desktop keychain.
const DESKTOP_ENV: [&str; 4] = [
    "DBUS_SESSION_BUS_ADDRESS",
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "XDG_RUNTIME_DIR",
];

/// Reason why a program produced no secret.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SecretProgramError {
    /// The program cannot be started.
    #[error("`{program}` cannot be started: {reason}")]
    Start {
        /// The program.
        program: String,
        /// The error of the operating system.
        reason: String,
    },
    /// The program exited with a failure.
    #[error("`{program}` ended with {status}{said}")]
    Failed {
        /// The program.
        program: String,
        /// The exit status.
        status: ExitStatus,
        /// The text on stderr, after a colon.
        said: String,
    },
    /// The program exceeded the deadline and was killed.
    #[error("`{0}` took longer than 30 s")]
    TimedOut(String),
    /// The output is too long or no UTF-8.
    #[error("`{0}` printed what is no text of at most 64 KiB")]
    BadOutput(String),
    /// The output is empty.
    #[error("it printed nothing")]
    Empty,
}

/// Fetches one secret by running a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SecretFetcher {
    /// A program named in the config file.
    Command(Arc<super::SecretProgram>),
    /// The keychain tool; `version` grows each time the secret is set.
    Keychain { name: Arc<str>, version: u64 },
}

/// Identity of a fetcher: equal keys yield the same secret.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum FetcherKey {
    Command(Arc<super::SecretProgram>),
    Keychain(Arc<str>),
}

impl SecretFetcher {
    pub(super) fn fetcher_key(&self) -> FetcherKey {
        match self {
            Self::Command(command) => FetcherKey::Command(Arc::clone(command)),
            Self::Keychain { name, .. } => FetcherKey::Keychain(Arc::clone(name)),
        }
    }

    /// Returns the version of the fetched secret.
    pub(super) const fn version(&self) -> u64 {
        match self {
            Self::Command(_) => 0,
            Self::Keychain { version, .. } => *version,
        }
    }

    /// Returns the maximum age of the output.
    pub(super) fn max_age(&self) -> Option<Duration> {
        match self {
            Self::Command(command) => Some(command.max_age),
            Self::Keychain { .. } => None,
        }
    }

    /// Runs the program and waits for its exit.
    pub(super) fn run(&self, env: &EnvVars) -> Result<SecretValue, SecretProgramError> {
        match self {
            Self::Command(command) => {
                let run = ProgramRun {
                    program: command.program.clone(),
                    args: command.args.iter().map(OsString::from).collect(),
                    directory: Some(command.directory.clone()),
                    input: SecretValue::default(),
                    part: OutputPart::Line,
                };
                run.run_blocking(env)
            }
            Self::Keychain { name, .. } => keychain::lookup_secret(name, env),
        }
    }
}

/// The relevant part of a program's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutputPart {
    /// The first line, trimmed.
    Line,
    /// The whole output.
    Whole,
    /// None: only the exit status counts.
    Exit,
}

/// One run of a program.
#[derive(Debug)]
pub(super) struct ProgramRun {
    pub(super) program: OsString,
    pub(super) args: Vec<OsString>,
    pub(super) directory: Option<PathBuf>,
    /// Written to stdin.
    pub(super) input: SecretValue,
    pub(super) part: OutputPart,
}

impl ProgramRun {
    /// Runs the program on a separate thread, since the caller may be inside a runtime.
    pub(super) fn run_blocking(self, env: &EnvVars) -> Result<SecretValue, SecretProgramError> {
        let name = self.program.display().to_string();
        let timed_out = || SecretProgramError::TimedOut(name.clone());
        let ran = std::thread::scope(|scope| {
            let run = scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .map_err(|error| SecretProgramError::Start {
                        program: name.clone(),
                        reason: error.to_string(),
                    })?;
                let running = async {
                    let running = self.run(env);
                    let ran = tokio::time::timeout(RUN_TIMEOUT, running).await;
                    ran.unwrap_or_else(|_| Err(timed_out()))
                };
                runtime.block_on(running)
            });
            run.join()
        });
        ran.unwrap_or_else(|_panicked| Err(timed_out()))
    }

    async fn run(&self, env: &EnvVars) -> Result<SecretValue, SecretProgramError> {
        let name = || self.program.display().to_string();
        let failed = |error: std::io::Error| SecretProgramError::Start {
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
        // Dropping the guard at the deadline also kills descendants of the program.
        let group = ProcessGroup::from_id(child.id());
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let input = async {
            if let Some(mut stdin) = stdin {
                // A program may exit without reading stdin, so a broken pipe is no error.
                let _ = stdin.write_all(self.input.as_bytes()).await;
            }
        };
        let ((), stdout, stderr) = tokio::join!(
            input,
            read_prefix(stdout, VALUE_BYTES_MAX + 1),
            read_prefix(stderr, STDERR_BYTES_MAX),
        );
        let status = child.wait().await.map_err(failed)?;
        drop(group);
        if !status.success() {
            // A keychain lookup without a match fails silently.
            if self.part == OutputPart::Whole && stderr.is_empty() && stdout.is_empty() {
                return Err(SecretProgramError::Empty);
            }
            return Err(SecretProgramError::Failed {
                program: name(),
                status,
                said: format_stderr(&stderr, &stdout),
            });
        }
        self.select_output(&stdout, name)
    }

    fn select_output(
        &self,
        stdout: &[u8],
        name: impl Fn() -> String,
    ) -> Result<SecretValue, SecretProgramError> {
        let part = match self.part {
            OutputPart::Exit => return Ok(SecretValue::default()),
            OutputPart::Whole => stdout,
            OutputPart::Line => {
                let line = stdout.split(|byte| *byte == b'\n').next();
                line.unwrap_or_default().trim_ascii()
            }
        };
        let text = std::str::from_utf8(part).map_err(|_| SecretProgramError::BadOutput(name()))?;
        match text.len() {
            0 => Err(SecretProgramError::Empty),
            1..=VALUE_BYTES_MAX => Ok(SecretValue::new(text.to_owned())),
            _ => Err(SecretProgramError::BadOutput(name())),
        }
    }
}

/// Reads a stream to its end and returns its first bytes.
async fn read_prefix(
    stream: Option<impl AsyncRead + Unpin>,
    bytes_max: usize,
) -> Zeroizing<Vec<u8>> {
    let mut prefix = Zeroizing::new(Vec::with_capacity(bytes_max));
    let Some(mut stream) = stream else {
        return prefix;
    };
    let mut chunk = Zeroizing::new([0; 4096]);
    while let Ok(length @ 1..) = stream.read(&mut chunk[..]).await {
        let room = bytes_max.saturating_sub(prefix.len());
        prefix.extend_from_slice(chunk.get(..length.min(room)).unwrap_or_default());
    }
    prefix
}

/// Formats stderr as one line, with the program's output redacted.
fn format_stderr(stderr: &[u8], stdout: &[u8]) -> String {
    let stderr = String::from_utf8_lossy(stderr);
    let stdout = Zeroizing::new(String::from_utf8_lossy(stdout).into_owned());
    let lines = stdout.lines().map(|line| ("its output", line.trim()));
    let redactor = Redactor::new(lines);
    let lines: Vec<_> = stderr.lines().map(str::trim).collect();
    let stderr = lines.join(" / ");
    match redactor.redact_text(&stderr) {
        stderr if stderr.is_empty() => String::new(),
        stderr => format!(": {stderr}"),
    }
}

/// The process group of a program, killed on drop.
struct ProcessGroup(Option<rustix::process::Pid>);

impl ProcessGroup {
    fn from_id(id: Option<u32>) -> Self {
        let id = id.and_then(|id| i32::try_from(id).ok());
        Self(id.and_then(rustix::process::Pid::from_raw))
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // Usually no process is left.
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
    }
}
