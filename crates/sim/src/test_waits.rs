//! Waits of tests for which no event exists: for an idle runtime, and for a polled condition.

use std::time::Duration;

use tokio::runtime::Handle;

/// Interval of a poll.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Upper bound of a poll: only a hanging product exceeds it.
const POLL_TIME_MAX: Duration = Duration::from_secs(60);

/// Looks of the watching thread before `run_until_idle` gives up.
const IDLE_LOOKS_MAX: usize = 1_000_000;

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
#[expect(clippy::panic, reason = "a test fails")]
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
#[expect(clippy::panic, reason = "a test fails")]
pub async fn poll_for<T>(description: &str, mut poll: impl AsyncFnMut() -> Option<T>) -> T {
    let polling = async {
        loop {
            if let Some(value) = poll().await {
                return value;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    match tokio::time::timeout(POLL_TIME_MAX, polling).await {
        Ok(value) => value,
        Err(_) => panic!("never: {description}"),
    }
}
