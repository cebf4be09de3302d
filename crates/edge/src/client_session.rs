//! A legacy client's session: negotiated terms, calls in flight, streams and server requests.

mod call_streams;
mod ended_sessions;
mod list_change;
mod lost_streams;
mod server_requests;
mod session_handle;
mod session_narrowing;
mod session_table;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use arc_swap::ArcSwap;
use bowline_core::call::{ContextSet, EndpointScope, Principal};
use bowline_core::client_handle::{ClientCapabilities, ServerRequest, ServerRequestId, SessionKey};
use bowline_core::log_level::LogLevel;
use bowline_core::sync::lock;
use bowline_core::time::MonotonicTime;
use bowline_host::catalog::ListKind;
use bowline_wire::jsonrpc::write_notification;
use bowline_wire::mcp::{Revision, method};
use bowline_wire::object;
use bytes::Bytes;

use super::event_stream::{
    EventBody, EventBuffer, EventId, EventSource, ReplayBudget, StreamLabel, StreamOpening,
};
use super::seal::Seal;
use call_streams::CallStreams;
use lost_streams::SessionMark;
use server_requests::ServerRequests;

pub(crate) use list_change::{ListChange, ListFingerprints};
pub(crate) use lost_streams::ReplayCoverage;
pub(crate) use session_handle::{CallsInFlight, CancelReason, SessionCallHandle, SessionHandle};
pub use session_narrowing::NarrowError;
pub use session_table::ClientSessions;
pub(crate) use session_table::{AGE_MAX, OpenSessionError};

/// Maximum length of the stored client name and version.
const CLIENT_CHARS_MAX: usize = 64;

/// State shared by all sessions of this process.
#[derive(Debug)]
struct SessionShared {
    /// Serial number of streams and server requests; random start, so repeats after a restart are
    /// unlikely.
    next_serial: AtomicU64,
    replay_budget: ReplayBudget,
    /// Seals session ids and stream names.
    seal: Seal,
}

impl SessionShared {
    fn take_serial(&self) -> u64 {
        self.next_serial.fetch_add(1, Ordering::Relaxed)
    }
}

/// Terms negotiated when a session opens.
#[derive(Clone, Debug)]
pub struct SessionTerms {
    /// Principal of the session.
    pub principal: Arc<Principal>,
    /// Endpoint of the session.
    pub scope: EndpointScope,
    /// Negotiated revision.
    pub revision: Revision,
    /// Capabilities of the client.
    pub capabilities: ClientCapabilities,
}

/// A client's session.
#[derive(Debug)]
pub struct ClientSession {
    /// Unique within this process.
    pub key: SessionKey,
    /// Principal as authenticated.
    pub principal: Arc<Principal>,
    /// Endpoint of the session.
    pub scope: EndpointScope,
    /// Negotiated revision.
    pub revision: Revision,
    /// Opening time in seconds since 1970.
    pub issued_s: u64,
    /// Stable across restarts.
    lasting_id: u64,
    /// The principal narrowed by the session's contexts.
    narrowed_principal: ArcSwap<Principal>,
    /// Contexts set for this session.
    contexts: Mutex<ContextSet>,
    /// Calls in flight, for cancellation.
    pub in_flight: CallsInFlight,
    /// Server requests waiting for the client.
    pub server_requests: ServerRequests,
    shared: Arc<SessionShared>,
    /// Bits of [`ClientCapabilities`].
    capabilities: AtomicU8,
    /// Index of the minimum [`LogLevel`] plus 1; 0 if never set.
    log_level: AtomicU8,
    /// Events outside calls.
    listen_buffer: EventBuffer,
    listen_label: StreamLabel,
    /// Part of the names of its streams.
    mark: SessionMark,
    /// Streams of its calls.
    streams: CallStreams,
    /// Fingerprints known to the client; different fingerprints are announced.
    known_lists: Mutex<ListFingerprints>,
    /// Client name and version, if received by this process.
    client: OnceLock<(Arc<str>, Arc<str>)>,
    used_ms: AtomicU64,
    /// Whether no listener was attached at the last sweep.
    was_idle: AtomicBool,
    closed: AtomicBool,
}

