//! Audit port: records calls and refusals.
//!
//! An [`AuditEntry`] shares the data of its call. The audit trail's thread formats, hashes and
//! redacts entries with [`row_renderer`].

#[cfg(feature = "journal-sqlite")]
mod file_trail;
mod render;
#[cfg(feature = "journal-sqlite")]
mod rings;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use bowline_core::BoxFuture;
use bowline_core::call::{CallReply, CallRequest, CallSubject, EndpointScope, Principal, Route};
use bowline_core::error::{CallError, ExecutionStatus, FailureClass, FailureOrigin};
use bowline_journal::audit::{self, AuditRowKind};
use bytes::Bytes;

#[cfg(feature = "journal-sqlite")]
pub use file_trail::{AuditTrail, open_trail};
pub use render::{
    PAYLOAD_BYTES_MAX, REFUSED_TEXT_BYTES_MAX, RedactFn, RenderOptions, row_renderer,
};
#[cfg(feature = "journal-sqlite")]
pub use rings::{AuditRings, RingOptions};

/// The audit trail in memory.
pub type MemoryAuditTrail = audit::MemoryAuditTrail<AuditEntry>;

/// Receives an entry for each call, however it ends. Cheap: does not delay calls.
pub trait AuditSink: fmt::Debug + Send + Sync {
    /// True if entries are recorded.
    fn is_enabled(&self) -> bool {
        true
    }

    /// True if a call may begin at once.
    fn has_room(&self) -> bool {
        true
    }

    /// Waits until a call may begin.
    fn wait_room(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Records an entry, even beyond capacity.
    fn record(&self, note: AuditEntry);
}

/// Records nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NullAuditSink;

impl AuditSink for NullAuditSink {
    fn is_enabled(&self) -> bool {
        false
    }

    fn record(&self, _: AuditEntry) {}
}

impl AuditSink for MemoryAuditTrail {
    fn record(&self, note: AuditEntry) {
        Self::append_note(self, &note);
    }
}

/// An audit entry.
#[derive(Clone, Debug)]
pub struct AuditEntry {
    /// Kind of the event.
    pub kind: AuditRowKind,
    /// End time in milliseconds since 1970.
    pub at_ms: u64,
    /// The principal.
    pub principal: Option<Arc<Principal>>,
    /// The session; 0 without a session.
    pub session: u64,
    /// Scope of the name lookup.
    pub scope: Option<EndpointScope>,
    /// The method, if different from that of the subject.
    pub method: Option<&'static str>,
    /// The subject, by the caller's name.
    pub subject: Option<CallSubject>,
    /// The resolved target.
    pub target: AuditTarget,
    /// The outcome.
    pub outcome: AuditOutcome,
    /// Duration in microseconds.
    pub took_us: Option<u64>,
    /// The request parameters.
    pub params: Bytes,
    /// The idempotency key.
    pub key: Option<Arc<str>>,
    /// Id of a stored call.
    pub id: Option<Arc<str>>,
    /// Further information for operators.
    pub reason: Option<Arc<str>>,
    /// Peer address, without a principal.
    pub peer: Option<SocketAddr>,
    /// Number of merged entries and time of the first; `None` for a single entry.
    pub count: Option<RepeatCount>,
}

/// Number of merged entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepeatCount {
    /// The number.
    pub number: u64,
    /// Time of the first in milliseconds since 1970.
    pub since_ms: u64,
}

/// The target of an entry.
#[derive(Clone, Debug, Default)]
pub enum AuditTarget {
    /// Unknown, or given by the error.
    #[default]
    Unknown,
    /// The route of a call.
    Route(Arc<Route>),
    /// An item by the server's own name.
    Named {
        /// The server, if any.
        server: Option<Arc<str>>,
        /// The name.
        name: Arc<str>,
    },
}

/// The outcome of an entry.
#[derive(Clone, Debug, Default)]
pub enum AuditOutcome {
    /// Cancelled, or the caller left.
    #[default]
    Cancelled,
    /// A reply.
    Reply(CallReply),
    /// An error.
    Failed(CallError),
    /// An error, reduced to these members.
    Refused {
        /// Failure class.
        class: FailureClass,
        /// Execution status.
        execution: ExecutionStatus,
        /// Failure origin.
        origin: FailureOrigin,
        /// The reason, as far as it may be recorded.
        reason: Arc<str>,
    },
    /// A single word.
    Word(&'static str),
}

impl AuditEntry {
    /// Creates an entry with a single-word outcome; the caller fills in the rest.
    #[must_use]
    pub const fn new(kind: AuditRowKind, at_ms: u64, word: &'static str) -> Self {
        Self {
            kind,
            at_ms,
            principal: None,
            session: 0,
            scope: None,
            method: None,
            subject: None,
            target: AuditTarget::Unknown,
            outcome: AuditOutcome::Word(word),
            took_us: None,
            params: Bytes::new(),
            key: None,
            id: None,
            reason: None,
            peer: None,
            count: None,
        }
    }

    /// Creates the entry of a running call.
    pub(crate) fn from_call(call: &CallRequest, at_ms: u64) -> Self {
        Self {
            kind: AuditRowKind::Call,
            at_ms,
            principal: Some(Arc::clone(&call.principal)),
            session: call.client.as_ref().map_or(0, |caller| caller.session().0),
            scope: Some(call.scope.clone()),
            method: None,
            subject: Some(call.subject.clone()),
            target: AuditTarget::Unknown,
            outcome: AuditOutcome::Cancelled,
            took_us: None,
            params: call.params.clone(),
            key: call.idempotency_key.clone(),
            id: None,
            reason: None,
            peer: None,
            count: None,
        }
    }

    /// True if the entry records a refusal before execution.
    fn is_refusal(&self) -> bool {
        match (&self.kind, &self.outcome) {
            (AuditRowKind::Denied | AuditRowKind::Unauthenticated, _) => true,
            (AuditRowKind::Call, AuditOutcome::Failed(error)) => {
                error.execution_status() == ExecutionStatus::NotStarted
            }
            (AuditRowKind::Call, AuditOutcome::Refused { .. }) => true,
            _ => false,
        }
    }
}
