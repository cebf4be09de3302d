//! MCP endpoints: POST, GET and DELETE of streamable HTTP, and the HTTP+SSE transport of
//! 2024-11-05.

mod batch;
pub(super) mod era_headers;
mod http_sse;
pub(super) mod initialize;
pub(super) mod list_pages;
mod local_requests;
pub(super) mod outbox_resource;
pub(super) mod request_body;

pub(super) use request_body::{BodyAccount, accepts_type, is_json_content};

use std::sync::Arc;

use bowline_core::call::{EndpointScope, Principal};
use bowline_core::error::{CallError, ExecutionStatus};
use bowline_core::shares::ShareError;
use bowline_wire::jsonrpc::{write_error, write_notification, write_result};
use bowline_wire::mcp::{code, method};
use bowline_wire::{MessageKind, RpcMessage, object};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode, header};
use hyper::body::Incoming;

use self::era_headers::VersionHeader;
use self::request_body::ParseFailure;
use super::call::call_params::CallKind;
use super::call::session_call;
use super::call_errors::TooManyRequests;
use super::client_session::{ClientSession, ReplayCoverage};
use super::event_stream::{EventBody, EventId};
use super::response_body::{self, EdgeResponse, SESSION_HEADER};
use super::{Edge, announcer, call_errors, http_listener, modern_mcp};

/// Context of a request to an MCP endpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct McpCaller<'a> {
    pub(super) edge: &'a Arc<Edge>,
    pub(super) principal: &'a Arc<Principal>,
    pub(super) scope: &'a EndpointScope,
    pub(super) parts: &'a Parts,
}

impl<'a> McpCaller<'a> {
    /// Returns the account charged for request bodies.
    pub(super) fn account(&self) -> BodyAccount<'a> {
        BodyAccount {
            accounts: self.edge.host.accounts(),
            principal: self.principal,
        }
    }

    /// Returns the same caller with the session's narrowed principal.
    pub(super) const fn with_principal(self, asker: &'a Arc<Principal>) -> Self {
        Self {
            principal: asker,
            ..self
        }
    }
}

/// Reads a bounded body, or returns the error response.
pub(super) async fn read_bounded_body(
    headers: &http::HeaderMap,
    incoming: Incoming,
    account: BodyAccount<'_>,
) -> Result<Bytes, EdgeResponse> {
    let read = request_body::read_bounded(headers, incoming, account).await;
    read.map(|(bytes, _)| bytes)
        .map_err(request_body::BodyError::into_response)
}

/// Kind of MCP endpoint within a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum McpEndpoint {
    /// Streamable HTTP.
    StreamableHttp,
    /// Event stream of the HTTP+SSE transport (2024-11-05).
    SseStream,
    /// POST endpoint of the HTTP+SSE transport.
    SseMessages,
}

/// Handles a request to an MCP endpoint.
pub(crate) async fn handle_http(
    edge: &Arc<Edge>,
    principal: &Arc<Principal>,
    endpoint: McpEndpoint,
    scope: &EndpointScope,
    parts: &Parts,
    incoming: Incoming,
) -> EdgeResponse {
    let caller = McpCaller {
        edge,
        principal,
        scope,
        parts,
    };
    if let Some(refused) = reject_unknown_scope(caller) {
        return refused;
    }
    match (endpoint, &parts.method) {
        (McpEndpoint::StreamableHttp, &Method::POST) => handle_post(caller, incoming).await,
        (McpEndpoint::StreamableHttp, &Method::GET | &Method::DELETE)
            if VersionHeader::from_headers(&parts.headers) == VersionHeader::Modern =>
        {
            modern_mcp::method_not_allowed()
        }
        (McpEndpoint::StreamableHttp, &Method::GET) => open_listen_stream(caller),
        (McpEndpoint::StreamableHttp, &Method::DELETE) => delete_session(caller),
        (McpEndpoint::SseStream, &Method::GET) => http_sse::open_sse(caller),
        (McpEndpoint::SseMessages, &Method::POST) => {
            Box::pin(http_sse::post_message(caller, incoming)).await
        }
        (McpEndpoint::StreamableHttp, _) => method_not_allowed("GET, POST, DELETE"),
        (McpEndpoint::SseStream, _) => method_not_allowed("GET"),
        (McpEndpoint::SseMessages, _) => method_not_allowed("POST"),
    }
}

