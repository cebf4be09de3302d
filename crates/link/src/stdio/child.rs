//! The process of a server, from its start to the last of its descendants.

use std::ffi::OsStr;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tokio::process::{ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::time::{Instant, timeout};

use super::process::{Identity, Process, Spawn, Streams};
use super::tree::Tree;
use super::{ConnectError, StdioLimits, StdioSpec};
use crate::limits::{ChildLimits, EXIT_OVER_MEMORY, EXIT_OVER_PROCESSES, EXIT_PROGRAM_NOT_FOUND};
use crate::link::{BoxFuture, Exit};
#[cfg(target_os = "linux")]
use crate::marks;
use crate::marks::{MARK_VARIABLE, Mark};
use crate::processes::Processes;
use crate::sandbox::{FsAccess, FsGrant, Level, Sandbox};

/// A killed tree is gone within this time, or the reaper itself is stuck.
const KILL_GRACE: Duration = Duration::from_secs(2);

/// A running process; dropped, it is killed with all it started.
#[derive(Debug)]
pub struct Child {
    process: tokio::process::Child,
    tree: Arc<Tree>,
    limits: ChildLimits,
    /// What all that it starts carries.
    mark: Mark,
}

impl Child {
    /// Starts the program of a server, under its reaper where there is one.
    async fn start(spec: &StdioSpec) -> Result<Self, ConnectError> {
        let failed = |source| ConnectError::Spawn {
            server: spec.server.clone(),
            command: spec.command.to_string_lossy().into_owned(),
            source,
        };
        // The system would say the same words as for a missing program.
        if let Some(cwd) = spec.cwd.as_deref().filter(|cwd| !cwd.is_dir()) {
            return Err(failed(no_directory(cwd)));
        }
        let mark = Mark::new(spec.instance.as_ref()).map_err(failed)?;
        let mut command = match &spec.reaper {
            Some(reaper) => {
                let mut command = Command::new(&reaper.program);
                command.args(&reaper.args);
                command.arg(std::process::id().to_string());
                command.args(spec.child_limits.in_force().words());
                command.args(sandbox_of(spec).words());
                command.arg(mark.word()).arg("--");
                command.arg(&spec.command);
                command
            }
            None if spec.sandbox.level == Level::Strict => return Err(failed(no_reaper())),
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
            // A reaper that is killed outright leaves orphans; the tree is told instead.
            .kill_on_drop(spec.reaper.is_none());
        let started = match &spec.launcher {
            Some(launcher) if spec.reaper.is_some() && spec.sandbox.closes_ports() => {
                launcher.start(command).await
            }
            _ => command.spawn(),
        };
        let process = started.map_err(|source| match (source.kind(), &spec.reaper) {
            // The directory exists, so it is the program that does not.
            (io::ErrorKind::NotFound, None) => ConnectError::ProgramNotFound {
                server: spec.server.clone(),
                stderr_tail: vec![command_not_found(&spec.command).into()],
            },
            _ => failed(source),
        })?;
        let tree = Tree::new(process.id(), spec.reaper.is_some());
        let tree = Arc::new(tree.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?);
        Ok(Self {
            process,
            tree,
            limits: spec.child_limits.in_force(),
            mark,
        })
    }

    fn exit(&self, status: &io::Result<ExitStatus>) -> Exit {
        let Ok(status) = status else {
            return Exit::Gone;
        };
        self.tree.gone(status.signal().is_some());
        match (status.code(), status.signal()) {
            // How a shell, and our reaper, pass on a signal.
            (Some(code @ 129..=192), _) if self.tree.has_reaper() => Exit::Signal(code - 128),
            (Some(code), _) if self.tree.has_reaper() => self.reaped(code),
            (Some(code), _) => Exit::Status(code),
            (None, Some(signal)) => Exit::Signal(signal),
            (None, None) => Exit::Gone,
        }
    }
}

impl Child {
    /// Ends what a killed reaper left: processes that moved to other groups are found by their
    /// mark alone.
    #[cfg(target_os = "linux")]
    async fn end_orphans(&self, status: &io::Result<ExitStatus>) {
        let is_killed = |status: &ExitStatus| status.signal().is_some();
        if self.tree.has_reaper() && status.as_ref().is_ok_and(is_killed) {
            let mark = self.mark.clone();
            let ending = tokio::task::spawn_blocking(move || marks::end_marked(&mark));
            if let Ok(ended) = ending.await {
                tracing::warn!(found = ended.found, left = ended.left, "reaper was killed");
            }
        }
    }

    #[cfg(not(target_os = "linux"))]
    async fn end_orphans(&self, _status: &io::Result<ExitStatus>) {}

    /// Reads what a reaper says with its exit code.
    fn reaped(&self, code: i32) -> Exit {
        let limits = &self.limits;
        match (
            u8::try_from(code),
            limits.memory_bytes_max,
            limits.processes_max,
        ) {
            (Ok(EXIT_OVER_MEMORY), Some(bytes_max), _) => Exit::OverMemory { bytes_max },
            (Ok(EXIT_OVER_PROCESSES), _, Some(processes_max)) => {
                Exit::OverProcesses { processes_max }
            }
            (Ok(EXIT_PROGRAM_NOT_FOUND), _, _) => Exit::ProgramNotFound,
            _ => Exit::Status(code),
        }
    }
}

impl StdioSpec {
    /// Starts the program, under its reaper where there is one.
    ///
    /// # Errors
    /// The process cannot be made.
    pub async fn start(&self) -> Result<Child, ConnectError> {
        Child::start(self).await
    }
}

impl Spawn for StdioSpec {
    type Process = Child;

    fn spawn(&self, _deadline: Instant) -> BoxFuture<'_, Result<Child, ConnectError>> {
        Box::pin(self.start())
    }
}

impl Process for Child {
    type Stdin = ChildStdin;
    type Stdout = ChildStdout;
    type Stderr = ChildStderr;

    fn streams(&mut self) -> Streams<ChildStdin, ChildStdout, ChildStderr> {
        Streams {
            stdin: self.process.stdin.take(),
            stdout: self.process.stdout.take(),
            stderr: self.process.stderr.take(),
        }
    }

    fn identity(&self) -> Arc<dyn Identity> {
        Arc::clone(&self.tree) as Arc<dyn Identity>
    }

    async fn wait(&mut self) -> Exit {
        let status = self.process.wait().await;
        let exit = self.exit(&status);
        self.end_orphans(&status).await;
        exit
    }

    async fn stop(&mut self, limits: StdioLimits) -> Option<Exit> {
        if let Ok(exit) = timeout(limits.stop_stdin, self.wait()).await {
            return Some(exit);
        }
        self.tree.terminate();
        timeout(limits.stop_term, self.wait()).await.ok()
    }

    async fn kill(&mut self) -> Exit {
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

impl Identity for Tree {
    fn pid(&self) -> u32 {
        self.server_pid()
    }

    fn processes(&self) -> Option<Processes> {
        Some(self.below())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.tree.kill();
    }
}

/// The working directory is granted where the entry names it.
fn sandbox_of(spec: &StdioSpec) -> Sandbox {
    let mut sandbox = spec.sandbox.clone();
    sandbox.fs.extend(spec.cwd.clone().map(|path| FsGrant {
        path,
        access: FsAccess::ReadWrite,
    }));
    sandbox
}

/// What a reaper writes to stderr where the program does not exist.
pub(crate) fn command_not_found(command: &OsStr) -> String {
    format!("command not found: {}", command.to_string_lossy())
}

fn no_reaper() -> io::Error {
    let text = "there is no sandbox without a reaper, and `strict` asks for one";
    io::Error::new(io::ErrorKind::Unsupported, text)
}

fn no_directory(cwd: &Path) -> io::Error {
    let text = format!("the directory `{}` does not exist", cwd.display());
    io::Error::new(io::ErrorKind::NotFound, text)
}
