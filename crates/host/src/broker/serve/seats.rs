//! How many requests run at once: in all, and of one caller.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use bowline_core::sync::lock;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The seats, given out in the order in which they are asked for.
#[derive(Debug)]
pub(super) struct Seats {
    whole: Arc<Semaphore>,
    caller_max: usize,
    /// Those callers that have or want a seat.
    callers: Mutex<HashMap<Arc<str>, Arc<Semaphore>>>,
}

/// A seat; free again when it is dropped.
#[derive(Debug)]
pub(super) struct Seat<'a> {
    // Dropped in this order: the caller is forgotten once its seats are free.
    _whole: OwnedSemaphorePermit,
    _own: OwnedSemaphorePermit,
    _caller: Caller<'a>,
}

/// Somebody who has or wants a seat.
#[derive(Debug)]
struct Caller<'a> {
    seats: &'a Seats,
    name: Arc<str>,
    own: Arc<Semaphore>,
}

impl Seats {
    pub(super) fn new(whole_max: usize, caller_max: usize) -> Self {
        Self {
            whole: Arc::new(Semaphore::new(whole_max)),
            caller_max,
            callers: Mutex::default(),
        }
    }

    /// Waits for a seat. A caller that has all of its own keeps nobody else from one.
    pub(super) async fn take(&self, name: &Arc<str>) -> Option<Seat<'_>> {
        let caller = self.caller(name);
        let own = Arc::clone(&caller.own).acquire_owned().await;
        let whole = Arc::clone(&self.whole).acquire_owned().await;
        // Neither is ever closed.
        Some(Seat {
            _whole: whole.ok()?,
            _own: own.ok()?,
            _caller: caller,
        })
    }

    fn caller(&self, name: &Arc<str>) -> Caller<'_> {
        let mut callers = lock(&self.callers);
        let own = callers
            .entry(Arc::clone(name))
            .or_insert_with(|| Arc::new(Semaphore::new(self.caller_max)));
        Caller {
            seats: self,
            name: Arc::clone(name),
            own: Arc::clone(own),
        }
    }

    #[cfg(test)]
    fn callers(&self) -> usize {
        lock(&self.callers).len()
    }
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        let mut callers = lock(&self.seats.callers);
        // The map's and ours: nobody else has or wants a seat of this caller.
        if Arc::strong_count(&self.own) <= 2 {
            callers.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Poll;

    use super::*;

    fn now<T>(future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match future.as_mut().poll(&mut context) {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_caller_has_so_many_seats_and_keeps_nobody_else_from_one() {
        let seats = Seats::new(3, 2);
        let (one, two): (Arc<str>, Arc<str>) = ("one".into(), "two".into());
        let first = now(seats.take(&one)).unwrap();
        let _second = now(seats.take(&one)).unwrap();
        assert!(now(seats.take(&one)).is_none(), "it has all of its own");
        let _other = now(seats.take(&two)).unwrap();
        assert!(now(seats.take(&two)).is_none(), "all are taken");
        drop(first);
        let _again = now(seats.take(&two)).unwrap();
    }

    #[test]
    fn a_caller_that_has_and_wants_no_seat_is_forgotten() {
        let seats = Seats::new(1, 1);
        let (one, two): (Arc<str>, Arc<str>) = ("one".into(), "two".into());
        let seat = now(seats.take(&one)).unwrap();
        assert!(now(seats.take(&two)).is_none());
        assert_eq!(seats.callers(), 1, "who gave up waiting is gone");
        drop(seat);
        assert_eq!(seats.callers(), 0);
    }
}
