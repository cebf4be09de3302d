//! Client handle of a modern call: notifications go to the current round, and server requests wait
//! until the client can be asked.

use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Context, Poll, Waker};

use bowline_core::client_handle::{
    ClientCapabilities, ClientCapability, ClientHandle, ServerRequest, ServerRequestId, SessionKey,
};
use bowline_core::log_level::LogLevel;
use bowline_core::sync::lock;
use bowline_core::task_table::TaskRecord;
use bowline_core::time::MonotonicTime;
use bowline_wire::jsonrpc::write_result;
use bowline_wire::mcp::method;
use bowline_wire::object;
use bowline_wire::splice::replace_span;
use bytes::Bytes;
use tokio::sync::oneshot;

use super::{CallResult, CallStream};
use crate::client_session::CancelReason;
use crate::event_stream::{
    EventBody, EventBuffer, EventSource, ReaderId, StreamDelivery, StreamOpening,
};
use crate::modern_mcp::sessionless_clients::SessionlessClient;

/// Maximum number of open server requests per call; further requests are refused.
pub(crate) const SERVER_REQUESTS_MAX: usize = 16;

/// Maximum length of a server's request id used as key.
const KEY_BYTES_MAX: usize = 128;

/// Delivery options of a single client request.
#[derive(Clone, Debug, Default)]
pub(crate) struct RoundOptions {
    /// Capabilities of the client.
    pub(crate) capabilities: ClientCapabilities,
    /// Minimum log level; no log messages if absent.
    pub(crate) level: Option<LogLevel>,
    /// Progress token as written by the client.
    pub(crate) progress_token: Option<Bytes>,
}

/// Client handle of a call across all rounds.
#[derive(Debug)]
pub(crate) struct ModernCallHandle {
    client: Arc<SessionlessClient>,
    state: Mutex<ModernCallState>,
}

#[derive(Debug)]
struct ModernCallState {
    round: Arc<CallRound>,
    requests: Vec<OpenServerRequest>,
    /// Last request number; unique within a call.
    last_id: u64,
    /// Outcome of the call until delivered.
    outcome: Option<CallResult>,
    /// Set when no request can be answered any more.
    finished: bool,
    /// Missing capability that a server needed.
    missing: Option<ClientCapability>,
    /// Task created by the server for this call.
    task: Option<TaskRecord>,
    /// Handle among the parked calls.
    parked_handle: Option<u64>,
    /// Whether the client was asked for input and has not returned; notifications are dropped
    /// meanwhile.
    is_away: bool,
    /// Cancels the call.
    cancel: Option<oneshot::Sender<CancelReason>>,
    waker: Option<Waker>,
}

#[derive(Debug)]
struct OpenServerRequest {
    id: u64,
    key: String,
    request: ServerRequest,
}

/// A request of the client: the first, or a continuation with input.
#[derive(Debug)]
pub(crate) struct CallRound {
    buffer: EventBuffer,
    options: RoundOptions,
    /// Whether this is the first round: server notifications carry its progress token.
    is_first: bool,
    handle: Weak<ModernCallHandle>,
}

/// Next event for the client.
#[derive(Debug)]
pub(crate) enum RoundEvent {
    /// The call finished.
    Finished(CallResult),
    /// Servers request input.
    InputRequested,
}

impl ModernCallHandle {
    /// Creates the handle of a call, its first round, and the cancellation signal.
    pub(crate) fn new(
        client: Arc<SessionlessClient>,
        options: RoundOptions,
    ) -> (Arc<Self>, Arc<CallRound>, oneshot::Receiver<CancelReason>) {
        let (cancel, cancelled) = oneshot::channel();
        let end = Arc::new_cyclic(|end| {
            let round = CallRound::new(options, true, end.clone());
            Self {
                client,
                state: Mutex::new(ModernCallState {
                    round: Arc::new(round),
                    requests: Vec::new(),
                    last_id: 0,
                    outcome: None,
                    finished: false,
                    missing: None,
                    task: None,
                    parked_handle: None,
                    is_away: false,
                    cancel: Some(cancel),
                    waker: None,
                }),
            }
        });
        let round = Arc::clone(&end.lock_state().round);
        (end, round, cancelled)
    }

    /// Sets the start of request numbers, because keys must be unique within a task.
    pub(crate) fn number_keys_from(&self, last: u64) {
        self.lock_state().last_id = last;
    }

    /// Returns whether the call has finished, so that no more requests arrive.
    pub(crate) fn is_finished(&self) -> bool {
        self.lock_state().finished
    }

    /// Takes the outcome of a finished call.
    pub(crate) fn take_result(&self) -> Option<CallResult> {
        self.lock_state().outcome.take()
    }

    /// Begins a round with input from the client.
    pub(crate) fn begin_round(self: &Arc<Self>, options: RoundOptions) -> Arc<CallRound> {
        let round = Arc::new(CallRound::new(options, false, Arc::downgrade(self)));
        let mut state = self.lock_state();
        state.round = Arc::clone(&round);
        state.is_away = false;
        // A missing capability of an earlier round no longer matters: the client continued.
        state.missing = None;
        round
    }

