//! State that callers change and one task works off.

use std::ops::Deref;
use std::sync::Mutex;

use bowline_core::time::MonotonicTime;
use tokio::sync::Notify;

use crate::Clock;
use crate::timer::sleep_until_due;

/// A mutex with the waker of the task that works off its contents: a caller locks, changes and
/// calls [`wake`](Self::wake).
#[derive(Debug, Default)]
pub struct Work<T> {
    state: Mutex<T>,
    changed: Notify,
}

impl<T> Work<T> {
    /// Creates the initial state.
    #[must_use]
    pub const fn new(state: T) -> Self {
        Self {
            state: Mutex::new(state),
            changed: Notify::const_new(),
        }
    }

    /// Wakes the task. A task that does not wait now does not wait the next time.
    pub fn wake(&self) {
        self.changed.notify_one();
    }

    /// Waits for a wake-up. Cancel-safe.
    pub async fn wait(&self) {
        self.changed.notified().await;
    }

    /// Waits for a wake-up, at most until `due`. Cancel-safe.
    pub async fn wait_until(&self, clock: &dyn Clock, due: Option<MonotonicTime>) {
        tokio::select! {
            biased;
            () = self.wait() => {}
            () = sleep_until_due(clock, due) => {}
        }
    }
}

impl<T> Deref for Work<T> {
    type Target = Mutex<T>;

    fn deref(&self) -> &Mutex<T> {
        &self.state
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bowline_core::sync::lock;

    use super::*;
    use crate::SystemClock;

    #[tokio::test(start_paused = true)]
    async fn wait_ends_at_wake_or_due_time() {
        let (work, clock) = (Work::new(0), SystemClock::start());
        *lock(&work) += 1;
        work.wake();
        work.wait().await;
        assert_eq!((*lock(&work), clock.now()), (1, MonotonicTime(0)));
        let due = clock.now().plus(Duration::from_secs(5));
        work.wait_until(&clock, Some(due)).await;
        assert_eq!(clock.now(), due);
    }
}
