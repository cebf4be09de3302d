//! A child process of a server, from the start to the end of the last descendant.

use std::ffi::OsStr;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bowline_core::BoxFuture;
use tokio::process::{ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::time::{Instant, timeout};

use super::process_tree::ProcessTree;
use super::server_process::{ProcessIdentity, ProcessSpawner, ProcessStreams, ServerProcess};
use super::{LinkConnectError, StdioLimits, StdioSpec};
use crate::child_limits::{
    ChildLimits, EXIT_OVER_MEMORY, EXIT_OVER_PROCESSES, EXIT_PROGRAM_NOT_FOUND,
};
use crate::link::LinkExit;
#[cfg(target_os = "linux")]
use crate::process_mark;
use crate::process_mark::{MARK_VARIABLE, ProcessMark};
use crate::process_usage::ProcessSet;
use crate::sandbox::{FsAccess, FsGrant, SandboxLevel, SandboxPolicy};

/// A killed tree ends within this time; otherwise the reaper is stuck.
const KILL_GRACE: Duration = Duration::from_secs(2);

/// A running child process; a drop kills the process tree.
#[derive(Debug)]
pub struct ChildProcess {
    process: tokio::process::Child,
    tree: Arc<ProcessTree>,
    limits: ChildLimits,
    /// Mark of all descendants.
    mark: ProcessMark,
}

impl ChildProcess {
    /// Starts the program of a server, under a reaper if configured.
    async fn start(spec: &StdioSpec) -> Result<Self, LinkConnectError> {
        let failed = |source| LinkConnectError::Spawn {
            server: spec.server.clone(),
            command: spec.command.to_string_lossy().into_owned(),
            source,
        };
        // The system reports the same error as for a missing program.
        if let Some(cwd) = spec.cwd.as_deref().filter(|cwd| !cwd.is_dir()) {
            return Err(failed(missing_directory_error(cwd)));
        }
        let mark = ProcessMark::new(spec.instance.as_ref()).map_err(failed)?;
        let mut command = match &spec.reaper {
            Some(reaper) => {
                let mut command = Command::new(&reaper.program);
                command.args(&reaper.args);
                command.arg(std::process::id().to_string());
                command.args(spec.child_limits.with_defaults().to_args());
                command.args(effective_sandbox(spec).to_args());
                command.arg(mark.to_arg()).arg("--");
                command.arg(&spec.command);
                command
            }
            None if spec.sandbox.level == SandboxLevel::Strict => {
                return Err(failed(no_reaper_error()));
            }
            None => Command::new(&spec.command),
        };
        command.args(&spec.args).env_clear();
        command.envs(spec.env.iter().map(|(name, value)| (name, value)));
        if spec.reaper.is_none() {
            command.env(MARK_VARIABLE, mark.value());
        }
        if let Some(cwd) = &spec.cwd {
            command.current_dir(cwd);
        }
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            // A killed reaper would leave orphans, so the tree signals the reaper instead.
            .kill_on_drop(spec.reaper.is_none());
        let started = match &spec.launcher {
            Some(launcher) if spec.reaper.is_some() && spec.sandbox.denies_gateway_ports() => {
                launcher.start_reaper(command).await
            }
            _ => command.spawn(),
        };
        let process = started.map_err(|source| match (source.kind(), &spec.reaper) {
            // The directory exists, so the program is missing.
            (io::ErrorKind::NotFound, None) => LinkConnectError::ProgramNotFound {
                server: spec.server.clone(),
                stderr_tail: vec![command_not_found_text(&spec.command).into()],
            },
            _ => failed(source),
        })?;
        let tree = ProcessTree::new(process.id(), spec.reaper.is_some());
        let tree = Arc::new(tree.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?);
        Ok(Self {
            process,
            tree,
            limits: spec.child_limits.with_defaults(),
            mark,
        })
    }

    fn to_exit(&self, status: &io::Result<ExitStatus>) -> LinkExit {
        let Ok(status) = status else {
            return LinkExit::Gone;
        };
        self.tree.mark_gone(status.signal().is_some());
        match (status.code(), status.signal()) {
            // Shells and our reaper encode a signal like this.
            (Some(code @ 129..=192), _) if self.tree.has_reaper() => LinkExit::Signal(code - 128),
            (Some(code), _) if self.tree.has_reaper() => self.decode_reaper_exit(code),
            (Some(code), _) => LinkExit::Status(code),
            (None, Some(signal)) => LinkExit::Signal(signal),
            (None, None) => LinkExit::Gone,
        }
    }
}

impl ChildProcess {
    /// Ends the orphans of a killed reaper: processes in different groups are found only by their
    /// mark.
    #[cfg(target_os = "linux")]
    async fn end_orphans(&self, status: &io::Result<ExitStatus>) {
        let is_killed = |status: &ExitStatus| status.signal().is_some();
        if self.tree.has_reaper() && status.as_ref().is_ok_and(is_killed) {
            let mark = self.mark.clone();
            let ending =
                tokio::task::spawn_blocking(move || process_mark::end_marked_processes(&mark));
            if let Ok(report) = ending.await {
                tracing::warn!(
                    found = report.found,
                    left = report.left,
                    "reaper was killed"
                );
            }
        }
    }

    #[cfg(not(target_os = "linux"))]
    async fn end_orphans(&self, _status: &io::Result<ExitStatus>) {}

    /// Decodes the exit code of a reaper.
    fn decode_reaper_exit(&self, code: i32) -> LinkExit {
        let limits = &self.limits;
        match (
            u8::try_from(code),
            limits.memory_bytes_max,
            limits.processes_max,
        ) {
            (Ok(EXIT_OVER_MEMORY), Some(bytes_max), _) => LinkExit::OverMemory { bytes_max },
            (Ok(EXIT_OVER_PROCESSES), _, Some(processes_max)) => {
                LinkExit::OverProcesses { processes_max }
            }
            (Ok(EXIT_PROGRAM_NOT_FOUND), _, _) => LinkExit::ProgramNotFound,
            _ => LinkExit::Status(code),
        }
    }
}

impl StdioSpec {
    /// Starts the program, under a reaper if configured.
    ///
    /// # Errors
    /// The process cannot be started.
    pub async fn start(&self) -> Result<ChildProcess, LinkConnectError> {
        ChildProcess::start(self).await
    }
}

impl ProcessSpawner for StdioSpec {
    type ServerProcess = ChildProcess;

    fn spawn(&self, _deadline: Instant) -> BoxFuture<'_, Result<ChildProcess, LinkConnectError>> {
        Box::pin(self.start())
    }
}

