//! Counts of what an export sent and lost.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of exported spans or audit rows.
#[derive(Debug, Default)]
pub struct ExportCounts {
    sent: AtomicU64,
    lost: AtomicU64,
}

impl ExportCounts {
    /// Returns the number accepted by the target.
    #[must_use]
    pub fn sent_count(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Returns the number that never reaches the target: dropped, too long, or removed before.
    #[must_use]
    pub fn lost_count(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Counts as sent.
    pub fn add_sent(&self, count: u64) {
        self.sent.fetch_add(count, Ordering::Relaxed);
    }

    /// Counts as lost.
    pub fn add_lost(&self, count: u64) {
        self.lost.fetch_add(count, Ordering::Relaxed);
    }
}
