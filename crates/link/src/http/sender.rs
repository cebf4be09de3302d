//! Sends one request to a server: credentials, redirects, deadlines.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bowline_core::hex::to_hex;
use bowline_core::pending_table::SendState;
use bowline_core::trace::{self, CallTrace};
use bytes::Bytes;
use http::header::{
    ACCEPT, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, LOCATION, TRANSFER_ENCODING, USER_AGENT,
};
use http::{HeaderName, HeaderValue, Method, StatusCode};
use tokio::sync::Semaphore;

use super::endpoint::HttpEndpoint;
use super::http_client::{
    HeaderLines, HttpClient, HttpError, HttpRequest, HttpResponse, RequestBody, SendOptions,
};
use super::http_session::SessionHeaders;
use super::redirect_error::{REDIRECTS_MAX, RedirectError};
use super::remote_failure;
use super::routing_headers;
use super::upstream_credentials::UpstreamCredentials;
use crate::link::{IdempotencyHeader, LinkError, NotSentReason};

const TRACEPARENT: HeaderName = HeaderName::from_static(trace::TRACEPARENT);

const TRACESTATE: HeaderName = HeaderName::from_static(trace::TRACESTATE);

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Headers that credentials must not override: framing, content and session.
const RESERVED_HEADERS: [HeaderName; 11] = [
    ACCEPT,
    CONNECTION,
    CONTENT_LENGTH,
    CONTENT_TYPE,
    HOST,
    LAST_EVENT_ID,
    TRANSFER_ENCODING,
    super::http_session::PROTOCOL_VERSION,
    super::http_session::SESSION_ID,
    routing_headers::METHOD_HEADER,
    routing_headers::NAME_HEADER,
];

/// HTTP client and credentials for one upstream server.
#[derive(Debug)]
pub(super) struct HttpSender {
    pub(super) client: Arc<dyn HttpClient>,
    credentials: Arc<dyn UpstreamCredentials>,
    /// One permit: its holder refreshes the credentials for all requests.
    refreshing: Semaphore,
    /// Set when new credentials replaced refused credentials.
    renewed: AtomicBool,
}

/// Credential headers of a request.
type CredentialHeaders = Vec<(HeaderName, HeaderValue)>;

/// One outbound request.
#[derive(Clone, Copy, Debug)]
pub(super) struct OutboundRequest<'a> {
    pub(super) endpoint: &'a HttpEndpoint,
    pub(super) kind: &'a RequestKind,
    /// Headers of its session.
    pub(super) session: &'a SessionHeaders,
    /// Resume position of an event stream.
    pub(super) last_event: Option<&'a HeaderValue>,
}

/// Kind of a request.
#[derive(Clone, Debug)]
pub(super) enum RequestKind {
    /// Posts a message.
    Post(Bytes),
    /// Posts a message with trace headers.
    Traced(Bytes, Arc<CallTrace>),
    /// Posts a message with an idempotency key.
    Keyed(Bytes, Option<Arc<CallTrace>>, Box<IdempotencyHeader>),
    /// Posts a stateless message with routing headers.
    Stateless(Bytes, Box<StatelessHeaders>),
    /// Opens an event stream.
    Get,
    /// Ends the session.
    Delete,
}

/// Headers of a stateless message.
#[derive(Clone, Debug)]
pub(super) struct StatelessHeaders {
    /// All reserved headers.
    pub(super) lines: HeaderLines,
    pub(super) trace: Option<Arc<CallTrace>>,
    pub(super) key: Option<Box<IdempotencyHeader>>,
}

/// Maps an HTTP error to a link error.
#[must_use]
pub fn to_link_error(error: HttpError) -> LinkError {
    match error {
        HttpError::Unreachable(reason) => LinkError::Unreachable(reason),
        HttpError::Invalid(reason) => LinkError::Unreachable(reason.into()),
        HttpError::ConnectTimeout => LinkError::Timeout {
            sent: SendState::NotSent,
        },
        HttpError::FirstByteTimeout => LinkError::Timeout {
            sent: SendState::MaybeSent,
        },
        HttpError::BadHead(reason) => LinkError::BadHead(reason),
        HttpError::Lost(reason) => LinkError::ConnectionLost(reason),
        HttpError::Disconnected(_) => LinkError::ConnectionLost(error.to_string().into()),
        HttpError::Overflow(_) => {
            LinkError::RemoteFailure(remote_failure::overflow_failure(&error.to_string()))
        }
        HttpError::RemoteFailure(failure) => LinkError::RemoteFailure(failure),
        HttpError::Denied(denied) => {
            LinkError::RemoteFailure(remote_failure::denied_failure(&denied))
        }
        HttpError::TooLong { bytes_max } => LinkError::TooLong { bytes_max },
    }
}

