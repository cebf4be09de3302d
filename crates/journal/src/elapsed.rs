//! Elapsed time for message expiry: monotonic, but converging to the wall clock.
//!
//! A wall clock can jump: set by hand, reset by an empty battery, or after a suspend. While the
//! journal is open, elapsed time follows the monotonic clock and leans toward the wall clock. The
//! time while the journal was closed is known only from the wall clock, and counts within limits.

use std::time::Duration;

use bowline_core::time::{MonotonicTime, to_millis};

use crate::engine::Timestamps;

/// Downtime counted at once: after an ordinary restart, stored messages have their real age.
pub const STOP_AT_ONCE_MAX: Duration = Duration::from_secs(5 * 60);

/// Downtime counted at most.
pub const STOP_COUNTED_MAX: Duration = Duration::from_secs(12 * 60 * 60);

/// Time after opening until the rest of a longer downtime counts: meanwhile queued messages can be
/// tried, and a wrong clock at boot can be corrected.
pub const START_GRACE: Duration = Duration::from_secs(5 * 60);

/// Elapsed time runs faster or slower than the monotonic clock by at most 1/`LEAN_PARTS`, until it
/// meets the wall clock.
const LEAN_PARTS: u64 = 8;

/// Interval for settling the accumulated lean, in milliseconds; shorter steps would round to zero.
const STEP_MS: u64 = 1_000;

/// Elapsed-time clock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ElapsedTime {
    /// Last time written by an earlier run, until the first moment of this run; 0 for none.
    before: u64,
    /// A monotonic moment and its elapsed time.
    from: Option<(MonotonicTime, u64)>,
    /// While part of a longer downtime is not counted yet: the time of opening, and the elapsed
    /// time up to which the downtime may count.
    grace: Option<(MonotonicTime, u64)>,
    /// Latest elapsed time; never decreases.
    last: u64,
}

impl ElapsedTime {
    /// Resumes after the last time written by an earlier run.
    #[cfg(feature = "sqlite")]
    pub(crate) const fn resume(before: u64) -> Self {
        Self {
            before,
            from: None,
            grace: None,
            last: before,
        }
    }

    /// Returns the latest elapsed time, in milliseconds since 1970.
    #[cfg(feature = "sqlite")]
    pub(crate) const fn last_ms(&self) -> u64 {
        self.last
    }

    /// Advances to a moment and returns the elapsed time.
    pub(crate) fn advance(&mut self, at: Timestamps) -> u64 {
        let (now, unix_ms) = *self.from.get_or_insert_with(|| {
            let (start, grace) = start_time(self.before, at.unix_ms);
            self.grace = grace.map(|until| (at.now, until));
            (at.now, start)
        });
        let elapsed = at.now.millis_since(now);
        let mut time = lean_toward_wall(unix_ms.saturating_add(elapsed), at.unix_ms, elapsed);
        let mut is_step = elapsed >= STEP_MS;
        if let Some((opened, until)) = self.grace
            && let open_ms = at.now.millis_since(opened)
            && open_ms >= to_millis(START_GRACE)
        {
            self.grace = None;
            is_step = true;
            // The wall clock may have been corrected since the start.
            time = time.max(until.saturating_add(open_ms).min(at.unix_ms));
        }
        self.last = self.last.max(time);
        if is_step {
            self.from = Some((at.now, time));
        }
        self.last
    }
}

/// Returns the elapsed time at the first moment after a downtime, and the limit for the rest of the
/// downtime.
fn start_time(before: u64, unix_ms: u64) -> (u64, Option<u64>) {
    let stopped = unix_ms.saturating_sub(before);
    match stopped {
        // Nothing was written by an earlier run, or the wall clock went back.
        _ if before == 0 => (unix_ms, None),
        0 => (before, None),
        _ if stopped <= to_millis(STOP_AT_ONCE_MAX) => (unix_ms, None),
        _ => {
            let counted = stopped.min(to_millis(STOP_COUNTED_MAX));
            let at_once = before.saturating_add(to_millis(STOP_AT_ONCE_MAX));
            (at_once, Some(before.saturating_add(counted)))
        }
    }
}

/// Moves a time toward the wall clock, by at most a fraction of the elapsed interval.
fn lean_toward_wall(time: u64, unix_ms: u64, elapsed: u64) -> u64 {
    let part = elapsed / LEAN_PARTS;
    unix_ms.clamp(time.saturating_sub(part), time.saturating_add(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000;
    const HOUR: u64 = 60 * MINUTE;
    const NOON: u64 = 1_700_000_000_000;

    fn at(now: u64, unix_ms: u64) -> Timestamps {
        Timestamps {
            now: MonotonicTime(now),
            unix_ms,
        }
    }

    #[test]
    fn wall_jump_leans_elapsed_time_slowly() {
        let mut time = ElapsedTime::default();
        assert_eq!(time.advance(at(0, NOON)), NOON);
        let year = 365 * 24 * HOUR;
        assert_eq!(time.advance(at(500, NOON + year)), NOON + 500 + 62);
        let mut last = 0;
        for minute in 1..=60 {
            last = time.advance(at(minute * MINUTE, NOON + year + minute * MINUTE));
        }
        assert!(last >= NOON + HOUR, "never slower than the monotonic clock");
        assert!(
            last <= NOON + HOUR + HOUR / LEAN_PARTS,
            "and not much faster"
        );
    }

    #[test]
    fn wall_behind_never_turns_time_back() {
        let mut time = ElapsedTime::resume(NOON);
        assert_eq!(time.advance(at(0, NOON - HOUR)), NOON);
        let later = time.advance(at(8 * MINUTE, NOON - HOUR + 8 * MINUTE));
        assert_eq!(later, NOON + 7 * MINUTE);
        assert_eq!(time.advance(at(MINUTE, 0)), later, "a late caller");
    }

    #[test]
    fn short_stop_counts_in_full() {
        let mut time = ElapsedTime::resume(NOON);
        assert_eq!(time.advance(at(7, NOON + 4 * MINUTE)), NOON + 4 * MINUTE);
    }

    #[test]
    fn long_stop_counts_after_grace_up_to_limit() {
        let mut time = ElapsedTime::resume(NOON);
        let days = 72 * HOUR;
        let first = time.advance(at(0, NOON + days));
        assert_eq!(first, NOON + to_millis(STOP_AT_ONCE_MAX));
        let grace = to_millis(START_GRACE);
        let during = time.advance(at(grace - 1, NOON + days + grace - 1));
        assert!(during < NOON + 11 * MINUTE, "{}", during - NOON);
        let after = time.advance(at(grace, NOON + days + grace));
        assert!(after >= NOON + to_millis(STOP_COUNTED_MAX));
        assert!(after <= NOON + to_millis(STOP_COUNTED_MAX) + grace);
    }

    #[test]
    fn wall_put_right_during_grace_counts_only_truth() {
        let mut time = ElapsedTime::resume(NOON);
        time.advance(at(0, NOON + 72 * HOUR));
        let grace = to_millis(START_GRACE);
        let after = time.advance(at(grace, NOON + 20 * MINUTE));
        assert!(after <= NOON + 20 * MINUTE, "{}", after - NOON);
    }
}
