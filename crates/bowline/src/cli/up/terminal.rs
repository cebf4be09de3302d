//! The controlling terminal of `up`: the gateway ends when the terminal goes away.
//!
//! SIGHUP has two senders: a person asks for a reload (`kill -HUP`), or the kernel or a shell
//! reports a hangup of the terminal. The kernel marks every open descriptor of a terminal before
//! it sends the signal, so an open descriptor distinguishes the two.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;

use rustix::fs::OFlags;
use rustix::io::Errno;

/// The bit of SIGHUP in a signal mask.
const HANGUP_BIT: u64 = 1;

/// The controlling terminal of this process.
#[derive(Debug)]
pub(super) struct ControllingTerminal(File);

impl ControllingTerminal {
    /// Opens the controlling terminal. Returns `None` without one (`setsid`, a service), or if
    /// SIGHUP was ignored at the start (`nohup`). Must be called before a SIGHUP handler is
    /// installed.
    pub(super) fn open_controlling() -> Option<Self> {
        if is_hangup_ignored() {
            return None;
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        options.custom_flags(OFlags::NOCTTY.bits().cast_signed());
        options.open("/dev/tty").ok().map(Self)
    }

    /// Returns whether the terminal has hung up.
    pub(super) fn has_hung_up(&self) -> bool {
        matches!(rustix::termios::tcgetattr(&self.0), Err(Errno::IO))
    }
}

/// Returns whether the parent process made this one ignore SIGHUP.
fn is_hangup_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & HANGUP_BIT != 0)
}
