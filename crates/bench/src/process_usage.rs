//! CPU time and memory of a process tree, read from `/proc`.

use std::{
    collections::HashMap,
    fs,
    ops::{AddAssign, Sub},
};

/// Microseconds of a tick of the kernel.
const TICK_US: u64 = 10_000;

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ProcessUsage {
    pub(crate) cpu_us: u64,
    pub(crate) rss_kib: u64,
    pub(crate) threads: u64,
    pub(crate) processes: u64,
}

impl AddAssign for ProcessUsage {
    fn add_assign(&mut self, other: Self) {
        self.cpu_us += other.cpu_us;
        self.rss_kib += other.rss_kib;
        self.threads += other.threads;
        self.processes += other.processes;
    }
}

/// CPU time between two readings; a process that ended meanwhile counts nothing.
impl Sub for ProcessUsage {
    type Output = u64;

    fn sub(self, earlier: Self) -> u64 {
        self.cpu_us.saturating_sub(earlier.cpu_us)
    }
}

/// A process tree, split into the gateway and its backends.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TreeUsage {
    /// The root, and descendants such as launchers and workers.
    pub(crate) gateway: ProcessUsage,
    /// Descendants of the name `mcpbench`: stdio backends.
    pub(crate) backends: ProcessUsage,
}

#[derive(Debug)]
struct ProcessStat {
    name: String,
    parent: u32,
    cpu_us: u64,
    threads: u64,
}

fn read_stat(pid: u32) -> Option<ProcessStat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program name is in parentheses and may contain any character.
    let (name, fields) = text.rsplit_once(')')?;
    let (_, name) = name.split_once('(')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let field = |nth: usize| fields.get(nth)?.parse::<u64>().ok();
    Some(ProcessStat {
        name: name.to_owned(),
        parent: u32::try_from(field(1)?).ok()?,
        cpu_us: (field(11)? + field(12)?) * TICK_US,
        threads: field(17)?,
    })
}

/// Returns the CPU time of all live threads: finer than ticks, without ended threads.
fn read_thread_cpu_us(pid: u32) -> u64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    let threads = threads.into_iter().flatten().flatten();
    let spent = threads.filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    spent.sum::<u64>() / 1_000
}

fn read_rss_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let rss = rss.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    rss.unwrap_or(0)
}

/// Returns the usage of one process; nothing if the process has ended.
pub(crate) fn process_usage(pid: u32) -> ProcessUsage {
    let usage = |stat: ProcessStat| ProcessUsage {
        cpu_us: stat.cpu_us.max(read_thread_cpu_us(pid)),
        rss_kib: read_rss_kib(pid),
        threads: stat.threads,
        processes: 1,
    };
    read_stat(pid).map(usage).unwrap_or_default()
}

/// Returns the usage of a process and its descendants.
pub(crate) fn tree_usage(root: u32) -> TreeUsage {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    let mut names = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|pid| pid.parse().ok());
        let Some((pid, stat)) = pid.and_then(|pid: u32| Some((pid, read_stat(pid)?))) else {
            continue;
        };
        children.entry(stat.parent).or_default().push(pid);
        names.insert(pid, stat.name);
    }
    let mut usage = TreeUsage::default();
    let mut unread = vec![root];
    while let Some(pid) = unread.pop() {
        let is_backend = names.get(&pid).is_some_and(|name| name == "mcpbench");
        if pid != root && is_backend {
            usage.backends += process_usage(pid);
        } else {
            usage.gateway += process_usage(pid);
        }
        unread.extend(children.get(&pid).into_iter().flatten());
    }
    usage
}

/// Returns the CPU time of the machine over all cores, without niced work such as the spinners of
/// `run.py`.
pub(crate) fn machine_busy_us() -> u64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = stat.lines().next().unwrap_or_default();
    let ticks = line.split_whitespace().skip(1).enumerate();
    // Fields: user, nice, system, idle, iowait, irq, softirq, steal.
    let busy = ticks.filter(|(nth, _)| [0, 2, 5, 6, 7].contains(nth));
    let busy = busy.filter_map(|(_, ticks)| ticks.parse::<u64>().ok());
    busy.sum::<u64>() * TICK_US
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_process_has_memory_and_threads() {
        let usage = process_usage(std::process::id());
        assert!(usage.rss_kib > 0 && usage.threads > 0, "{usage:?}");
        assert_eq!(usage.processes, 1);
        assert!(machine_busy_us() > 0);
    }
}
