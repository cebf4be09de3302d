//! How busy a server was of late, how its calls ended and how long they took.

mod histogram;

use std::time::Duration;

use crate::error::Class;
use crate::time::{Now, millis};

pub use histogram::{BOUNDS_S, Histogram};

use histogram::Coarse;

/// Recent load is that of this half of the window and of the one before it.
pub const HALF_WINDOW: Duration = Duration::from_secs(300);

/// How one call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// With a result, be it one that says `isError`.
    Answered,
    /// With a JSON-RPC error of the server: an answer, too.
    Rejected,
    /// Without an answer.
    Failed(Class),
    /// The server had as many calls as it may, and so it was not run.
    Shed,
    /// Its caller went away.
    Cancelled,
}

/// Every way in which a call can end, in the order in which they are counted.
const OUTCOMES: [Outcome; 18] = [
    Outcome::Answered,
    Outcome::Rejected,
    Outcome::Shed,
    Outcome::Cancelled,
    Outcome::Failed(Class::Denied),
    Outcome::Failed(Class::NotFound),
    Outcome::Failed(Class::Invalid),
    Outcome::Failed(Class::Unavailable),
    Outcome::Failed(Class::ConnectFailed),
    Outcome::Failed(Class::SendFailed),
    Outcome::Failed(Class::ConnectionLost),
    Outcome::Failed(Class::Timeout),
    Outcome::Failed(Class::AuthRequired),
    Outcome::Failed(Class::ScopeRequired),
    Outcome::Failed(Class::Throttled),
    Outcome::Failed(Class::ProtocolError),
    Outcome::Failed(Class::Truncated),
    Outcome::Failed(Class::Cancelled),
];

impl Outcome {
    /// Returns the word used in metrics and traces.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Answered => "ok",
            Self::Rejected => "rpc_error",
            Self::Failed(class) => class.as_str(),
            Self::Shed => "shed",
            Self::Cancelled => Class::Cancelled.as_str(),
        }
    }

    /// Whether the caller waited in vain: neither answered nor gone.
    #[must_use]
    pub const fn is_error(self) -> bool {
        matches!(self, Self::Failed(_) | Self::Shed)
    }

    /// Whether the server had the call, so that the time it took says something of the server.
    #[must_use]
    pub const fn is_timed(self) -> bool {
        match self {
            Self::Answered | Self::Rejected => true,
            Self::Shed | Self::Cancelled => false,
            Self::Failed(class) => match class {
                Class::ConnectionLost
                | Class::Timeout
                | Class::AuthRequired
                | Class::ScopeRequired
                | Class::Throttled
                | Class::ProtocolError
                | Class::Truncated => true,
                Class::Denied
                | Class::NotFound
                | Class::Invalid
                | Class::Unavailable
                | Class::ConnectFailed
                | Class::SendFailed
                | Class::Cancelled => false,
            },
        }
    }

    const fn place(self) -> usize {
        match self {
            Self::Answered => 0,
            Self::Rejected => 1,
            Self::Shed => 2,
            Self::Cancelled => 3,
            Self::Failed(class) => 4 + class as usize,
        }
    }
}

/// The end of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// How it came.
    pub outcome: Outcome,
    /// How long the call took, in microseconds.
    pub took_us: u64,
    /// Whether it was sent a second time.
    pub retried: bool,
}

/// The load of one server.
#[derive(Clone, Debug)]
pub struct Load {
    /// When the half window that is being filled began.
    since: Now,
    filling: Half,
    before: Half,
    totals: Totals,
}

#[derive(Clone, Debug, Default)]
struct Half {
    calls: u64,
    errors: u64,
    times: Histogram,
}

/// What is known of the last five to ten minutes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoadView {
    /// Calls that ended.
    pub calls: u64,
    /// Of those, the ones that ended without an answer though somebody waited for it.
    pub errors: u64,
    /// Their share; zero without calls.
    pub error_rate: f64,
    /// Half of the calls that the server had took at most this long, in microseconds.
    pub p50_us: Option<u64>,
    /// Nearly all of them did.
    pub p99_us: Option<u64>,
}

/// What was counted since the beginning; never goes back.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    by_outcome: [u64; OUTCOMES.len()],
    retries: u64,
    times: Coarse,
}

impl Load {
    /// Returns the load of a server that was never called.
    #[must_use]
    pub fn new(now: Now) -> Self {
        Self {
            since: now,
            filling: Half::default(),
            before: Half::default(),
            totals: Totals::default(),
        }
    }

    /// Counts the end of a call.
    pub fn record(&mut self, end: End, now: Now) {
        self.rotate(now);
        let End {
            outcome,
            took_us,
            retried,
        } = end;
        self.filling.calls += 1;
        self.filling.errors += u64::from(outcome.is_error());
        if let Some(count) = self.totals.by_outcome.get_mut(outcome.place()) {
            *count += 1;
        }
        self.totals.retries += u64::from(retried);
        if outcome.is_timed() {
            self.filling.times.add(took_us);
            self.totals.times.add(took_us);
        }
    }

    /// Returns what is known of the recent past at `now`.
    #[must_use]
    pub fn snapshot(&mut self, now: Now) -> LoadView {
        self.rotate(now);
        let calls = self.filling.calls + self.before.calls;
        let errors = self.filling.errors + self.before.errors;
        let times = [&self.filling.times, &self.before.times];
        LoadView {
            calls,
            errors,
            error_rate: share(errors, calls),
            p50_us: Histogram::quantile(times, 50),
            p99_us: Histogram::quantile(times, 99),
        }
    }