/// Rejects endpoints of unknown servers and profiles.
fn reject_unknown_scope(caller: McpCaller<'_>) -> Option<EdgeResponse> {
    let host = &caller.edge.host;
    match caller.scope {
        EndpointScope::All => None,
        EndpointScope::Server(server) => {
            // An inaccessible server is indistinguishable from an unknown server.
            let hidden = || {
                let server = Arc::clone(server);
                let is_seen = host.can_reach(caller.principal, &server);
                (!is_seen).then_some(CallError::UnknownServer { server })
            };
            let error = host.server(server).err().or_else(hidden)?;
            let text = call_errors::error_response(b"null", &error);
            Some(response_body::json_response(StatusCode::NOT_FOUND, text))
        }
        EndpointScope::Profile(profile) if host.policy().has_profile(profile) => None,
        EndpointScope::Profile(profile) => {
            let message = format!("there is no profile `{profile}`");
            let status = StatusCode::NOT_FOUND;
            Some(error_http_response(
                status,
                None,
                code::INVALID_PARAMS,
                &message,
            ))
        }
    }
}

pub(super) fn method_not_allowed(allowed: &'static str) -> EdgeResponse {
    let mut response = response_body::empty_response(StatusCode::METHOD_NOT_ALLOWED);
    response
        .headers_mut()
        .insert(header::ALLOW, HeaderValue::from_static(allowed));
    response
}

async fn handle_post(caller: McpCaller<'_>, incoming: Incoming) -> EdgeResponse {
    match request_body::read_mcp_body(caller.parts, incoming, caller.account()).await {
        Ok((text, None)) => handle_message(caller, text).await,
        Ok((text, share)) => {
            let response = Box::pin(handle_message(caller, text)).await;
            request_body::attach_body_share(response, share)
        }
        Err(refused) => refused.into_response(),
    }
}

async fn handle_message(caller: McpCaller<'_>, text: Bytes) -> EdgeResponse {
    let paced = http_listener::admit_body(caller.edge, caller.principal, caller.parts, text.len());
    if let Err(refused) = paced.await {
        return refused;
    }
    let headers = &caller.parts.headers;
    let version = VersionHeader::from_headers(headers);
    let message = match request_body::parse_message(caller, &text).await {
        Ok(message) => message,
        Err(ParseFailure::Batch) if version == VersionHeader::Modern => {
            return modern_mcp::batch_refusal();
        }
        // Boxed to keep the future of a plain call small.
        Err(ParseFailure::Batch) => return Box::pin(batch::handle_batch(caller, text)).await,
        Err(ParseFailure::Refused(refused)) if version == VersionHeader::Modern => {
            return modern_mcp::bad_request_response(refused);
        }
        Err(ParseFailure::Refused(refused)) => {
            return response_body::json_response(StatusCode::OK, refused);
        }
        Err(ParseFailure::Busy(busy)) => return *busy,
    };
    if era_headers::is_modern(headers, version, &message) {
        return Box::pin(modern_mcp::handle_message(caller, &message)).await;
    }
    if let Some(refused) = reject_revision(version, &message)
        .or_else(|| era_headers::reject_mismatch(headers, &message))
    {
        return refused;
    }
    match (message.kind(), message.method()) {
        (MessageKind::Request, Some(method::INITIALIZE)) => {
            Box::pin(initialize::open_session(caller, &message)).await
        }
        (MessageKind::Request, _) => match require_session(caller) {
            Ok(session) => {
                let principal = session.principal_for(caller.principal);
                handle_request(caller.with_principal(&principal), &session, &message).await
            }
            Err(status) => no_session_response(status, message.id()),
        },
        (MessageKind::Notification | MessageKind::Response, _) => match require_session(caller) {
            Ok(session) => {
                handle_one_way(caller, &session, &message);
                response_body::empty_response(StatusCode::ACCEPTED)
            }
            Err(status) => no_session_response(status, None),
        },
    }
}

