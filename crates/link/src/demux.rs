//! Demultiplexer of a link: dispatches every server message to the recipient, for any transport.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bowline_core::call::{BodyKind, ServerResponse};
use bowline_core::client_handle::ClientHandle;
use bowline_core::sync::lock;

use bowline_wire::splice::replace_span;
use bowline_wire::{JsonError, MessageError, MessageKind, RpcMessage, jsonrpc, object};
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use crate::link::{LinkError, LinkEvent, LinkExit};

mod annotate;
mod input_relay;
mod notification_dispatch;
mod pending_requests;
mod request_dispatch;
mod secret_forms;
mod server_requests;

pub(crate) use annotate::with_server_name;
pub use input_relay::{RelayError, relay_input_requests};
pub use pending_requests::CLIENT_WAIT_MAX;
pub(crate) use pending_requests::{
    PendingRequest, PendingRequests, ResponseKind, ResponseReceiver, now,
};
pub(crate) use secret_forms::find_secret_property as secret_wanted;
pub use server_requests::required_capability;

/// Error code for a required URL elicitation.
const URL_ELICITATION_REQUIRED: &[u8] = b"-32042";

/// Interface between the demultiplexer and the link with the pending requests.
pub(crate) trait Demux: Send + Sync + 'static {
    /// Visits the pending requests under the link's lock. Not reentrant.
    fn with_pending<R>(&self, visit: impl FnOnce(&mut PendingRequests) -> R) -> R;

    /// Sends the reply to a server request: a whole message without a line end.
    fn send_reply(self: &Arc<Self>, reply: Vec<u8>);

    /// Returns the counters of dropped messages.
    fn counters(&self) -> &DemuxCounters;

    /// Returns the server name.
    fn server_name(&self) -> &str;

    /// Whether the server may send requests to clients.
    fn accepts_requests(&self) -> bool {
        true
    }
}

/// Counters of dropped messages.
#[derive(Debug, Default)]
pub(crate) struct DemuxCounters {
    /// Non-message lines.
    pub(crate) noise: AtomicU64,
    /// Responses and progress without a pending request.
    pub(crate) late: AtomicU64,
    /// Events and replies dropped because a queue was full.
    pub(crate) dropped: AtomicU64,
}

impl DemuxCounters {
    /// Returns the total of all dropped messages.
    pub(crate) fn wasted_total(&self) -> u64 {
        let all = [&self.noise, &self.late, &self.dropped];
        all.map(|count| count.load(Ordering::Relaxed)).iter().sum()
    }

