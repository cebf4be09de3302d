//! Connection of a client to the gateway: location, session, and recovery when either is
//! lost.

use std::sync::Mutex;
use std::time::Duration;

use bowline_core::sync::lock;
use bowline_link::http::http_client::HttpResponse;
use bowline_wire::jsonrpc::write_notification;
use bowline_wire::mcp::method;
use bowline_wire::sse::SseLimits;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, StatusCode};
use tokio::sync::{Semaphore, mpsc};

use super::GatewayLocator;
use super::delivery::{ResponseRecipient, ResponseTarget, response_lost};
use super::message::{self, ShimExecution, ShimFailure};
use super::stateless::ShimHeaders;
use crate::gateway_client::{
    GatewayAccess, GatewayHttp, GatewayRequest, GatewayRequestError, RESPONSE_BYTES_MAX,
    is_unreached,
};

/// Maximum size of a stream event.
pub(super) const EVENT_LIMITS: SseLimits = SseLimits {
    line_bytes_max: RESPONSE_BYTES_MAX,
    event_bytes_max: RESPONSE_BYTES_MAX,
};
/// Maximum wait for the session to be deleted at the end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum attempts of a request, each after proof that the last attempt did not run.
const ATTEMPTS_MAX: usize = 3;

const SESSION_HEADER: HeaderName = HeaderName::from_static("mcp-session-id");
const REVISION_HEADER: HeaderName = HeaderName::from_static("mcp-protocol-version");
const LAST_EVENT_HEADER: HeaderName = HeaderName::from_static("last-event-id");

