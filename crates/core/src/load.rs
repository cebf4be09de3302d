//! Recent load of a server: call outcomes, and latencies in histograms with a fixed number of
//! exponentially growing buckets.

use std::time::Duration;

use crate::error::FailureClass;
use crate::time::{MonotonicTime, to_millis};

/// Recent load covers the current and the previous half window.
pub const HALF_WINDOW: Duration = Duration::from_secs(300);

/// Outcome of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// A result, possibly with `isError`.
    Succeeded,
    /// A JSON-RPC error of the server, also a response.
    RpcError,
    /// No response.
    Failed(FailureClass),
    /// Not run: the server had reached its limit of calls.
    Shed,
    /// Cancelled by the client.
    Cancelled,
}

/// Every outcome, in counter order.
const OUTCOMES: [CallOutcome; 18] = [
    CallOutcome::Succeeded,
    CallOutcome::RpcError,
    CallOutcome::Shed,
    CallOutcome::Cancelled,
    CallOutcome::Failed(FailureClass::Denied),
    CallOutcome::Failed(FailureClass::NotFound),
    CallOutcome::Failed(FailureClass::Invalid),
    CallOutcome::Failed(FailureClass::Unavailable),
    CallOutcome::Failed(FailureClass::ConnectFailed),
    CallOutcome::Failed(FailureClass::SendFailed),
    CallOutcome::Failed(FailureClass::ConnectionLost),
    CallOutcome::Failed(FailureClass::Timeout),
    CallOutcome::Failed(FailureClass::AuthRequired),
    CallOutcome::Failed(FailureClass::ScopeRequired),
    CallOutcome::Failed(FailureClass::Throttled),
    CallOutcome::Failed(FailureClass::ProtocolError),
    CallOutcome::Failed(FailureClass::Truncated),
    CallOutcome::Failed(FailureClass::Cancelled),
];

impl CallOutcome {
    /// Returns the word used in metrics and traces.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "ok",
            Self::RpcError => "rpc_error",
            Self::Failed(class) => class.as_str(),
            Self::Shed => "shed",
            Self::Cancelled => FailureClass::Cancelled.as_str(),
        }
    }

    /// Whether the caller waited in vain.
    #[must_use]
    pub const fn is_error(self) -> bool {
        matches!(self, Self::Failed(_) | Self::Shed)
    }

    /// Whether the server received the call, so that the duration measures the server.
    #[must_use]
    pub const fn is_timed(self) -> bool {
        match self {
            Self::Succeeded | Self::RpcError => true,
            Self::Shed | Self::Cancelled => false,
            Self::Failed(class) => match class {
                FailureClass::ConnectionLost
                | FailureClass::Timeout
                | FailureClass::AuthRequired
                | FailureClass::ScopeRequired
                | FailureClass::Throttled
                | FailureClass::ProtocolError
                | FailureClass::Truncated => true,
                FailureClass::Denied
                | FailureClass::NotFound
                | FailureClass::Invalid
                | FailureClass::Unavailable
                | FailureClass::ConnectFailed
                | FailureClass::SendFailed
                | FailureClass::Cancelled => false,
            },
        }
    }

    const fn counter_index(self) -> usize {
        match self {
            Self::Succeeded => 0,
            Self::RpcError => 1,
            Self::Shed => 2,
            Self::Cancelled => 3,
            Self::Failed(class) => 4 + class as usize,
        }
    }
}

/// The end of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallCompletion {
    /// The outcome.
    pub outcome: CallOutcome,
    /// Duration in microseconds.
    pub duration_us: u64,
    /// Whether the call was sent a second time.
    pub is_retried: bool,
}

/// The load of one server.
#[derive(Clone, Debug)]
pub struct ServerLoad {
    /// Start of the current half window.
    half_started: MonotonicTime,
    current: HalfWindow,
    previous: HalfWindow,
    totals: LoadTotals,
}

#[derive(Clone, Debug, Default)]
struct HalfWindow {
    calls: u64,
    errors: u64,
    latencies: LatencyHistogram,
}

/// Load of the last five to ten minutes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoadView {
    /// Ended calls.
    pub calls: u64,
    /// Calls without a response although the caller waited.
    pub errors: u64,
    /// Share of errors; zero without calls.
    pub error_rate: f64,
    /// Median duration of calls received by the server, in microseconds.
    pub p50_us: Option<u64>,
    /// 99th percentile of the same.
    pub p99_us: Option<u64>,
}

/// Monotonic counters since the start.
#[derive(Clone, Debug, Default)]
pub struct LoadTotals {
    by_outcome: [u64; OUTCOMES.len()],
    retry_count: u64,
    latencies: CoarseHistogram,
}

impl ServerLoad {
    /// Returns the load of a server without calls.
    #[must_use]
    pub fn new(now: MonotonicTime) -> Self {
        Self {
            half_started: now,
            current: HalfWindow::default(),
            previous: HalfWindow::default(),
            totals: LoadTotals::default(),
        }
    }

