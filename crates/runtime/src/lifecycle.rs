//! Life of a component: open until closed or dropped, and idle once its last activity has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Notify;

/// The life of one component, held by its owner. Dropping it closes it, so that a component that
/// is dropped without a close stops as well.
#[derive(Debug)]
pub struct Lifecycle(Shutdown);

/// The shutdown of a component, as seen by its tasks and handles. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Shutdown(Arc<LifecycleState>);

/// Small, because each connection and each request in flight has one. Wakes waiters in FIFO order,
/// so that simulations do not differ between runs.
#[derive(Debug, Default)]
pub(crate) struct LifecycleState {
    is_closing: AtomicBool,
    closing: Notify,
    /// Number of running activities.
    activities: AtomicUsize,
    /// Signalled at the end of the last activity.
    idle: Notify,
}

impl Default for Lifecycle {
    fn default() -> Self {
        Self(Shutdown(Arc::default()))
    }
}

impl Drop for Lifecycle {
    fn drop(&mut self) {
        self.close();
    }
}

impl Lifecycle {
    /// Returns the shutdown signal for tasks and handles.
    #[must_use]
    pub const fn shutdown(&self) -> &Shutdown {
        &self.0
    }

    /// Signals the shutdown.
    pub fn close(&self) {
        let state = &*self.0.0;
        state.is_closing.store(true, Ordering::Release);
        state.closing.notify_waiters();
    }

    /// Signals the shutdown, and waits until no activity is left.
    pub async fn close_and_wait(&self) {
        self.close();
        self.0.0.wait_idle().await;
    }

    /// Whether no activity is left.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.0.0.is_idle()
    }
}

impl Shutdown {
    /// Whether the shutdown was signalled.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.0.is_closing.load(Ordering::Acquire)
    }

    /// Waits for the shutdown.
    pub async fn wait_closing(&self) {
        // Created before the check, so that a signal between check and wait is not missed.
        let closing = self.0.closing.notified();
        if !self.is_closing() {
            closing.await;
        }
    }

    /// Starts an activity that the component waits for when it closes.
    #[must_use]
    pub fn start_activity(&self) -> ActivityGuard {
        self.0.start_activity()
    }
}

/// An activity of a component, until dropped.
#[derive(Debug)]
pub struct ActivityGuard(Arc<LifecycleState>);

impl Drop for ActivityGuard {
    fn drop(&mut self) {
        if self.0.activities.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}

impl LifecycleState {
    pub(crate) fn start_activity(self: &Arc<Self>) -> ActivityGuard {
        self.activities.fetch_add(1, Ordering::Relaxed);
        ActivityGuard(Arc::clone(self))
    }

    fn is_idle(&self) -> bool {
        self.activities.load(Ordering::Acquire) == 0
    }

    pub(crate) async fn wait_idle(&self) {
        loop {
            // Created before the check, so that an end between check and wait is not missed.
            let idle = self.idle.notified();
            if self.is_idle() {
                return;
            }
            idle.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn poll_once(future: std::pin::Pin<&mut impl Future<Output = ()>>) -> Poll<()> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn close_or_drop_ends_waits() {
        for is_dropped in [false, true] {
            let lifecycle = Lifecycle::default();
            let shutdown = lifecycle.shutdown().clone();
            let mut waiting = pin!(shutdown.wait_closing());
            assert_eq!(poll_once(waiting.as_mut()), Poll::Pending);
            let unpolled = pin!(shutdown.wait_closing());
            match is_dropped {
                true => drop(lifecycle),
                false => lifecycle.close(),
            }
            assert_eq!(poll_once(waiting), Poll::Ready(()));
            assert_eq!(poll_once(unpolled), Poll::Ready(()));
            assert_eq!(poll_once(pin!(shutdown.wait_closing())), Poll::Ready(()));
            assert!(shutdown.is_closing());
        }
    }

    #[test]
    fn close_waits_for_last_activity() {
        let lifecycle = Lifecycle::default();
        let (first, second) = (
            lifecycle.shutdown().start_activity(),
            lifecycle.shutdown().start_activity(),
        );
        let mut closed = pin!(lifecycle.close_and_wait());
        assert_eq!(poll_once(closed.as_mut()), Poll::Pending);
        drop(first);
        assert_eq!(poll_once(closed.as_mut()), Poll::Pending);
        assert!(!lifecycle.is_idle());
        drop(second);
        assert_eq!(poll_once(closed.as_mut()), Poll::Ready(()));
        assert!(lifecycle.is_idle());
    }
}
