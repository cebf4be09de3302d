//! Writes that outlive an outage: stored before they are sent, delivered in order, never lost.

use std::sync::Arc;

use bowline_core::call::{Call, Reply, Route};
use bowline_core::error::CallError;
use bowline_journal::Journal;

use crate::ports::Moment;

/// The lanes of this gateway.
#[derive(Debug)]
pub(crate) struct Outbox {
    _journal: Arc<dyn Journal>,
}

/// What came of writing a call down.
#[derive(Debug)]
pub(crate) enum Entered {
    /// It is sent now; what becomes of it is to be told to the intent.
    Live(Option<Intent>),
    /// Others wait before it, so it waits as well.
    #[expect(dead_code, reason = "nothing is queued yet")]
    Queued(Reply),
}

/// A call that is stored and under way.
#[derive(Debug)]
pub(crate) struct Intent {}

impl Outbox {
    pub(crate) fn new(journal: Arc<dyn Journal>) -> Self {
        Self { _journal: journal }
    }

    /// Writes a call down that must not be lost; all others pass at no cost.
    pub(crate) async fn enter(
        &self,
        _call: &Call,
        _route: &Arc<Route>,
        _started: Moment,
    ) -> Result<Entered, CallError> {
        Ok(Entered::Live(None))
    }
}

impl Intent {
    /// Writes down what became of it: done, or queued where its server was away.
    pub(crate) async fn settle(
        self,
        outcome: Result<Reply, CallError>,
    ) -> Result<Reply, CallError> {
        outcome
    }
}
