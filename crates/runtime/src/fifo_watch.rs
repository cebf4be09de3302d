//! A watch channel that wakes waiters in FIFO order.
//!
//! Tokio's `watch` wakes waiters in random order, so that calls waiting for a server would proceed
//! in any order, and simulations would differ between runs.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use thiserror::Error;
use tokio::sync::Notify;

/// Sending half.
#[derive(Debug)]
pub struct FifoSender<T>(Arc<FifoInner<T>>);

/// Receiving half.
#[derive(Debug)]
pub struct FifoReceiver<T> {
    inner: Arc<FifoInner<T>>,
    /// The last seen version.
    seen_version: u64,
}

/// The sender was dropped.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the value changes no more")]
pub struct SenderDropped;

#[derive(Debug)]
struct FifoInner<T> {
    value: RwLock<T>,
    /// Counts changes.
    version: AtomicU64,
    closed: AtomicBool,
    changed: Notify,
}

impl<T> FifoSender<T> {
    /// Creates a channel with an initial value.
    pub fn new(value: T) -> Self {
        Self(Arc::new(FifoInner {
            value: RwLock::new(value),
            version: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            changed: Notify::new(),
        }))
    }

    /// Returns a receiver that has seen the current value.
    #[must_use]
    pub fn subscribe(&self) -> FifoReceiver<T> {
        FifoReceiver {
            seen_version: self.0.version.load(Ordering::Acquire),
            inner: Arc::clone(&self.0),
        }
    }

    /// Borrows the value.
    pub fn borrow(&self) -> RwLockReadGuard<'_, T> {
        self.0.read_value()
    }

    /// Modifies the value; waiters wake if `change` returns true.
    pub fn send_if_modified(&self, change: impl FnOnce(&mut T) -> bool) -> bool {
        let mut value = self.0.value.write().unwrap_or_else(PoisonError::into_inner);
        let changed = change(&mut value);
        if changed {
            self.0.version.fetch_add(1, Ordering::Release);
        }
        drop(value);
        if changed {
            self.0.changed.notify_waiters();
        }
        changed
    }

    /// Replaces the value.
    pub fn send_replace(&self, value: T) {
        self.send_if_modified(|current| {
            *current = value;
            true
        });
    }
}

impl<T> Drop for FifoSender<T> {
    fn drop(&mut self) {
        self.0.closed.store(true, Ordering::Release);
        self.0.changed.notify_waiters();
    }
}

impl<T> FifoInner<T> {
    fn read_value(&self) -> RwLockReadGuard<'_, T> {
        self.value.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> FifoReceiver<T> {
    /// Borrows the value.
    pub fn borrow(&self) -> RwLockReadGuard<'_, T> {
        self.inner.read_value()
    }

    /// Borrows the value and marks it as seen.
    pub fn borrow_and_update(&mut self) -> RwLockReadGuard<'_, T> {
        let value = self.inner.read_value();
        self.seen_version = self.inner.version.load(Ordering::Acquire);
        value
    }

    /// Waits for an unseen value; fails once the sender is dropped.
    pub async fn changed(&mut self) -> Result<(), SenderDropped> {
        loop {
            // Registered first, so that a change before the await is not missed.
            let changed = self.inner.changed.notified();
            let closed = self.inner.closed.load(Ordering::Acquire);
            let version = self.inner.version.load(Ordering::Acquire);
            if version != self.seen_version {
                self.seen_version = version;
                return Ok(());
            }
            if closed {
                return Err(SenderDropped);
            }
            changed.await;
        }
    }

    /// Waits until the value satisfies `wanted`.
    pub async fn wait_for(
        &mut self,
        mut predicate: impl FnMut(&T) -> bool,
    ) -> Result<(), SenderDropped> {
        loop {
            let fits = predicate(&self.borrow_and_update());
            if fits {
                return Ok(());
            }
            self.changed().await?;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::task::{Context, Poll, Wake, Waker};

    use bowline_core::sync::lock;

    use super::*;

    /// Records that the waiter `nth` was woken.
    #[derive(Debug)]
    struct OrderWaker {
        nth: usize,
        order: Arc<Mutex<Vec<usize>>>,
    }

    impl Wake for OrderWaker {
        fn wake(self: Arc<Self>) {
            lock(&self.order).push(self.nth);
        }
    }

    #[test]
    fn waiters_wake_in_fifo_order() {
        let sender = FifoSender::new(false);
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut waiting = Vec::new();
        for nth in 0..100 {
            let (mut value, order) = (sender.subscribe(), Arc::clone(&order));
            let waker = Waker::from(Arc::new(OrderWaker { nth, order }));
            let mut wait = Box::pin(async move { value.wait_for(|set| *set).await });
            let polled = wait.as_mut().poll(&mut Context::from_waker(&waker));
            assert_eq!(polled, Poll::Pending);
            waiting.push((wait, waker));
        }
        sender.send_replace(true);
        assert_eq!(*lock(&order), (0..100).collect::<Vec<_>>());
        for (mut wait, waker) in waiting {
            let polled = wait.as_mut().poll(&mut Context::from_waker(&waker));
            assert_eq!(polled, Poll::Ready(Ok(())));
        }
    }

    #[tokio::test]
    async fn change_before_wait_is_seen_once() {
        let sender = FifoSender::new(1);
        let mut value = sender.subscribe();
        sender.send_replace(2);
        assert_eq!(value.changed().await, Ok(()));
        assert!(!sender.send_if_modified(|_| false));
        drop(sender);
        assert_eq!(value.changed().await, Err(SenderDropped));
        assert_eq!(*value.borrow(), 2);
    }
}