    /// Forwards the client's answer to the server request with this key; ignores unknown keys.
    pub(crate) fn answer_request(&self, key: &str, value: &[u8]) {
        let open = {
            let mut state = self.lock_state();
            let at = state.requests.iter().position(|open| open.key == key);
            at.map(|at| state.requests.remove(at))
        };
        if let Some(OpenServerRequest {
            request: question, ..
        }) = open
        {
            let mut text = Vec::with_capacity(value.len() + 64);
            write_result(&mut text, question.id(), value);
            question.respond(text.into());
        }
    }

    /// Calls `tell` with key and complete text of every open request.
    pub(crate) fn for_each_open(&self, mut tell: impl FnMut(&str, &[u8])) {
        let state = self.lock_state();
        for open in &state.requests {
            tell(&open.key, &open.request.request);
        }
    }

    /// Returns whether any server request is unanswered.
    pub(crate) fn has_open_requests(&self) -> bool {
        !self.lock_state().requests.is_empty()
    }

    /// Refuses all open requests.
    pub(crate) fn refuse_open(&self) {
        let refused = std::mem::take(&mut self.lock_state().requests);
        // Servers are notified outside the lock.
        drop(refused);
    }

    /// Stores the outcome for a waiting or returning client.
    pub(crate) fn finish(&self, outcome: CallResult) {
        let (refused, waker) = {
            let mut state = self.lock_state();
            state.finished = true;
            state.outcome = Some(outcome);
            (std::mem::take(&mut state.requests), state.waker.take())
        };
        drop(refused);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Cancels the call; no effect on a finished call.
    pub(crate) fn cancel(&self) {
        let (refused, cancel) = {
            let mut state = self.lock_state();
            state.finished = true;
            (std::mem::take(&mut state.requests), state.cancel.take())
        };
        drop(refused);
        if let Some(cancel) = cancel {
            // A finished call no longer listens.
            let _ = cancel.send(CancelReason::Caller);
        }
    }

    /// Returns the client of the call.
    pub(crate) fn client(&self) -> &Arc<SessionlessClient> {
        &self.client
    }

    /// Returns the missing capability that a server needed.
    pub(crate) fn missing_capability(&self) -> Option<ClientCapability> {
        self.lock_state().missing
    }

    /// Returns the task created by the server.
    pub(crate) fn task(&self) -> Option<TaskRecord> {
        self.lock_state().task.clone()
    }

    /// Returns the handle among the parked calls; absent if never parked.
    pub(crate) fn parked_handle(&self) -> Option<u64> {
        self.lock_state().parked_handle
    }

    /// Stores the handle among the parked calls.
    pub(crate) fn set_parked_handle(&self, handle: u64) {
        self.lock_state().parked_handle = Some(handle);
    }

    /// Marks the client as away after an `input_required` result.
    pub(crate) fn mark_away(&self) {
        self.lock_state().is_away = true;
    }

    /// Ready when a server request is open.
    pub(crate) fn poll_open_request(&self, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.lock_state();
        if !state.requests.is_empty() {
            return Poll::Ready(());
        }
        state.store_waker(cx);
        Poll::Pending
    }

    /// Ready when an event ends the current round.
    pub(crate) fn poll_event(&self, cx: &Context<'_>) -> Poll<RoundEvent> {
        let mut state = self.lock_state();
        if let Some(outcome) = state.outcome.take() {
            return Poll::Ready(RoundEvent::Finished(outcome));
        }
        if !state.requests.is_empty() {
            return Poll::Ready(RoundEvent::InputRequested);
        }
        state.store_waker(cx);
        Poll::Pending
    }

    fn lock_state(&self) -> MutexGuard<'_, ModernCallState> {
        lock(&self.state)
    }
}

impl ClientHandle for ModernCallHandle {
    fn session(&self) -> SessionKey {
        self.client.key
    }

    fn capabilities(&self) -> ClientCapabilities {
        self.lock_state().round.options.capabilities
    }

    fn log_level(&self) -> Option<LogLevel> {
        self.lock_state().round.options.level
    }

    fn notify(&self, notification: Bytes) {
        let state = self.lock_state();
        if state.is_away {
            return;
        }
        let round = Arc::clone(&state.round);
        drop(state);
        round.push_notification(notification);
    }

