//! Process metrics from the kernel.

/// Resources of this process; absent if the kernel reports none.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProcessMetrics {
    /// Resident memory.
    pub(super) memory_bytes: Option<u64>,
    /// Open file descriptors.
    pub(super) descriptors: Option<u64>,
}

impl ProcessMetrics {
    /// Reads `/proc`, which does not block.
    pub(super) fn collect() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").ok();
        let open = std::fs::read_dir("/proc/self/fd").ok();
        Self {
            memory_bytes: status.as_deref().and_then(parse_resident),
            // Minus the descriptor of the directory being read.
            descriptors: open.map(|open| super::to_u64(open.count().saturating_sub(1))),
        }
    }
}

/// Parses the resident memory in bytes from `/proc/self/status`.
fn parse_resident(status: &str) -> Option<u64> {
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
    fn resident_memory_parsed_from_proc_status() {
        let page = "Name:\tx\nVmPeak:\t  9 kB\nVmRSS:\t   12 kB\n";
        assert_eq!(parse_resident(page), Some(12_288));
        assert_eq!(parse_resident("Name:\tx\n"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn process_metrics_are_nonzero() {
        let own = ProcessMetrics::collect();
        assert!(own.memory_bytes.is_some_and(|bytes| bytes > 100_000));
        assert!(own.descriptors.is_some_and(|open| open >= 3));
    }
}
