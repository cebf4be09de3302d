//! What a hub counts, for whoever watches many machines.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::Hub;

/// How often something happened since the hub was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HubCounts {
    /// Messages that were stored and receipted.
    pub delivered: u64,
    /// Messages that were pushed to subscribers.
    pub pushed: u64,
    /// Those of them that were handed out before.
    pub redelivered: u64,
    /// Messages that became dead letters, those past their time included.
    pub dead: u64,
    /// Frames that were refused, first ones included.
    pub refused: u64,
    /// Subscribers that lost their place to a newer one.
    pub fenced: u64,
}

/// The same while it grows.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) delivered: AtomicU64,
    pub(super) pushed: AtomicU64,
    pub(super) redelivered: AtomicU64,
    pub(super) dead: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) fenced: AtomicU64,
}

/// Counts one more.
pub(super) fn one(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

impl Hub {
    /// Returns what was counted so far.
    #[must_use]
    pub fn counts(&self) -> HubCounts {
        let counts = &self.shared.counts;
        HubCounts {
            delivered: counts.delivered.load(Relaxed),
            pushed: counts.pushed.load(Relaxed),
            redelivered: counts.redelivered.load(Relaxed),
            dead: counts.dead.load(Relaxed),
            refused: counts.refused.load(Relaxed),
            fenced: counts.fenced.load(Relaxed),
        }
    }
}
