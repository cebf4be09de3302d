//! MCP session over HTTP: created by a handshake, renewed when the server has forgotten it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::pending_table::SendState;
use bowline_runtime::timer;
use bowline_wire::mcp::{Revision, method};
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, USER_AGENT};
use http::{HeaderName, HeaderValue};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};
use tracing::info;

use super::conversation::{HttpConversation, HttpMode, strip_newline};
use super::http_client::HeaderLines;
use super::pending_guard::HttpPendingGuard;
use super::post_request::{PostError, RETRY_DELAYS};
use super::routing_headers;
use super::status_error;
use crate::demux::CoalescedEvent;
use crate::link::{LinkError, LinkRequest, ServerInfo};
use crate::rpc;
use crate::stdio::mcp_handshake::{self, HandshakeError};

pub(super) const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
pub(super) const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");

const USER_AGENT_VALUE: HeaderValue =
    HeaderValue::from_static(concat!("bowline/", env!("CARGO_PKG_VERSION")));
const JSON_TYPE: HeaderValue = HeaderValue::from_static("application/json");
const EVENT_STREAM_TYPE: HeaderValue = HeaderValue::from_static("text/event-stream");
const ACCEPT_BOTH: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");

/// Prepared headers of a session.
#[derive(Debug)]
pub(super) struct SessionHeaders {
    /// Session id, if the server uses sessions.
    pub(super) id: Option<HeaderValue>,
    /// Headers of a POST, including the session id; prepared once.
    pub(super) post_headers: HeaderLines,
    /// Headers of a GET.
    pub(super) get_headers: HeaderLines,
    /// Headers of a DELETE.
    pub(super) delete_headers: HeaderLines,
    /// Whether the GET stream is open or known to be unavailable.
    listen_settled: watch::Sender<bool>,
    /// Deadline for that wait.
    listen_wait_until: Instant,
}

/// Longest wait of a call for the GET stream.
const LISTEN_WAIT: Duration = Duration::from_secs(1);

impl SessionHeaders {
    /// Returns the headers before the handshake.
    pub(super) fn before_handshake() -> Self {
        let mut common = HeaderLines::default();
        common.push(&USER_AGENT, &USER_AGENT_VALUE);
        Self::from_common(None, common)
    }

    /// Returns the headers for a modern server.
    pub(super) fn new_stateless() -> Self {
        Self::new(None, Revision::LATEST)
    }

    /// Marks the GET stream as open or unavailable.
    pub(super) fn set_listen_settled(&self) {
        self.listen_settled.send_replace(true);
    }

    /// Whether the GET stream is settled.
    pub(super) fn is_listen_settled(&self) -> bool {
        *self.listen_settled.borrow()
    }

    /// Waits until the GET stream is settled. Some servers send requests there during a call, which
    /// would be lost; some never respond to the GET.
    pub(super) async fn wait_listen_settled(&self) {
        let mut listened = self.listen_settled.subscribe();
        let settled = listened.wait_for(|listened| *listened);
        let _ = timeout_at(self.listen_wait_until, settled).await;
    }

    pub(super) fn new(id: Option<HeaderValue>, revision: Revision) -> Self {
        let mut common = Self::before_handshake().delete_headers;
        // The first revision does not know this header and ignores it.
        let revision = HeaderValue::from_static(revision.as_str());
        common.push(&PROTOCOL_VERSION, &revision);
        if let Some(id) = &id {
            common.push(&SESSION_ID, id);
        }
        Self::from_common(id, common)
    }

    fn from_common(mut id: Option<HeaderValue>, common: HeaderLines) -> Self {
        if let Some(id) = &mut id {
            id.set_sensitive(true);
        }
        let (mut post_headers, mut get_headers) = (common.clone(), common.clone());
        post_headers.push(&ACCEPT, &ACCEPT_BOTH);
        post_headers.push(&CONTENT_TYPE, &JSON_TYPE);
        get_headers.push(&ACCEPT, &EVENT_STREAM_TYPE);
        Self {
            id,
            post_headers,
            get_headers,
            delete_headers: common,
            listen_settled: watch::Sender::new(false),
            listen_wait_until: timer::deadline_after(LISTEN_WAIT),
        }
    }
}

impl HttpConversation {
    /// Performs the handshake, with retries of transient failures within the deadline.
    pub(super) async fn initialize_session(
        self: &Arc<Self>,
        deadline: Instant,
    ) -> Result<ServerInfo, HandshakeError> {
        let shaken = timeout_at(deadline, self.retry_initialize(deadline)).await;
        shaken.unwrap_or(Err(HandshakeError::Link(LinkError::Timeout {
            sent: SendState::MaybeSent,
        })))
    }