    pub(crate) fn increment(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Error for a closed response channel. Never visible, as every pending request gets an outcome.
pub(crate) const LINK_GONE: LinkError = LinkError::Lost(LinkExit::Gone);

/// Waits for a response; `None` when the deadline came first. Time spent waiting for the client
/// (elicitation, sampling) does not count against the server.
pub(crate) async fn wait_response<D: Demux>(
    demux: &D,
    id: u64,
    response: &mut ResponseReceiver,
    deadline: Instant,
) -> Option<Result<ServerResponse, LinkError>> {
    let mut until = deadline;
    loop {
        if let Ok(response) = timeout_at(until, &mut *response).await {
            return Some(response.unwrap_or(Err(LINK_GONE)));
        }
        until = demux.with_pending(|requests| requests.extended_deadline(id, deadline, until))?;
    }
}

/// Parses an id of this link. Some servers return numbers as strings.
pub(crate) fn parse_own_id(raw: &[u8]) -> Option<u64> {
    let digits = match raw {
        [b'"', inner @ .., b'"'] => inner,
        number => number,
    };
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Dispatches a server message. `via` is the request of the carrying stream, if
/// the transport has such streams.
pub(crate) fn dispatch<D: Demux>(
    demux: &Arc<D>,
    events: &LinkEventSender,
    message: &RpcMessage,
    via: Option<u64>,
) {
    let incoming = IncomingMessage {
        demux,
        events,
        message,
        via,
    };
    match message.kind() {
        MessageKind::Response => incoming.dispatch_response(),
        MessageKind::Notification => incoming.dispatch_notification(),
        MessageKind::Request => incoming.dispatch_request(),
    }
}

/// Fails the pending request `id` with `error`.
pub(crate) fn fail_request<D: Demux>(demux: &D, id: u64, error: LinkError) {
    match demux.with_pending(|requests| requests.pending.take(id)) {
        Some((entry, _)) => {
            let _ = entry.response.send(Err(error));
        }
        None => DemuxCounters::increment(&demux.counters().late),
    }
}

/// A server message and the dispatch context.
struct IncomingMessage<'a, D> {
    demux: &'a Arc<D>,
    events: &'a LinkEventSender,
    message: &'a RpcMessage,
    via: Option<u64>,
}

impl<D: Demux> IncomingMessage<'_, D> {
    fn dispatch_response(&self) {
        let message = self.message;
        let (body, body_at) = match (message.result_span(), message.error_span()) {
            (Some(at), _) => (BodyKind::Result, at),
            (None, Some(at)) => (BodyKind::Error, at),
            (None, None) => return,
        };
        let id = message.id().and_then(parse_own_id);
        let (Some(id), Some(id_at)) = (id, message.id_span()) else {
            return DemuxCounters::increment(&self.demux.counters().late);
        };
        let taken = self
            .demux
            .with_pending(|requests| requests.pending.take(id));
        let Some((entry, _)) = taken else {
            return DemuxCounters::increment(&self.demux.counters().late);
        };
        if body == BodyKind::Error {
            self.remember_elicitations(body_at.slice(message.bytes()), entry.caller.as_ref());
        }
        let bytes = replace_span(message.bytes(), id_at, &entry.reply_id).into();
        let shift = |at: usize| {
            if at < id_at.end {
                at
            } else {
                at - id_at.len() + entry.reply_id.len()
            }
        };
        let body_at = shift(body_at.start)..shift(body_at.end);
        // A dropped receiver is the same as a late response.
        let _ = entry.response.send(Ok(ServerResponse {
            bytes,
            body,
            body_at,
            era: entry.era,
        }));
    }

    /// Remembers elicitation ids of a `-32042` error, so completion goes to the same session.
    fn remember_elicitations(&self, error: &[u8], caller: Option<&Arc<dyn ClientHandle>>) {
        let (Some(caller), Some(code)) = (caller, object::field(error, "code")) else {
            return;
        };
        if code.slice(error) != URL_ELICITATION_REQUIRED {
            return;
        }
        let list = object::field(error, "data").and_then(|data| {
            let data = data.slice(error);
            object::field(data, "elicitations").map(|at| at.slice(data))
        });
        let session = caller.session();
        self.demux.with_pending(|requests| {
            for item in list
                .into_iter()
                .flat_map(|list| object::items(list).map(move |item| item.slice(list)))
            {
                if let Some(id) = object::text_field(item, "elicitationId") {
                    requests.server_requests.remember_elicitation(&id, session);
                }
            }
        });
    }
}

/// Dispatches a server text: a message, or an array of messages. Returns the number of
/// parts besides messages.
pub(crate) fn dispatch_text<D: Demux>(
    demux: &Arc<D>,
    events: &LinkEventSender,
    text: Bytes,
    via: Option<u64>,
) -> usize {
    let trimmed = text.trim_ascii();
    let text = match trimmed.first() {
        None => return 0,
        Some(b'{' | b'[') if trimmed.len() == text.len() => text,
        Some(b'{' | b'[') => text.slice_ref(trimmed),
        Some(_) => return 1,
    };
    match RpcMessage::parse_from_server(text.clone()) {
        Ok(message) => {
            dispatch(demux, events, &message, via);
            0
        }
        Err(MessageError::Json(JsonError::Utf8 { .. })) => {
            // The lossy conversion is valid UTF-8, so this recurses once.
            let text = String::from_utf8_lossy(&text).into_owned();
            dispatch_text(demux, events, Bytes::from(text), via)
        }
        Err(MessageError::Batch) => {
            let mut noise = 0;
            // A nested batch is not a message.
            for item in object::items(&text) {
                match RpcMessage::parse_from_server(text.slice(item.start..item.end)) {
                    Ok(message) => dispatch(demux, events, &message, via),
                    Err(_) => noise += 1,
                }
            }
            noise
        }
        Err(refusal) => handle_malformed(demux.as_ref(), &text, refusal),
    }
}

/// Handles malformed text. If the text claims to be a response, the pending request
/// fails; further lines may be log output of the server.
fn handle_malformed<D: Demux>(demux: &D, text: &[u8], refusal: MessageError) -> usize {
    let has_member = |key| object::field(text, key).is_some();
    let id = if has_member("jsonrpc") && !has_member("method") {
        jsonrpc::find_refused_id(text).and_then(parse_own_id)
    } else {
        None
    };
    let Some(id) = id else {
        return 1;
    };
    let reason = match refusal {
        MessageError::Json(fault) => fault.to_string(),
        other => other.to_string(),
    };
    fail_request(demux, id, LinkError::BadResponse(reason.into()));
    0
}

/// An event with guaranteed delivery, possibly merged with pending events of the same kind.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CoalescedEvent {
    Tools,
    Prompts,
    Resources,
    #[cfg_attr(not(feature = "http"), expect(dead_code, reason = "only of HTTP"))]
    SessionReset,
    UnattributedRequest,
}

/// The sending half, shared by all streams of a link.
#[derive(Debug)]
pub(crate) struct LinkEventSender {
    channel: mpsc::Sender<LinkEvent>,
    /// Coalesced events for a full channel: at most a single event of each kind, so none is lost.
    due: Mutex<Vec<LinkEvent>>,
}

impl LinkEventSender {
    pub(crate) const fn new(channel: mpsc::Sender<LinkEvent>) -> Self {
        Self {
            channel,
            due: Mutex::new(Vec::new()),
        }
    }

    pub(crate) fn has_due(&self) -> bool {
        !lock(&self.due).is_empty()
    }

    pub(crate) fn emit_coalesced(&self, change: CoalescedEvent) {
        let event = match change {
            CoalescedEvent::Tools => LinkEvent::ToolsChanged,
            CoalescedEvent::Prompts => LinkEvent::PromptsChanged,
            CoalescedEvent::Resources => LinkEvent::ResourcesChanged,
            CoalescedEvent::SessionReset => LinkEvent::SessionReset,
            CoalescedEvent::UnattributedRequest => LinkEvent::UnattributedRequest,
        };
        let mut due = lock(&self.due);
        if due.contains(&event) {
            return;
        }
        if let Err(mpsc::error::TrySendError::Full(event)) = self.channel.try_send(event) {
            due.push(event);
        }
    }

    /// Emits an event without guarantee; `false` when the channel is full.
    pub(crate) fn try_emit(&self, event: impl FnOnce() -> LinkEvent) -> bool {
        match self.channel.try_reserve() {
            Ok(permit) => {
                permit.send(event());
                true
            }
            Err(_) => false,
        }
    }

    /// Waits for room in the channel and delivers a due event.
    pub(crate) async fn deliver_due(&self) {
        match self.channel.reserve().await {
            Ok(permit) => {
                if let Some(event) = lock(&self.due).pop() {
                    permit.send(event);
                }
            }
            // The receiver is gone.
            Err(_) => lock(&self.due).clear(),
        }
    }
}