impl ClientSession {
    fn new(
        id: &str,
        key: SessionKey,
        terms: SessionTerms,
        shared: &Arc<SessionShared>,
        at: SessionStart,
    ) -> Self {
        Self {
            key,
            narrowed_principal: ArcSwap::new(Arc::clone(&terms.principal)),
            contexts: Mutex::default(),
            principal: terms.principal,
            scope: terms.scope,
            revision: terms.revision,
            issued_s: at.issued_s,
            lasting_id: session_handle::derive_lasting_id(id),
            in_flight: CallsInFlight::default(),
            server_requests: ServerRequests::default(),
            shared: Arc::clone(shared),
            capabilities: AtomicU8::new(terms.capabilities.bits()),
            log_level: AtomicU8::new(0),
            // Numbers continue after a restart, so that an old event id never matches a new event.
            listen_buffer: EventBuffer::starting_after(at.unix_ms),
            listen_label: lost_streams::listen_label(id),
            mark: lost_streams::session_mark(id),
            streams: CallStreams::default(),
            known_lists: Mutex::default(),
            client: OnceLock::new(),
            used_ms: AtomicU64::new(at.now.0),
            was_idle: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        }
    }

    /// Returns the principal narrowed by the session's contexts.
    #[must_use]
    pub fn current_principal(&self) -> Arc<Principal> {
        self.narrowed_principal.load_full()
    }

    /// Returns the narrowed principal with the peer address of this request.
    #[must_use]
    pub fn principal_for(&self, request: &Principal) -> Arc<Principal> {
        let principal = self.current_principal();
        if principal.peer.0 == request.peer.0 {
            return principal;
        }
        Arc::new(principal.with_peer(request.peer))
    }

    /// Returns the contexts set for this session.
    #[must_use]
    pub fn contexts(&self) -> ContextSet {
        lock(&self.contexts).clone()
    }

    /// Replaces the contexts of the session.
    fn apply_contexts(&self, contexts: &ContextSet) {
        let mut own = lock(&self.contexts);
        *own = contexts.clone();
        let narrowed = self.principal.with_contexts(contexts);
        self.narrowed_principal.store(Arc::new(narrowed));
    }

    /// Returns whether the session belongs to this principal and credential. A different credential
    /// of the same principal may allow less and may be revoked separately.
    fn is_opened_by(&self, principal: &Principal) -> bool {
        self.principal.name == principal.name && self.principal.credential == principal.credential
    }

    /// Returns the number of open streams, including the listen stream.
    #[must_use]
    pub fn stream_count(&self) -> usize {
        usize::from(self.is_listening()) + self.streams.open_count()
    }

    /// Returns the time of last use.
    #[must_use]
    pub fn last_used(&self) -> MonotonicTime {
        MonotonicTime(self.used_ms.load(Ordering::Relaxed))
    }

    /// Returns the capabilities of the client.
    #[must_use]
    pub fn capabilities(&self) -> ClientCapabilities {
        ClientCapabilities::from_bits(self.capabilities.load(Ordering::Relaxed))
    }

    /// Returns the client's name and version.
    #[must_use]
    pub fn client_info(&self) -> Option<(&Arc<str>, &Arc<str>)> {
        self.client.get().map(|(name, version)| (name, version))
    }

    /// Stores the client info of the `initialize` parameters.
    pub fn record_client_info(&self, params: &[u8]) {
        let info = object::field(params, "clientInfo").map_or(&b"{}"[..], |at| at.slice(params));
        let text = |key| -> Arc<str> {
            let text = object::text_field(info, key).unwrap_or_default();
            text.chars()
                .take(CLIENT_CHARS_MAX)
                .collect::<String>()
                .into()
        };
        let _known = self.client.set((text("name"), text("version")));
    }

