//! The terminal that `up` was started in: when it goes away, the gateway ends.
//!
//! SIGHUP has two senders. A person asks for the config file to be applied (`kill -HUP`), or the
//! kernel, or a shell, says that the terminal hung up. The kernel marks every open descriptor of a
//! terminal before it sends the signal, so a descriptor that is kept open tells the two apart.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;

use rustix::fs::OFlags;
use rustix::io::Errno;

/// The bit of SIGHUP in a mask of signals.
const HANGUP_BIT: u64 = 1;

/// The controlling terminal of this process.
#[derive(Debug)]
pub(super) struct Terminal(File);

impl Terminal {
    /// Returns the controlling terminal; `None` where there is none (`setsid`, a service), or
    /// where this process was started with SIGHUP ignored (`nohup`). To be called before a handler
    /// of SIGHUP is installed.
    pub(super) fn controlling() -> Option<Self> {
        if is_hangup_ignored() {
            return None;
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        options.custom_flags(OFlags::NOCTTY.bits().cast_signed());
        options.open("/dev/tty").ok().map(Self)
    }

    /// Whether it hung up.
    pub(super) fn is_gone(&self) -> bool {
        matches!(rustix::termios::tcgetattr(&self.0), Err(Errno::IO))
    }
}

/// Whether the parent of this process had it ignore SIGHUP.
fn is_hangup_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & HANGUP_BIT != 0)
}
