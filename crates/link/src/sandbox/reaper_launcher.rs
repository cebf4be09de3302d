//! Starts reapers on a thread without access to the gateway's own ports.
//!
//! A Landlock domain belongs to a thread and is inherited by children. Landlock has no rule for
//! "every port except one", so the domain has a rule for each permitted port. The thread builds the
//! domain once for all starts.

use std::io;
use std::sync::Arc;

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

/// Queued starts.
const QUEUE_MAX: usize = 64;

/// Handle of the launcher thread; dropping the last handle ends the thread.
#[derive(Clone, Debug)]
pub struct ReaperLauncher(mpsc::Sender<LaunchJob>);

/// A queued start.
#[derive(Debug)]
struct LaunchJob {
    command: Command,
    runtime: Handle,
    reply: oneshot::Sender<io::Result<Child>>,
}

impl ReaperLauncher {
    /// Starts the thread with these ports denied.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn new(ports: impl Into<Arc<[u16]>>) -> io::Result<Self> {
        let (jobs, queue) = mpsc::channel(QUEUE_MAX);
        let ports = ports.into();
        std::thread::Builder::new()
            .name("launcher".to_owned())
            .spawn(move || run_launcher(&ports, queue))?;
        Ok(Self(jobs))
    }

    /// Starts a reaper with the restrictions of the thread. A reaper without a waiting caller is
    /// killed.
    pub(crate) async fn start_reaper(&self, command: Command) -> io::Result<Child> {
        let (reply, started) = oneshot::channel();
        let job = LaunchJob {
            command,
            runtime: Handle::current(),
            reply,
        };
        let gone_error = || io::Error::other("the launcher thread is gone");
        self.0.send(job).await.map_err(|_| gone_error())?;
        started.await.map_err(|_| gone_error())?
    }
}

fn run_launcher(ports: &[u16], mut queue: mpsc::Receiver<LaunchJob>) {
    deny_ports(ports);
    while let Some(mut job) = queue.blocking_recv() {
        // The pipes belong to the runtime of the caller.
        let _inside = job.runtime.enter();
        let started = job.command.spawn();
        if let Err(Ok(unwanted)) = job.reply.send(started) {
            kill_unwanted(&unwanted);
        }
    }
}

/// Tells an unwanted reaper to kill the server.
fn kill_unwanted(unwanted: &Child) {
    let pid = unwanted.id().and_then(|pid| i32::try_from(pid).ok());
    if let Some(pid) = pid.and_then(Pid::from_raw) {
        let _ = kill_process(pid, Signal::INT);
    }
}

#[cfg(all(target_os = "linux", feature = "sandbox"))]
fn deny_ports(ports: &[u16]) {
    if let Err(error) = super::enforce::deny_ports(ports) {
        let error = &error as &dyn std::error::Error;
        tracing::warn!(error, "cannot deny the gateway's own ports to its servers");
    }
}

#[cfg(not(all(target_os = "linux", feature = "sandbox")))]
fn deny_ports(_ports: &[u16]) {
    tracing::warn!("built without a sandbox: servers may open the gateway's own ports");
}
