//! Pidfd of a process besides our children, against reuse of the process id.

use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal};

/// The server behind a reaper.
#[derive(Debug)]
pub(super) struct ServerPidfd {
    pid: Pid,
    fd: OwnedFd,
}

impl ServerPidfd {
    /// Returns the first child of a reaper.
    pub(super) fn open_first_child(reaper: Pid) -> Option<Self> {
        let raw = reaper.as_raw_pid();
        let path = format!("/proc/{raw}/task/{raw}/children");
        let children = std::fs::read_to_string(path).ok()?;
        let first = children.split_ascii_whitespace().next()?;
        let pid = Pid::from_raw(first.parse().ok()?)?;
        let fd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        Some(Self { pid, fd })
    }

    pub(super) const fn pid(&self) -> Pid {
        self.pid
    }

    /// Kills the process and its group, unless already exited.
    pub(super) fn kill(&self) {
        // SIGSTOP proves the process alive; its id stays reserved while the group is killed.
        if pidfd_send_signal(&self.fd, Signal::STOP).is_ok() {
            let _ = kill_process_group(self.pid, Signal::KILL);
            let _ = pidfd_send_signal(&self.fd, Signal::KILL);
        }
    }
}
