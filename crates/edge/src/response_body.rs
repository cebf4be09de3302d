//! Response bodies: complete bytes, an event stream, or a body from the API router.
//!
//! A large body is sent in pieces and counted until sent. hyper requests a piece when its buffer
//! has room, so unsent bytes for a slow reader stay here and count in the share of the reader's
//! principal.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bowline_core::call::Principal;
use bowline_core::error::{CallError, ExecutionStatus};
use bowline_core::shares::{ShareError, SharedResource};
use bowline_host::accounts::{PrincipalAccounts, ResourceShare};
use bowline_wire::object;
use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Body, Frame, SizeHint};

use super::call_errors;
use super::event_stream::{EventBody, StreamGuard};
use super::watcher_body::WatcherBody;

/// Header of the session id.
pub(crate) const SESSION_HEADER: HeaderName = HeaderName::from_static("mcp-session-id");

/// Header of the negotiated protocol revision.
pub(crate) const REVISION_HEADER: HeaderName = HeaderName::from_static("mcp-protocol-version");

/// HTTP response of the edge.
pub(crate) type EdgeResponse = Response<EdgeBody>;

/// Response body.
#[derive(Debug)]
pub(crate) enum EdgeBody {
    /// Complete body; taken when sent.
    Whole(Option<Bytes>),
    /// Complete body, sent in pieces.
    Large(Box<LargeBody>),
    /// Event stream of MCP messages.
    Events(Box<EventBody>),
    /// Event stream of server state.
    Watcher(Box<WatcherBody>),
    /// Body from the API router.
    Api(Box<UnsyncBoxBody<Bytes, axum::Error>>),
}

impl Body for EdgeBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Large(large) => {
                Poll::Ready(large.next_piece().map(|bytes| Ok(Frame::data(bytes))))
            }
            Self::Events(events) => events
                .poll_bytes(cx)
                .map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes)))),
            Self::Watcher(watcher) => watcher
                .poll_bytes(cx)
                .map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes)))),
            Self::Api(body) => Pin::new(body.as_mut()).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_none(),
            Self::Large(large) => large.is_empty(),
            Self::Events(_) | Self::Watcher(_) => false,
            Self::Api(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Self::Large(large) => SizeHint::with_exact(large.len() as u64),
            Self::Events(_) | Self::Watcher(_) => SizeHint::default(),
            Self::Api(body) => body.size_hint(),
        }
    }
}

/// Returns a response with a status and no body.
#[must_use]
pub(crate) fn empty_response(status: StatusCode) -> EdgeResponse {
    let mut response = Response::new(EdgeBody::Whole(None));
    *response.status_mut() = status;
    response
}

/// Returns a JSON response.
#[must_use]
pub(crate) fn json_response(status: StatusCode, text: impl Into<Bytes>) -> EdgeResponse {
    let mut response = Response::new(EdgeBody::Whole(Some(text.into())));
    *response.status_mut() = status;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    response
}

/// Returns a JSON response that states after how many seconds a retry may succeed, if any does.
#[must_use]
pub(crate) fn retry_response(
    status: StatusCode,
    text: impl Into<Bytes>,
    retry_after_s: Option<u64>,
) -> EdgeResponse {
    let mut response = json_response(status, text);
    if let Some(seconds) = retry_after_s {
        let wait = HeaderValue::from(seconds);
        response.headers_mut().insert(header::RETRY_AFTER, wait);
    }
    response
}

/// Returns a plain text response.
#[must_use]
pub(crate) fn text_response(status: StatusCode, line: impl Into<Bytes>) -> EdgeResponse {
    let mut response = Response::new(EdgeBody::Whole(Some(line.into())));
    *response.status_mut() = status;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    response
}

/// Returns an event stream of MCP messages.
#[must_use]
pub(crate) fn event_response(events: EventBody) -> EdgeResponse {
    stream_response(EdgeBody::Events(Box::new(events)))
}

/// Returns an event stream of server state.
#[must_use]
pub(crate) fn watcher_response(watcher: WatcherBody) -> EdgeResponse {
    stream_response(EdgeBody::Watcher(Box::new(watcher)))
}

fn stream_response(body: EdgeBody) -> EdgeResponse {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream"),
    );
    headers.insert(
        header::CACHE_CONTROL,
        HeaderValue::from_static("no-cache, no-transform"),
    );
    // Tells reverse proxies not to buffer events.
    headers.insert(
        HeaderName::from_static("x-accel-buffering"),
        HeaderValue::from_static("no"),
    );
    response
}

/// Responses above this size are counted.
pub(crate) const LARGE_BYTES_MIN: usize = 64 * 1024;

/// Size of a piece.
const PIECE_BYTES: usize = 16 * 1024;

/// Account charged for large responses.
#[derive(Clone, Debug)]
pub struct ResponseAccount {
    /// Resource accounts per principal.
    pub accounts: PrincipalAccounts,
    /// Principal of the reader.
    pub principal: Arc<Principal>,
}

