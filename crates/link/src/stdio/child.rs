//! The process of a server, from its start to the last of its descendants.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tokio::process::Command;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::tree::Tree;
use super::{ConnectError, StdioLimits, StdioSpec};
use crate::limits::{ChildLimits, EXIT_OVER_MEMORY, EXIT_OVER_PROCESSES};
use crate::link::Exit;
use crate::peer::{Peer, Stop};

/// A process whose streams have ended is expected to go within this time.
const EXIT_GRACE: Duration = Duration::from_millis(500);

/// What a gone process has left in its pipes is read within this time.
const DRAIN_GRACE: Duration = Duration::from_millis(500);

/// A killed tree is gone within this time, or the reaper itself is stuck.
const KILL_GRACE: Duration = Duration::from_secs(2);

/// A running process; dropped, it is killed with all it started.
#[derive(Debug)]
pub(super) struct Child {
    pub(super) process: tokio::process::Child,
    pub(super) tree: Arc<Tree>,
    limits: ChildLimits,
}

impl Child {
    /// Starts the program of a server, under its reaper where there is one.
    pub(super) fn spawn(spec: &StdioSpec) -> Result<Self, ConnectError> {
        let failed = |source| ConnectError::Spawn {
            server: spec.server.clone(),
            command: spec.command.to_string_lossy().into_owned(),
            source,
        };
        // The system would say the same words as for a missing program.
        if let Some(cwd) = spec.cwd.as_deref().filter(|cwd| !cwd.is_dir()) {
            return Err(failed(no_directory(cwd)));
        }
        let mut command = match &spec.reaper {
            Some(reaper) => {
                let mut command = Command::new(&reaper.program);
                command.args(&reaper.args);
                command.arg(std::process::id().to_string());
                command.args(spec.child_limits.in_force().words()).arg("--");
                command.arg(&spec.command);
                command
            }
            None => Command::new(&spec.command),
        };
        command.args(&spec.args).env_clear();
        command.envs(spec.env.iter().map(|(name, value)| (name, value)));
        if let Some(cwd) = &spec.cwd {
            command.current_dir(cwd);
        }
        let process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            // A reaper that is killed outright leaves orphans; the tree is told instead.
            .kill_on_drop(spec.reaper.is_none())
            .spawn()
            .map_err(failed)?;
        let tree = Tree::new(process.id(), spec.reaper.is_some());
        let tree = Arc::new(tree.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?);
        Ok(Self {
            process,
            tree,
            limits: spec.child_limits.in_force(),
        })
    }

    /// Sees the process through to its end, and tells all who wait.
    pub(super) async fn keep(
        mut self,
        peer: Arc<Peer>,
        streams: Vec<oneshot::Receiver<()>>,
        limits: StdioLimits,
    ) {
        let kept = Kept(peer);
        let peer = &kept.0;
        let first = tokio::select! {
            biased;
            status = self.process.wait() => Ok(status),
            reason = peer.ending() => Err(reason),
        };
        let exit = match first {
            Ok(status) => self.exit(&status),
            Err((Exit::Closed, _)) => match timeout(EXIT_GRACE, self.process.wait()).await {
                Ok(status) => self.exit(&status),
                Err(_) => {
                    peer.fail(Exit::Closed);
                    self.stop(peer, limits).await;
                    Exit::Closed
                }
            },
            Err((Exit::Overrun, _)) => {
                self.kill().await;
                Exit::Overrun
            }
            Err(_) => self.stop(peer, limits).await,
        };
        peer.end(exit, Stop::AtOnce);
        // Answers that were given before the end still count.
        let _ = timeout(DRAIN_GRACE, all(streams)).await;
        peer.finish(exit);
    }

    /// Stops the process: its stdin is closed already, so it is given time, then told, then
    /// killed.
    async fn stop(&mut self, peer: &Peer, limits: StdioLimits) -> Exit {
        let gone = tokio::select! {
            biased;
            gone = self.stop_in_order(limits) => gone,
            () = peer.haste() => None,
        };
        match gone {
            Some(status) => self.exit(&status),
            None => self.kill().await,
        }
    }

    async fn stop_in_order(&mut self, limits: StdioLimits) -> Option<io::Result<ExitStatus>> {
        if let Ok(status) = timeout(limits.stop_stdin, self.process.wait()).await {
            return Some(status);
        }
        self.tree.terminate();
        timeout(limits.stop_term, self.process.wait()).await.ok()
    }

    async fn kill(&mut self) -> Exit {
        self.tree.kill();
        let status = match timeout(KILL_GRACE, self.process.wait()).await {
            Ok(status) => status,
            Err(_) => {
                let _ = self.process.start_kill();
                self.process.wait().await
            }
        };
        self.exit(&status)
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
            _ => Exit::Status(code),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.tree.kill();
    }
}

/// A link with a keeper; without one, nobody would tell those who wait.
#[derive(Debug)]
struct Kept(Arc<Peer>);

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.finish(Exit::Gone);
    }
}

fn no_directory(cwd: &Path) -> io::Error {
    let text = format!("the directory `{}` does not exist", cwd.display());
    io::Error::new(io::ErrorKind::NotFound, text)
}

async fn all(streams: Vec<oneshot::Receiver<()>>) {
    for stream in streams {
        // The other end is dropped, never used.
        let _ = stream.await;
    }
}
