//! Enforces resource limits of a server: rlimits in the kernel, polling for the rest.

use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Resource, Rlimit, getpriority_process, getrlimit, setpriority_process, setrlimit,
};

use crate::child_limits::{ChildLimits, EXIT_OVER_MEMORY, EXIT_OVER_PROCESSES};
use crate::process_usage::ProcessSet;

/// Interval of the process count check.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Interval of the memory check; memory fills faster than a process table.
const MEMORY_CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Interval of both checks beyond half of a limit.
const CLOSE_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// OOM score: the kernel should kill the server, not the gateway.
const OOM_SCORE: &str = "500";

/// Nice increment: a busy server yields the CPU.
const NICE_INCREMENT: i32 = 5;

/// Highest nice value.
const NICE_MAX: i32 = 19;

/// Limit that a server exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LimitExceeded {
    Memory,
    Processes,
}

impl LimitExceeded {
    /// Returns the exit code that reports this limit to the gateway.
    pub(super) const fn exit_code(self) -> u8 {
        match self {
            Self::Memory => EXIT_OVER_MEMORY,
            Self::Processes => EXIT_OVER_PROCESSES,
        }
    }
}

/// Sets the rlimits of all later children.
pub(super) fn set_child_rlimits(limits: &ChildLimits) {
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    // Best effort: an older kernel is no reason not to serve.
    let _ = setrlimit(Resource::Core, none);
    if let Some(bytes) = limits.file_bytes_max {
        let bytes = clamp_to_hard_limit(Resource::Fsize, bytes);
        let both = Rlimit {
            current: bytes,
            maximum: bytes,
        };
        let _ = setrlimit(Resource::Fsize, both);
    }
    if let Some(files) = limits.open_files_max {
        // Programs that need more raise the soft limit themselves; select(2) needs it low.
        let soft = Rlimit {
            current: clamp_to_hard_limit(Resource::Nofile, files),
            maximum: getrlimit(Resource::Nofile).maximum,
        };
        let _ = setrlimit(Resource::Nofile, soft);
    }
}

/// Clamps a limit to our own hard limit.
fn clamp_to_hard_limit(resource: Resource, wanted: u64) -> Option<u64> {
    let most = getrlimit(resource).maximum.unwrap_or(u64::MAX);
    Some(wanted.min(most))
}

/// Lowers the priority of a started server.
pub(super) fn lower_priority(child: Pid) {
    let raw = child.as_raw_pid();
    let _ = std::fs::write(format!("/proc/{raw}/oom_score_adj"), OOM_SCORE);
    if let Ok(nice) = getpriority_process(Some(child)) {
        let _ = setpriority_process(Some(child), (nice + NICE_INCREMENT).min(NICE_MAX));
    }
}

/// Checks the usage of a process tree periodically.
#[derive(Debug)]
pub(super) struct UsageMonitor {
    limits: ChildLimits,
    tree: ProcessSet,
    /// Time of the next check; absent without limits.
    next_check: Option<Instant>,
}

impl UsageMonitor {
    pub(super) fn new(limits: ChildLimits, reaper: Pid, now: Instant) -> Self {
        let looks = limits.memory_bytes_max.is_some() || limits.processes_max.is_some();
        Self {
            limits,
            tree: ProcessSet::Below(reaper.as_raw_pid().unsigned_abs()),
            next_check: looks.then(|| now + CLOSE_CHECK_INTERVAL),
        }
    }

    /// Returns the time until the next check.
    pub(super) fn next_check_in(&self, now: Instant) -> Option<Duration> {
        self.next_check
            .map(|next| next.saturating_duration_since(now))
    }

    /// Checks the usage if due; returns the exceeded limit.
    pub(super) fn check(&mut self, now: Instant) -> Option<LimitExceeded> {
        if self.next_check.is_none_or(|next| now < next) {
            return None;
        }
        let usage = self.tree.usage();
        let (memory, processes) = (self.limits.memory_bytes_max, self.limits.processes_max);
        let exceeds = |used: u64, limit: Option<u64>| limit.is_some_and(|limit| used > limit);
        let exceeds_half = |used: u64, limit: Option<u64>| exceeds(used.saturating_mul(2), limit);
        let is_close =
            exceeds_half(usage.memory_bytes, memory) || exceeds_half(usage.processes, processes);
        let wait = match memory {
            _ if is_close => CLOSE_CHECK_INTERVAL,
            Some(_) => MEMORY_CHECK_INTERVAL,
            None => CHECK_INTERVAL,
        };
        self.next_check = Some(now + wait);
        if exceeds(usage.memory_bytes, memory) {
            return Some(LimitExceeded::Memory);
        }
        exceeds(usage.processes, processes).then_some(LimitExceeded::Processes)
    }
}
