//! Posts a request to the server and reads the response, with retries and stream resumption.

use std::sync::Arc;
use std::time::Duration;

use bowline_wire::jsonrpc::Envelope;
use bowline_wire::{RpcMessage, object};
use bytes::Bytes;
use http::StatusCode;
use tokio::time::{Instant, sleep};

use super::conversation::{HttpConversation, HttpMode, RetryRule};
use super::event_stream::{EventStream, EventStreamEnd, StreamResume};
use super::http_client::{HttpResponse, SendOptions};
use super::http_discover;
use super::http_session::SessionHeaders;
use super::sender::{OutboundRequest, RequestKind, to_link_error};
use super::status_error::{self, ContentKind};
use crate::demux::{Demux, parse_own_id};
use crate::link::LinkError;

/// Delays before each retry after a transient failure.
pub(super) const RETRY_DELAYS: [Duration; 2] =
    [Duration::from_millis(250), Duration::from_millis(1_000)];

/// Consecutive failures to reopen a stream.
const RESUME_ATTEMPTS_MAX: usize = 5;

/// Error text for a stream without the response.
const NO_RESPONSE: &str = "the server ended the stream before its response";

/// Why a post failed.
#[derive(Debug)]
pub(super) enum PostError {
    /// The server no longer knows the session.
    SessionExpired,
    Link(LinkError),
}

impl From<LinkError> for PostError {
    fn from(error: LinkError) -> Self {
        Self::Link(error)
    }
}

impl HttpConversation {
    /// Delivers a request until the response was dispatched, or will arrive on the shared stream.
    pub(super) async fn deliver_request(
        self: &Arc<Self>,
        id: u64,
        kind: RequestKind,
        retry: RetryRule,
        deadline: Instant,
    ) -> Result<(), LinkError> {
        let mut renewed = false;
        let mut delays = RETRY_DELAYS.iter();
        loop {
            let session = Arc::clone(&self.session.borrow());
            if !session.is_listen_settled()
                && self.mode == HttpMode::Streamable
                && self.has_caller(id)
            {
                Box::pin(session.wait_listen_settled()).await;
            }
            let error = match self.post_once(&session, id, &kind, deadline).await {
                Ok(()) => return Ok(()),
                Err(PostError::SessionExpired) if !renewed => {
                    // Rare paths are boxed, so a waiting call stays small.
                    Box::pin(self.renew_session(&session, deadline)).await?;
                    renewed = true;
                    continue;
                }
                Err(PostError::SessionExpired) => LinkError::Http {
                    status: StatusCode::NOT_FOUND.as_u16(),
                    preview: "the session is not known, though it is new".into(),
                },
                Err(PostError::Link(error)) => error,
            };
            if retry == RetryRule::Transient
                && status_error::is_transient(&error)
                && let Some(delay) = delays.next()
            {
                sleep(*delay).await;
                continue;
            }
            if matches!(error, LinkError::Unreachable(_)) {
                self.mark_lost();
            }
            return Err(error);
        }
    }

    /// Posts a request once and reads the response.
    async fn post_once(
        self: &Arc<Self>,
        session: &SessionHeaders,
        id: u64,
        kind: &RequestKind,
        deadline: Instant,
    ) -> Result<(), PostError> {
        let response = self
            .send_to_endpoint(session, Some(id), kind, deadline)
            .await?;
        if status_error::is_decisive(response.status) {
            return Ok(Box::pin(self.read_refusal(response, id)).await?);
        }
        self.read_response(response, session, id, deadline).await
    }

    /// Sends a request to the endpoint. A pending request counts as sent from the moment the first
    /// byte may leave; the caller enforces the deadline.
    pub(super) async fn send_to_endpoint(
        &self,
        session: &SessionHeaders,
        id: Option<u64>,
        kind: &RequestKind,
        deadline: Instant,
    ) -> Result<HttpResponse, LinkError> {
        let on_send = || {
            if let Some(id) = id {
                self.with_pending(|requests| requests.pending.mark_sent(id));
            }
        };
        let outbound = OutboundRequest {
            endpoint: &self.endpoint,
            kind,
            session,
            last_event: None,
        };
        let wait = SendOptions {
            connect_by: Some(deadline),
            first_byte_by: id.is_none().then_some(deadline),
            on_send: &on_send,
        };
        let outcome = self.sender.send(outbound, wait).await;
        if self.sender.take_renewed() {
            // New credentials may see different lists.
            self.mark_lists_changed();
        }
        outcome
    }

