//! Limits of concurrently running requests: in total, and per caller.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use bowline_core::sync::lock;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Run permits, granted in request order.
#[derive(Debug)]
pub(super) struct RunLimiter {
    total: Arc<Semaphore>,
    caller_max: usize,
    /// Semaphores of callers with a held or awaited permit.
    callers: Mutex<HashMap<Arc<str>, Arc<Semaphore>>>,
}

/// A run permit, released on drop.
#[derive(Debug)]
pub(super) struct RunPermit<'a> {
    // Drop order: the caller's semaphore is removed after both permits are released.
    _total: OwnedSemaphorePermit,
    _caller_permit: OwnedSemaphorePermit,
    _semaphore: CallerSemaphore<'a>,
}

/// A caller with a held or awaited permit.
#[derive(Debug)]
struct CallerSemaphore<'a> {
    limiter: &'a RunLimiter,
    name: Arc<str>,
    semaphore: Arc<Semaphore>,
}

impl RunLimiter {
    pub(super) fn new(total_max: usize, caller_max: usize) -> Self {
        Self {
            total: Arc::new(Semaphore::new(total_max)),
            caller_max,
            callers: Mutex::default(),
        }
    }

    /// Acquires a permit. A caller at the caller limit blocks no other caller.
    pub(super) async fn acquire(&self, name: &Arc<str>) -> Option<RunPermit<'_>> {
        let caller = self.caller_semaphore(name);
        let caller_permit = Arc::clone(&caller.semaphore).acquire_owned().await;
        let total_permit = Arc::clone(&self.total).acquire_owned().await;
        // Neither semaphore is ever closed.
        Some(RunPermit {
            _total: total_permit.ok()?,
            _caller_permit: caller_permit.ok()?,
            _semaphore: caller,
        })
    }

    fn caller_semaphore(&self, name: &Arc<str>) -> CallerSemaphore<'_> {
        let mut callers = lock(&self.callers);
        let semaphore = callers
            .entry(Arc::clone(name))
            .or_insert_with(|| Arc::new(Semaphore::new(self.caller_max)));
        CallerSemaphore {
            limiter: self,
            name: Arc::clone(name),
            semaphore: Arc::clone(semaphore),
        }
    }

    #[cfg(test)]
    fn caller_count(&self) -> usize {
        lock(&self.callers).len()
    }
}

impl Drop for CallerSemaphore<'_> {
    fn drop(&mut self) {
        let mut callers = lock(&self.limiter.callers);
        // Only the map and `self` hold references: no permit of this caller is held or awaited.
        if Arc::strong_count(&self.semaphore) <= 2 {
            callers.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Poll;

    use super::*;

    fn poll_once<T>(future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match future.as_mut().poll(&mut context) {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        }
    }

    #[test]
    fn busy_caller_does_not_block_other_callers() {
        let limiter = RunLimiter::new(3, 2);
        let (one, two): (Arc<str>, Arc<str>) = ("one".into(), "two".into());
        let first = poll_once(limiter.acquire(&one)).unwrap();
        let _second = poll_once(limiter.acquire(&one)).unwrap();
        assert!(
            poll_once(limiter.acquire(&one)).is_none(),
            "it has all of its own"
        );
        let _other = poll_once(limiter.acquire(&two)).unwrap();
        assert!(poll_once(limiter.acquire(&two)).is_none(), "all are taken");
        drop(first);
        let _again = poll_once(limiter.acquire(&two)).unwrap();
    }

    #[test]
    fn idle_caller_is_forgotten() {
        let limiter = RunLimiter::new(1, 1);
        let (one, two): (Arc<str>, Arc<str>) = ("one".into(), "two".into());
        let permit = poll_once(limiter.acquire(&one)).unwrap();
        assert!(poll_once(limiter.acquire(&two)).is_none());
        assert_eq!(limiter.caller_count(), 1, "who gave up waiting is gone");
        drop(permit);
        assert_eq!(limiter.caller_count(), 0);
    }
}
