//! Change stream of a modern server: one `subscriptions/listen` long-lived request.

use std::sync::Arc;

use bowline_core::BoxFuture;
use bowline_core::call::{BodyKind, ServerResponse};
use bowline_core::era::Era;
use bowline_core::error::FailureClass;
use bowline_core::pending_table::SendState;
use bowline_wire::mcp::method;
use bowline_wire::{MessageKind, RpcMessage, object};
use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::time::timeout_at;

use super::conversation::HttpConversation;
use super::event_stream::{EventStream, EventStreamEnd, StreamResume};
use super::post_request::{self, is_message_event};
use super::sender::to_link_error;
use super::status_error::{self, ContentKind};
use crate::demux::LinkEventSender;
use crate::link::{LinkError, LinkExit, LinkRequest};
use crate::modern::change_listen::{ChangeStream, ListenTransport};

/// First id of open listen requests: beyond the ids of calls, and below 2^53, so JSON parsers keep
/// every digit.
pub(super) const LISTEN_ID_MIN: u64 = 1 << 52;

/// Message on the change stream.
enum ListenMessage {
    /// The acknowledged filter.
    Acknowledged(Bytes),
    /// A change notification.
    Change,
    /// The final response.
    Response(ServerResponse),
    /// An unexpected message.
    Unexpected,
}

impl ListenTransport for HttpConversation {
    fn start_listen(self: &Arc<Self>, request: LinkRequest) -> ChangeStream {
        let (acknowledge, acknowledged) = oneshot::channel();
        let conversation = Arc::clone(self);
        let finished = Box::pin(async move {
            let deadline = request.deadline;
            let outcome = timeout_at(
                deadline,
                conversation.listen_until_end(request, acknowledge),
            )
            .await;
            let outcome = outcome.unwrap_or(Err(LinkError::Timeout {
                sent: SendState::MaybeSent,
            }));
            match &outcome {
                Err(LinkError::Unreachable(_)) => conversation.mark_lost(),
                // The executor is away, and so is the server.
                Err(LinkError::RemoteFailure(failure))
                    if failure.class == FailureClass::Unavailable =>
                {
                    conversation.mark_lost();
                }
                Ok(_) | Err(_) => {}
            }
            outcome
        });
        ChangeStream {
            acknowledged,
            finished,
        }
    }

    fn server_name(&self) -> &str {
        &self.spec.server
    }

    fn event_sender(&self) -> &LinkEventSender {
        &self.events
    }

    fn wait_link_closed(&self) -> BoxFuture<'_, LinkExit> {
        Box::pin(self.wait_ended())
    }
}

impl HttpConversation {
    /// Sends the listen request and reads the stream to the end.
    async fn listen_until_end(
        self: &Arc<Self>,
        request: LinkRequest,
        acknowledge: oneshot::Sender<Bytes>,
    ) -> Result<ServerResponse, LinkError> {
        let id = self.next_listen_id();
        let mut stream = match self.open_changes(id, request).await? {
            ListenReply::Stream(stream) => stream,
            ListenReply::Response(response) => return Ok(response),
        };
        let mut acknowledge = Some(acknowledge);
        let mut resume = StreamResume::default();
        loop {
            let event = stream.next_event(&mut resume).await;
            let event = match event {
                Ok(event) if is_message_event(event.event.as_deref()) => event,
                Ok(_) => continue,
                Err(EventStreamEnd::Fault(_)) => {
                    let bytes_max = self.spec.limits.body_bytes_max;
                    return Err(LinkError::TooLong { bytes_max });
                }
                Err(EventStreamEnd::Finished | EventStreamEnd::Broken(_)) => {
                    return Err(LinkError::Lost(LinkExit::Closed));
                }
            };
            let data = Bytes::from(event.data);
            match parse_listen_message(&data, id) {
                ListenMessage::Acknowledged(subset) => {
                    if let Some(acknowledge) = acknowledge.take() {
                        let _ = acknowledge.send(subset);
                    }
                }
                ListenMessage::Change if acknowledge.is_none() => {
                    self.dispatch_text(data, None);
                }
                ListenMessage::Response(response) => return Ok(response),
                // Changes before the acknowledgement are not allowed.
                ListenMessage::Change | ListenMessage::Unexpected => self.count_stray(),
            }
        }
    }

    async fn open_changes(&self, id: u64, request: LinkRequest) -> Result<ListenReply, LinkError> {
        let deadline = request.deadline;
        let kind = self.request_kind(id, request)?;
        let session = Arc::clone(&self.session.borrow());
        let mut response = self
            .send_to_endpoint(&session, None, &kind, deadline)
            .await?;
        let bytes_max = self.spec.limits.body_bytes_max;
        let status = response.status;
        match status_error::content_kind(&response.headers) {
            ContentKind::Events if status.is_success() => Ok(ListenReply::Stream(
                EventStream::new(response.body, bytes_max),
            )),
            ContentKind::Json => {
                let body = response
                    .body
                    .read_whole(bytes_max)
                    .await
                    .map_err(to_link_error)?;
                let body = post_request::with_request_id(status, body, id);
                match parse_listen_message(&body, id) {
                    ListenMessage::Response(reply) if !status_error::is_decisive(status) => {
                        Ok(ListenReply::Response(reply))
                    }
                    _ => Err(status_error::status_error(status, &response.headers, &body)),
                }
            }
            ContentKind::Events | ContentKind::Other => {
                Err(status_error::read_status_error(response).await)
            }
        }
    }
}

/// Response to a listen request.
enum ListenReply {
    Stream(EventStream),
    Response(ServerResponse),
}

/// Parses a message on the stream of request `id`.
fn parse_listen_message(data: &Bytes, id: u64) -> ListenMessage {
    let Ok(message) = RpcMessage::parse_from_server(data.clone()) else {
        return ListenMessage::Unexpected;
    };
    match message.kind() {
        MessageKind::Request => ListenMessage::Unexpected,
        MessageKind::Response => match to_response(&message, id) {
            Some(response) => ListenMessage::Response(response),
            None => ListenMessage::Unexpected,
        },
        MessageKind::Notification => match message.method().unwrap_or_default() {
            method::SUBSCRIPTIONS_ACKNOWLEDGED => {
                let params = message.params().unwrap_or_default();
                let subset = object::field(params, "notifications").map(|at| at.slice(params));
                ListenMessage::Acknowledged(Bytes::copy_from_slice(subset.unwrap_or(b"{}")))
            }
            method::TOOLS_LIST_CHANGED
            | method::PROMPTS_LIST_CHANGED
            | method::RESOURCES_LIST_CHANGED
            | method::RESOURCES_UPDATED
            | method::TASKS_NOTIFICATION => ListenMessage::Change,
            _ => ListenMessage::Unexpected,
        },
    }
}

/// Returns a message as the response to request `id`, if the id matches.
fn to_response(message: &RpcMessage, id: u64) -> Option<ServerResponse> {
    if crate::demux::parse_own_id(message.id()?) != Some(id) {
        return None;
    }
    let (body, at) = match (message.result_span(), message.error_span()) {
        (Some(at), _) => (BodyKind::Result, at),
        (None, at) => (BodyKind::Error, at?),
    };
    Some(ServerResponse {
        bytes: message.bytes().clone(),
        body,
        body_at: at.start..at.end,
        era: Era::Modern,
    })
}
