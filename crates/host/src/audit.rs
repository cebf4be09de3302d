//! Audit port: records calls and refusals.
//!
//! An [`AuditEntry`] shares the data of its call. The trail redacts and encodes the entry at once,
//! so that it keeps nothing of the call alive but long bodies, which its thread hashes.

use std::borrow::Cow;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use bowline_core::BoxFuture;
use bowline_core::call::{
    self, BodyKind, CallReply, CallRequest, CallSubject, EndpointScope, Principal, Route,
};
use bowline_core::error::{CallError, ExecutionStatus, FailureClass, FailureOrigin};
use bowline_journal::audit::{
    self, AuditPayload, AuditRow, AuditRowKind, BodyDigest, LongBodies, RowScope,
};
use bowline_wire::object;
use bytes::Bytes;

#[cfg(feature = "journal-sqlite")]
mod file_trail;
#[cfg(feature = "journal-sqlite")]
mod rings;

#[cfg(feature = "journal-sqlite")]
pub use file_trail::AuditTrail;
#[cfg(feature = "journal-sqlite")]
pub use rings::{AuditRings, RingOptions};

pub use bowline_core::redact::RedactFn;

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

/// The audit trail in memory.
#[derive(Debug, Default)]
pub struct MemoryAuditTrail {
    trail: audit::MemoryAuditTrail,
    render: RenderOptions,
}

impl MemoryAuditTrail {
    /// Returns an empty trail.
    #[must_use]
    pub fn new(render: RenderOptions) -> Self {
        Self {
            render,
            ..Self::default()
        }
    }

    /// Returns the kept rows, oldest first.
    #[must_use]
    pub fn rows(&self) -> Vec<AuditRow<'static>> {
        self.trail.rows()
    }
}

impl AuditSink for MemoryAuditTrail {
    fn record(&self, note: AuditEntry) {
        let (row, bodies) = render_row(&note, &self.render);
        self.trail.append(row, bodies);
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
            session: call
                .message
                .client
                .as_ref()
                .map_or(0, |caller| caller.session().0),
            scope: Some(call.scope.clone()),
            method: None,
            subject: Some(call.subject.clone()),
            target: AuditTarget::Unknown,
            outcome: AuditOutcome::Cancelled,
            took_us: None,
            params: call.message.params.clone(),
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

/// Maximum bytes of recorded arguments and results; truncation is marked.
pub const PAYLOAD_BYTES_MAX: usize = 16 * 1024;

/// Maximum bytes of a name or reason in a refusal.
pub const REFUSED_TEXT_BYTES_MAX: usize = 256;

/// Maximum bytes of other texts: names and URIs are chosen by callers.
const TEXT_BYTES_MAX: usize = 1_024;

/// Bodies from this length on are hashed on the thread of the trail: the thread of the call serves
/// other calls meanwhile.
const LONG_BODY_BYTES_MIN: usize = 16 * 1024;

/// Marks a truncated text.
const TRUNCATION_MARK: char = '…';

/// Rendering options.
pub struct RenderOptions {
    /// Redacts every text influenced by callers or servers.
    pub redact: RedactFn,
    /// True to record arguments and results besides their hashes.
    pub payload: bool,
}

impl Default for RenderOptions {
    fn default() -> Self {
        Self {
            redact: Arc::new(|text| Cow::Borrowed(text)),
            payload: false,
        }
    }
}

impl fmt::Debug for RenderOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("RenderOptions");
        debug
            .field("payload", &self.payload)
            .finish_non_exhaustive()
    }
}

