//! A process and all that descends from it, as far as signals reach.

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::processes::Processes;

#[cfg(target_os = "linux")]
mod orphan;
#[cfg(target_os = "linux")]
use orphan::Orphan;

/// The process that we started, and its descendants.
#[derive(Debug)]
pub(super) struct Tree {
    /// The leader of its own process group.
    root: Pid,
    has_reaper: bool,
    /// Whether the root is gone, and its number free for others.
    gone: AtomicBool,
    /// The server behind the reaper.
    #[cfg(target_os = "linux")]
    server: std::sync::OnceLock<Orphan>,
}

impl Tree {
    pub(super) fn new(pid: Option<u32>, has_reaper: bool) -> Option<Self> {
        let root = Pid::from_raw(i32::try_from(pid?).ok()?)?;
        Some(Self {
            root,
            has_reaper,
            gone: AtomicBool::new(false),
            #[cfg(target_os = "linux")]
            server: std::sync::OnceLock::new(),
        })
    }

    pub(super) const fn has_reaper(&self) -> bool {
        self.has_reaper
    }

    /// Returns the server's processes; the reaper is none of them.
    pub(super) fn below(&self) -> Processes {
        let root = self.root.as_raw_pid().unsigned_abs();
        match self.has_reaper {
            true => Processes::Below(root),
            false => Processes::From(root),
        }
    }

    /// Returns the process of the server itself. To be asked once it has answered something: a
    /// reaper has started its server by then.
    pub(super) fn server_pid(&self) -> u32 {
        let root = self.root.as_raw_pid().unsigned_abs();
        #[cfg(target_os = "linux")]
        if self.has_reaper
            && let Some(server) = Orphan::child_of(self.root)
        {
            let server = self.server.get_or_init(|| server);
            return server.pid().as_raw_pid().unsigned_abs();
        }
        root
    }

    /// Asks all to go.
    pub(super) fn terminate(&self) {
        if self.has_reaper {
            // The reaper passes it on, and kills who does not follow.
            self.signal_root(Signal::TERM);
        } else {
            self.signal_group(Signal::TERM);
        }
    }

    /// Ends all at once.
    pub(super) fn kill(&self) {
        if self.has_reaper {
            // The reaper kills all it can find; killed itself, it could not.
            self.signal_root(Signal::INT);
        } else {
            self.signal_group(Signal::KILL);
        }
    }

    /// Notes that the root is gone, so that its number is not used any more.
    pub(super) fn gone(&self, by_signal: bool) {
        if self.gone.swap(true, Ordering::AcqRel) {
            return;
        }
        if !self.has_reaper {
            // What is left of the group keeps its number from being given to others.
            let _ = kill_process_group(self.root, Signal::KILL);
        }
        #[cfg(target_os = "linux")]
        if self.has_reaper
            && by_signal
            && let Some(server) = self.server.get()
        {
            // Nobody reaps any more, so we end at least the server and its group.
            server.kill();
        }
        #[cfg(not(target_os = "linux"))]
        let _ = by_signal;
    }

    fn signal_root(&self, signal: Signal) {
        if !self.gone.load(Ordering::Acquire) {
            let _ = kill_process(self.root, signal);
        }
    }

    fn signal_group(&self, signal: Signal) {
        if !self.gone.load(Ordering::Acquire) {
            let _ = kill_process_group(self.root, signal);
        }
    }
}