impl ServerProcess for ChildProcess {
    type RemoteStdin = ChildStdin;
    type RemoteStdout = ChildStdout;
    type RemoteStderr = ChildStderr;

    fn take_streams(&mut self) -> ProcessStreams<ChildStdin, ChildStdout, ChildStderr> {
        ProcessStreams {
            stdin: self.process.stdin.take(),
            stdout: self.process.stdout.take(),
            stderr: self.process.stderr.take(),
        }
    }

    fn identity(&self) -> Arc<dyn ProcessIdentity> {
        Arc::clone(&self.tree) as Arc<dyn ProcessIdentity>
    }

    async fn wait(&mut self) -> LinkExit {
        let status = self.process.wait().await;
        let exit = self.to_exit(&status);
        self.end_orphans(&status).await;
        exit
    }

    async fn stop(&mut self, limits: StdioLimits) -> Option<LinkExit> {
        if let Ok(exit) = timeout(limits.stop_stdin, self.wait()).await {
            return Some(exit);
        }
        self.tree.terminate();
        timeout(limits.stop_term, self.wait()).await.ok()
    }

    async fn kill(&mut self) -> LinkExit {
        self.tree.kill();
        match timeout(KILL_GRACE, self.wait()).await {
            Ok(exit) => exit,
            Err(_) => {
                let _ = self.process.start_kill();
                self.wait().await
            }
        }
    }
}

impl ProcessIdentity for ProcessTree {
    fn pid(&self) -> u32 {
        self.server_pid()
    }

    fn processes(&self) -> Option<ProcessSet> {
        Some(self.process_set())
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.tree.kill();
    }
}

/// Returns the sandbox policy with access to the configured working directory.
fn effective_sandbox(spec: &StdioSpec) -> SandboxPolicy {
    let mut sandbox = spec.sandbox.clone();
    sandbox.fs.extend(spec.cwd.clone().map(|path| FsGrant {
        path,
        access: FsAccess::ReadWrite,
    }));
    sandbox
}

/// Returns the stderr text of a reaper for a missing program.
pub(crate) fn command_not_found_text(command: &OsStr) -> String {
    format!("command not found: {}", command.to_string_lossy())
}

fn no_reaper_error() -> io::Error {
    let text = "there is no sandbox without a reaper, and `strict` asks for one";
    io::Error::new(io::ErrorKind::Unsupported, text)
}

fn missing_directory_error(cwd: &Path) -> io::Error {
    let text = format!("the directory `{}` does not exist", cwd.display());
    io::Error::new(io::ErrorKind::NotFound, text)
}
