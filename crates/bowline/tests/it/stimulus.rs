//! Durations that are the stimulus of a test.

use std::time::Duration;

/// Sleeps where the duration itself is the stimulus: the length of an outage, the due time of a
/// write under open-loop load, the pause before a retry. Never a wait for a condition.
pub(crate) fn sleep_as_stimulus(duration: Duration) {
    std::thread::sleep(duration);
}
