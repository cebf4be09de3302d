//! Recent load of a server: call outcomes and latencies.

mod histogram;

use std::time::Duration;

use crate::error::FailureClass;
use crate::time::{MonotonicTime, to_millis};

pub use histogram::{BOUNDS_S, LatencyHistogram};

use histogram::CoarseHistogram;

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

#[cfg(test)]
mod tests {
    use super::*;

    fn completion(outcome: CallOutcome, took_us: u64) -> CallCompletion {
        CallCompletion {
            outcome,
            duration_us: took_us,
            is_retried: false,
        }
    }

    #[test]
    fn each_outcome_has_its_own_counter() {
        let mut load = ServerLoad::new(MonotonicTime(0));
        for (at, outcome) in OUTCOMES.into_iter().enumerate() {
            assert_eq!(outcome.counter_index(), at, "{outcome:?}");
            load.record_call(completion(outcome, 10), MonotonicTime(0));
        }
        let totals = load.totals();
        for outcome in OUTCOMES {
            assert_eq!(totals.outcome_count(outcome), 1, "{outcome:?}");
        }
        assert_eq!(totals.call_count(), OUTCOMES.len() as u64);
        assert_eq!(totals.error_count(), OUTCOMES.len() as u64 - 3);
        assert_eq!(totals.shed_count(), 1);
    }

    #[test]
    fn unsent_calls_do_not_affect_latency() {
        let mut load = ServerLoad::new(MonotonicTime(0));
        load.record_call(completion(CallOutcome::Succeeded, 1_000), MonotonicTime(0));
        for outcome in [
            CallOutcome::Shed,
            CallOutcome::Cancelled,
            CallOutcome::Failed(FailureClass::Unavailable),
            CallOutcome::Failed(FailureClass::SendFailed),
        ] {
            load.record_call(completion(outcome, 9_000_000), MonotonicTime(0));
        }
        let view = load.recent_view(MonotonicTime(0));
        assert_eq!((view.calls, view.errors), (5, 3));
        assert!((view.error_rate - 0.6).abs() < 1e-9, "{view:?}");
        assert!(view.p99_us < Some(1_100), "{view:?}");
        assert_eq!(load.totals().timed_count(), 1);
        assert_eq!(load.totals().timed_sum_us(), 1_000);
    }

    #[test]
    fn window_drops_calls_older_than_two_halves() {
        let half = to_millis(HALF_WINDOW);
        let mut load = ServerLoad::new(MonotonicTime(0));
        assert_eq!(load.recent_view(MonotonicTime(0)), LoadView::default());
        load.record_call(
            completion(CallOutcome::Failed(FailureClass::Timeout), 5),
            MonotonicTime(1),
        );
        for (at, calls) in [(half - 1, 1), (half, 1), (2 * half - 1, 1), (2 * half, 0)] {
            assert_eq!(load.recent_view(MonotonicTime(at)).calls, calls, "{at}");
        }
        load.record_call(
            completion(CallOutcome::Succeeded, 5),
            MonotonicTime(2 * half),
        );
        assert_eq!(
            load.recent_view(MonotonicTime(20 * half)),
            LoadView::default()
        );
        assert_eq!(load.totals().call_count(), 2, "totals forget nothing");
    }

    #[test]
    fn retried_call_counts_once() {
        let mut load = ServerLoad::new(MonotonicTime(0));
        let retried = CallCompletion {
            is_retried: true,
            ..completion(CallOutcome::Succeeded, 5)
        };
        load.record_call(retried, MonotonicTime(0));
        assert_eq!(
            (load.totals().call_count(), load.totals().retry_count()),
            (1, 1)
        );
    }
}
