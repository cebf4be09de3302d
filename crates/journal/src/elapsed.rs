//! The time by which messages expire: elapsed time, close to the wall clock.
//!
//! A wall clock may jump, by hand, by a battery that is empty or by a machine that sleeps. So
//! time goes by the monotonic clock while the journal is open and only leans towards the wall
//! clock; how long the journal was closed is known from the wall clock alone, and counts within
//! limits.

use std::time::Duration;

use bowline_core::time::{Now, millis};

use crate::engine::At;

/// A stop counts so much at once: whatever was stored before an ordinary restart is as old as it
/// really is.
pub const STOP_AT_ONCE_MAX: Duration = Duration::from_secs(5 * 60);

/// A longer stop counts up to so much.
pub const STOP_COUNTED_MAX: Duration = Duration::from_secs(12 * 60 * 60);

/// The rest of a longer stop counts only when the journal was open for so long: until then
/// everything that waits can be tried, and a clock that was wrong at boot was put right.
pub const START_GRACE: Duration = Duration::from_secs(5 * 60);

/// Time runs faster or slower than the monotonic clock by at most one part in so many, until it
/// meets the wall clock.
const LEAN_PARTS: u64 = 8;

/// How often what was leaned so far is settled, in milliseconds: shorter steps round to nothing.
const STEP_MS: u64 = 1_000;

/// How far time went.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ElapsedTime {
    /// What an earlier run wrote down last, until the first moment of this one; 0 for nothing.
    before: u64,
    /// A moment of the monotonic clock, and what time it was.
    from: Option<(Now, u64)>,
    /// Since when it is open, where a longer stop does not count in full yet, and how far the
    /// stop may bring time.
    grace: Option<(Now, u64)>,
    /// The latest moment: time never goes back.
    last: u64,
}

impl ElapsedTime {
    /// Goes on after what an earlier run wrote down.
    pub(crate) const fn resume(before: u64) -> Self {
        Self {
            before,
            from: None,
            grace: None,
            last: before,
        }
    }

    /// Returns how far time went, in milliseconds since 1970.
    pub(crate) const fn last(&self) -> u64 {
        self.last
    }

    /// Takes up a moment, and returns what time it is.
    pub(crate) fn advance(&mut self, at: At) -> u64 {
        let (now, unix_ms) = *self.from.get_or_insert_with(|| {
            let (start, grace) = start(self.before, at.unix_ms);
            self.grace = grace.map(|until| (at.now, until));
            (at.now, start)
        });
        let elapsed = at.now.millis_since(now);
        let mut time = lean(unix_ms.saturating_add(elapsed), at.unix_ms, elapsed);
        let mut is_step = elapsed >= STEP_MS;
        if let Some((opened, until)) = self.grace
            && let open_ms = at.now.millis_since(opened)
            && open_ms >= millis(START_GRACE)
        {
            self.grace = None;
            is_step = true;
            // The wall clock may have been put right since the start.
            time = time.max(until.saturating_add(open_ms).min(at.unix_ms));
        }
        self.last = self.last.max(time);
        if is_step {
            self.from = Some((at.now, time));
        }
        self.last
    }
}

/// Returns what time it is at the first moment after a stop, and how far the rest of the stop may
/// bring it.
fn start(before: u64, unix_ms: u64) -> (u64, Option<u64>) {
    let stopped = unix_ms.saturating_sub(before);
    match stopped {
        // Nothing was written down, or the wall clock went back.
        _ if before == 0 => (unix_ms, None),
        0 => (before, None),
        _ if stopped <= millis(STOP_AT_ONCE_MAX) => (unix_ms, None),
        _ => {
            let counted = stopped.min(millis(STOP_COUNTED_MAX));
            let at_once = before.saturating_add(millis(STOP_AT_ONCE_MAX));
            (at_once, Some(before.saturating_add(counted)))
        }
    }
}

/// Brings a time closer to the wall clock, by at most a part of what has elapsed.
fn lean(time: u64, unix_ms: u64, elapsed: u64) -> u64 {
    let part = elapsed / LEAN_PARTS;
    unix_ms.clamp(time.saturating_sub(part), time.saturating_add(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000;
    const HOUR: u64 = 60 * MINUTE;
    const NOON: u64 = 1_700_000_000_000;

    fn at(now: u64, unix_ms: u64) -> At {
        At {
            now: Now(now),
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
        assert_eq!(first, NOON + millis(STOP_AT_ONCE_MAX));
        let grace = millis(START_GRACE);
        let during = time.advance(at(grace - 1, NOON + days + grace - 1));
        assert!(during < NOON + 11 * MINUTE, "{}", during - NOON);
        let after = time.advance(at(grace, NOON + days + grace));
        assert!(after >= NOON + millis(STOP_COUNTED_MAX));
        assert!(after <= NOON + millis(STOP_COUNTED_MAX) + grace);
    }

    #[test]
    fn wall_put_right_during_grace_counts_only_truth() {
        let mut time = ElapsedTime::resume(NOON);
        time.advance(at(0, NOON + 72 * HOUR));
        let grace = millis(START_GRACE);
        let after = time.advance(at(grace, NOON + 20 * MINUTE));
        assert!(after <= NOON + 20 * MINUTE, "{}", after - NOON);
    }
}
