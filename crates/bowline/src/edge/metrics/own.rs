//! What the kernel counts of this process.

/// What this process holds; absent where the kernel does not tell.
#[derive(Clone, Copy, Debug)]
pub(super) struct Own {
    /// Memory in use.
    pub(super) memory_bytes: Option<u64>,
    /// Open descriptors.
    pub(super) descriptors: Option<u64>,
}

impl Own {
    /// Asks the kernel, which answers from memory.
    pub(super) fn read() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").ok();
        let open = std::fs::read_dir("/proc/self/fd").ok();
        Self {
            memory_bytes: status.as_deref().and_then(resident),
            // One of them is the directory that is being read.
            descriptors: open.map(|open| super::count(open.count().saturating_sub(1))),
        }
    }
}

/// Returns the resident memory that a status page tells, in bytes.
fn resident(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1_024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_read_from_the_page_of_the_kernel() {
        let page = "Name:\tx\nVmPeak:\t  9 kB\nVmRSS:\t   12 kB\n";
        assert_eq!(resident(page), Some(12_288));
        assert_eq!(resident("Name:\tx\n"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_process_holds_memory_and_descriptors() {
        let own = Own::read();
        assert!(own.memory_bytes.is_some_and(|bytes| bytes > 100_000));
        assert!(own.descriptors.is_some_and(|open| open >= 3));
    }
}
