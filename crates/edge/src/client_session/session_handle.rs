//! Calls of a session: the registry of calls in flight, and the client handles, which receive
//! notifications and server requests.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::task::{Context, Poll};

use bowline_core::client_handle::{
    ClientCapabilities, ClientHandle, NullClient, ServerRequest, ServerRequestId, SessionKey,
};
use bowline_core::error::{CallError, ExecutionStatus};
use bowline_core::log_level::LogLevel;
use bowline_core::sync::lock;
use bowline_core::time::MonotonicTime;
use bytes::Bytes;
use foldhash::fast::RandomState;
use sha2::{Digest as _, Sha256};
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::RecvError;

use super::ClientSession;
use crate::call::CallStream;
use crate::event_stream::{
    EventBody, EventBuffer, EventSource, ReaderId, StreamDelivery, StreamLabel, StreamName,
    StreamOpening,
};

/// Client handle of a call, or of all calls of a batch. No stream exists until the first event.
#[derive(Debug)]
pub(crate) struct SessionCallHandle {
    session: Arc<ClientSession>,
    /// Serial number of the stream and owner of its server requests.
    serial: u64,
    buffer: EventBuffer,
    has_requests: AtomicBool,
    /// Ids of the calls, for cancellation when the client leaves.
    call_id: Bytes,
    batch_ids: Vec<Bytes>,
    /// Created when the stream first opens.
    name: OnceLock<StreamName>,
}

impl SessionCallHandle {
    /// Creates the handle of the call `id`, and of `more` calls in the same batch.
    #[must_use]
    pub(crate) fn new(session: &Arc<ClientSession>, id: Bytes, more: Vec<Bytes>) -> Arc<Self> {
        Arc::new(Self {
            serial: session.shared.take_serial(),
            session: Arc::clone(session),
            buffer: EventBuffer::default(),
            has_requests: AtomicBool::new(false),
            call_id: id,
            batch_ids: more,
            name: OnceLock::new(),
        })
    }

    /// Returns the label of the stream.
    #[must_use]
    pub(crate) const fn label(&self) -> StreamLabel {
        StreamLabel(self.serial)
    }

    /// Returns the stream name used in event ids: the same for every reader.
    fn stream_name(&self) -> StreamName {
        let name = self.name.get_or_init(|| {
            let ids = std::iter::once(&self.call_id).chain(&self.batch_ids);
            self.session.name_stream(self.label(), ids)
        });
        name.clone()
    }

    /// Resumes the stream after this event number.
    #[must_use]
    pub(crate) fn resume_stream(self: &Arc<Self>, number: u64) -> Option<EventBody> {
        let reader = self.buffer.attach_after(number)?;
        let source = Arc::clone(self) as Arc<dyn EventSource>;
        let name = Some(self.stream_name());
        Some(EventBody::new(source, reader, name, StreamOpening::Comment))
    }

    fn refuse_open(&self) {
        if self.has_requests.load(Ordering::Relaxed) {
            self.session.server_requests.refuse_by_owner(self.serial);
        }
    }
}

impl ClientHandle for SessionCallHandle {
    fn session(&self) -> SessionKey {
        self.session.key
    }

    fn durable_id(&self) -> Option<u64> {
        Some(self.session.lasting_id)
    }

    fn capabilities(&self) -> ClientCapabilities {
        self.session.capabilities()
    }

    fn log_level(&self) -> Option<LogLevel> {
        self.session.log_level()
    }

    fn notify(&self, notification: Bytes) {
        if self.session.accepts_level(&notification) {
            // A client that does not read loses progress notifications, never its response.
            self.buffer.push(notification);
        }
    }

    fn request(&self, server_request: ServerRequest) -> Option<ServerRequestId> {
        self.has_requests.store(true, Ordering::Relaxed);
        self.session
            .send_request(&self.buffer, self.serial, server_request)
    }

    fn cancel_request(&self, request_id: ServerRequestId) {
        self.session.cancel_request(&self.buffer, request_id);
    }

    fn session_handle(&self) -> Arc<dyn ClientHandle> {
        SessionHandle::for_session(&self.session)
    }
}

impl EventSource for SessionCallHandle {
    fn buffer(&self) -> &EventBuffer {
        &self.buffer
    }

    fn reader_left(&self, reader: ReaderId, delivery: StreamDelivery) {
        if !self.buffer.release_reader(reader) || self.buffer.is_ended() {
            return;
        }
        if delivery == StreamDelivery::Started && self.session.is_resumable() {
            // The client has an event id and can resume.
            return;
        }
        for id in std::iter::once(&self.call_id).chain(&self.batch_ids) {
            self.session.in_flight.cancel(id);
        }
    }
}

impl CallStream for SessionCallHandle {
    fn open_stream(self: Arc<Self>) -> EventBody {
        let (name, opening) = if self.session.is_resumable() {
            self.buffer
                .enable_replay(self.session.shared.replay_budget.clone());
            self.session.streams.insert(&self);
            let opening = match self.session.has_primed_streams() {
                true => StreamOpening::Primed { after: 0 },
                false => StreamOpening::Plain,
            };
            (Some(self.stream_name()), opening)
        } else {
            (None, StreamOpening::Plain)
        };
        let reader = self.buffer.attach_reader();
        EventBody::new(self, reader, name, opening)
    }

