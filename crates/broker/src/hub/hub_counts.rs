//! Counters of a hub, for metrics.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::Hub;

/// Event counts since the start of the hub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HubCounts {
    /// Messages stored and confirmed with a receipt.
    pub delivered: u64,
    /// Messages pushed to subscribers.
    pub pushed: u64,
    /// Pushed messages with an earlier delivery.
    pub redelivered: u64,
    /// Messages turned into dead letters, expired messages included.
    pub dead: u64,
    /// Refused frames, `hello` frames included.
    pub refused: u64,
    /// Subscribers fenced by a newer connection.
    pub fenced: u64,
}

/// The live counters behind [`HubCounts`].
#[derive(Debug, Default)]
pub(super) struct HubCounters {
    pub(super) delivered: AtomicU64,
    pub(super) pushed: AtomicU64,
    pub(super) redelivered: AtomicU64,
    pub(super) dead: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) fenced: AtomicU64,
}

/// Adds one to a counter.
pub(super) fn increment(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

impl Hub {
    /// Returns the current counts.
    #[must_use]
    pub fn counts(&self) -> HubCounts {
        let counters = &self.shared.counters;
        HubCounts {
            delivered: counters.delivered.load(Relaxed),
            pushed: counters.pushed.load(Relaxed),
            redelivered: counters.redelivered.load(Relaxed),
            dead: counters.dead.load(Relaxed),
            refused: counters.refused.load(Relaxed),
            fenced: counters.fenced.load(Relaxed),
        }
    }
}