    async fn retry_initialize(
        self: &Arc<Self>,
        deadline: Instant,
    ) -> Result<ServerInfo, HandshakeError> {
        let mut delays = RETRY_DELAYS.iter();
        let (headers, info) = loop {
            match self.initialize(deadline).await {
                Err(HandshakeError::Link(error)) if status_error::is_transient(&error) => {
                    match delays.next() {
                        Some(delay) => sleep(*delay).await,
                        None => return Err(HandshakeError::Link(error)),
                    }
                }
                other => break other?,
            }
        };
        self.send_initialized(&headers, deadline)
            .await
            .map_err(HandshakeError::Link)?;
        self.session.send_replace(Arc::new(headers));
        Ok(info)
    }

    async fn initialize(
        self: &Arc<Self>,
        deadline: Instant,
    ) -> Result<(SessionHeaders, ServerInfo), HandshakeError> {
        let request =
            mcp_handshake::initialize_request(&self.client, self.capabilities(), deadline);
        let registered = self.register_request(&request, usize::MAX);
        let (id, mut initialize_response) = registered.map_err(HandshakeError::Link)?;
        let mut waiting = HttpPendingGuard::for_handshake(self, id);
        let body = strip_newline(rpc::request_frame(
            id,
            &request,
            rpc::TracePlacement::Header,
        ));
        let none = SessionHeaders::before_handshake();
        // A server of both eras may need routing headers.
        let kind = routing_headers::stateless_request(&none, body, request)
            .map_err(HandshakeError::Link)?;
        let mut session = None;
        let carrying = async {
            let response = self
                .send_to_endpoint(&none, Some(id), &kind, deadline)
                .await?;
            let named = response.headers.get(&SESSION_ID);
            session = named.and_then(|id| HeaderValue::from_bytes(id).ok());
            if status_error::is_decisive(response.status) {
                return self.read_refusal(response, id).await;
            }
            match self.read_response(response, &none, id, deadline).await {
                Ok(()) => Ok(()),
                Err(PostError::Link(error)) => Err(error),
                // Without a session, nothing can expire.
                Err(PostError::SessionExpired) => Err(LinkError::BadResponse("no session".into())),
            }
        };
        let outcome = self
            .drive_exchange(id, &mut initialize_response, deadline, pin!(carrying))
            .await;
        let initialize_response = waiting.settle(outcome, &mut initialize_response);
        let initialize_response = initialize_response.map_err(HandshakeError::Link)?;
        let info = mcp_handshake::parse_initialize_response(&initialize_response)?;
        Ok((SessionHeaders::new(session, info.revision), info))
    }

    /// Sends `notifications/initialized`.
    async fn send_initialized(
        &self,
        headers: &SessionHeaders,
        deadline: Instant,
    ) -> Result<(), LinkError> {
        let notification = strip_newline(rpc::notification_frame(method::INITIALIZED, None));
        let request = LinkRequest::new_internal(method::INITIALIZED, Bytes::new(), deadline);
        let kind = routing_headers::stateless_request(headers, notification, request)?;
        let mut delays = RETRY_DELAYS.iter();
        loop {
            let error = match self.send_to_endpoint(headers, None, &kind, deadline).await {
                Ok(response) if response.status.is_success() => {
                    self.drain_body(response.body);
                    return Ok(());
                }
                Ok(response) => status_error::read_status_error(response).await,
                Err(error) => error,
            };
            match delays.next() {
                Some(delay) if status_error::is_transient(&error) => sleep(*delay).await,
                _ => return Err(error),
            }
        }
    }

    /// Emits changes for all lists.
    pub(super) fn mark_lists_changed(&self) {
        for change in [
            CoalescedEvent::Tools,
            CoalescedEvent::Prompts,
            CoalescedEvent::Resources,
        ] {
            self.events.emit_coalesced(change);
        }
        self.events_due.notify_one();
    }

    /// Replaces a session that the server has forgotten, once for all requests.
    pub(super) async fn renew_session(
        self: &Arc<Self>,
        stale: &Arc<SessionHeaders>,
        deadline: Instant,
    ) -> Result<(), LinkError> {
        let Ok(_alone) = self.renewing.acquire().await else {
            return Err(crate::demux::LINK_GONE);
        };
        if !Arc::ptr_eq(stale, &self.session.borrow()) {
            return Ok(());
        }
        if let Some(exit) = self.exit() {
            return Err(LinkError::Closed(exit));
        }
        debug_assert_eq!(self.mode, HttpMode::Streamable);
        info!(server = %self.spec.server, "server forgot the session; opening a new session");
        match self.initialize_session(deadline).await {
            Ok(_) => {
                // The server lost all state, and its lists may differ.
                self.events.emit_coalesced(CoalescedEvent::SessionReset);
                self.mark_lists_changed();
                Ok(())
            }
            Err(failure) => {
                // Without a session the link is lost.
                self.mark_lost();
                Err(match failure {
                    HandshakeError::Link(error @ LinkError::Unauthorized { .. }) => error,
                    // The request was rejected with its old session.
                    failure => LinkError::Unreachable(failure.reason()),
                })
            }
        }
    }
}