async fn handle_request(
    caller: McpCaller<'_>,
    session: &Arc<ClientSession>,
    message: &RpcMessage,
) -> EdgeResponse {
    if let Some(kind) = message.method().and_then(CallKind::from_method) {
        return session_call::handle_call(caller, session, message, kind).await;
    }
    let response = Box::pin(local_requests::handle_local(caller, session, message)).await;
    response_body::json_response(StatusCode::OK, response)
}

/// Handles messages without a response: notifications, and responses to server requests.
fn handle_one_way(caller: McpCaller<'_>, session: &ClientSession, message: &RpcMessage) {
    if message.kind() == MessageKind::Response {
        return session.server_requests.answer_request(message);
    }
    let params = message.params().unwrap_or_default();
    match message.method() {
        Some(method::CANCELLED) => {
            if let Some(id) = object::field(params, "requestId") {
                session.in_flight.cancel(id.slice(params));
            }
        }
        Some(method::ROOTS_LIST_CHANGED) => caller.edge.host.notify_roots_changed(session.key),
        _ => {}
    }
}

/// Opens the listen stream of a session, or resumes a lost stream.
fn open_listen_stream(caller: McpCaller<'_>) -> EdgeResponse {
    if !accepts_type(caller.parts, "text/event-stream") {
        return response_body::empty_response(StatusCode::NOT_ACCEPTABLE);
    }
    if let Some(refused) =
        reject_unknown_revision(VersionHeader::from_headers(&caller.parts.headers), None)
    {
        return refused;
    }
    let session = match require_session(caller) {
        Ok(session) => session,
        Err(status) => return no_session_response(status, None),
    };
    let permit = match caller.edge.sessions.acquire_stream(caller.principal) {
        Ok(permit) => permit,
        Err(cause) => return share_exceeded_response(None, cause),
    };
    let events = match caller.parts.headers.get("last-event-id") {
        None => Some(session.open_listen_stream()),
        Some(id) => resume_stream(caller, &session, id),
    };
    let Some(mut events) = events else {
        let message = "there is no such event to go on from in this session";
        return error_http_response(StatusCode::NOT_FOUND, None, code::INVALID_REQUEST, message);
    };
    events.attach_guard(Box::new(permit));
    announcer::announce_missed(caller.edge, &session);
    response_body::event_response(events)
}

fn resume_stream(
    caller: McpCaller<'_>,
    session: &Arc<ClientSession>,
    id: &HeaderValue,
) -> Option<EventBody> {
    let event_id = EventId::parse(id.to_str().ok()?)?;
    let (events, replay) = session.resume_stream(event_id, caller.edge.host.clock().now())?;
    if replay == ReplayCoverage::Partial {
        warn_of_gap(caller, session);
    }
    Some(events)
}

/// Sends a log notification about possibly missed events, if the endpoint supports logging.
fn warn_of_gap(caller: McpCaller<'_>, session: &ClientSession) {
    let host = &caller.edge.host;
    let own = host.initialize_info(caller.principal, caller.scope);
    if object::field(&own.capabilities, "logging").is_none() {
        return;
    }
    let mut text = Vec::new();
    write_notification(&mut text, method::MESSAGE, Some(GAP_WARNING.as_bytes()));
    session.notify(text.into());
}

/// Warning sent when a resumed stream has gaps.
const GAP_WARNING: &str = concat!(
    r#"{"level":"warning","logger":"bowline","data":"Notifications may have been missed: the "#,
    r#"gateway was restarted, or more was sent than it keeps. List again, and subscribe again "#,
    r#"to resources."}"#
);

