//! Waits of asynchronous tests: for a future, for an idle runtime, and for a polled condition. All
//! have the one limit `WAIT_MAX`.

use std::panic::Location;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::polls::WAIT_MAX;

/// Interval of a poll.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Looks of the watching thread before `run_until_idle` gives up.
const IDLE_LOOKS_MAX: usize = 1_000_000;

/// Awaits a future that must end: within `WAIT_MAX`, or the test fails with the place of the call.
///
/// # Panics
/// The future takes longer than `WAIT_MAX`.
#[track_caller]
pub fn wait_bounded<T>(future: impl Future<Output = T>) -> impl Future<Output = T> {
    let place = Location::caller();
    // Boxed, so that the futures of callers stay small.
    let future = Box::pin(future);
    async move {
        match tokio::time::timeout(WAIT_MAX, future).await {
            Ok(output) => output,
            Err(_) => panic!("still waiting after {WAIT_MAX:?}: {place}"),
        }
    }
}

/// Returns the time at which a wait that begins now must be over.
#[must_use]
pub fn test_deadline() -> Instant {
    deadline_after(WAIT_MAX)
}

/// Returns the time after this duration.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "the one deadline of tests")]
pub fn deadline_after(duration: Duration) -> Instant {
    Instant::now() + duration
}

/// Runs all other tasks until each of them waits, without moving a paused clock. Shows that
/// something did not happen, or that everything due now has happened.
///
/// The runtime parks its thread only when no task can run, and counts that. A blocking task
/// watches the count from another thread, because the test itself has to wait for the park; a
/// blocking task also keeps a paused clock from advancing.
///
/// Needs the current-thread runtime of `#[tokio::test]`. Work on other threads, such as a blocking
/// task of the product, is not awaited.
///
/// # Panics
/// The runtime never parks: a task wakes itself for ever.
pub async fn run_until_idle() {
    let metrics = Handle::current().metrics();
    let parks = metrics.worker_park_count(0);
    let watch = tokio::task::spawn_blocking(move || {
        (0..IDLE_LOOKS_MAX).any(|_| {
            std::thread::yield_now();
            metrics.worker_park_count(0) > parks
        })
    });
    if !matches!(watch.await, Ok(true)) {
        panic!("the runtime is never idle");
    }
}

/// Moves a paused clock by `time`; every timer on the way fires at its time, and its consequences
/// run before the next one.
pub async fn advance_clock(time: Duration) {
    tokio::time::sleep(time).await;
    run_until_idle().await;
}

/// Polls until the condition holds; for changes behind a socket or in a process, which send no
/// event to the test. A paused clock moves by the interval with each look.
///
/// # Panics
/// The condition, named `what`, does not hold within the time limit.
pub async fn poll_until(description: &str, mut holds: impl FnMut() -> bool) {
    poll_for(description, async || holds().then_some(())).await;
}

/// Like `poll_until`, for a value.
///
/// # Panics
/// No value of `what` comes within the time limit.
pub async fn poll_for<T>(description: &str, mut poll: impl AsyncFnMut() -> Option<T>) -> T {
    let polling = async {
        loop {
            if let Some(value) = poll().await {
                return value;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    match tokio::time::timeout(WAIT_MAX, polling).await {
        Ok(value) => value,
        Err(_) => panic!("never: {description}"),
    }
}
