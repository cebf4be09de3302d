//! One row for each call, however it ends.

use std::sync::Arc;

use bowline_core::call::{self, Call, Reply, Route};
use bowline_core::error::{CallError, Origin};
use bowline_journal::audit::Kind;
use bowline_wire::mcp::method;

use crate::audit::{Audit, End, Note, Target};
use crate::callpath::resolve::Ask;
use crate::ports::{Clock, Moment};

/// Opens a record for each call.
#[derive(Debug)]
pub(crate) struct Auditor {
    audit: Arc<dyn Audit>,
    clock: Arc<dyn Clock>,
    is_kept: bool,
}

/// What is known of one call so far. Dropped without an end, the call was taken back.
#[derive(Debug)]
pub(crate) struct Record<'a> {
    /// Absent where nothing is kept, and when the row is written.
    open: Option<&'a Auditor>,
    call: &'a Call,
    started: Moment,
    route: Option<Arc<Route>>,
    key: Option<Arc<str>>,
    /// Whether a rule refused it, whatever the caller is told.
    refused: bool,
}

impl Auditor {
    pub(crate) fn new(audit: Arc<dyn Audit>, clock: Arc<dyn Clock>) -> Self {
        let is_kept = audit.is_kept();
        Self {
            audit,
            clock,
            is_kept,
        }
    }

    /// Opens the record of a call. Where too much waits to be written, the call waits as well: it
    /// would be carried without a trace otherwise.
    pub(crate) async fn open<'a>(&'a self, call: &'a Call) -> Record<'a> {
        let started = if self.is_kept {
            self.clock.moment()
        } else {
            Moment::default()
        };
        let record = Record {
            open: self.is_kept.then_some(self),
            call,
            started,
            route: None,
            key: None,
            refused: false,
        };
        // What is rare is boxed, so that a call carries no room for it.
        if self.is_kept && !self.audit.has_room() {
            self.audit.room().await;
        }
        record
    }

    /// Notes something that is not a call.
    pub(crate) fn note(&self, note: Note) {
        if self.is_kept {
            self.audit.note(note);
        }
    }

    /// Notes that a session may not have news of a resource, because a rule says so.
    pub(crate) fn unsubscribed(&self, ask: Ask<'_>, target: Target, error: &CallError) {
        let mut note = Note::new(Kind::Denied, self.clock.unix_ms(), "failed");
        note.principal = Some(Arc::new(ask.principal.clone()));
        note.session = ask.session.map_or(0, |session| session.0);
        note.scope = Some(ask.scope.clone());
        note.method = Some(method::RESOURCES_SUBSCRIBE);
        note.subject = Some(ask.subject.clone());
        note.target = target;
        note.end = End::Failed(error.clone());
        self.note(note);
    }

    pub(crate) const fn audit(&self) -> &Arc<dyn Audit> {
        &self.audit
    }
}

impl Record<'_> {
    /// Notes where the call goes.
    pub(crate) fn goes(&mut self, route: &Arc<Route>) {
        if self.open.is_some() {
            self.route = Some(Arc::clone(route));
        }
    }

    /// Notes that a rule refused it.
    pub(crate) const fn refused(&mut self) {
        self.refused = true;
    }

    /// Notes the key that makes it safe to repeat.
    pub(crate) fn keyed(&mut self, key: Arc<str>) {
        if self.open.is_some() {
            self.key = Some(key);
        }
    }

    /// Writes how it ended.
    pub(crate) fn close(mut self, outcome: &Result<Reply, CallError>) {
        if self.open.is_none() {
            return;
        }
        match outcome {
            Ok(reply) => {
                let kind = match reply.origin {
                    call::Origin::Queued => Kind::Queued,
                    call::Origin::Live | call::Origin::Cached | call::Origin::Recorded => {
                        Kind::Call
                    }
                };
                self.write(kind, End::Reply(reply.clone()));
            }
            Err(error) => {
                let refused = self.refused || error.origin() == Origin::Policy;
                let kind = if refused { Kind::Denied } else { Kind::Call };
                self.write(kind, End::Failed(error.clone()));
            }
        }
    }

    fn write(&mut self, kind: Kind, end: End) {
        let Some(auditor) = self.open.take() else {
            return;
        };
        let mut note = Note::of(self.call, auditor.clock.unix_ms());
        note.kind = kind;
        note.end = end;
        note.took_us = Some(auditor.clock.moment().micros_since(self.started));
        if let Some(route) = self.route.take() {
            note.target = Target::Route(route);
        }
        if self.key.is_some() {
            note.key = self.key.take();
        }
        auditor.audit.note(note);
    }
}

impl Drop for Record<'_> {
    fn drop(&mut self) {
        self.write(Kind::Call, End::Cancelled);
    }
}