    /// Replaces the capabilities, when declared after opening.
    pub fn set_capabilities(&self, capabilities: ClientCapabilities) {
        self.capabilities
            .store(capabilities.bits(), Ordering::Relaxed);
    }

    /// Sets the minimum level of log messages.
    pub fn set_log_level(&self, level: LogLevel) {
        self.log_level.store(level as u8 + 1, Ordering::Relaxed);
    }

    /// Returns the minimum level of log messages, if set.
    fn log_level(&self) -> Option<LogLevel> {
        let stored = usize::from(self.log_level.load(Ordering::Relaxed));
        LogLevel::ALL.get(stored.checked_sub(1)?).copied()
    }

    /// Returns whether lost streams can be resumed.
    #[must_use]
    pub fn is_resumable(&self) -> bool {
        self.revision >= Revision::V2025_03_26
    }

    /// Returns whether streams start with an event id for resumption.
    fn has_primed_streams(&self) -> bool {
        self.revision >= Revision::V2025_11_25
    }

    /// Opens the listen stream; an earlier listen stream ends.
    #[must_use]
    pub fn open_listen_stream(self: &Arc<Self>) -> EventBody {
        let source = SessionHandle::for_session(self) as Arc<dyn EventSource>;
        if !self.is_resumable() {
            return EventBody::new(
                source,
                self.listen_buffer.attach_reader(),
                None,
                StreamOpening::Comment,
            );
        }
        self.listen_buffer
            .enable_replay(self.shared.replay_budget.clone());
        let reader = self.listen_buffer.attach_reader();
        let after = self.listen_buffer.last_sent();
        let opening = if self.has_primed_streams() {
            StreamOpening::CommentAndPrimed { after }
        } else {
            StreamOpening::Comment
        };
        EventBody::new(source, reader, Some(self.listen_label.into()), opening)
    }

    /// Resumes the stream of an event id; `None` for a stream of a different session. The stream of
    /// an unknown call reports an unknown outcome.
    #[must_use]
    pub fn resume_stream(
        self: &Arc<Self>,
        event_id: EventId<'_>,
        now: MonotonicTime,
    ) -> Option<(EventBody, ReplayCoverage)> {
        if !self.is_resumable() {
            return None;
        }
        if event_id.label != self.listen_label {
            let events = match self.streams.find_open(event_id.label, now) {
                Some(end) => end.resume_stream(event_id.number),
                None => self.resume_lost_stream(event_id),
            };
            return events.map(|events| (events, ReplayCoverage::Whole));
        }
        self.listen_buffer
            .enable_replay(self.shared.replay_budget.clone());
        let (replay, opening) = match self.listen_buffer.has_all_after(event_id.number) {
            true => (ReplayCoverage::Whole, StreamOpening::Comment),
            false => (ReplayCoverage::Partial, StreamOpening::Gap),
        };
        let Some(reader) = self.listen_buffer.attach_after(event_id.number) else {
            return Some((self.open_listen_stream(), replay));
        };
        let source = SessionHandle::for_session(self) as Arc<dyn EventSource>;
        let name = Some(self.listen_label.into());
        Some((EventBody::new(source, reader, name, opening), replay))
    }

    /// Sends a notification outside calls; `false` without a listener.
    pub fn notify(&self, notification: Bytes) -> bool {
        if self.closed.load(Ordering::Relaxed) || !self.listen_buffer.had_reader() {
            return false;
        }
        if !self.accepts_level(&notification) {
            return true;
        }
        self.push_or_interrupt(notification)
    }

    /// Sends a response on the listen stream.
    pub fn push_response(&self, response: Bytes) -> bool {
        self.push_or_interrupt(response)
    }

    /// Records the fingerprint of a list sent to the client.
    pub fn note_list(&self, kind: ListKind, fingerprint: [u8; 32]) {
        *lock(&self.known_lists).get_mut(kind) = fingerprint;
    }

    /// Records the current fingerprints of all lists.
    pub fn note_all_lists(&self, lists: ListFingerprints) {
        *lock(&self.known_lists) = lists;
    }