/// Returns the row of an entry, and the bodies that the trail hashes behind the call.
fn render_row<'a>(entry: &'a AuditEntry, options: &RenderOptions) -> (AuditRow<'a>, LongBodies) {
    // A refused call is worth less than an executed call, and costs its caller nothing.
    let bytes_max = if entry.is_refusal() {
        REFUSED_TEXT_BYTES_MAX
    } else {
        TEXT_BYTES_MAX
    };
    let text = |text: &'a str| options.redact_text(text, bytes_max);
    let mut row = AuditRow::new(entry.kind, entry.at_ms);
    let (server, name) = target_names(entry);
    if let Some(principal) = &entry.principal {
        row.principal = Some(text(&principal.name));
        let credential = Some(&*principal.credential).filter(|id| !id.is_empty());
        row.credential = credential.map(Cow::Borrowed);
    }
    let principal_peer = entry.principal.as_ref().and_then(|who| who.peer.0);
    row.peer = entry.peer.or(principal_peer);
    row.count = entry.count.map(|count| count.number);
    row.since_ms = entry.count.map(|count| count.since_ms);
    row.session = Some(entry.session).filter(|session| *session != 0);
    row.scope = entry.scope.as_ref().map(to_row_scope);
    row.server = server.map(text);
    row.name = name.map(text);
    let method = entry.subject.as_ref().map(CallSubject::method);
    row.method = entry.method.or(method).map(Cow::Borrowed);
    row.duration_us = entry.took_us;
    row.key = entry.key.as_deref().map(text);
    row.id = entry.id.as_deref().map(text);
    row.reason = entry.reason.as_deref().map(text);
    let arguments = call_arguments(entry);
    let mut bodies = LongBodies::default();
    let long_arguments = &mut bodies.arguments;
    row.arguments = arguments.map(|body| digest_body(body, &entry.params, long_arguments));
    let mut result = None;
    match &entry.outcome {
        AuditOutcome::Cancelled => {
            row.outcome = Some("cancelled".into());
            row.class = Some("cancelled".into());
        }
        AuditOutcome::Word(word) => row.outcome = Some((*word).into()),
        AuditOutcome::Failed(error) => fill_failed(error, &mut row, options, bytes_max),
        AuditOutcome::Refused {
            class,
            execution,
            origin,
            reason,
        } => {
            row.outcome = Some("failed".into());
            row.class = Some(class.as_str().into());
            row.execution = Some(execution.as_str().into());
            row.origin = Some(origin.as_str().into());
            row.reason = Some(text(reason)).filter(|reason| !reason.is_empty());
        }
        AuditOutcome::Reply(reply) => {
            let response = &reply.response;
            result = response.bytes.get(response.body_at.clone());
            row.result = result.map(|body| digest_body(body, &response.bytes, &mut bodies.result));
            row.outcome = Some(reply_outcome(entry, reply).into());
            fill_reply(reply.origin, result, &mut row);
        }
    }
    if options.payload {
        let payload_text = |bytes: &'a [u8]| options.redact_payload(bytes);
        row.payload = Some(AuditPayload {
            arguments: arguments.map(payload_text),
            result: result.map(payload_text),
        });
    }
    (row, bodies)
}

fn fill_reply<'a>(origin: call::ReplyOrigin, result: Option<&'a [u8]>, row: &mut AuditRow<'a>) {
    row.execution = Some("completed".into());
    row.origin = Some(origin.as_str().into());
    if origin == call::ReplyOrigin::Queued {
        fill_queued(result.unwrap_or_default(), row);
    }
}

/// Fills in id and key of a stored call from its response.
fn fill_queued<'a>(result: &'a [u8], row: &mut AuditRow<'a>) {
    let status = object::field(result, "structuredContent").map(|at| at.slice(result));
    let status = status.unwrap_or_default();
    row.execution = None;
    row.outcome = Some("queued".into());
    row.id = object::text_field(status, "id");
    row.key = object::text_field(status, "idempotencyKey").or_else(|| row.key.take());
}

