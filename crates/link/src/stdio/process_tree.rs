//! A process tree, as far as signals reach.

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::process_usage::ProcessSet;

#[cfg(target_os = "linux")]
mod server_pidfd;
#[cfg(target_os = "linux")]
use server_pidfd::ServerPidfd;

/// The process tree of a start.
#[derive(Debug)]
pub(super) struct ProcessTree {
    /// Leader of a process group.
    root: Pid,
    has_reaper: bool,
    /// Whether the root has exited, and the id may be reused.
    is_gone: AtomicBool,
    /// The server behind the reaper.
    #[cfg(target_os = "linux")]
    server: std::sync::OnceLock<ServerPidfd>,
}

impl ProcessTree {
    pub(super) fn new(pid: Option<u32>, has_reaper: bool) -> Option<Self> {
        let root = Pid::from_raw(i32::try_from(pid?).ok()?)?;
        Some(Self {
            root,
            has_reaper,
            is_gone: AtomicBool::new(false),
            #[cfg(target_os = "linux")]
            server: std::sync::OnceLock::new(),
        })
    }

    pub(super) const fn has_reaper(&self) -> bool {
        self.has_reaper
    }

    /// Returns the server's processes, without the reaper.
    pub(super) fn process_set(&self) -> ProcessSet {
        let root = self.root.as_raw_pid().unsigned_abs();
        match self.has_reaper {
            true => ProcessSet::Below(root),
            false => ProcessSet::Root(root),
        }
    }

    /// Returns the process id of the server itself. Valid after the first response: by then, a
    /// reaper has started the server.
    pub(super) fn server_pid(&self) -> u32 {
        let root = self.root.as_raw_pid().unsigned_abs();
        #[cfg(target_os = "linux")]
        if self.has_reaper
            && let Some(server) = ServerPidfd::open_first_child(self.root)
        {
            let server = self.server.get_or_init(|| server);
            return server.pid().as_raw_pid().unsigned_abs();
        }
        root
    }

    /// Requests a graceful end.
    pub(super) fn terminate(&self) {
        if self.has_reaper {
            // The reaper forwards the signal, and kills unresponsive processes.
            self.signal_root(Signal::TERM);
        } else {
            self.signal_group(Signal::TERM);
        }
    }

    /// Kills the tree.
    pub(super) fn kill(&self) {
        if self.has_reaper {
            // The reaper kills all descendants; a killed reaper could not.
            self.signal_root(Signal::INT);
        } else {
            self.signal_group(Signal::KILL);
        }
    }

    /// Marks the root as exited, so the id is not signalled any more.
    pub(super) fn mark_gone(&self, by_signal: bool) {
        if self.is_gone.swap(true, Ordering::AcqRel) {
            return;
        }
        if !self.has_reaper {
            // Remaining group members keep the group id reserved.
            let _ = kill_process_group(self.root, Signal::KILL);
        }
        #[cfg(target_os = "linux")]
        if self.has_reaper
            && by_signal
            && let Some(server) = self.server.get()
        {
            // The reaper is dead, so kill at least the server and the process group.
            server.kill();
        }
        #[cfg(not(target_os = "linux"))]
        let _ = by_signal;
    }

    fn signal_root(&self, signal: Signal) {
        if !self.is_gone.load(Ordering::Acquire) {
            let _ = kill_process(self.root, signal);
        }
    }

    fn signal_group(&self, signal: Signal) {
        if !self.is_gone.load(Ordering::Acquire) {
            let _ = kill_process_group(self.root, signal);
        }
    }
}
