//! Memory of a process, for tests that bound memory.

/// Returns the resident memory of a process, in bytes.
#[must_use]
pub fn resident_bytes(pid: u32) -> usize {
    status_bytes(pid, "VmRSS:")
}

/// Returns the anonymous memory of a process, in bytes: without what it maps from files.
#[must_use]
pub fn anonymous_bytes(pid: u32) -> usize {
    status_bytes(pid, "RssAnon:")
}

fn status_bytes(pid: u32, field: &str) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kib = line
        .and_then(|line| line.split_whitespace().next())
        .unwrap();
    kib.parse::<usize>().unwrap() * 1024
}
