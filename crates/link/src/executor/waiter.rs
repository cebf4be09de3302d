//! Who waits for what another task brings; one at a time.

use std::sync::MutexGuard;
use std::task::{Context, Poll, Waker};

/// The place of one that waits.
#[derive(Debug, Default)]
pub(super) struct Waiter(Option<Waker>);

impl Waiter {
    /// Waits from now on, in the place of who waited before.
    pub(super) fn wait<T>(&mut self, cx: &Context<'_>) -> Poll<T> {
        match &mut self.0 {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

/// Has one who waits.
pub(super) trait Awaited {
    /// Returns its place.
    fn waiter(&mut self) -> &mut Waiter;
}

/// Wakes who waits, with no lock held.
pub(super) fn wake<S: Awaited>(mut state: MutexGuard<'_, S>) {
    let waker = state.waiter().0.take();
    drop(state);
    if let Some(waker) = waker {
        waker.wake();
    }
}