    /// Returns what was counted since the beginning.
    #[must_use]
    pub const fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Begins another half when this one is over. Halves do not overlap, so what is told covers
    /// between one and two of them.
    fn rotate(&mut self, now: Now) {
        let (age, half) = (now.millis_since(self.since), millis(HALF_WINDOW));
        if age < half {
            return;
        }
        let filled = std::mem::take(&mut self.filling);
        self.before = if age < 2 * half {
            filled
        } else {
            Half::default()
        };
        self.since = now;
    }
}

impl Totals {
    /// Returns how many calls ended in each way that occurred.
    pub fn outcomes(&self) -> impl Iterator<Item = (Outcome, u64)> + '_ {
        let counted = OUTCOMES.into_iter().zip(self.by_outcome);
        counted.filter(|(_, count)| *count > 0)
    }

    /// Returns how many calls ended in this way.
    #[must_use]
    pub fn ended(&self, outcome: Outcome) -> u64 {
        self.by_outcome
            .get(outcome.place())
            .copied()
            .unwrap_or_default()
    }

    /// Returns how many calls ended.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.by_outcome.iter().sum()
    }

    /// Returns how many ended while their caller still waited.
    #[must_use]
    pub fn awaited(&self) -> u64 {
        self.calls() - self.ended(Outcome::Cancelled)
    }

    /// Returns how many ended without an answer though somebody waited for it.
    #[must_use]
    pub fn errors(&self) -> u64 {
        let errors = self.outcomes().filter(|(outcome, _)| outcome.is_error());
        errors.map(|(_, count)| count).sum()
    }

    /// Returns how many were not run because the server had as many as it may.
    #[must_use]
    pub fn sheds(&self) -> u64 {
        self.ended(Outcome::Shed)
    }

    /// Returns how many were sent a second time.
    #[must_use]
    pub const fn retries(&self) -> u64 {
        self.retries
    }

    /// Returns, for each bound in seconds, how many of the calls that the server had took at most
    /// so long.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        self.times.buckets()
    }

    /// Returns how many calls the server had: those that the buckets tell of.
    #[must_use]
    pub const fn timed(&self) -> u64 {
        self.times.count()
    }

    /// Returns how long those took together, in microseconds.
    #[must_use]
    pub const fn timed_us(&self) -> u64 {
        self.times.sum_us()
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a share of counts that large needs no more digits"
)]
fn share(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 0.0,
        whole => part as f64 / whole as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(outcome: Outcome, took_us: u64) -> End {
        End {
            outcome,
            took_us,
            retried: false,
        }
    }

    #[test]
    fn every_way_to_end_is_counted_in_its_own_place() {
        let mut load = Load::new(Now(0));
        for (at, outcome) in OUTCOMES.into_iter().enumerate() {
            assert_eq!(outcome.place(), at, "{outcome:?}");
            load.record(end(outcome, 10), Now(0));
        }
        let totals = load.totals();
        for outcome in OUTCOMES {
            assert_eq!(totals.ended(outcome), 1, "{outcome:?}");
        }
        assert_eq!(totals.calls(), OUTCOMES.len() as u64);
        assert_eq!(totals.errors(), OUTCOMES.len() as u64 - 3);
        assert_eq!(totals.sheds(), 1);
    }

    #[test]
    fn what_the_server_never_had_says_nothing_about_its_speed() {
        let mut load = Load::new(Now(0));
        load.record(end(Outcome::Answered, 1_000), Now(0));
        for outcome in [
            Outcome::Shed,
            Outcome::Cancelled,
            Outcome::Failed(Class::Unavailable),
            Outcome::Failed(Class::SendFailed),
        ] {
            load.record(end(outcome, 9_000_000), Now(0));
        }
        let view = load.snapshot(Now(0));
        assert_eq!((view.calls, view.errors), (5, 3));
        assert!((view.error_rate - 0.6).abs() < 1e-9, "{view:?}");
        assert!(view.p99_us < Some(1_100), "{view:?}");
        assert_eq!(load.totals().timed(), 1);
        assert_eq!(load.totals().timed_us(), 1_000);
    }

    #[test]
    fn the_window_forgets_what_is_older_than_its_two_halves() {
        let half = millis(HALF_WINDOW);
        let mut load = Load::new(Now(0));
        assert_eq!(load.snapshot(Now(0)), LoadView::default());
        load.record(end(Outcome::Failed(Class::Timeout), 5), Now(1));
        for (at, calls) in [(half - 1, 1), (half, 1), (2 * half - 1, 1), (2 * half, 0)] {
            assert_eq!(load.snapshot(Now(at)).calls, calls, "{at}");
        }
        load.record(end(Outcome::Answered, 5), Now(2 * half));
        assert_eq!(load.snapshot(Now(20 * half)), LoadView::default());
        assert_eq!(load.totals().calls(), 2, "totals forget nothing");
    }

    #[test]
    fn a_retried_call_is_one_call() {
        let mut load = Load::new(Now(0));
        let retried = End {
            retried: true,
            ..end(Outcome::Answered, 5)
        };
        load.record(retried, Now(0));
        assert_eq!((load.totals().calls(), load.totals().retries()), (1, 1));
    }
}
