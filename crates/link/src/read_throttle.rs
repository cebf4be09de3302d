//! Bounds the cost of a flooding server: past the allowance the stream is read
//! slowly, and the full pipe slows down the server.

use std::time::Duration;

use tokio::time::Instant;

/// Permitted noise per second, in units of [`noise_cost`].
const NOISE_PER_SECOND: u64 = 4 * 1024 * 1024;

/// Permitted noise at once.
const NOISE_BURST: u64 = 8 * 1024 * 1024;

/// Fixed cost of a line: short lines cost the most per byte.
const LINE_COST: u64 = 256;

/// Counted bytes per line.
const LINE_BYTES_MAX: u64 = 1024 * 1024;

/// Read throttle of a stream.
#[derive(Debug)]
pub(crate) struct ReadThrottle {
    /// Unpaid noise.
    debt: u64,
    /// Time of the last payment.
    paid_at: Instant,
    /// Whether the stream is throttled.
    is_throttled: bool,
}

/// A pause before the next read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThrottlePause {
    pub(crate) wait: Duration,
    /// Whether the stream was unthrottled until now.
    pub(crate) is_first: bool,
}

/// Returns the cost of useless lines.
pub(crate) fn noise_cost(lines: usize, bytes: usize) -> u64 {
    let (lines, bytes) = (lines as u64, bytes as u64);
    let bytes_max = lines.max(1).saturating_mul(LINE_BYTES_MAX);
    lines.saturating_mul(LINE_COST) + bytes.min(bytes_max)
}

impl ReadThrottle {
    pub(crate) const fn new(now: Instant) -> Self {
        Self {
            debt: 0,
            paid_at: now,
            is_throttled: false,
        }
    }

    /// Charges noise; returns a pause when the allowance is exceeded.
    pub(crate) fn charge(&mut self, now: Instant, cost: u64) -> Option<ThrottlePause> {
        let elapsed = now.saturating_duration_since(self.paid_at);
        let micros = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        self.paid_at = now;
        let paid = micros.saturating_mul(NOISE_PER_SECOND) / 1_000_000;
        self.debt = self.debt.saturating_sub(paid).saturating_add(cost);
        let excess = self.debt.saturating_sub(NOISE_BURST);
        if excess == 0 {
            self.is_throttled &= self.debt > 0;
            return None;
        }
        let is_first = !std::mem::replace(&mut self.is_throttled, true);
        let wait = Duration::from_micros(excess.saturating_mul(1_000_000) / NOISE_PER_SECOND);
        Some(ThrottlePause { wait, is_first })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demux::now;

    /// Returns the lines read in this time at the maximum permitted rate.
    fn lines_read_in(line_bytes: usize, seconds: u64) -> u64 {
        let begun = now();
        let (mut at, mut lines) = (begun, 0);
        let mut allowance = ReadThrottle::new(begun);
        while at < begun + Duration::from_secs(seconds) {
            lines += 1;
            if let Some(pause) = allowance.charge(at, noise_cost(1, line_bytes)) {
                at += pause.wait;
            }
        }
        lines
    }

    #[test]
    fn sec_67_flood_is_read_at_bounded_rate() {
        assert!(lines_read_in(1, 10) <= 10 * 16_384 + 32_768 + 1);
        assert!(lines_read_in(1_000_000, 10) <= 60);
    }

    #[test]
    fn burst_and_steady_output_are_not_throttled() {
        let begun = now();
        let mut allowance = ReadThrottle::new(begun);
        for second in 0..100 {
            let at = begun + Duration::from_secs(second);
            assert_eq!(allowance.charge(at, noise_cost(10_000, 1_000_000)), None);
        }
        let pause = allowance.charge(begun, NOISE_BURST).unwrap();
        assert!(pause.is_first);
        assert!(!allowance.charge(begun, 1).unwrap().is_first);
    }
}