/// Headers of a message.
#[derive(Clone, Copy, Debug)]
pub(super) enum ShimRequestHead<'a> {
    /// The session opened by the client.
    Session(&'a ShimSession),
    /// The headers of a stateless message.
    Stateless(&'a ShimHeaders),
}

/// Channel for lines to the client.
pub(super) type ClientLines = mpsc::Sender<Bytes>;

/// State shared by all requests of a client.
#[derive(Debug)]
pub struct StdioShim {
    http: GatewayHttp,
    locator: Box<dyn GatewayLocator>,
    /// `/mcp`, or the endpoint of a server.
    path: String,
    /// The last located gateway.
    gateway: Mutex<GatewayAccess>,
    session: Mutex<ShimSession>,
    /// Serializes session renewals; a semaphore, because held across awaits.
    renewal: Semaphore,
    /// Serializes searches for the gateway in the same way.
    relocation: Semaphore,
}

/// The session of the client at the gateway.
#[derive(Clone, Debug, Default)]
pub(super) struct ShimSession {
    id: Option<HeaderValue>,
    revision: Option<HeaderValue>,
    /// The client's `initialize` request, for a renewal.
    initialize: Option<Bytes>,
    /// Grows with every new session, so concurrent requests renew only once.
    pub(super) epoch: u64,
}

impl StdioShim {
    /// Returns a shim without a session. `path` is `/mcp`, or the endpoint of a server.
    #[must_use]
    pub fn new(
        http: GatewayHttp,
        locator: Box<dyn GatewayLocator>,
        path: String,
        gateway: GatewayAccess,
    ) -> Self {
        Self {
            http,
            locator,
            path,
            gateway: Mutex::new(gateway),
            session: Mutex::default(),
            renewal: Semaphore::new(1),
            relocation: Semaphore::new(1),
        }
    }

    pub(super) fn session(&self) -> ShimSession {
        lock(&self.session).clone()
    }

    /// Returns whether the client has sent `initialize`.
    pub(super) fn has_initialized(&self) -> bool {
        lock(&self.session).initialize.is_some()
    }

    fn gateway(&self) -> GatewayAccess {
        lock(&self.gateway).clone()
    }

    /// Forwards `initialize` and stores the request for renewals.
    pub(super) async fn forward_initialize(&self, line: Bytes, id: &str, lines: &ClientLines) {
        *lock(&self.session) = ShimSession {
            initialize: Some(line.clone()),
            epoch: self.session().epoch,
            ..ShimSession::default()
        };
        if let Err(failure) = self
            .open_session(line, id, ResponseRecipient::Client, lines)
            .await
        {
            let _sent = lines.send(failure.error_response(id)).await;
        }
    }

    async fn open_session(
        &self,
        line: Bytes,
        id: &str,
        recipient: ResponseRecipient,
        lines: &ClientLines,
    ) -> Result<(), ShimFailure> {
        let response = self
            .send_message(&line, ShimRequestHead::Session(&ShimSession::default()))
            .await?;
        let session_id = response.headers.get(&SESSION_HEADER);
        let session_id = session_id.and_then(|id| HeaderValue::from_bytes(id).ok());
        let is_success = response.status.is_success();
        let target = ResponseTarget {
            id: Some(id),
            recipient,
            client: lines,
        };
        let no_session = ShimSession::default();
        let response_line = self.deliver_response(response, &no_session, target).await?;
        let revision = message::negotiated_revision(&response_line);
        if is_success && revision.is_some() {
            let mut session = lock(&self.session);
            session.id = session_id;
            session.revision = revision.and_then(|text| HeaderValue::from_str(&text).ok());
            session.epoch += 1;
        }
        Ok(())
    }

    /// Forwards a request and the response, or an error response.
    pub(super) async fn forward_request(&self, line: Bytes, id: &str, lines: &ClientLines) {
        if let Err(failure) = self.forward_message(line, Some(id), lines).await {
            // A closed output is ignored.
            let _sent = lines.send(failure.error_response(id)).await;
        }
    }

    /// Forwards a message without a response.
    pub(super) async fn forward_notification(
        &self,
        line: Bytes,
        lines: &ClientLines,
    ) -> Result<(), ShimFailure> {
        match self.forward_message(line.clone(), None, lines).await {
            // Sending twice is safe: a response or cancellation counts once, and without a
            // response the server would wait forever.
            Err(failure) if failure.execution == ShimExecution::Unknown => {
                self.forward_message(line, None, lines).await
            }
            told => told,
        }
    }

    async fn forward_message(
        &self,
        line: Bytes,
        id: Option<&str>,
        lines: &ClientLines,
    ) -> Result<(), ShimFailure> {
        let mut session = self.session();
        let mut response = self
            .send_message(&line, ShimRequestHead::Session(&session))
            .await?;
        // The gateway does not know the session, so nothing ran.
        if response.status == StatusCode::NOT_FOUND && session.id.is_some() {
            self.renew_session(session.epoch, lines).await?;
            session = self.session();
            response = self
                .send_message(&line, ShimRequestHead::Session(&session))
                .await?;
        }
        let target = ResponseTarget {
            id,
            recipient: ResponseRecipient::Client,
            client: lines,
        };
        self.deliver_response(response, &session, target)
            .await
            .map(drop)
    }

    /// Opens a new session with the client's `initialize` request.
    pub(super) async fn renew_session(
        &self,
        epoch: u64,
        lines: &ClientLines,
    ) -> Result<(), ShimFailure> {
        let closed = |_closed| ShimFailure::not_started("The shim is closing.");
        let _permit = self.renewal.acquire().await.map_err(closed)?;
        let session = self.session();
        if session.epoch != epoch {
            return Ok(());
        }
        let lost = || ShimFailure::not_started("The session is gone and cannot be opened again.");
        let line = session.initialize.ok_or_else(lost)?;
        let Some(message::ShimMessageKind::Request { id, .. }) = message::classify_message(&line)
        else {
            return Err(lost());
        };
        self.open_session(line, &id, ResponseRecipient::Discard, lines)
            .await?;
        let renewed = self.session();
        if renewed.epoch == epoch {
            return Err(lost());
        }
        let mut initialized = Vec::new();
        write_notification(&mut initialized, method::INITIALIZED, None);
        self.send_message(&initialized.into(), ShimRequestHead::Session(&renewed))
            .await
            .map(|_response| ())
    }

    /// Sends a message, retrying after attempts that provably did not arrive.
    pub(super) async fn send_message(
        &self,
        line: &Bytes,
        headers: ShimRequestHead<'_>,
    ) -> Result<HttpResponse, ShimFailure> {
        let mut attempt = 1;
        loop {
            let gateway = self.gateway();
            let request = self.build_request(Method::POST, &gateway, headers, line.clone());
            let request = request.map_err(|_error| ShimFailure::not_started("Bad request."))?;
            match self.http.send(&request).await {
                // Refused before execution; the token may have been rotated.
                Ok(response)
                    if response.status == StatusCode::UNAUTHORIZED
                        && attempt < ATTEMPTS_MAX
                        && self.reload_token(&gateway) =>
                {
                    attempt += 1;
                }
                Ok(response) => return Ok(response),
                Err(error) if is_unreached(&error) && attempt < ATTEMPTS_MAX => {
                    attempt += 1;
                    self.relocate_gateway(&gateway.url)
                        .await
                        .map_err(|reason| {
                            ShimFailure::not_started(format!("Nothing was run: {reason}."))
                        })?;
                }
                Err(error) if is_unreached(&error) => {
                    return Err(ShimFailure::not_started(
                        "Nothing was run: the gateway is away.",
                    ));
                }
                Err(_error) => return Err(response_lost()),
            }
        }
    }

    /// Rereads the token; returns whether the token differs from the token of `gateway`.
    fn reload_token(&self, gateway: &GatewayAccess) -> bool {
        match self.locator.reload_access() {
            Some(found) if found.token != gateway.token => {
                *lock(&self.gateway) = found;
                true
            }
            _ => false,
        }
    }

    /// Relocates the gateway, or starts a new gateway.
    pub(super) async fn relocate_gateway(&self, failed_url: &str) -> Result<(), String> {
        let _permit = self.relocation.acquire().await;
        if self.gateway().url != failed_url {
            return Ok(());
        }
        let gateway = self.locator.ensure_gateway().await?;
        *lock(&self.gateway) = gateway;
        Ok(())
    }

    fn build_request(
        &self,
        method: Method,
        gateway: &GatewayAccess,
        headers: ShimRequestHead<'_>,
        body: Bytes,
    ) -> Result<GatewayRequest, GatewayRequestError> {
        let accept = match method {
            Method::GET => "text/event-stream",
            _ => "application/json, text/event-stream",
        };
        let mut request = GatewayRequest::new(method, gateway, &self.path, accept, body)?;
        match headers {
            ShimRequestHead::Session(session) => {
                if let Some(id) = &session.id {
                    request.push_header(&SESSION_HEADER, id);
                }
                if let Some(revision) = &session.revision {
                    request.push_header(&REVISION_HEADER, revision);
                }
            }
            ShimRequestHead::Stateless(stateless) => {
                for (name, value) in stateless.header_pairs() {
                    request.push_header(&name, &value);
                }
            }
        }
        Ok(request)
    }

    /// Opens the stream of messages unrelated to a request.
    pub(super) async fn open_notification_stream(
        &self,
        session: &ShimSession,
        after: Option<&str>,
    ) -> Result<HttpResponse, String> {
        let gateway = self.gateway();
        let request = self.build_request(
            Method::GET,
            &gateway,
            ShimRequestHead::Session(session),
            Bytes::new(),
        );
        let mut request = request.map_err(|_error| gateway.url.clone())?;
        if let Some(after) = after.and_then(|id| HeaderValue::from_str(id).ok()) {
            request.push_header(&LAST_EVENT_HEADER, &after);
        }
        let sent = self.http.send(&request).await;
        sent.map_err(|_error| gateway.url)
    }

    /// Deletes the session at the gateway.
    pub async fn delete_session(&self) {
        let session = self.session();
        if session.id.is_none() {
            return;
        }
        let request = self.build_request(
            Method::DELETE,
            &self.gateway(),
            ShimRequestHead::Session(&session),
            Bytes::new(),
        );
        if let Ok(request) = request {
            // Best effort: sessions also expire.
            let _response = tokio::time::timeout(CLOSE_TIMEOUT, self.http.send(&request)).await;
        }
    }
}

/// Builds the failure for an error response, with the gateway's message if present.
pub(super) fn refused_failure(status: StatusCode, body: &[u8]) -> ShimFailure {
    let body: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let message_text = body
        .pointer("/error/message")
        .and_then(serde_json::Value::as_str);
    let message = match (message_text, status) {
        (Some(message_text), _) => format!("The gateway refused: {message_text}"),
        (None, StatusCode::UNAUTHORIZED) => "The gateway does not accept the token.".to_owned(),
        (None, status) => format!("The gateway answered {status}."),
    };
    let execution = body
        .pointer("/error/execution")
        .or_else(|| body.pointer("/error/data/execution"));
    let not_started = execution.and_then(serde_json::Value::as_str) == Some("not_started");
    let mut failure = if status.is_client_error() || not_started {
        ShimFailure::not_started(message)
    } else {
        ShimFailure::unknown(message)
    };
    if let Some(code) = body
        .pointer("/error/code")
        .and_then(serde_json::Value::as_i64)
    {
        failure.code = code;
    }
    failure
}