    /// Reads a response with a decisive status. A proxy or an overloaded server may send 503 with a
    /// JSON-RPC error that no tool produced.
    pub(super) async fn read_refusal(
        self: &Arc<Self>,
        mut response: HttpResponse,
        id: u64,
    ) -> Result<(), LinkError> {
        if status_error::content_kind(&response.headers) != ContentKind::Json {
            return Err(status_error::read_status_error(response).await);
        }
        let bytes_max = self.spec.limits.body_bytes_max;
        let body = response
            .body
            .read_whole(bytes_max)
            .await
            .map_err(to_link_error)?;
        let is_result = is_response_to(&body, id) && object::field(&body, "error").is_none();
        if is_result && self.dispatch_text(body.clone(), Some(id)) {
            return Ok(());
        }
        let (status, headers) = (response.status, &response.headers);
        Err(status_error::status_error(status, headers, &body))
    }

    /// Reads the response to a request. A matching JSON-RPC body is the response, whatever the
    /// status.
    pub(super) async fn read_response(
        self: &Arc<Self>,
        mut response: HttpResponse,
        session: &SessionHeaders,
        id: u64,
        deadline: Instant,
    ) -> Result<(), PostError> {
        let status = response.status;
        if status == StatusCode::NOT_FOUND && session.id.is_some() {
            return Err(PostError::SessionExpired);
        }
        let usual_bytes = self.spec.limits.body_bytes_max;
        let content = status_error::content_kind(&response.headers);
        if !status.is_success() {
            return Ok(Box::pin(self.read_error_response(response, id)).await?);
        }
        let accepted = matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT);
        match self.mode {
            // A modern server has no further stream for the response.
            HttpMode::Stateless if accepted => {
                return Err(Box::pin(status_error::read_status_error(response))
                    .await
                    .into());
            }
            HttpMode::Streamable | HttpMode::Stateless if !accepted => {}
            HttpMode::Streamable | HttpMode::Sse | HttpMode::Stateless => {
                // The response arrives on the shared stream.
                self.drain_body(response.body);
                return Ok(());
            }
        }
        let bytes_max = self.response_bytes_max(id);
        match content {
            ContentKind::Json => {
                let gate = Some(self.large_reads.as_ref());
                let body = response.body.read_whole_gated(usual_bytes, bytes_max, gate);
                let body = body.await.map_err(to_link_error)?;
                if self.dispatch_text(body, Some(id)) {
                    return Ok(());
                }
                let reason = "it does not answer the request".into();
                Err(LinkError::BadResponse(reason).into())
            }
            ContentKind::Events => {
                let stream = EventStream::new(response.body, bytes_max);
                let stream = stream.with_gate(usual_bytes, &self.large_reads);
                Ok(Box::pin(self.follow_stream(stream, session, id, deadline)).await?)
            }
            ContentKind::Other => Err(Box::pin(status_error::content_type_error(response))
                .await
                .into()),
        }
    }

    /// Reads a response with an error status.
    async fn read_error_response(
        self: &Arc<Self>,
        mut response: HttpResponse,
        id: u64,
    ) -> Result<(), LinkError> {
        if status_error::content_kind(&response.headers) != ContentKind::Json {
            return Err(status_error::read_status_error(response).await);
        }
        let status = response.status;
        let bytes_max = self.spec.limits.body_bytes_max;
        let body = response
            .body
            .read_whole(bytes_max)
            .await
            .map_err(to_link_error)?;
        let body = match self.mode {
            HttpMode::Streamable | HttpMode::Sse => body,
            HttpMode::Stateless => with_request_id(status, body, id),
        };
        if is_response_to(&body, id) {
            let own = !self.has_caller(id);
            if self.dispatch_text(body.clone(), Some(id)) {
                // The gateway's own requests follow the negotiated revision, so the server has
                // changed. Requests of callers prove nothing.
                if own && self.mode != HttpMode::Stateless && http_discover::is_modern_error(&body)
                {
                    self.mark_lost();
                }
                return Ok(());
            }
        }
        Err(status_error::status_error(status, &response.headers, &body))
    }

    /// Reads the stream of a request until the response, over several connections if needed.
    async fn follow_stream(
        self: &Arc<Self>,
        mut stream: EventStream,
        session: &SessionHeaders,
        id: u64,
        deadline: Instant,
    ) -> Result<(), LinkError> {
        let mut resume = StreamResume::default();
        loop {
            let stream_end = loop {
                match stream.next_event(&mut resume).await {
                    Ok(event) if is_message_event(event.event.as_deref()) => {
                        if self.dispatch_text(event.data.into(), Some(id)) {
                            if let Some(rest) = stream.into_body().await {
                                self.drain_body(rest);
                            }
                            return Ok(());
                        }
                    }
                    Ok(_) => {}
                    Err(stream_end) => break stream_end,
                }
            };
            let lost = match stream_end {
                EventStreamEnd::Fault(_) => {
                    let bytes_max = self.response_bytes_max(id);
                    return Err(LinkError::TooLong { bytes_max });
                }
                EventStreamEnd::Broken(error) => to_link_error(error),
                EventStreamEnd::Finished => LinkError::ConnectionLost(NO_RESPONSE.into()),
            };
            let usual_bytes = self.spec.limits.body_bytes_max;
            let resumed = self.resume_stream(&mut resume, session, id, deadline).await;
            stream = resumed
                .ok_or(lost)?
                .with_gate(usual_bytes, &self.large_reads);
        }
    }

    /// Reopens the stream of a request after an interruption, if resumable.
    async fn resume_stream(
        &self,
        resume: &mut StreamResume,
        session: &SessionHeaders,
        id: u64,
        deadline: Instant,
    ) -> Option<EventStream> {
        for _ in 0..RESUME_ATTEMPTS_MAX {
            if resume.last_event_id.is_none() || self.mode == HttpMode::Stateless {
                return None;
            }
            sleep(resume.next_delay()).await;
            let opened = self.open_stream(session, resume, Some(deadline)).await;
            let error = match opened {
                Ok(response) if response.status != StatusCode::OK => {
                    status_error::read_status_error(response).await
                }
                Ok(response)
                    if status_error::content_kind(&response.headers) == ContentKind::Events =>
                {
                    let bytes_max = self.response_bytes_max(id);
                    return Some(EventStream::new(response.body, bytes_max));
                }
                Ok(_) => return None,
                Err(error) => error,
            };
            if !status_error::is_transient(&error) {
                return None;
            }
        }
        None
    }

    /// Opens or resumes an event stream.
    pub(super) async fn open_stream(
        &self,
        session: &SessionHeaders,
        resume: &StreamResume,
        deadline: Option<Instant>,
    ) -> Result<HttpResponse, LinkError> {
        let parcel = OutboundRequest {
            endpoint: &self.endpoint,
            kind: &RequestKind::Get,
            session,
            last_event: resume.last_event_id.as_ref(),
        };
        let wait = SendOptions {
            connect_by: deadline,
            first_byte_by: None,
            on_send: &|| {},
        };
        self.sender.send(parcel, wait).await
    }
}

/// Whether an event carries a message; different event types are ignored.
pub(super) fn is_message_event(name: Option<&str>) -> bool {
    name.is_none_or(|name| name == "message")
}

/// Whether a body is the response to this request.
fn is_response_to(body: &Bytes, id: u64) -> bool {
    let response_id = object::field(body, "id");
    response_id.and_then(|at| parse_own_id(at.slice(body))) == Some(id)
}

/// Adds the request id to an error without an id. A server that rejects by headers alone may not
/// know the id, and a modern request has an own HTTP exchange.
pub(super) fn with_request_id(status: StatusCode, body: Bytes, id: u64) -> Bytes {
    if !matches!(status, StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND) {
        return body;
    }
    let Ok(message) = RpcMessage::parse_from_client(body.clone()) else {
        return body;
    };
    let nameless = message.id().is_none_or(|id| id == b"null");
    let Some(error) = message.error().filter(|_| nameless) else {
        return body;
    };
    let mut digits = itoa::Buffer::new();
    let id = Some(digits.format(id).as_bytes());
    Envelope::Error { id }.to_vec(error).into()
}
