//! Demultiplexer of a link: dispatches every server message to the recipient, for any transport.

mod annotate;
mod dispatch_text;
mod event_sender;
mod input_relay;
mod pending_requests;
mod request_dispatch;
mod secret_forms;
mod server_requests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bowline_core::call::{BodyKind, ServerResponse};
use bowline_core::client_handle::ClientHandle;
use bowline_wire::mcp::{meta, method};
use bowline_wire::splice::replace_span;
use bowline_wire::{MessageKind, ObjectEditor, RpcMessage, object};
use bytes::Bytes;
use tokio::time::{Instant, timeout_at};

use crate::link::{LinkError, LinkEvent, LinkExit};

pub(crate) use annotate::with_server_name;
pub(crate) use dispatch_text::dispatch_text;
pub(crate) use event_sender::{CoalescedEvent, LinkEventSender};
pub use input_relay::{RelayError, relay_input_requests};
pub use pending_requests::CLIENT_WAIT_MAX;
use pending_requests::Recipient;
pub(crate) use pending_requests::{PendingRequest, PendingRequests, ResponseReceiver, now};
pub(crate) use secret_forms::find_secret_property as secret_wanted;
pub use server_requests::required_capability;

/// Longest notification for a link event.
const EVENT_BYTES_MAX: usize = 64 * 1024;

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

    fn dispatch_notification(&self) {
        match self.message.method().unwrap_or_default() {
            method::PROGRESS => self.forward_progress(),
            method::TOOLS_LIST_CHANGED => self.events.emit_coalesced(CoalescedEvent::Tools),
            method::PROMPTS_LIST_CHANGED => self.events.emit_coalesced(CoalescedEvent::Prompts),
            method::RESOURCES_LIST_CHANGED => self.events.emit_coalesced(CoalescedEvent::Resources),
            method::CANCELLED => self.handle_cancelled(),
            method::RESOURCES_UPDATED => self.emit_keyed_event("uri", |uri, notification| {
                LinkEvent::ResourceUpdated { uri, notification }
            }),
            method::TASKS_STATUS | method::TASKS_NOTIFICATION => {
                self.emit_keyed_event("taskId", |task, notification| LinkEvent::TaskStatus {
                    task,
                    notification,
                })
            }
            method::ELICITATION_COMPLETE => self.handle_elicitation_complete(),
            method::SUBSCRIPTIONS_ACKNOWLEDGED => self.handle_acknowledged(),
            method::MESSAGE => self.notify_client_or_emit(LinkEvent::Log),
            _ => self.notify_client_or_emit(LinkEvent::Other),
        }
    }

    fn forward_progress(&self) {
        let message = self.message;
        let token = message.params_span().and_then(|params| {
            let token = object::field(params.slice(message.bytes()), "progressToken")?;
            Some(token.shift(params.start))
        });
        let progress = token.and_then(|token| {
            let id = parse_own_id(token.slice(message.bytes()))?;
            let (caller, client_token) = self
                .demux
                .with_pending(|requests| requests.progress_target(id))?;
            Some((token, caller, client_token))
        });
        match progress {
            Some((token, caller, client_token)) => {
                caller.notify(replace_span(message.bytes(), token, &client_token).into())
            }
            None => DemuxCounters::increment(&self.demux.counters().late),
        }
    }

    /// The server cancels a server request.
    fn handle_cancelled(&self) {
        let params = self.message.params().unwrap_or_default();
        let Some(id) = object::field(params, "requestId") else {
            return;
        };
        let closed = self
            .demux
            .with_pending(|requests| requests.close_server_request(id.slice(params)));
        match closed {
            Some((caller, Some(request_id))) => caller.cancel_request(request_id),
            Some((_, None)) => {}
            // A modern server ends a change stream this way, and nothing else.
            None => {
                let listening = |id: &u64| {
                    self.demux
                        .with_pending(|requests| requests.is_subscription(*id))
                };
                if let Some(id) = parse_own_id(id.slice(params)).filter(listening) {
                    fail_request(self.demux.as_ref(), id, LinkError::Lost(LinkExit::Closed));
                }
            }
        }
    }

    /// Handles `subscriptions/acknowledged`: the server lists the accepted changes.
    fn handle_acknowledged(&self) {
        let params = self.message.params().unwrap_or_default();
        let id = object::field(params, "_meta").and_then(|meta| {
            let meta = meta.slice(params);
            parse_own_id(object::field(meta, meta::SUBSCRIPTION_ID)?.slice(meta))
        });
        let acknowledge = id.and_then(|id| {
            self.demux
                .with_pending(|requests| requests.take_acknowledge(id))
        });
        match acknowledge {
            Some(acknowledge) => {
                let accepted = object::field(params, "notifications").map(|at| at.slice(params));
                let _ = acknowledge.send(Bytes::copy_from_slice(accepted.unwrap_or(b"{}")));
            }
            None => DemuxCounters::increment(&self.demux.counters().late),
        }
    }

    /// Emits an event about a resource or task, for all subscribers.
    fn emit_keyed_event(&self, key: &str, event: impl FnOnce(Arc<str>, Bytes) -> LinkEvent) {
        let params = self.message.params().unwrap_or_default();
        match object::text_field(params, key) {
            Some(name) => self.emit_event(|notification| event(name.as_ref().into(), notification)),
            None => DemuxCounters::increment(&self.demux.counters().dropped),
        }
    }

    /// Handles `elicitation/complete`: notifies the session of the user.
    fn handle_elicitation_complete(&self) {
        let params = self.message.params().unwrap_or_default();
        let id = object::text_field(params, "elicitationId");
        let found = self.demux.with_pending(|requests| {
            let session = requests
                .server_requests
                .session_for_elicitation(id.as_deref()?)?;
            Some((session, requests.newest_client(session)))
        });
        match found {
            Some((_, Some(caller))) => caller.notify(Bytes::copy_from_slice(self.message.bytes())),
            Some((session, None)) => {
                self.emit_event(|notification| LinkEvent::SessionNotification {
                    session,
                    notification,
                })
            }
            None => DemuxCounters::increment(&self.demux.counters().dropped),
        }
    }

    /// Forwards a notification to the only possible session; otherwise emits an
    /// event.
    fn notify_client_or_emit(&self, event: impl FnOnce(Bytes) -> LinkEvent) {
        match self
            .demux
            .with_pending(|requests| requests.find_recipient(self.via))
        {
            Recipient::Client { caller, .. } => {
                caller.notify(Bytes::copy_from_slice(self.message.bytes()))
            }
            Recipient::Ambiguous | Recipient::NoClient => self.emit_event(event),
        }
    }

    fn emit_event(&self, event: impl FnOnce(Bytes) -> LinkEvent) {
        let bytes = self.message.bytes();
        // Copied, so the event does not keep the whole read buffer alive.
        let passed = bytes.len() <= EVENT_BYTES_MAX
            && self.events.try_emit(|| event(strip_subscription_id(bytes)));
        if !passed {
            DemuxCounters::increment(&self.demux.counters().dropped);
        }
    }
}

/// Removes our subscription id from a notification.
fn strip_subscription_id(notification: &[u8]) -> Bytes {
    let meta = object::field(notification, "params").and_then(|params| {
        let meta = object::field(params.slice(notification), "_meta")?;
        Some(meta.shift(params.start))
    });
    let mut editor = ObjectEditor::new(notification);
    if let Some(meta) = meta {
        editor.retain(meta, |key, _| key != meta::SUBSCRIPTION_ID.as_bytes());
    }
    editor.finish().into()
}