/// Returns server and the server's own name of the target, as far as known.
fn target_names(entry: &AuditEntry) -> (Option<&str>, Option<&str>) {
    let subject_name = entry.subject.as_ref().map(|subject| &**subject.name());
    let scoped = match &entry.scope {
        Some(EndpointScope::Server(server)) => Some(&**server),
        Some(EndpointScope::All | EndpointScope::Profile(_)) | None => None,
    };
    match (&entry.target, &entry.outcome) {
        (AuditTarget::Route(route), _) => (Some(&route.server), Some(&route.name)),
        (AuditTarget::Named { server, name }, _) => (server.as_deref().or(scoped), Some(name)),
        (
            AuditTarget::Unknown,
            AuditOutcome::Failed(
                CallError::Denied { server, name, .. }
                | CallError::PinChanged { server, tool: name },
            ),
        ) => (Some(server), Some(name)),
        (AuditTarget::Unknown, _) => (scoped, subject_name),
    }
}

fn to_row_scope(scope: &EndpointScope) -> RowScope<'_> {
    match scope {
        EndpointScope::All => RowScope::All,
        EndpointScope::Server(server) => RowScope::Server(Cow::Borrowed(server)),
        EndpointScope::Profile(profile) => RowScope::Profile(Cow::Borrowed(profile)),
    }
}

/// Returns the outcome of a reply: refused by the server, tool failure, or success.
fn reply_outcome(note: &AuditEntry, reply: &CallReply) -> &'static str {
    let result = reply.response.body_bytes();
    match (reply.response.body, &note.subject) {
        (BodyKind::Error, _) => "rejected",
        (BodyKind::Result, Some(CallSubject::Tool(_))) if is_error(result) => "tool_error",
        (BodyKind::Result, _) => "ok",
    }
}

fn is_error(result: &[u8]) -> bool {
    object::field(result, "isError").is_some_and(|at| at.slice(result) == b"true")
}

fn fill_failed(
    error: &CallError,
    row: &mut AuditRow<'_>,
    options: &RenderOptions,
    bytes_max: usize,
) {
    row.outcome = Some("failed".into());
    row.class = Some(error.failure_class().as_str().into());
    row.execution = Some(error.execution_status().as_str().into());
    row.origin = Some(error.failure_origin().as_str().into());
    // A failure text of a server is part of its response, and recorded only with payloads.
    if options.payload || error.failure_origin() != FailureOrigin::Upstream {
        let reason = error.to_string();
        row.reason = Some(options.redact_text(&reason, bytes_max).into_owned().into());
    }
}

/// Returns the arguments as written by the caller; a resource has only its URI.
fn call_arguments(note: &AuditEntry) -> Option<&[u8]> {
    object::field(&note.params, "arguments").map(|at| at.slice(&note.params))
}

/// Hashes a part of `whole`; a long part is left to the thread of the trail.
fn digest_body(body: &[u8], whole: &Bytes, long: &mut Option<Bytes>) -> BodyDigest {
    if body.len() < LONG_BODY_BYTES_MIN {
        return BodyDigest::from_body(body);
    }
    *long = Some(whole.slice_ref(body));
    BodyDigest::PENDING
}

impl RenderOptions {
    fn redact_payload<'a>(&self, bytes: &'a [u8]) -> Cow<'a, str> {
        // A split character is not an error.
        let some = bytes.get(..PAYLOAD_BYTES_MAX).unwrap_or(bytes);
        match String::from_utf8_lossy(some) {
            Cow::Borrowed(text) if some.len() == bytes.len() => (self.redact)(text),
            text => {
                let text = format!("{}{TRUNCATION_MARK}", text.trim_end_matches('\u{fffd}'));
                (self.redact)(&text).into_owned().into()
            }
        }
    }

    /// Redacts and truncates a text.
    fn redact_text<'a>(&self, text: &'a str, bytes_max: usize) -> Cow<'a, str> {
        if text.len() <= bytes_max {
            return (self.redact)(text);
        }
        let some = text.as_bytes().get(..bytes_max).unwrap_or_default();
        // A split character is dropped.
        let text = String::from_utf8_lossy(some);
        let text = format!("{}{TRUNCATION_MARK}", text.trim_end_matches('\u{fffd}'));
        (self.redact)(&text).into_owned().into()
    }
}
