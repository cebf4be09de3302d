//! Descendants of a process and their memory, read from `/proc`.

use std::fs;
use std::path::Path;

/// Descendants counted per process; larger trees report this number.
const PROCESSES_MAX: usize = 16_384;

/// Threads searched for children of a tree.
const THREADS_MAX: usize = 65_536;

/// Resource usage of a process tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessUsage {
    /// Number of processes.
    pub processes: u64,
    /// Resident memory; shared pages count for each process.
    pub memory_bytes: u64,
}

/// Processes of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessSet {
    /// A process and its descendants.
    Root(u32),
    /// The descendants of a reaper, without the reaper.
    Below(u32),
}

impl ProcessSet {
    /// Reads the current usage. Reads a few files per process, so not for latency-critical threads.
    #[must_use]
    pub fn usage(self) -> ProcessUsage {
        let mut pids = match self {
            Self::Root(root) => {
                let mut pids = descendants(root);
                pids.push(root);
                pids
            }
            Self::Below(root) => descendants(root),
        };
        pids.sort_unstable();
        // A reparented process may be seen twice.
        pids.dedup();
        ProcessUsage {
            processes: pids.len() as u64,
            memory_bytes: pids.iter().filter_map(|pid| resident_bytes(*pid)).sum(),
        }
    }
}

/// Returns all descendants, unordered.
pub(crate) fn descendants(root: u32) -> Vec<u32> {
    let all = match Path::new(&format!("/proc/{root}/task/{root}/children")).exists() {
        true => None,
        // Kernels without the `children` file.
        false => Some(list_parents()),
    };
    let mut threads = 0;
    let mut found: Vec<u32> = Vec::new();
    let mut open = vec![root];
    while let Some(parent) = open.pop() {
        let children = match &all {
            Some(all) => children_of(all, parent),
            None => listed_children(parent, &mut threads),
        };
        for child in children {
            if found.len() >= PROCESSES_MAX {
                return found;
            }
            found.push(child);
            open.push(child);
        }
    }
    found
}

/// Returns the children of all threads of a process.
fn listed_children(parent: u32, threads: &mut usize) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(format!("/proc/{parent}/task")) else {
        return Vec::new();
    };
    let mut children = Vec::new();
    for entry in entries.flatten() {
        *threads += 1;
        if *threads > THREADS_MAX {
            break;
        }
        let list = fs::read_to_string(entry.path().join("children")).unwrap_or_default();
        children.extend(list.split_ascii_whitespace().filter_map(parse_pid));
    }
    children
}

fn children_of(all: &[(u32, u32)], parent: u32) -> Vec<u32> {
    let children = all.iter().filter(|(_, parent_pid)| *parent_pid == parent);
    children.map(|(child, _)| *child).collect()
}

/// Returns every process of the system with its parent.
fn list_parents() -> Vec<(u32, u32)> {
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    processes
        .flatten()
        .filter_map(|entry| {
            let child = parse_pid(entry.file_name().to_str()?)?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            Some((child, parse_parent(&stat)?))
        })
        .collect()
}

/// Parses the parent from a line like `12 (a name) S 1 ...`; the name may contain anything.
fn parse_parent(stat: &str) -> Option<u32> {
    let (_, after_name) = stat.rsplit_once(')')?;
    parse_pid(after_name.split_ascii_whitespace().nth(1)?)
}

/// Returns the resident memory of a process; `None` after its exit.
fn resident_bytes(process: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    parse_resident(&status)
}

fn parse_resident(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    kib.checked_mul(1024)
}

fn parse_pid(text: &str) -> Option<u32> {
    text.parse().ok().filter(|pid| *pid != 0)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn proc_children_and_stat_agree() {
        let script = "sleep 60 & echo $!; wait";
        let mut shell = Command::new("sh")
            .args(["-c", script])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(shell.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        let sleeper: u32 = line.trim().parse().unwrap();
        let root = shell.id();
        assert_eq!(descendants(root), [sleeper]);
        assert!(descendants(std::process::id()).contains(&sleeper));
        assert_eq!(children_of(&list_parents(), root), [sleeper]);
        assert_eq!(ProcessSet::Root(root).usage().processes, 2);
        let below = ProcessSet::Below(root).usage();
        assert_eq!(below.processes, 1);
        assert!(below.memory_bytes > 0);
        shell.kill().unwrap();
        shell.wait().unwrap();
        Command::new("kill")
            .arg(sleeper.to_string())
            .status()
            .unwrap();
    }

    #[test]
    fn process_name_cannot_forge_parent() {
        assert_eq!(parse_parent("12 (x) S 7 (y) S 1 2"), Some(1));
        assert_eq!(parse_parent("12 (a) b) R 7 1"), Some(7));
        assert_eq!(parse_parent("12"), None);
    }

    #[test]
    fn memory_usage_is_resident_memory() {
        let status = "Name:\tx\nVmHWM:\t  900 kB\nVmRSS:\t    12 kB\nRssAnon:\t 3 kB\n";
        assert_eq!(parse_resident(status), Some(12 * 1024));
        assert_eq!(parse_resident("Name:\tx\n"), None);
        let own = ProcessSet::Root(std::process::id()).usage();
        assert!(own.memory_bytes > 0);
    }
}
