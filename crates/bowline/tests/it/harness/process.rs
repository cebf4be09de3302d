//! What the system knows of a process.

/// Whether a process lives; a zombie does not. Until its last thread is gone, a dead process still
/// holds its connections.
pub(crate) fn lives(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        let state = stat.rsplit(')').next().unwrap().trim_start();
        threads > 1 || !state.starts_with(['Z', 'X'])
    })
}

/// Resident memory of a process, in bytes.
pub(crate) fn memory(pid: u32) -> usize {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    let pages: usize = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * 4096
}
