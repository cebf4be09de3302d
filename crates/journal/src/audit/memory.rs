//! The trail without a disk, for tests and for hosts that keep none: bounded, the oldest go first.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Mutex;

use bowline_core::sync::lock;

use super::Render;
use super::chain::Head;
use super::row::Row;

/// Rows that are kept.
const ROWS_MAX: usize = 100_000;

/// Rows in memory, bound to each other in the same way.
pub struct Memory<E> {
    inner: Mutex<Inner<E>>,
}

struct Inner<E> {
    render: Render<E>,
    head: Head,
    rows: VecDeque<String>,
}

impl<E> Memory<E> {
    /// Returns a trail without rows.
    #[must_use]
    pub fn new(render: Render<E>) -> Self {
        let inner = Inner {
            render,
            head: Head::default(),
            rows: VecDeque::new(),
        };
        Self {
            inner: Mutex::new(inner),
        }
    }

    /// Writes a note down.
    pub fn note(&self, note: &E) {
        let mut inner = lock(&self.inner);
        let mut row = (inner.render)(note);
        row.seq = inner.head.seq + 1;
        // A row is made of texts and numbers, which always have a text.
        let text = serde_json::to_string(&row).unwrap_or_default();
        drop(row);
        inner.head = inner.head.then(text.as_bytes());
        if inner.rows.len() == ROWS_MAX {
            inner.rows.pop_front();
        }
        inner.rows.push_back(text);
    }

    /// Returns the last row's number and hash.
    #[must_use]
    pub fn head(&self) -> Head {
        lock(&self.inner).head
    }

    /// Returns the rows that are kept, oldest first.
    #[must_use]
    pub fn rows(&self) -> Vec<Row<'static>> {
        let inner = lock(&self.inner);
        let rows = inner.rows.iter();
        rows.filter_map(|text| serde_json::from_str(text).ok())
            .collect()
    }
}

impl<E> fmt::Debug for Memory<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory")
            .field("head", &self.head())
            .finish()
    }
}
