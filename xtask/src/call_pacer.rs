//! Paces one caller of a load.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::process;

/// Schedule of one caller: when the next call is due.
#[derive(Debug)]
pub(crate) struct CallPacer {
    next_at: Instant,
    interval: Duration,
    end_at: Instant,
    /// Calls that started late because the previous call took too long.
    pub(crate) late_calls: u64,
}

impl CallPacer {
    /// Creates the pacer of the `nth` of `callers` callers; calls are spread evenly.
    pub(crate) fn new(interval: Duration, nth: u32, callers: u32, end_at: Instant) -> Self {
        Self {
            next_at: process::now() + interval * nth / callers,
            interval,
            end_at,
            late_calls: 0,
        }
    }

    /// Waits until the next call is due; returns `false` once the end is reached.
    pub(crate) fn wait_next(&mut self) -> bool {
        if self.next_at >= self.end_at {
            return false;
        }
        let now = process::now();
        if now < self.next_at {
            thread::sleep(self.next_at - now);
            self.next_at += self.interval;
        } else {
            // A late caller does not catch up: the rate is a limit.
            self.late_calls += 1;
            self.next_at = now + self.interval;
        }
        process::now() < self.end_at
    }
}
