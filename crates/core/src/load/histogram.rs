//! Latency histograms with a fixed number of exponentially growing buckets.

/// Parts per octave of microseconds. A duration is reported as the middle of its part, at most
/// 1/16 off.
const PARTS_PER_OCTAVE: u64 = 8;

/// Durations below this power of two (microseconds) have a bucket each.
const PARTS_BITS: u32 = PARTS_PER_OCTAVE.trailing_zeros();

/// Octaves above; the last ends after more than an hour.
const OCTAVES: usize = 29;

const BUCKETS: usize = (OCTAVES + 1) * PARTS_PER_OCTAVE as usize;

/// Bucket bounds in seconds, exported in metrics.
pub const BOUNDS_S: [f64; 14] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0,
];

/// The same bounds in microseconds.
const BOUNDS_US: [u64; BOUNDS_S.len()] = [
    500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 10_000_000, 60_000_000,
];

/// Durations of one half window, fine enough for percentiles.
#[derive(Clone, Debug)]
pub struct LatencyHistogram {
    counts: [u32; BUCKETS],
    total: u64,
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self {
            counts: [0; BUCKETS],
            total: 0,
        }
    }
}

impl LatencyHistogram {
    /// Records a duration; durations beyond the last bucket go into the last bucket.
    pub fn record_us(&mut self, us: u64) {
        if let Some(count) = self.counts.get_mut(bucket_index(us)) {
            *count = count.saturating_add(1);
            self.total += 1;
        }
    }

    /// Returns the duration, in microseconds, not exceeded by `percent` of all durations in
    /// `parts`, at most 10 % off; `None` if empty.
    #[must_use]
    pub fn quantile(parts: [&Self; 2], percent: u64) -> Option<u64> {
        let total: u64 = parts.iter().map(|part| part.total).sum();
        let rank = (total * percent).div_ceil(100).max(1);
        let [one, two] = parts;
        let mut cumulative = 0;
        let counts = one.counts.iter().zip(&two.counts);
        let mut counts = counts.map(|(a, b)| u64::from(*a) + u64::from(*b));
        let at = counts.position(|count| {
            cumulative += count;
            cumulative >= rank
        })?;
        Some(bucket_midpoint(at))
    }
}

/// Durations since the start, with few bounds.
#[derive(Clone, Debug, Default)]
pub(super) struct CoarseHistogram {
    counts: [u64; BOUNDS_US.len()],
    count: u64,
    sum_us: u64,
}

impl CoarseHistogram {
    pub(super) fn record_us(&mut self, us: u64) {
        let at = BOUNDS_US.partition_point(|bound| *bound < us);
        if let Some(count) = self.counts.get_mut(at) {
            *count += 1;
        }
        self.count += 1;
        self.sum_us = self.sum_us.saturating_add(us);
    }

    pub(super) fn cumulative_buckets(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let mut cumulative = 0;
        BOUNDS_S
            .into_iter()
            .zip(self.counts)
            .map(move |(s, count)| {
                cumulative += count;
                (s, cumulative)
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
fn bucket_index(us: u64) -> usize {
    let octave = us.max(PARTS_PER_OCTAVE).ilog2() - PARTS_BITS;
    let part = us >> octave;
    // Below and in the first octave, parts are single microseconds.
    let at = u64::from(octave) * PARTS_PER_OCTAVE + part;
    usize::try_from(at).unwrap_or(usize::MAX).min(BUCKETS - 1)
}

/// Returns the middle of a bucket.
fn bucket_midpoint(at: usize) -> u64 {
    let at = at as u64;
    if at < 2 * PARTS_PER_OCTAVE {
        return at;
    }
    let octave = at / PARTS_PER_OCTAVE - 1;
    let low = (at - octave * PARTS_PER_OCTAVE) << octave;
    low + (1 << octave) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_midpoint_is_within_ten_percent() {
        let mut us = 0_u64;
        while us < 1 << 32 {
            let told = bucket_midpoint(bucket_index(us));
            let off = told.abs_diff(us);
            assert!(off * 10 <= us, "{us} is told as {told}");
            us += 1 + us / 97;
        }
        assert_eq!(
            bucket_index(u64::MAX),
            BUCKETS - 1,
            "what is longer stays in"
        );
        assert_eq!(
            bucket_index((1 << 32) - 1),
            BUCKETS - 1,
            "no bucket is for nothing"
        );
    }

    #[test]
    fn percentiles_cover_both_halves() {
        let (mut one, mut two) = (LatencyHistogram::default(), LatencyHistogram::default());
        assert_eq!(LatencyHistogram::quantile([&one, &two], 50), None);
        for us in 1..=500 {
            one.record_us(us);
            two.record_us(500 + us);
        }
        for (percent, truth) in [(50, 500_u64), (99, 990), (100, 1_000), (0, 1)] {
            let told = LatencyHistogram::quantile([&one, &two], percent).unwrap();
            assert!(told.abs_diff(truth) * 10 <= truth, "{percent}: {told}");
        }
    }

    #[test]
    fn bounds_agree_in_seconds_and_microseconds() {
        for (s, us) in BOUNDS_S.into_iter().zip(BOUNDS_US) {
            assert!((s * 1e6 - us as f64).abs() < 1e-3, "{s} {us}");
        }
    }

    #[test]
    fn coarse_buckets_are_cumulative() {
        let mut times = CoarseHistogram::default();
        for us in [0, 500, 501, 1_000, 60_000_000, 60_000_001] {
            times.record_us(us);
        }
        let told: Vec<_> = times.cumulative_buckets().collect();
        assert_eq!(told.len(), BOUNDS_S.len());
        assert_eq!(told[0], (0.0005, 2));
        assert_eq!(told[1], (0.001, 4));
        assert_eq!(told[12], (10.0, 4));
        assert_eq!(told[13], (60.0, 5));
        assert_eq!((times.count(), times.sum_us()), (6, 120_002_002));
    }
}