    /// Records the end of a call.
    pub fn record_call(&mut self, completion: CallCompletion, now: MonotonicTime) {
        self.rotate_halves(now);
        let CallCompletion {
            outcome,
            duration_us: took_us,
            is_retried: retried,
        } = completion;
        self.current.calls += 1;
        self.current.errors += u64::from(outcome.is_error());
        if let Some(count) = self.totals.by_outcome.get_mut(outcome.counter_index()) {
            *count += 1;
        }
        self.totals.retry_count += u64::from(retried);
        if outcome.is_timed() {
            self.current.latencies.record_us(took_us);
            self.totals.latencies.record_us(took_us);
        }
    }

    /// Returns the recent load at `now`.
    #[must_use]
    pub fn recent_view(&mut self, now: MonotonicTime) -> LoadView {
        self.rotate_halves(now);
        let calls = self.current.calls + self.previous.calls;
        let errors = self.current.errors + self.previous.errors;
        let times = [&self.current.latencies, &self.previous.latencies];
        LoadView {
            calls,
            errors,
            error_rate: ratio(errors, calls),
            p50_us: LatencyHistogram::quantile(times, 50),
            p99_us: LatencyHistogram::quantile(times, 99),
        }
    }

    /// Returns the counters since the start.
    #[must_use]
    pub const fn totals(&self) -> &LoadTotals {
        &self.totals
    }

    /// Starts a new half window when the current half has ended. Halves do not overlap, so a view
    /// covers between one and two halves.
    fn rotate_halves(&mut self, now: MonotonicTime) {
        let (age, half) = (now.millis_since(self.half_started), to_millis(HALF_WINDOW));
        if age < half {
            return;
        }
        let filled = std::mem::take(&mut self.current);
        self.previous = if age < 2 * half {
            filled
        } else {
            HalfWindow::default()
        };
        self.half_started = now;
    }
}

impl LoadTotals {
    /// Returns the count of every outcome that occurred.
    pub fn outcome_counts(&self) -> impl Iterator<Item = (CallOutcome, u64)> + '_ {
        let counted = OUTCOMES.into_iter().zip(self.by_outcome);
        counted.filter(|(_, count)| *count > 0)
    }

    /// Returns the count of an outcome.
    #[must_use]
    pub fn outcome_count(&self, outcome: CallOutcome) -> u64 {
        self.by_outcome
            .get(outcome.counter_index())
            .copied()
            .unwrap_or_default()
    }

    /// Returns the number of ended calls.
    #[must_use]
    pub fn call_count(&self) -> u64 {
        self.by_outcome.iter().sum()
    }

    /// Returns the number of calls ended while the caller waited.
    #[must_use]
    pub fn awaited_count(&self) -> u64 {
        self.call_count() - self.outcome_count(CallOutcome::Cancelled)
    }

    /// Returns the number of calls without a response although the caller waited.
    #[must_use]
    pub fn error_count(&self) -> u64 {
        let errors = self
            .outcome_counts()
            .filter(|(outcome, _)| outcome.is_error());
        errors.map(|(_, count)| count).sum()
    }

    /// Returns the number of calls shed for the server's limit.
    #[must_use]
    pub fn shed_count(&self) -> u64 {
        self.outcome_count(CallOutcome::Shed)
    }

    /// Returns the number of calls sent a second time.
    #[must_use]
    pub const fn retry_count(&self) -> u64 {
        self.retry_count
    }

    /// Returns the cumulative number of calls received by the server per bound in seconds.
    pub fn latency_buckets(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        self.latencies.cumulative_buckets()
    }

    /// Returns the number of calls received by the server, the total of the buckets.
    #[must_use]
    pub const fn timed_count(&self) -> u64 {
        self.latencies.count()
    }

    /// Returns the total duration of these calls in microseconds.
    #[must_use]
    pub const fn timed_sum_us(&self) -> u64 {
        self.latencies.sum_us()
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a share of counts that large needs no more digits"
)]
fn ratio(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 0.0,
        whole => part as f64 / whole as f64,
    }
}

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
struct CoarseHistogram {
    counts: [u64; BOUNDS_US.len()],
    count: u64,
    sum_us: u64,
}

impl CoarseHistogram {
    fn record_us(&mut self, us: u64) {
        let at = BOUNDS_US.partition_point(|bound| *bound < us);
        if let Some(count) = self.counts.get_mut(at) {
            *count += 1;
        }
        self.count += 1;
        self.sum_us = self.sum_us.saturating_add(us);
    }

    fn cumulative_buckets(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let mut cumulative = 0;
        BOUNDS_S
            .into_iter()
            .zip(self.counts)
            .map(move |(s, count)| {
                cumulative += count;
                (s, cumulative)
            })
    }

    const fn count(&self) -> u64 {
        self.count
    }

    const fn sum_us(&self) -> u64 {
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
mod tests;
