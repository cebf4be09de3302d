//! In-memory trail for tests and hosts without a disk; bounded, the oldest rows are evicted first.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Mutex;

use bowline_core::sync::lock;

use super::RowRenderer;
use super::audit_row::{AuditRow, ChainHead};

/// Rows kept.
const ROWS_MAX: usize = 100_000;

/// In-memory rows with the same hash chain as a trail on disk.
pub struct MemoryAuditTrail<E> {
    inner: Mutex<MemoryAuditTrailInner<E>>,
}

struct MemoryAuditTrailInner<E> {
    render: RowRenderer<E>,
    head: ChainHead,
    rows: VecDeque<String>,
}

impl<E> MemoryAuditTrail<E> {
    /// Returns an empty trail.
    #[must_use]
    pub fn new(render: RowRenderer<E>) -> Self {
        let inner = MemoryAuditTrailInner {
            render,
            head: ChainHead::default(),
            rows: VecDeque::new(),
        };
        Self {
            inner: Mutex::new(inner),
        }
    }

    /// Renders a note and appends the row.
    pub fn append_note(&self, note: &E) {
        let mut inner = lock(&self.inner);
        let mut row = (inner.render)(note);
        row.seq = inner.head.seq + 1;
        // A row holds only texts and numbers, so serialization cannot fail.
        let text = serde_json::to_string(&row).unwrap_or_default();
        drop(row);
        inner.head = inner.head.advance(text.as_bytes());
        if inner.rows.len() == ROWS_MAX {
            inner.rows.pop_front();
        }
        inner.rows.push_back(text);
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
        rows.filter_map(|text| serde_json::from_str(text).ok())
            .collect()
    }
}

impl<E> fmt::Debug for MemoryAuditTrail<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryAuditTrail")
            .field("head", &self.head())
            .finish()
    }
}
