//! Keeps what a server uses within its limits: the kernel does where it can, we look where it
//! cannot.

use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Resource, Rlimit, getpriority_process, getrlimit, setpriority_process, setrlimit,
};

use crate::limits::{ChildLimits, EXIT_OVER_MEMORY, EXIT_OVER_PROCESSES};
use crate::processes::Processes;

/// How often the number of processes is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The same for memory, which fills faster than a table of processes.
const LOOK_AT_MEMORY_EVERY: Duration = Duration::from_millis(250);

/// The same once half of what is allowed is used.
const LOOK_CLOSELY_EVERY: Duration = Duration::from_millis(50);

/// The kernel short of memory takes the server, and not the gateway.
const OOM_SCORE: &str = "500";

/// A busy server leaves the processor to others that need it.
const NICER_BY: i32 = 5;

/// The nicest that a process can be.
const NICE_MAX: i32 = 19;

/// What a server has used too much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    Memory,
    Processes,
}

impl Over {
    /// The exit code by which the gateway tells it from an end of the server's own.
    pub(super) const fn code(self) -> u8 {
        match self {
            Self::Memory => EXIT_OVER_MEMORY,
            Self::Processes => EXIT_OVER_PROCESSES,
        }
    }
}

/// Sets what the kernel keeps by itself, for all that is started from now on.
pub(super) fn limit_children(limits: &ChildLimits) {
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    // What cannot be limited runs without: an older kernel is no reason not to serve.
    let _ = setrlimit(Resource::Core, none);
    if let Some(bytes) = limits.file_bytes_max {
        let bytes = within(Resource::Fsize, bytes);
        let both = Rlimit {
            current: bytes,
            maximum: bytes,
        };
        let _ = setrlimit(Resource::Fsize, both);
    }
    if let Some(files) = limits.open_files_max {
        // Programs that need many raise it themselves, and those that use select(2) need it low.
        let soft = Rlimit {
            current: within(Resource::Nofile, files),
            maximum: getrlimit(Resource::Nofile).maximum,
        };
        let _ = setrlimit(Resource::Nofile, soft);
    }
}

/// Nobody may have more than we were given.
fn within(resource: Resource, wanted: u64) -> Option<u64> {
    let most = getrlimit(resource).maximum.unwrap_or(u64::MAX);
    Some(wanted.min(most))
}

/// Makes a server that was just started yield to everything else.
pub(super) fn put_last(child: Pid) {
    let raw = child.as_raw_pid();
    let _ = std::fs::write(format!("/proc/{raw}/oom_score_adj"), OOM_SCORE);
    if let Ok(nice) = getpriority_process(Some(child)) {
        let _ = setpriority_process(Some(child), (nice + NICER_BY).min(NICE_MAX));
    }
}

/// Looks at a tree of processes now and then.
#[derive(Debug)]
pub(super) struct Police {
    limits: ChildLimits,
    tree: Processes,
    /// When it looks again; absent when there is nothing to look at.
    next: Option<Instant>,
}

impl Police {
    pub(super) fn new(limits: ChildLimits, reaper: Pid, now: Instant) -> Self {
        let looks = limits.memory_bytes_max.is_some() || limits.processes_max.is_some();
        Self {
            limits,
            tree: Processes::Below(reaper.as_raw_pid().unsigned_abs()),
            next: looks.then(|| now + LOOK_CLOSELY_EVERY),
        }
    }

    /// How long it is until it looks again.
    pub(super) fn patience(&self, now: Instant) -> Option<Duration> {
        self.next.map(|next| next.saturating_duration_since(now))
    }

    /// Looks when it is time to, and says what there is too much of.
    pub(super) fn look(&mut self, now: Instant) -> Option<Over> {
        if self.next.is_none_or(|next| now < next) {
            return None;
        }
        let usage = self.tree.usage();
        let (memory, processes) = (self.limits.memory_bytes_max, self.limits.processes_max);
        let over = |used: u64, limit: Option<u64>| limit.is_some_and(|limit| used > limit);
        let half = |used: u64, limit: Option<u64>| over(used.saturating_mul(2), limit);
        let close = half(usage.memory_bytes, memory) || half(usage.processes, processes);
        let wait = match memory {
            _ if close => LOOK_CLOSELY_EVERY,
            Some(_) => LOOK_AT_MEMORY_EVERY,
            None => LOOK_EVERY,
        };
        self.next = Some(now + wait);
        if over(usage.memory_bytes, memory) {
            return Some(Over::Memory);
        }
        over(usage.processes, processes).then_some(Over::Processes)
    }
}
