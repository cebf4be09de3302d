//! Counts durations in buckets of a fixed number whose widths grow with what they hold.

/// Each octave of microseconds is cut into so many equal parts; a time is told as the middle of
/// its part, so at most a sixteenth beside the truth.
const PARTS: u64 = 8;

/// Times below this many microseconds have a bucket each.
const PARTS_BITS: u32 = PARTS.trailing_zeros();

/// The octaves above those; the last ends after more than an hour.
const OCTAVES: usize = 29;

const BUCKETS: usize = (OCTAVES + 1) * PARTS as usize;

/// The bounds in seconds of what is told to collectors of metrics.
pub const BOUNDS_S: [f64; 14] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0,
];

/// The same in microseconds.
const BOUNDS_US: [u64; BOUNDS_S.len()] = [
    500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 10_000_000, 60_000_000,
];

/// Times of one half of a window, fine enough for percentiles.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: [u32; BUCKETS],
    total: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: [0; BUCKETS],
            total: 0,
        }
    }
}

impl Histogram {
    /// Counts one duration; one beyond the last bucket is counted there.
    pub fn add(&mut self, us: u64) {
        if let Some(count) = self.counts.get_mut(bucket(us)) {
            *count = count.saturating_add(1);
            self.total += 1;
        }
    }

    /// Returns the duration, in microseconds, that `percent` of all those counted in `parts` do
    /// not exceed, at most 10 % off; `None` where nothing was counted.
    #[must_use]
    pub fn quantile(parts: [&Self; 2], percent: u64) -> Option<u64> {
        let total: u64 = parts.iter().map(|part| part.total).sum();
        let rank = (total * percent).div_ceil(100).max(1);
        let [one, two] = parts;
        let mut seen = 0;
        let counts = one.counts.iter().zip(&two.counts);
        let mut counts = counts.map(|(a, b)| u64::from(*a) + u64::from(*b));
        let at = counts.position(|count| {
            seen += count;
            seen >= rank
        })?;
        Some(middle(at))
    }
}

/// Durations since the beginning, by few bounds.
#[derive(Clone, Debug, Default)]
pub(super) struct Coarse {
    counts: [u64; BOUNDS_US.len()],
    count: u64,
    sum_us: u64,
}

impl Coarse {
    pub(super) fn add(&mut self, us: u64) {
        let at = BOUNDS_US.partition_point(|bound| *bound < us);
        if let Some(count) = self.counts.get_mut(at) {
            *count += 1;
        }
        self.count += 1;
        self.sum_us = self.sum_us.saturating_add(us);
    }

    pub(super) fn buckets(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let mut seen = 0;
        BOUNDS_S
            .into_iter()
            .zip(self.counts)
            .map(move |(s, count)| {
                seen += count;
                (s, seen)
            })
    }

    pub(super) const fn count(&self) -> u64 {
        self.count
    }

    pub(super) const fn sum_us(&self) -> u64 {
        self.sum_us
    }
}

/// Returns the bucket of a duration.
fn bucket(us: u64) -> usize {
    let octave = us.max(PARTS).ilog2() - PARTS_BITS;
    let part = us >> octave;
    // Below the first octave, and in it, parts are single microseconds.
    let at = u64::from(octave) * PARTS + part;
    usize::try_from(at).unwrap_or(usize::MAX).min(BUCKETS - 1)
}

/// Returns the middle of what a bucket holds.
fn middle(at: usize) -> u64 {
    let at = at as u64;
    if at < 2 * PARTS {
        return at;
    }
    let octave = at / PARTS - 1;
    let low = (at - octave * PARTS) << octave;
    low + (1 << octave) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_told_at_most_a_tenth_off() {
        let mut us = 0_u64;
        while us < 1 << 32 {
            let told = middle(bucket(us));
            let off = told.abs_diff(us);
            assert!(off * 10 <= us, "{us} is told as {told}");
            us += 1 + us / 97;
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1, "what is longer stays in");
        assert_eq!(
            bucket((1 << 32) - 1),
            BUCKETS - 1,
            "no bucket is for nothing"
        );
    }

    #[test]
    fn percentiles_are_those_of_both_parts_together() {
        let (mut one, mut two) = (Histogram::default(), Histogram::default());
        assert_eq!(Histogram::quantile([&one, &two], 50), None);
        for us in 1..=500 {
            one.add(us);
            two.add(500 + us);
        }
        for (percent, truth) in [(50, 500_u64), (99, 990), (100, 1_000), (0, 1)] {
            let told = Histogram::quantile([&one, &two], percent).unwrap();
            assert!(told.abs_diff(truth) * 10 <= truth, "{percent}: {told}");
        }
    }

    #[test]
    fn bounds_are_the_same_in_seconds_and_microseconds() {
        for (s, us) in BOUNDS_S.into_iter().zip(BOUNDS_US) {
            assert!((s * 1e6 - us as f64).abs() < 1e-3, "{s} {us}");
        }
    }

    #[test]
    fn coarse_buckets_hold_all_that_took_at_most_so_long() {
        let mut times = Coarse::default();
        for us in [0, 500, 501, 1_000, 60_000_000, 60_000_001] {
            times.add(us);
        }
        let told: Vec<_> = times.buckets().collect();
        assert_eq!(told.len(), BOUNDS_S.len());
        assert_eq!(told[0], (0.0005, 2));
        assert_eq!(told[1], (0.001, 4));
        assert_eq!(told[12], (10.0, 4));
        assert_eq!(told[13], (60.0, 5));
        assert_eq!((times.count(), times.sum_us()), (6, 120_002_002));
    }
}