/// Returns the error response for an exhausted resource share. The request was not started.
pub(super) fn share_exceeded_response(id: Option<&[u8]>, cause: ShareError) -> EdgeResponse {
    let status = match cause {
        ShareError::Principal { .. } => StatusCode::TOO_MANY_REQUESTS,
        ShareError::Total { .. } => StatusCode::SERVICE_UNAVAILABLE,
    };
    let error = CallError::ShareExceeded {
        cause,
        execution: ExecutionStatus::NotStarted,
    };
    let text = call_errors::error_response(id.unwrap_or(b"null"), &error);
    let limit = TooManyRequests::from_error(&error);
    let retry_after_s = limit.and_then(TooManyRequests::retry_after_seconds);
    response_body::retry_response(status, text, retry_after_s)
}

fn delete_session(caller: McpCaller<'_>) -> EdgeResponse {
    if let Some(refused) =
        reject_unknown_revision(VersionHeader::from_headers(&caller.parts.headers), None)
    {
        return refused;
    }
    match (require_session(caller), session_id(caller)) {
        (Ok(_), Some(id)) => {
            caller.edge.end_session(id);
            response_body::empty_response(StatusCode::NO_CONTENT)
        }
        (Err(status), _) => no_session_response(status, None),
        (Ok(_), None) => no_session_response(StatusCode::BAD_REQUEST, None),
    }
}

/// Rejects unsupported protocol revisions.
fn reject_revision(version: VersionHeader, message: &RpcMessage) -> Option<EdgeResponse> {
    if message.method() == Some(method::INITIALIZE) {
        return None;
    }
    reject_unknown_revision(version, message.id())
}

/// Rejects a request with an unknown revision header.
fn reject_unknown_revision(version: VersionHeader, id: Option<&[u8]>) -> Option<EdgeResponse> {
    if version != VersionHeader::Unknown {
        return None;
    }
    Some(error_http_response(
        StatusCode::BAD_REQUEST,
        id,
        code::INVALID_REQUEST,
        "this revision of the protocol is not served here",
    ))
}

fn session_id<'a>(caller: McpCaller<'a>) -> Option<&'a str> {
    caller.parts.headers.get(SESSION_HEADER)?.to_str().ok()
}

/// Returns the caller's session, or the error status. A session of a different principal is
/// indistinguishable from an unknown session.
fn require_session(caller: McpCaller<'_>) -> Result<Arc<ClientSession>, StatusCode> {
    let id = session_id(caller).ok_or(StatusCode::BAD_REQUEST)?;
    find_session(caller, id).ok_or(StatusCode::NOT_FOUND)
}

fn find_session(caller: McpCaller<'_>, id: &str) -> Option<Arc<ClientSession>> {
    let clock = caller.edge.host.clock().as_ref();
    let sessions = &caller.edge.sessions;
    sessions.find_session(id, caller.principal, caller.scope, clock)
}

fn no_session_response(status: StatusCode, id: Option<&[u8]>) -> EdgeResponse {
    let message = if status == StatusCode::BAD_REQUEST {
        "a session id is needed; open a session with initialize"
    } else {
        "there is no such session; open one with initialize"
    };
    error_http_response(status, id, code::INVALID_REQUEST, message)
}

pub(super) fn result_response(id: &[u8], result: &[u8]) -> Bytes {
    let mut out = Vec::new();
    write_result(&mut out, id, result);
    out.into()
}

pub(super) fn error_response(id: Option<&[u8]>, code: i64, message: &str) -> Bytes {
    let mut out = Vec::new();
    write_error(&mut out, id, code, message, None);
    out.into()
}

pub(super) fn error_http_response(
    status: StatusCode,
    id: Option<&[u8]>,
    code: i64,
    message: &str,
) -> EdgeResponse {
    response_body::json_response(status, error_response(id, code, message))
}
