//! Process information from the system, and the wait for the exit of a process.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::WAIT_MAX;

/// Waits until a process has exited with all its threads, like `is_alive`; the process need not be
/// a child of the test. Fails with `what` after `WAIT_MAX`.
pub(crate) fn wait_process_exit(what: &str, pid: u32) {
    assert!(poll_exit(pid, WAIT_MAX), "never: {what} (pid {pid})");
}

/// Waits up to `limit` for the exit of a process, and returns whether it came.
pub(super) fn poll_exit(pid: u32, limit: Duration) -> bool {
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
pub(crate) fn is_alive(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        let state = stat.rsplit(')').next().unwrap().trim_start();
        threads > 1 || !state.starts_with(['Z', 'X'])
    })
}

/// Resident memory of a process, in bytes.
pub(crate) fn resident_bytes(pid: u32) -> usize {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    let pages: usize = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * 4096
}
