//! The processes below another, and the memory they use, as the kernel tells it.

use std::fs;
use std::path::Path;

/// Processes that are counted below one; a tree with more is known to have at least so many.
const PROCESSES_MAX: usize = 16_384;

/// Threads that are looked at to find the children of one tree.
const THREADS_MAX: usize = 65_536;

/// What a tree of processes uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// How many processes there are.
    pub processes: u64,
    /// Their resident memory, pages that they share counted for each.
    pub memory_bytes: u64,
}

/// The processes of one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processes {
    /// A process and all below it.
    From(u32),
    /// All below a process: its reaper, which is no part of the server.
    Below(u32),
}

impl Processes {
    /// Looks at what they use now. This reads a few files for each process, so it is nothing for
    /// a thread that others wait for.
    #[must_use]
    pub fn usage(self) -> Usage {
        let mut pids = match self {
            Self::From(root) => {
                let mut pids = below(root);
                pids.push(root);
                pids
            }
            Self::Below(root) => below(root),
        };
        pids.sort_unstable();
        // One that moved up while we looked was seen twice.
        pids.dedup();
        Usage {
            processes: pids.len() as u64,
            memory_bytes: pids.iter().filter_map(|pid| resident_bytes(*pid)).sum(),
        }
    }
}

/// Returns all processes below one, in no order.
pub(crate) fn below(root: u32) -> Vec<u32> {
    let all = match Path::new(&format!("/proc/{root}/task/{root}/children")).exists() {
        true => None,
        // Kernels built without that list.
        false => Some(parents()),
    };
    let mut threads = 0;
    let mut found: Vec<u32> = Vec::new();
    let mut open = vec![root];
    while let Some(parent) = open.pop() {
        let children = match &all {
            Some(all) => among(all, parent),
            None => listed(parent, &mut threads),
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

/// The children that the threads of a process have started or were given.
fn listed(parent: u32, threads: &mut usize) -> Vec<u32> {
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
        children.extend(list.split_ascii_whitespace().filter_map(pid));
    }
    children
}

fn among(all: &[(u32, u32)], parent: u32) -> Vec<u32> {
    let children = all.iter().filter(|(_, of)| *of == parent);
    children.map(|(child, _)| *child).collect()
}

/// Every process of the system with its parent.
fn parents() -> Vec<(u32, u32)> {
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    processes
        .flatten()
        .filter_map(|entry| {
            let child = pid(entry.file_name().to_str()?)?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            Some((child, parent_in(&stat)?))
        })
        .collect()
}

/// Reads the parent from a line like `12 (a name) S 1 ...`; the name may hold anything.
fn parent_in(stat: &str) -> Option<u32> {
    let (_, after_name) = stat.rsplit_once(')')?;
    pid(after_name.split_ascii_whitespace().nth(1)?)
}

/// Reads how much memory a process has in use; one that has ended has none.
fn resident_bytes(process: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    resident_in(&status)
}

fn resident_in(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    kib.checked_mul(1024)
}

fn pid(text: &str) -> Option<u32> {
    text.parse().ok().filter(|pid| *pid != 0)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn both_ways_find_the_same_processes() {
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
        assert_eq!(below(root), [sleeper]);
        assert!(below(std::process::id()).contains(&sleeper));
        assert_eq!(among(&parents(), root), [sleeper]);
        assert_eq!(Processes::From(root).usage().processes, 2);
        let below = Processes::Below(root).usage();
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
    fn a_name_cannot_pose_as_a_parent() {
        assert_eq!(parent_in("12 (x) S 7 (y) S 1 2"), Some(1));
        assert_eq!(parent_in("12 (a) b) R 7 1"), Some(7));
        assert_eq!(parent_in("12"), None);
    }

    #[test]
    fn memory_is_what_is_resident() {
        let status = "Name:\tx\nVmHWM:\t  900 kB\nVmRSS:\t    12 kB\nRssAnon:\t 3 kB\n";
        assert_eq!(resident_in(status), Some(12 * 1024));
        assert_eq!(resident_in("Name:\tx\n"), None);
        let own = Processes::From(std::process::id()).usage();
        assert!(own.memory_bytes > 0);
    }
}