impl HttpSender {
    pub(super) fn new(
        client: Arc<dyn HttpClient>,
        credentials: Arc<dyn UpstreamCredentials>,
    ) -> Self {
        Self {
            client,
            credentials,
            refreshing: Semaphore::new(1),
            renewed: AtomicBool::new(false),
        }
    }

    /// Takes the flag for replaced credentials.
    pub(super) fn take_renewed(&self) -> bool {
        self.renewed.load(Ordering::Relaxed) && self.renewed.swap(false, Ordering::Relaxed)
    }

    /// Sends a request and waits for the response head. Follows redirects within the origin; all
    /// hops share the deadline. A request with refused credentials did not run, and is repeated
    /// once if new credentials are available.
    pub(super) async fn send(
        &self,
        outbound: OutboundRequest<'_>,
        wait: SendOptions<'_>,
    ) -> Result<HttpResponse, LinkError> {
        let credentials = self.credentials.headers()?;
        let first = build_request(outbound.endpoint, outbound, &credentials)?;
        let mut response = self.client.send(first, wait).await.map_err(to_link_error)?;
        if is_redirect(response.status) {
            response =
                Box::pin(self.follow_redirects(outbound, response, &credentials, wait)).await?;
        }
        if !is_credential_refusal(response.status) || credentials.is_empty() {
            return Ok(response);
        }
        Box::pin(self.resend_with_credentials(outbound, response, credentials, wait)).await
    }

    async fn resend_with_credentials(
        &self,
        outbound: OutboundRequest<'_>,
        refusal: HttpResponse,
        refused: CredentialHeaders,
        wait: SendOptions<'_>,
    ) -> Result<HttpResponse, LinkError> {
        let Some(credentials) = self.refresh_credentials(&refused).await else {
            return Ok(refusal);
        };
        drop(refusal);
        self.renewed.store(true, Ordering::Relaxed);
        let request = build_request(outbound.endpoint, outbound, &credentials)?;
        let response = self
            .client
            .send(request, wait)
            .await
            .map_err(to_link_error)?;
        if is_redirect(response.status) {
            return self
                .follow_redirects(outbound, response, &credentials, wait)
                .await;
        }
        Ok(response)
    }

    /// Refreshes refused credentials, once for all requests; `None` if unchanged.
    async fn refresh_credentials(&self, refused: &CredentialHeaders) -> Option<CredentialHeaders> {
        let _alone = self.refreshing.acquire().await.ok()?;
        let other = || self.credentials.headers().ok().filter(|now| now != refused);
        // A concurrent request may have refreshed them already.
        if let Some(other) = other() {
            return Some(other);
        }
        self.credentials.refresh().await;
        other()
    }

    async fn follow_redirects(
        &self,
        outbound: OutboundRequest<'_>,
        mut response: HttpResponse,
        credentials: &CredentialHeaders,
        wait: SendOptions<'_>,
    ) -> Result<HttpResponse, LinkError> {
        let mut current_endpoint = outbound.endpoint.clone();
        let mut kind = outbound.kind.clone();
        for _ in 0..REDIRECTS_MAX {
            let Some(location) = response.headers.get(&LOCATION) else {
                return Ok(response);
            };
            let location = std::str::from_utf8(location).unwrap_or_default();
            let next = current_endpoint.resolve(location);
            let next = next.map_err(|error| LinkError::Redirect(error.into()))?;
            if !next.is_same_origin(outbound.endpoint) {
                return Err(LinkError::Redirect(RedirectError::Origin));
            }
            kind = kind.after_redirect(response.status);
            let hop = OutboundRequest {
                kind: &kind,
                ..outbound
            };
            let request = build_request(&next, hop, credentials)?;
            let outcome = self.client.send(request, wait).await;
            // The redirecting server may have processed the request.
            response = outcome.map_err(to_redirected_error)?;
            if !is_redirect(response.status) {
                return Ok(response);
            }
            current_endpoint = next;
        }
        Err(LinkError::Redirect(RedirectError::TooMany))
    }
}

