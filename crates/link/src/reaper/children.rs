//! Which processes are children of another, as the kernel tells it.

use std::fs;

use rustix::process::Pid;

/// Returns the children of a process with one thread.
pub(super) fn of(parent: Pid) -> Vec<Pid> {
    let raw = parent.as_raw_pid();
    match fs::read_to_string(format!("/proc/{raw}/task/{raw}/children")) {
        Ok(list) => list.split_ascii_whitespace().filter_map(pid).collect(),
        // Kernels built without that list.
        Err(_) => among_all(parent),
    }
}

fn among_all(parent: Pid) -> Vec<Pid> {
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    processes
        .flatten()
        .filter_map(|entry| {
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            (parent_in(&stat)? == parent).then(|| pid(entry.file_name().to_str()?))?
        })
        .collect()
}

/// Reads the parent from a line like `12 (a name) S 1 ...`; the name may hold anything.
fn parent_in(stat: &str) -> Option<Pid> {
    let (_, after_name) = stat.rsplit_once(')')?;
    pid(after_name.split_ascii_whitespace().nth(1)?)
}

fn pid(text: &str) -> Option<Pid> {
    Pid::from_raw(text.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_find_the_same_children() {
        let mut sleeper = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let child = pid(&sleeper.id().to_string()).unwrap();
        assert!(among_all(rustix::process::getpid()).contains(&child));
        assert!(!among_all(child).contains(&child));
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
    }

    #[test]
    fn a_name_cannot_pose_as_a_parent() {
        assert_eq!(parent_in("12 (x) S 7 (y) S 1 2"), pid("1"));
        assert_eq!(parent_in("12 (a) b) R 7 1"), pid("7"));
        assert_eq!(parent_in("12"), None);
    }
}
