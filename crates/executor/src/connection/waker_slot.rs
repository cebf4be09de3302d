//! Slot for the waker of a single waiting task.

use std::sync::MutexGuard;
use std::task::{Context, Poll, Waker};

/// The waker of a waiting task.
#[derive(Debug, Default)]
pub(super) struct WakerSlot(Option<Waker>);

impl WakerSlot {
    /// Stores the waker, replacing an earlier waker.
    pub(super) fn park<T>(&mut self, cx: &Context<'_>) -> Poll<T> {
        match &mut self.0 {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

/// State with a waker slot.
pub(super) trait HasWakerSlot {
    /// Returns the slot.
    fn waker_slot(&mut self) -> &mut WakerSlot;
}

/// Wakes the waiting task after the lock is released.
pub(super) fn wake_waiter<S: HasWakerSlot>(mut state: MutexGuard<'_, S>) {
    let waker = state.waker_slot().0.take();
    drop(state);
    if let Some(waker) = waker {
        waker.wake();
    }
}