    /// Announces changed lists to a listening client.
    pub fn announce_changes(&self, lists: &ListFingerprints) {
        if !self.listen_buffer.has_reader() {
            return;
        }
        let mut known = lock(&self.known_lists);
        for change in ListChange::ALL {
            if !change.has_changed(&known, lists) {
                continue;
            }
            let mut message = Vec::new();
            write_notification(&mut message, change.method(), None);
            if !self.push_or_interrupt(message.into()) {
                return;
            }
            change.copy_fingerprints(&mut known, lists);
        }
    }

    /// Cancels all work of an ending session.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.in_flight.cancel_all();
        self.server_requests.close();
        self.streams.close();
        self.listen_buffer.detach_reader();
        self.listen_buffer.clear();
    }

    /// Pushes a message to the listen stream. A full buffer interrupts the stream, so that the
    /// client reconnects and lists again.
    fn push_or_interrupt(&self, message: Bytes) -> bool {
        let is_pushed = self.listen_buffer.push(message);
        if !is_pushed {
            self.listen_buffer.detach_reader();
        }
        is_pushed
    }

    /// Returns whether a notification passes the log level filter.
    fn accepts_level(&self, notification: &[u8]) -> bool {
        match self.log_level() {
            None | Some(LogLevel::Debug) => true,
            Some(least) => message_level(notification).is_none_or(|level| level >= least),
        }
    }

    /// Sends a server request to the client on `buffer`.
    fn send_request(
        &self,
        buffer: &EventBuffer,
        owner: u64,
        request: ServerRequest,
    ) -> Option<ServerRequestId> {
        if !self.capabilities().supports(request.capability) {
            return None;
        }
        let id = ServerRequestId(self.shared.take_serial());
        let text = server_requests::write_request(&request, id);
        if !self.server_requests.insert(id, owner, request) {
            return None;
        }
        if buffer.push(text) {
            return Some(id);
        }
        self.server_requests.cancel(id);
        None
    }

    /// Cancels a server request and notifies the client.
    fn cancel_request(&self, buffer: &EventBuffer, id: ServerRequestId) {
        if !self.server_requests.cancel(id) {
            return;
        }
        let params = format!("{{\"requestId\":{}}}", id.0);
        let mut text = Vec::new();
        write_notification(&mut text, method::CANCELLED, Some(params.as_bytes()));
        buffer.push(text.into());
    }

    /// Drops buffered events of a client that has not reconnected.
    fn sweep(&self, now: MonotonicTime) {
        self.streams.sweep(now);
        let quiet = !self.listen_buffer.has_reader();
        if self.was_idle.swap(quiet, Ordering::Relaxed) && quiet {
            self.listen_buffer.clear();
        }
    }

    /// Returns whether the session was opened by an SSE stream (2024-11-05) that is still open.
    #[must_use]
    pub fn is_sse_session(&self) -> bool {
        self.revision == Revision::V2024_11_05 && self.is_listening()
    }

    fn is_listening(&self) -> bool {
        self.listen_buffer.has_reader()
    }

    fn is_busy(&self) -> bool {
        self.is_listening()
            || !self.in_flight.is_empty()
            || !self.streams.is_empty()
            || !self.server_requests.is_empty()
    }
}

/// Start time of a session, or of its restoration.
#[derive(Clone, Copy, Debug)]
struct SessionStart {
    now: MonotonicTime,
    unix_ms: u64,
    issued_s: u64,
}

/// Returns the level of a log message; `None` for any other message.
fn message_level(notification: &[u8]) -> Option<LogLevel> {
    let text = |within: &[u8], key| {
        let at = object::field(within, key)?;
        object::parse_string(at.slice(within)).map(|text| text.into_owned())
    };
    if text(notification, "method")? != method::MESSAGE {
        return None;
    }
    let params = object::field(notification, "params")?.slice(notification);
    LogLevel::parse(&text(params, "level")?)
}