fn build_request<'a>(
    to: &'a HttpEndpoint,
    outbound: OutboundRequest<'a>,
    credentials: &CredentialHeaders,
) -> Result<HttpRequest<'a>, LinkError> {
    if !credentials.is_empty() && !to.is_private() {
        return Err(LinkError::NotSent(NotSentReason::Exposed));
    }
    let session = outbound.session;
    let (method, lines, body) = match outbound.kind {
        RequestKind::Post(body) | RequestKind::Traced(body, _) | RequestKind::Keyed(body, ..) => {
            (Method::POST, &session.post_headers, &**body)
        }
        RequestKind::Stateless(body, labels) => (Method::POST, &labels.lines, &**body),
        RequestKind::Get => (Method::GET, &session.get_headers, &[][..]),
        RequestKind::Delete => (Method::DELETE, &session.delete_headers, &[][..]),
    };
    let mut request = HttpRequest {
        method,
        endpoint: to,
        shared_headers: Cow::Borrowed(lines),
        headers: Vec::new(),
        body: RequestBody::Whole(body),
    };
    let (trace, key) = outbound.kind.trace_and_key();
    if let Some(trace) = trace {
        request.headers.extend(trace_headers(trace));
    }
    if let Some(key) = key {
        request.headers.extend(idempotency_header(key));
    }
    add_credentials(&mut request, credentials);
    if let Some(id) = outbound.last_event {
        request.headers.push((LAST_EVENT_ID, id.clone()));
    }
    Ok(request)
}

fn is_reserved_header(name: &HeaderName) -> bool {
    RESERVED_HEADERS.contains(name) || name.as_str().starts_with(routing_headers::PARAM_PREFIX)
}

/// Adds the credential headers. The last header of a name wins.
fn add_credentials(request: &mut HttpRequest<'_>, credentials: &CredentialHeaders) {
    for (name, value) in credentials {
        if is_reserved_header(name) {
            continue;
        }
        if *name == USER_AGENT {
            request.shared_headers = Cow::Owned(request.shared_headers.without_header(name));
        }
        let mut value = value.clone();
        value.set_sensitive(true);
        request.headers.retain(|(known, _)| known != name);
        request.headers.push((name.clone(), value));
    }
}

/// Returns the idempotency header. Reserved headers are not overridden; a key that a header cannot
/// hold is sent in hexadecimal.
fn idempotency_header(key: &IdempotencyHeader) -> Option<(HeaderName, HeaderValue)> {
    let name = HeaderName::from_bytes(key.name.as_bytes()).ok()?;
    let value = HeaderValue::from_str(&key.value)
        .or_else(|_| HeaderValue::from_str(&to_hex(key.value.as_bytes())));
    let value = value.ok().filter(|_| !is_reserved_header(&name))?;
    Some((name, value))
}

/// Returns the trace headers.
fn trace_headers(trace: &CallTrace) -> impl Iterator<Item = (HeaderName, HeaderValue)> + use<> {
    let parent = HeaderValue::try_from(trace.context.to_string()).ok();
    let state = trace.trace_state.as_deref();
    let state = state.and_then(|state| HeaderValue::from_str(state).ok());
    let parent = parent.map(|value| (TRACEPARENT, value));
    parent
        .into_iter()
        .chain(state.map(|value| (TRACESTATE, value)))
}

impl RequestKind {
    /// Returns a call with an optional trace and idempotency key.
    pub(super) fn new_call(
        body: Bytes,
        trace: Option<Arc<CallTrace>>,
        key: Option<Box<IdempotencyHeader>>,
    ) -> Self {
        match (trace, key) {
            (trace, Some(key)) => Self::Keyed(body, trace, key),
            (Some(trace), None) => Self::Traced(body, trace),
            (None, None) => Self::Post(body),
        }
    }

    /// Returns the trace and the idempotency key.
    fn trace_and_key(&self) -> (Option<&CallTrace>, Option<&IdempotencyHeader>) {
        match self {
            Self::Post(_) | Self::Get | Self::Delete => (None, None),
            Self::Traced(_, trace) => (Some(trace), None),
            Self::Keyed(_, trace, key) => (trace.as_deref(), Some(key)),
            Self::Stateless(_, labels) => (labels.trace.as_deref(), labels.key.as_deref()),
        }
    }

    /// Returns the request kind after a redirect.
    fn after_redirect(self, status: StatusCode) -> Self {
        match (status, self) {
            (StatusCode::SEE_OTHER, _) => Self::Get,
            (
                StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND,
                Self::Post(_) | Self::Traced(..) | Self::Keyed(..) | Self::Stateless(..),
            ) => Self::Get,
            (_, same) => same,
        }
    }
}

/// Whether the server refused the credentials. Includes 403, which some servers send for expired
/// credentials or outdated rights.
const fn is_credential_refusal(status: StatusCode) -> bool {
    matches!(status.as_u16(), 401 | 403)
}

const fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

fn to_redirected_error(error: HttpError) -> LinkError {
    to_link_error(match error {
        HttpError::Unreachable(reason) => HttpError::Lost(reason),
        HttpError::ConnectTimeout => HttpError::FirstByteTimeout,
        other => other,
    })
}
