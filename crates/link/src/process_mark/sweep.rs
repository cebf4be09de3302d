//! Finds processes by an environment entry, and ends the processes.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::SweepReport;
use crate::process_usage;

/// Longest wait for killed processes; afterwards the system itself is stuck.
const KILL_GRACE: Duration = Duration::from_secs(5);

/// Longest interval between two searches.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Bytes of an environment to read: the mark comes last, and the kernel limits environments
/// to about this size.
const ENVIRON_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// A process with a pidfd, against reuse of the id.
#[derive(Debug)]
struct MarkedProcess {
    pid: u32,
    fd: OwnedFd,
}

/// Ends all processes with a matching environment entry, and all children: by SIGKILL, after
/// SIGTERM and `term_grace` if non-zero.
pub(super) fn end_processes(is_ours: &dyn Fn(&[u8]) -> bool, term_grace: Duration) -> SweepReport {
    let mut all = find_processes(is_ours);
    let found = all.len();
    if !term_grace.is_zero() {
        send_signal(&all, Signal::TERM);
        for _ in 0..poll_rounds(term_grace, found) {
            if all.is_empty() {
                break;
            }
            wait_any_exit(&mut all);
        }
    }
    // Search again each time: a fast-forking process is caught eventually.
    for _ in 0..poll_rounds(KILL_GRACE, found) {
        all = find_processes(is_ours);
        if all.is_empty() {
            return SweepReport { found, left: 0 };
        }
        send_signal(&all, Signal::KILL);
        wait_any_exit(&mut all);
    }
    SweepReport {
        found,
        left: find_processes(is_ours).len(),
    }
}

/// Returns the number of waits; each exiting process may end a wait early.
fn poll_rounds(time: Duration, processes: usize) -> usize {
    let looks = time.as_millis() / LOOK_EVERY.as_millis().max(1);
    usize::try_from(looks)
        .unwrap_or(usize::MAX)
        .saturating_add(processes)
}

fn send_signal(all: &[MarkedProcess], signal: Signal) {
    for one in all {
        // An exited process needs no signal.
        let _gone = pidfd_send_signal(&one.fd, signal);
    }
}

/// Waits for an exit, and removes exited processes.
fn wait_any_exit(all: &mut Vec<MarkedProcess>) {
    let mut fds: Vec<PollFd<'_>> = all
        .iter()
        .map(|one| PollFd::from_borrowed_fd(one.fd.as_fd(), PollFlags::IN))
        .collect();
    let timeout = Timespec::try_from(LOOK_EVERY).ok();
    if poll(&mut fds, timeout.as_ref()).is_err() {
        return;
    }
    let exited: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
    drop(fds);
    let mut exited = exited.into_iter();
    all.retain(|_| !exited.next().unwrap_or_default());
}

/// Finds matching processes with a readable environment: processes of our own user.
fn find_processes(is_ours: &dyn Fn(&[u8]) -> bool) -> Vec<MarkedProcess> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let own = std::process::id();
    let mut found: Vec<MarkedProcess> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid != own)
        .filter_map(|pid| open_pidfd(pid, &|| is_marked(pid, is_ours)))
        .collect();
    // A child with a different environment ends with the parent.
    let mut below = Vec::new();
    for one in &found {
        for pid in process_usage::descendants(one.pid) {
            let is_known = |known: &MarkedProcess| known.pid == pid;
            if pid != own && !found.iter().chain(&below).any(is_known) {
                let is_still_below = || process_usage::descendants(one.pid).contains(&pid);
                below.extend(open_pidfd(pid, &is_still_below));
            }
        }
    }
    found.append(&mut below);
    found
}

/// Opens a pidfd first and checks the process afterwards, when the id cannot be reused.
fn open_pidfd(pid: u32, is_ours: &dyn Fn() -> bool) -> Option<MarkedProcess> {
    let raw = Pid::from_raw(i32::try_from(pid).ok()?)?;
    let fd = pidfd_open(raw, PidfdFlags::empty()).ok()?;
    is_ours().then_some(MarkedProcess { pid, fd })
}

fn is_marked(pid: u32, is_ours: &dyn Fn(&[u8]) -> bool) -> bool {
    let mut environ = Vec::new();
    let Ok(file) = File::open(format!("/proc/{pid}/environ")) else {
        return false;
    };
    // Exited and foreign processes have no readable environment.
    let read = file.take(ENVIRON_BYTES_MAX).read_to_end(&mut environ);
    read.is_ok() && environ.split(|byte| *byte == 0).any(is_ours)
}