impl ResponseAccount {
    /// Charges a response until its last piece is sent.
    ///
    /// # Errors
    /// The principal's limit of unread bytes is exhausted.
    pub fn charge_bytes(&self, bytes: Bytes) -> Result<LargeBody, ShareError> {
        let amount = bytes.len() as u64;
        let share =
            self.accounts
                .take_share(&self.principal, SharedResource::ResponseBytes, amount)?;
        Ok(LargeBody {
            bytes,
            _share: share,
            _guard: None,
        })
    }
}

/// A response sent in pieces.
#[derive(Debug)]
pub struct LargeBody {
    /// Unsent bytes.
    bytes: Bytes,
    _share: ResourceShare,
    /// Dropped with the body.
    _guard: Option<Box<dyn StreamGuard>>,
}

impl LargeBody {
    /// Attaches a guard dropped with the body.
    pub fn attach_guard(&mut self, guard: Box<dyn StreamGuard>) {
        self._guard = Some(guard);
    }

    /// Returns the number of bytes left.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns whether no bytes are left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the next piece as a copy, so that a piece queued for writing does not keep the whole
    /// response in memory.
    pub fn next_piece(&mut self) -> Option<Bytes> {
        if self.bytes.is_empty() {
            return None;
        }
        let piece = self.bytes.split_to(self.bytes.len().min(PIECE_BYTES));
        Some(Bytes::copy_from_slice(&piece))
    }
}

/// Returns whether a response is large or may become large.
pub(crate) fn may_be_large(response: &EdgeResponse) -> bool {
    match response.body() {
        EdgeBody::Whole(bytes) => (bytes.as_ref()).is_some_and(|one| one.len() > LARGE_BYTES_MIN),
        EdgeBody::Events(_) => true,
        EdgeBody::Large(_) | EdgeBody::Watcher(_) | EdgeBody::Api(_) => false,
    }
}

/// Charges a large response to the reader's share, or replaces the response by an error.
pub(crate) fn charge_response(
    mut response: EdgeResponse,
    account: ResponseAccount,
) -> EdgeResponse {
    match response.body_mut() {
        EdgeBody::Whole(Some(bytes)) if bytes.len() > LARGE_BYTES_MIN => {
            let bytes = bytes.clone();
            *response.body_mut() = match account.charge_bytes(bytes.clone()) {
                Ok(large) => EdgeBody::Large(Box::new(large)),
                Err(cause) => EdgeBody::Whole(Some(undelivered_error(&bytes, cause))),
            };
        }
        EdgeBody::Events(events) => events.charge_to(account),
        _ => {}
    }
    response
}

/// Writes the error that replaces an undeliverable message.
pub(crate) fn undelivered_error(message: &[u8], cause: ShareError) -> Bytes {
    let id = object::field(message, "id").map_or(&b"null"[..], |at| at.slice(message));
    let error = CallError::ShareExceeded {
        cause,
        execution: ExecutionStatus::Completed,
    };
    call_errors::error_response(id, &error)
}

#[cfg(test)]
mod tests {
    use bowline_core::call::Role;
    use bowline_core::shares::{ShareLimit, ShareLimits};

    use super::*;

    fn test_account() -> ResponseAccount {
        let limit = ShareLimit::new(400_000, 200_000);
        let limits = ShareLimits::default().with_limit(SharedResource::ResponseBytes, limit);
        ResponseAccount {
            accounts: PrincipalAccounts::new(limits),
            principal: Arc::new(Principal::new("ann", Role::None)),
        }
    }

    #[test]
    fn large_response_counts_until_handed_out() {
        let payer = test_account();
        let text: Vec<u8> = (0..150_000_u32).map(|nth| nth as u8).collect();
        let mut large = payer.charge_bytes(text.clone().into()).unwrap();
        assert!(payer.charge_bytes(text.clone().into()).is_err());
        let mut read = Vec::new();
        while let Some(piece) = large.next_piece() {
            assert!(piece.len() <= PIECE_BYTES);
            read.extend_from_slice(&piece);
        }
        assert!(read == text);
        drop(large);
        assert_eq!(payer.accounts.usage()[4].used, 0);
    }

    #[test]
    fn undelivered_response_says_the_call_ran() {
        let payer = test_account();
        let filler = "x".repeat(150_000);
        let text = format!("{{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"result\":\"{filler}\"}}");
        let answer = |text: &str| json_response(StatusCode::OK, text.to_owned());
        let first = charge_response(answer(&text), payer.clone());
        assert!(matches!(first.body(), EdgeBody::Large(large) if large.len() == text.len()));
        let second = charge_response(answer(&text), payer.clone());
        let EdgeBody::Whole(Some(told)) = second.body() else {
            panic!("it is refused")
        };
        let told: serde_json::Value = serde_json::from_slice(told).unwrap();
        assert_eq!(told["id"], "a");
        assert_eq!(told["error"]["data"]["code"], "share_exceeded");
        assert_eq!(told["error"]["data"]["execution"], "completed");
        let small = charge_response(answer("{}"), payer);
        assert!(matches!(small.body(), EdgeBody::Whole(Some(_))));
    }
}