    fn finish(&self, response: Bytes, now: MonotonicTime) {
        self.refuse_open();
        self.buffer.finish(response);
        self.session.streams.mark_ended(self.label(), now);
    }
}

impl Drop for SessionCallHandle {
    fn drop(&mut self) {
        self.refuse_open();
    }
}

/// Client handle of a whole session: its listen stream.
#[derive(Debug)]
pub(crate) struct SessionHandle(Arc<ClientSession>);

impl SessionHandle {
    /// Creates the handle of a session.
    #[must_use]
    pub(crate) fn for_session(session: &Arc<ClientSession>) -> Arc<Self> {
        Arc::new(Self(Arc::clone(session)))
    }
}

impl ClientHandle for SessionHandle {
    fn session(&self) -> SessionKey {
        self.0.key
    }

    fn capabilities(&self) -> ClientCapabilities {
        self.0.capabilities()
    }

    fn log_level(&self) -> Option<LogLevel> {
        self.0.log_level()
    }

    fn notify(&self, notification: Bytes) {
        self.0.notify(notification);
    }

    fn request(&self, server_request: ServerRequest) -> Option<ServerRequestId> {
        if !self.0.listen_buffer.has_reader() {
            return None;
        }
        self.0
            .send_request(&self.0.listen_buffer, LISTEN_OWNER, server_request)
    }

    fn cancel_request(&self, request_id: ServerRequestId) {
        self.0.cancel_request(&self.0.listen_buffer, request_id);
    }

    fn session_handle(&self) -> Arc<dyn ClientHandle> {
        Self::for_session(&self.0)
    }
}

/// Owner of server requests outside calls; no call has this serial.
const LISTEN_OWNER: u64 = 0;

impl EventSource for SessionHandle {
    fn buffer(&self) -> &EventBuffer {
        &self.0.listen_buffer
    }

    fn reader_left(&self, reader: ReaderId, _: StreamDelivery) {
        self.0.listen_buffer.release_reader(reader);
    }
}

impl ClientSession {
    /// Returns the handle of a call without a stream. The handle carries the session's lasting id,
    /// or queued writes would belong to a different session after a restart.
    pub(crate) fn handle_without_stream(&self) -> Arc<dyn ClientHandle> {
        Arc::new(NullClient::new(self.key).with_durable_id(self.lasting_id))
    }
}

/// Derives a number from a session id; the id cannot be recovered from the number.
pub(super) fn derive_lasting_id(id: &str) -> u64 {
    let digest = Sha256::digest(id.as_bytes());
    let first = digest.first_chunk().copied();
    first.map_or(0, u64::from_be_bytes)
}

/// Calls in flight. Request ids are unique only within a session, so each session has its own.
#[derive(Clone, Debug, Default)]
pub struct CallsInFlight {
    calls: Arc<Mutex<HashMap<Bytes, oneshot::Sender<CancelReason>, RandomState>>>,
}

/// Reason for a cancellation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelReason {
    /// Cancelled by the client.
    Caller,
    /// The session ended.
    SessionEnd,
}

impl CancelReason {
    /// Returns the call error.
    #[must_use]
    pub const fn into_error(self, execution: ExecutionStatus) -> CallError {
        match self {
            Self::Caller => CallError::Cancelled { execution },
            Self::SessionEnd => CallError::SessionEnded { execution },
        }
    }
}

/// Registration of a call, which resolves when the call is cancelled; removed on drop.
#[derive(Debug)]
pub struct InFlightCall {
    calls: CallsInFlight,
    id: Bytes,
    pub(super) signal: oneshot::Receiver<CancelReason>,
}

impl CallsInFlight {
    /// Registers a call; `None` if the id is already in flight.
    #[must_use]
    pub fn register(&self, id: &Bytes) -> Option<InFlightCall> {
        let (cancel, signal) = oneshot::channel();
        {
            let mut calls = self.lock_calls();
            if calls.contains_key(id) {
                return None;
            }
            calls.insert(id.clone(), cancel);
        }
        Some(InFlightCall {
            calls: self.clone(),
            id: id.clone(),
            signal,
        })
    }

    /// Cancels the call with this id, if any.
    pub fn cancel(&self, id: &[u8]) {
        if let Some(cancel) = self.lock_calls().remove(id) {
            // A finished call no longer listens.
            let _ = cancel.send(CancelReason::Caller);
        }
    }

    /// Cancels every call, because the session ends.
    pub fn cancel_all(&self) {
        let calls = std::mem::take(&mut *self.lock_calls());
        for cancel in calls.into_values() {
            let _ = cancel.send(CancelReason::SessionEnd);
        }
    }

    /// Returns the number of calls in flight.
    #[must_use]
    pub fn count(&self) -> usize {
        self.lock_calls().len()
    }

    /// Returns whether no call is in flight.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lock_calls().is_empty()
    }

    fn lock_calls(
        &self,
    ) -> MutexGuard<'_, HashMap<Bytes, oneshot::Sender<CancelReason>, RandomState>> {
        lock(&self.calls)
    }
}

impl Future for InFlightCall {
    type Output = Result<CancelReason, RecvError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.signal).poll(cx)
    }
}

impl Drop for InFlightCall {
    fn drop(&mut self) {
        // The id may be in use again; only our own entry has a closed receiver.
        self.signal.close();
        let mut calls = self.calls.lock_calls();
        if calls.get(&self.id).is_some_and(oneshot::Sender::is_closed) {
            calls.remove(&self.id);
        }
    }
}
