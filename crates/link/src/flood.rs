//! Bounds what a server costs that talks without end: past its allowance it is read slowly, and
//! its pipe holds it back.

use std::time::Duration;

use tokio::time::Instant;

/// Noise that is read per second, as [`cost`] counts it.
const RATE_PER_SECOND: u64 = 4 * 1024 * 1024;

/// Noise that is read at once, however fast it comes.
const BURST: u64 = 8 * 1024 * 1024;

/// What a line costs beside its bytes: short lines are the dear ones.
const LINE_COST: u64 = 256;

/// Bytes of one line that count.
const LINE_BYTES_MAX: u64 = 1024 * 1024;

/// What one stream may still waste.
#[derive(Debug)]
pub(crate) struct Allowance {
    /// What was read and is not paid off yet.
    debt: u64,
    /// When it was last paid.
    paid: Instant,
    /// Whether the stream is being held back.
    is_held: bool,
}

/// How long a stream is not to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pause {
    pub(crate) wait: Duration,
    /// Whether it was read at its own speed until now.
    pub(crate) is_first: bool,
}

/// Counts lines that are worth nothing.
pub(crate) fn cost(lines: usize, bytes: usize) -> u64 {
    let (lines, bytes) = (lines as u64, bytes as u64);
    let bytes_max = lines.max(1).saturating_mul(LINE_BYTES_MAX);
    lines.saturating_mul(LINE_COST) + bytes.min(bytes_max)
}

impl Allowance {
    pub(crate) const fn new(now: Instant) -> Self {
        Self {
            debt: 0,
            paid: now,
            is_held: false,
        }
    }

    /// Charges what was read, and says how long nothing should be.
    pub(crate) fn charge(&mut self, now: Instant, cost: u64) -> Option<Pause> {
        let elapsed = now.saturating_duration_since(self.paid);
        let micros = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        self.paid = now;
        let paid = micros.saturating_mul(RATE_PER_SECOND) / 1_000_000;
        self.debt = self.debt.saturating_sub(paid).saturating_add(cost);
        let over = self.debt.saturating_sub(BURST);
        if over == 0 {
            self.is_held &= self.debt > 0;
            return None;
        }
        let is_first = !std::mem::replace(&mut self.is_held, true);
        let wait = Duration::from_micros(over.saturating_mul(1_000_000) / RATE_PER_SECOND);
        Some(Pause { wait, is_first })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desk::now;

    /// Reads as fast as it is let for this long, and returns the lines that were read.
    fn flood(line_bytes: usize, seconds: u64) -> u64 {
        let begun = now();
        let (mut at, mut lines) = (begun, 0);
        let mut allowance = Allowance::new(begun);
        while at < begun + Duration::from_secs(seconds) {
            lines += 1;
            if let Some(pause) = allowance.charge(at, cost(1, line_bytes)) {
                at += pause.wait;
            }
        }
        lines
    }

    #[test]
    fn sec_67_flood_is_read_at_bounded_rate() {
        assert!(flood(1, 10) <= 10 * 16_384 + 32_768 + 1);
        assert!(flood(1_000_000, 10) <= 60);
    }

    #[test]
    fn burst_and_steady_talk_are_not_held_back() {
        let begun = now();
        let mut allowance = Allowance::new(begun);
        for second in 0..100 {
            let at = begun + Duration::from_secs(second);
            assert_eq!(allowance.charge(at, cost(10_000, 1_000_000)), None);
        }
        let pause = allowance.charge(begun, BURST).unwrap();
        assert!(pause.is_first);
        assert!(!allowance.charge(begun, 1).unwrap().is_first);
    }
}
