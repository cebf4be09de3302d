//! Starts reapers on a thread that cannot connect to the gateway's own ports.
//!
//! A Landlock domain belongs to a thread and is inherited by what the thread starts. There is no
//! rule for "every port but one", so the domain holds a rule for each other port; it is made once
//! and not again for every start.

use std::io;
use std::sync::Arc;

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

/// Starts that may wait for the thread.
const QUEUE_MAX: usize = 64;

/// The way to the thread. The thread ends with the last of them.
#[derive(Clone, Debug)]
pub struct Launcher(mpsc::Sender<Job>);

/// A start.
#[derive(Debug)]
struct Job {
    command: Command,
    runtime: Handle,
    reply: oneshot::Sender<io::Result<Child>>,
}

impl Launcher {
    /// Starts the thread, which at once closes these ports to itself.
    ///
    /// # Errors
    /// The system has no room for a thread.
    pub fn new(ports: impl Into<Arc<[u16]>>) -> io::Result<Self> {
        let (jobs, queue) = mpsc::channel(QUEUE_MAX);
        let ports = ports.into();
        std::thread::Builder::new()
            .name("launcher".to_owned())
            .spawn(move || serve(&ports, queue))?;
        Ok(Self(jobs))
    }

    /// Starts a reaper that is confined as the thread is; one that nobody waits for any more is
    /// told to kill.
    pub(crate) async fn start(&self, command: Command) -> io::Result<Child> {
        let (reply, started) = oneshot::channel();
        let job = Job {
            command,
            runtime: Handle::current(),
            reply,
        };
        let gone = || io::Error::other("the launcher thread is gone");
        self.0.send(job).await.map_err(|_| gone())?;
        started.await.map_err(|_| gone())?
    }
}

fn serve(ports: &[u16], mut queue: mpsc::Receiver<Job>) {
    close_ports(ports);
    while let Some(mut job) = queue.blocking_recv() {
        // The pipes belong to the runtime of those who wait.
        let _inside = job.runtime.enter();
        let started = job.command.spawn();
        if let Err(Ok(unwanted)) = job.reply.send(started) {
            end(&unwanted);
        }
    }
}

/// Has a reaper kill what it may have started already.
fn end(unwanted: &Child) {
    let pid = unwanted.id().and_then(|pid| i32::try_from(pid).ok());
    if let Some(pid) = pid.and_then(Pid::from_raw) {
        let _ = kill_process(pid, Signal::INT);
    }
}

#[cfg(target_os = "linux")]
fn close_ports(ports: &[u16]) {
    if let Err(error) = super::enforce::close_ports(ports) {
        let error = &error as &dyn std::error::Error;
        tracing::warn!(error, "the gateway's own ports stay open to its servers");
    }
}

#[cfg(not(target_os = "linux"))]
fn close_ports(_ports: &[u16]) {}
