//! One call as its server's load counts it, also when its caller goes away.

use bowline_core::call::{Body, Reply};
use bowline_core::error::CallError;
use bowline_core::load::{End, LoadView, Outcome, Totals};
use bowline_core::sync::lock;
use tracing::Span;

use super::{Supervisor, Ticket};
use crate::callpath::health;
use crate::ports::Moment;

/// A call under way; dropped before its end is told, it counts as cancelled.
#[derive(Debug)]
pub(crate) struct Tally<'a> {
    server: &'a Supervisor,
    started: Moment,
    /// The breaker's, once it let the call through.
    ticket: Option<Ticket>,
    /// Where people see the same of this one call.
    span: Span,
    retried: bool,
    ended: bool,
}

impl Tally<'_> {
    /// Keeps the breaker's ticket until the call ends.
    pub(crate) fn admitted(&mut self, ticket: Ticket) {
        self.ticket = Some(ticket);
    }

    /// Notes which of the server's links carries the call.
    pub(crate) fn carried(&self, generation: u64) {
        self.span.record("generation", generation);
    }

    /// Notes that another link carries it now.
    pub(crate) fn repeated(&mut self, generation: u64) {
        self.retried = true;
        self.carried(generation);
    }

    /// Counts the end of the call, and tells the breaker.
    pub(crate) fn end<T>(mut self, outcome: &Result<(Reply, T), CallError>, now: Moment) {
        let error = outcome.as_ref().err();
        if let Some(ticket) = self.ticket.take() {
            ticket.report_at(health(error), now.now());
        }
        self.count(outcome_of(outcome), now);
        if let Some(error) = error {
            self.server.failed(error);
        }
    }

    fn count(&mut self, outcome: Outcome, now: Moment) {
        self.ended = true;
        self.span.record("outcome", outcome.as_str());
        let end = End {
            outcome,
            took_us: now.micros_since(self.started),
            retried: self.retried,
        };
        lock(&self.server.shared.load).record(end, now.now());
    }
}

impl Drop for Tally<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.count(Outcome::Cancelled, self.server.shared.clock.moment());
        }
    }
}

fn outcome_of<T>(outcome: &Result<(Reply, T), CallError>) -> Outcome {
    match outcome {
        Ok((reply, _)) => match reply.body {
            Body::Result => Outcome::Answered,
            Body::Error => Outcome::Rejected,
        },
        Err(CallError::ServerBusy { .. } | CallError::QueuedTooLong { .. }) => Outcome::Shed,
        Err(CallError::Cancelled { .. } | CallError::SessionEnded { .. }) => Outcome::Cancelled,
        Err(error) => Outcome::Failed(error.class()),
    }
}

impl Supervisor {
    /// Begins to count a call.
    pub(crate) fn tally(&self, started: Moment, span: Span) -> Tally<'_> {
        Tally {
            server: self,
            started,
            ticket: None,
            span,
            retried: false,
            ended: false,
        }
    }

    /// Returns how busy the server was of late.
    #[must_use]
    pub fn load(&self) -> LoadView {
        let now = self.shared.clock.now();
        lock(&self.shared.load).snapshot(now)
    }

    /// Returns how many calls it has answered with a result since the beginning.
    pub(crate) fn answered_calls(&self) -> u64 {
        self.shared
            .counted(|totals| totals.ended(Outcome::Answered))
    }

    /// Returns what was counted of its calls since the beginning.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.shared.counted(Totals::clone)
    }
}
