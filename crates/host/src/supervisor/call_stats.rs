//! Call statistics of a server, counted even if the caller leaves.

use bowline_core::call::{BodyKind, CallReply};
use bowline_core::error::CallError;
use bowline_core::load::{CallCompletion, CallOutcome, LoadTotals, LoadView};
use bowline_core::sync::lock;
use bowline_runtime::ClockReading;
use tracing::Span;

use super::{BreakerPermit, Supervisor};
use crate::callpath::to_health;

/// A call in progress; dropped without an outcome, it counts as cancelled.
#[derive(Debug)]
pub(crate) struct CallStatsGuard<'a> {
    server: &'a Supervisor,
    started: ClockReading,
    /// The breaker permit, once admitted.
    permit: Option<BreakerPermit>,
    /// The tracing span of this call.
    span: Span,
    retried: bool,
    ended: bool,
}

impl CallStatsGuard<'_> {
    /// Holds the breaker permit until the call ends.
    pub(crate) fn set_permit(&mut self, ticket: BreakerPermit) {
        self.permit = Some(ticket);
    }

    /// Records the generation of the link in use.
    pub(crate) fn record_generation(&self, generation: u64) {
        self.span.record("generation", generation);
    }

    /// Records a retry on another link.
    pub(crate) fn record_retry(&mut self, generation: u64) {
        self.retried = true;
        self.record_generation(generation);
    }

    /// Counts the finished call, and reports to the breaker.
    pub(crate) fn finish<T>(
        mut self,
        outcome: &Result<(CallReply, T), CallError>,
        now: ClockReading,
    ) {
        let error = outcome.as_ref().err();
        if let Some(ticket) = self.permit.take() {
            ticket.report_at(to_health(error), now.now());
        }
        self.record_outcome(to_outcome(outcome), now);
        if let Some(error) = error {
            self.server.record_error(error);
        }
    }

    fn record_outcome(&mut self, outcome: CallOutcome, now: ClockReading) {
        self.ended = true;
        self.span.record("outcome", outcome.as_str());
        let end = CallCompletion {
            outcome,
            duration_us: now.micros_since(self.started),
            is_retried: self.retried,
        };
        lock(&self.server.shared.load).record_call(end, now.now());
    }
}

impl Drop for CallStatsGuard<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.record_outcome(CallOutcome::Cancelled, self.server.shared.clock.reading());
        }
    }
}

fn to_outcome<T>(outcome: &Result<(CallReply, T), CallError>) -> CallOutcome {
    match outcome {
        Ok((reply, _)) => match reply.response.body {
            BodyKind::Result => CallOutcome::Succeeded,
            BodyKind::Error => CallOutcome::RpcError,
        },
        Err(CallError::ServerBusy { .. } | CallError::QueuedTooLong { .. }) => CallOutcome::Shed,
        Err(CallError::Cancelled { .. } | CallError::SessionEnded { .. }) => CallOutcome::Cancelled,
        Err(error) => CallOutcome::Failed(error.failure_class()),
    }
}

impl Supervisor {
    /// Starts counting a call.
    pub(crate) fn start_stats(&self, started: ClockReading, span: Span) -> CallStatsGuard<'_> {
        CallStatsGuard {
            server: self,
            started,
            permit: None,
            span,
            retried: false,
            ended: false,
        }
    }

    /// Returns the recent load.
    #[must_use]
    pub fn load(&self) -> LoadView {
        let now = self.shared.clock.now();
        lock(&self.shared.load).recent_view(now)
    }

    /// Returns the number of calls answered with a result.
    pub(crate) fn answered_calls(&self) -> u64 {
        self.shared
            .read_totals(|totals| totals.outcome_count(CallOutcome::Succeeded))
    }

    /// Returns the totals since the start of the gateway.
    #[must_use]
    pub fn totals(&self) -> LoadTotals {
        self.shared.read_totals(LoadTotals::clone)
    }
}
