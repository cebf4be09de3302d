//! Finds processes by an entry of their environment, and ends them.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::Ended;
use crate::processes;

/// How long killed processes are waited for; longer, the system itself is stuck.
const KILL_GRACE: Duration = Duration::from_secs(5);

/// How long one look takes at most until the next.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The part of an environment that is read; a mark is set last, by us, and environments are
/// limited by the kernel to about this.
const ENVIRON_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// A process, held so that its number cannot come to mean another.
#[derive(Debug)]
struct Found {
    pid: u32,
    fd: OwnedFd,
}

/// Ends all processes of which `is_ours` knows an entry of the environment, with their children:
/// by SIGKILL, after SIGTERM and `term_grace` where that is not zero.
pub(super) fn end(is_ours: &dyn Fn(&[u8]) -> bool, term_grace: Duration) -> Ended {
    let mut all = find(is_ours);
    let found = all.len();
    if !term_grace.is_zero() {
        signal(&all, Signal::TERM);
        for _ in 0..rounds(term_grace, found) {
            if all.is_empty() {
                break;
            }
            wait(&mut all);
        }
    }
    // Looked for again each time: one that forks faster than it is killed is found at last.
    for _ in 0..rounds(KILL_GRACE, found) {
        all = find(is_ours);
        if all.is_empty() {
            return Ended { found, left: 0 };
        }
        signal(&all, Signal::KILL);
        wait(&mut all);
    }
    Ended {
        found,
        left: find(is_ours).len(),
    }
}

/// Each process that ends may end a round early.
fn rounds(time: Duration, processes: usize) -> usize {
    let looks = time.as_millis() / LOOK_EVERY.as_millis().max(1);
    usize::try_from(looks)
        .unwrap_or(usize::MAX)
        .saturating_add(processes)
}

fn signal(all: &[Found], signal: Signal) {
    for one in all {
        // One that is gone by now needs no signal.
        let _gone = pidfd_send_signal(&one.fd, signal);
    }
}

/// Waits until one of them ends, and forgets those that have ended.
fn wait(all: &mut Vec<Found>) {
    let mut fds: Vec<PollFd<'_>> = all
        .iter()
        .map(|one| PollFd::from_borrowed_fd(one.fd.as_fd(), PollFlags::IN))
        .collect();
    let patience = Timespec::try_from(LOOK_EVERY).ok();
    if poll(&mut fds, patience.as_ref()).is_err() {
        return;
    }
    let ended: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
    drop(fds);
    let mut ended = ended.into_iter();
    all.retain(|_| !ended.next().unwrap_or_default());
}

/// Looks at every process that shows us its environment: those of our own user.
fn find(is_ours: &dyn Fn(&[u8]) -> bool) -> Vec<Found> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let own = std::process::id();
    let mut found: Vec<Found> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid != own)
        .filter_map(|pid| hold(pid, &|| is_marked(pid, is_ours)))
        .collect();
    // A child that was started with another environment goes with its parent.
    let mut below = Vec::new();
    for one in &found {
        for pid in processes::below(one.pid) {
            let is_known = |known: &Found| known.pid == pid;
            if pid != own && !found.iter().chain(&below).any(is_known) {
                let is_still_below = || processes::below(one.pid).contains(&pid);
                below.extend(hold(pid, &is_still_below));
            }
        }
    }
    found.append(&mut below);
    found
}

/// Holds a process and checks what it is after that, while its number cannot be given to another.
fn hold(pid: u32, is_ours: &dyn Fn() -> bool) -> Option<Found> {
    let raw = Pid::from_raw(i32::try_from(pid).ok()?)?;
    let fd = pidfd_open(raw, PidfdFlags::empty()).ok()?;
    is_ours().then_some(Found { pid, fd })
}

fn is_marked(pid: u32, is_ours: &dyn Fn(&[u8]) -> bool) -> bool {
    let mut environ = Vec::new();
    let Ok(file) = File::open(format!("/proc/{pid}/environ")) else {
        return false;
    };
    // One that has ended, or belongs to somebody else, shows nothing.
    let read = file.take(ENVIRON_BYTES_MAX).read_to_end(&mut environ);
    read.is_ok() && environ.split(|byte| *byte == 0).any(is_ours)
}
