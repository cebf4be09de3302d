//! Counts the requests of a link.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts a request in flight until dropped.
#[derive(Debug)]
pub struct InFlightGuard<'a>(&'a AtomicUsize);

impl<'a> InFlightGuard<'a> {
    /// Counts a request in `in_flight`.
    #[must_use]
    pub fn new(in_flight: &'a AtomicUsize) -> Self {
        in_flight.fetch_add(1, Ordering::Relaxed);
        Self(in_flight)
    }
}

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
