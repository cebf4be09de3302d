//! Paces one caller of a load: when its next call is due.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::process;

/// When to make the next call.
#[derive(Debug)]
pub(crate) struct Pace {
    next: Instant,
    every: Duration,
    end: Instant,
    /// Calls that began late because the call before took too long.
    pub(crate) late: u64,
}

impl Pace {
    /// Returns the pace of the `nth` of so many callers; their calls are spread evenly.
    pub(crate) fn new(every: Duration, nth: u32, callers: u32, end: Instant) -> Self {
        Self {
            next: process::now() + every * nth / callers,
            every,
            end,
            late: 0,
        }
    }

    /// Waits until the next call is due; `false` once the end is reached.
    pub(crate) fn next(&mut self) -> bool {
        if self.next >= self.end {
            return false;
        }
        let now = process::now();
        if now < self.next {
            thread::sleep(self.next - now);
            self.next += self.every;
        } else {
            // A late caller does not catch up: the rate is a limit.
            self.late += 1;
            self.next = now + self.every;
        }
        process::now() < self.end
    }
}