    fn request(&self, server_request: ServerRequest) -> Option<ServerRequestId> {
        let (id, waker) = {
            let mut state = self.lock_state();
            if state.finished
                || state.requests.len() >= SERVER_REQUESTS_MAX
                || !state
                    .round
                    .options
                    .capabilities
                    .supports(server_request.capability)
            {
                drop(state);
                // Refused outside the lock.
                drop(server_request);
                return None;
            }
            state.last_id += 1;
            let id = state.last_id;
            let key = state.request_key(id, &server_request);
            state.requests.push(OpenServerRequest {
                id,
                key,
                request: server_request,
            });
            (id, state.waker.take())
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        Some(ServerRequestId(id))
    }

    fn answers_by_retry(&self) -> bool {
        true
    }

    fn note_missing_capability(&self, capability: ClientCapability) {
        self.lock_state().missing = Some(capability);
    }

    fn on_task_created(&self, task: &TaskRecord) {
        self.lock_state().task = Some(task.clone());
    }

    fn cancel_request(&self, request_id: ServerRequestId) {
        let withdrawn = {
            let mut state = self.lock_state();
            let at = state
                .requests
                .iter()
                .position(|open| open.id == request_id.0);
            at.map(|at| state.requests.remove(at))
        };
        drop(withdrawn);
    }

    fn session_handle(&self) -> Arc<dyn ClientHandle> {
        Arc::new(IdleClientHandle {
            key: self.client.key,
            capabilities: self.capabilities(),
        })
    }
}

impl ModernCallState {
    fn store_waker(&mut self, cx: &Context<'_>) {
        match &mut self.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => self.waker = Some(cx.waker().clone()),
        }
    }

    /// Returns the key of a request: the server's own id if textual and unused, else a number.
    fn request_key(&self, id: u64, request: &ServerRequest) -> String {
        let word = object::parse_string(request.id());
        let word = word.filter(|word| {
            !word.is_empty() && word.len() <= KEY_BYTES_MAX && !word.starts_with("ask-")
        });
        let word = word.filter(|word| self.requests.iter().all(|open| open.key != **word));
        word.map_or_else(|| format!("ask-{id}"), |word| word.into_owned())
    }
}

/// Dropping refuses all open requests.
impl Drop for ModernCallHandle {
    fn drop(&mut self) {
        self.refuse_open();
    }
}

impl CallRound {
    fn new(options: RoundOptions, is_first: bool, handle: Weak<ModernCallHandle>) -> Self {
        Self {
            buffer: EventBuffer::default(),
            options,
            is_first,
            handle,
        }
    }

    fn push_notification(&self, notification: Bytes) {
        let Some(kind) = object::text_field(&notification, "method") else {
            return;
        };
        match kind.as_ref() {
            method::MESSAGE if !self.accepts_level(&notification) => {}
            // Modern clients learn of completion through the response to their next request.
            method::ELICITATION_COMPLETE => {}
            method::PROGRESS if !self.is_first => {
                drop(kind);
                self.push_progress(&notification);
            }
            _ => {
                drop(kind);
                self.buffer.push(notification);
            }
        }
    }

    fn accepts_level(&self, message: &[u8]) -> bool {
        let params = object::field(message, "params").map(|at| at.slice(message));
        let message_level = params.and_then(|params| object::text_field(params, "level"));
        let message_level = message_level.and_then(|word| LogLevel::parse(&word));
        match (self.options.level, message_level) {
            (Some(least), Some(level)) => level >= least,
            (Some(_), None) => true,
            (None, _) => false,
        }
    }

    /// Forwards progress with this round's token; servers know only the first round's token.
    fn push_progress(&self, notification: &Bytes) {
        let at = object::field(notification, "params").and_then(|params| {
            let token = object::field(params.slice(notification), "progressToken")?;
            Some(token.shift(params.start))
        });
        if let (Some(at), Some(token)) = (at, &self.options.progress_token) {
            self.buffer
                .push(replace_span(notification, at, token).into());
        }
    }
}

impl EventSource for CallRound {
    fn buffer(&self) -> &EventBuffer {
        &self.buffer
    }

    fn reader_left(&self, reader: ReaderId, _: StreamDelivery) {
        // Closing the stream before the response is how a modern client cancels a call.
        if self.buffer.release_reader(reader)
            && !self.buffer.is_ended()
            && let Some(end) = self.handle.upgrade()
        {
            end.cancel();
        }
    }
}

impl CallStream for CallRound {
    fn open_stream(self: Arc<Self>) -> EventBody {
        let reader = self.buffer.attach_reader();
        EventBody::new(self, reader, None, StreamOpening::Plain)
    }

    fn finish(&self, response: Bytes, _: MonotonicTime) {
        self.buffer.finish(response);
    }
}

/// Handle of a client outside calls; receives no notifications and no requests.
#[derive(Debug)]
struct IdleClientHandle {
    key: SessionKey,
    /// Capabilities available in calls.
    capabilities: ClientCapabilities,
}

impl ClientHandle for IdleClientHandle {
    fn session(&self) -> SessionKey {
        self.key
    }

    fn capabilities(&self) -> ClientCapabilities {
        self.capabilities
    }

    fn notify(&self, _: Bytes) {}

    fn session_handle(&self) -> Arc<dyn ClientHandle> {
        Arc::new(Self { ..*self })
    }
}

#[cfg(test)]
mod tests;
