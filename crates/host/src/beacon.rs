//! A value that many wait on: those who wait are woken in the order in which they came.
//!
//! The `watch` channel of tokio spreads them at random, so that calls which wait for one server
//! would leave in any order, and a simulated world would differ from run to run.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use thiserror::Error;
use tokio::sync::Notify;

/// The side that changes the value.
#[derive(Debug)]
pub struct Sender<T>(Arc<Inner<T>>);

/// A side that sees the changes.
#[derive(Debug)]
pub struct Receiver<T> {
    inner: Arc<Inner<T>>,
    /// The version that was looked at last.
    seen: u64,
}

/// Nobody is left to change the value.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the value changes no more")]
pub struct Closed;

#[derive(Debug)]
struct Inner<T> {
    value: RwLock<T>,
    /// Counts changes.
    version: AtomicU64,
    closed: AtomicBool,
    changed: Notify,
}

impl<T> Sender<T> {
    /// Returns the side that changes a value, which begins as this one.
    pub fn new(value: T) -> Self {
        Self(Arc::new(Inner {
            value: RwLock::new(value),
            version: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            changed: Notify::new(),
        }))
    }

    /// Returns a side that has seen the value of this moment.
    #[must_use]
    pub fn subscribe(&self) -> Receiver<T> {
        Receiver {
            seen: self.0.version.load(Ordering::Acquire),
            inner: Arc::clone(&self.0),
        }
    }

    /// Looks at the value.
    pub fn borrow(&self) -> RwLockReadGuard<'_, T> {
        self.0.read()
    }

    /// Changes the value; those who wait are woken where `change` says that it did.
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

    /// Puts another value in place.
    pub fn send_replace(&self, value: T) {
        self.send_if_modified(|current| {
            *current = value;
            true
        });
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.closed.store(true, Ordering::Release);
        self.0.changed.notify_waiters();
    }
}

impl<T> Inner<T> {
    fn read(&self) -> RwLockReadGuard<'_, T> {
        self.value.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Receiver<T> {
    /// Looks at the value.
    pub fn borrow(&self) -> RwLockReadGuard<'_, T> {
        self.inner.read()
    }

    /// Looks at the value and takes it as seen.
    pub fn borrow_and_update(&mut self) -> RwLockReadGuard<'_, T> {
        let value = self.inner.read();
        self.seen = self.inner.version.load(Ordering::Acquire);
        value
    }

    /// Waits for a value that was not seen yet; fails once nobody can change it any more.
    pub async fn changed(&mut self) -> Result<(), Closed> {
        loop {
            // Asked for first, so that a change between the look and the wait is not missed.
            let changed = self.inner.changed.notified();
            let closed = self.inner.closed.load(Ordering::Acquire);
            let version = self.inner.version.load(Ordering::Acquire);
            if version != self.seen {
                self.seen = version;
                return Ok(());
            }
            if closed {
                return Err(Closed);
            }
            changed.await;
        }
    }

    /// Waits until the value is as `wanted`.
    pub async fn wait_for(&mut self, mut wanted: impl FnMut(&T) -> bool) -> Result<(), Closed> {
        loop {
            let fits = wanted(&self.borrow_and_update());
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

    use bowline_core::sync::lock;
    use tokio::task::JoinSet;

    use super::*;

    #[tokio::test]
    async fn whoever_came_first_is_woken_first() {
        let sender = Sender::new(false);
        let order = Arc::new(Mutex::new(Vec::new()));
        let come = Arc::new(AtomicU64::new(0));
        let mut waiting = JoinSet::new();
        for nth in 0..100 {
            let (mut value, order) = (sender.subscribe(), Arc::clone(&order));
            let come = Arc::clone(&come);
            waiting.spawn(async move {
                come.fetch_add(1, Ordering::Relaxed);
                value.wait_for(|set| *set).await.unwrap();
                lock(&order).push(nth);
            });
        }
        while come.load(Ordering::Relaxed) < 100 {
            tokio::task::yield_now().await;
        }
        sender.send_replace(true);
        waiting.join_all().await;
        assert_eq!(*lock(&order), (0..100).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn a_change_before_the_wait_is_seen_once() {
        let sender = Sender::new(1);
        let mut value = sender.subscribe();
        sender.send_replace(2);
        assert_eq!(value.changed().await, Ok(()));
        assert!(!sender.send_if_modified(|_| false));
        drop(sender);
        assert_eq!(value.changed().await, Err(Closed));
        assert_eq!(*value.borrow(), 2);
    }
}
