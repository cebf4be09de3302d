//! Slot of a dedicated link, and its exclusive use by a call.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bowline_core::log_level::LogLevel;
use tokio::sync::{Notify, OnceCell, watch};

use crate::supervisor::ReadyLink;

/// Slot of a link: connected once for all waiting calls.
#[derive(Debug, Default)]
pub(super) struct LinkSlot {
    pub(super) link: OnceCell<Arc<ReadyLink>>,
    /// True while a call has exclusive use.
    pub(super) taken: AtomicBool,
    pub(super) used_ms: AtomicU64,
    /// Log level accepted by the server.
    pub(super) level: watch::Sender<Option<LogLevel>>,
    /// Signalled when the wanted level may have changed.
    pub(super) level_changed: Notify,
}

impl LinkSlot {
    /// True if connected and without calls.
    pub(super) fn is_idle(&self) -> bool {
        self.link.get().is_some() && self.is_free()
    }

    /// True if available for exclusive use, connected or not.
    pub(super) fn is_free(&self) -> bool {
        let idle = |ready: &Arc<ReadyLink>| ready.link.in_flight() == 0;
        !self.taken.load(Ordering::Acquire) && self.link.get().is_none_or(idle)
    }

    pub(super) fn is_open(&self) -> bool {
        self.link.get().is_none_or(|ready| ready.link.is_open())
    }
}

/// Exclusive use of a slot, released on drop.
#[derive(Debug)]
pub(super) struct ExclusiveGuard(pub(super) Arc<LinkSlot>);

impl Drop for ExclusiveGuard {
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
    }
}
