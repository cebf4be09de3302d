//! Processes that tests start: signals, life, and the wait for their exit.

use std::process::Command;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::polls::WAIT_MAX;

/// Sends a signal, such as `TERM`, to a process that a test started.
pub fn send_signal(pid: u32, name: &str) {
    let status = Command::new("kill")
        .args([&format!("-{name}"), &pid.to_string()])
        .status()
        .unwrap();
    assert!(status.success(), "kill -{name} {pid}");
}

/// Waits until a process has exited with all its threads, like `is_alive`; the process need not be
/// a child of the test. Fails with `description` after `WAIT_MAX`.
pub fn wait_process_exit(description: &str, pid: u32) {
    assert!(poll_exit(pid, WAIT_MAX), "never: {description} (pid {pid})");
}

/// Waits up to `limit` for the exit of a process, and returns whether it came.
#[must_use]
pub fn poll_exit(pid: u32, limit: Duration) -> bool {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    let process = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => process,
        // Exited and reaped.
        Err(Errno::SRCH) => return true,
        Err(error) => panic!("pidfd_open: {error}"),
    };
    let limit = Timespec::try_from(limit).unwrap();
    // The pidfd becomes readable with the end of the last thread.
    let mut fds = [PollFd::new(&process, PollFlags::IN)];
    rustix::io::retry_on_intr(|| poll(&mut fds, Some(&limit))).unwrap() > 0
}

/// Whether a process is alive; a zombie is not. A dead process holds connections until the last
/// thread is gone.
#[must_use]
pub fn is_alive(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        let state = stat.rsplit(')').next().unwrap().trim_start();
        threads > 1 || !state.starts_with(['Z', 'X'])
    })
}
