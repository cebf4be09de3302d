//! In-memory trail for tests and hosts without a disk; bounded, the oldest rows are evicted first.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Mutex;

use bowline_core::sync::lock;

use super::LongBodies;
use super::audit_row::{AuditRow, ChainHead};
use super::row_encoding;

/// Rows kept.
const ROWS_MAX: usize = 100_000;

/// In-memory rows with the same hash chain as a trail on disk.
#[derive(Default)]
pub struct MemoryAuditTrail {
    inner: Mutex<MemoryAuditTrailInner>,
}

#[derive(Default)]
struct MemoryAuditTrailInner {
    head: ChainHead,
    /// Rows in their compact form.
    rows: VecDeque<Vec<u8>>,
}

impl MemoryAuditTrail {
    /// Appends a row, with the digests of `bodies`.
    pub fn append(&self, mut row: AuditRow<'_>, mut bodies: LongBodies) {
        bodies.hash_into(&mut row);
        let mut inner = lock(&self.inner);
        row.seq = inner.head.seq + 1;
        let mut encoded = Vec::new();
        row_encoding::encode_row(&row, &mut encoded);
        inner.head = inner.head.advance(&encoded);
        if inner.rows.len() == ROWS_MAX {
            inner.rows.pop_front();
        }
        inner.rows.push_back(encoded);
    }

    /// Returns the head of the chain.
    #[must_use]
    pub fn head(&self) -> ChainHead {
        lock(&self.inner).head
    }

    /// Returns the kept rows, oldest first.
    #[must_use]
    pub fn rows(&self) -> Vec<AuditRow<'static>> {
        let inner = lock(&self.inner);
        let rows = inner.rows.iter();
        rows.filter_map(|encoded| {
            let text = serde_json::to_string(&row_encoding::decode_row(encoded)?);
            serde_json::from_str(&text.ok()?).ok()
        })
        .collect()
    }
}

impl fmt::Debug for MemoryAuditTrail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryAuditTrail")
            .field("head", &self.head())
            .finish()
    }
}
