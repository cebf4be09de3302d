//! Response bodies: complete bytes, an event stream, or a body from the API router.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Body, Frame, SizeHint};

use super::event_stream::EventBody;
use super::large_response::LargeBody;
use super::watcher_body::WatcherBody;

/// Header of the session id.
pub const SESSION_HEADER: HeaderName = HeaderName::from_static("mcp-session-id");

/// Header of the negotiated protocol revision.
pub const REVISION_HEADER: HeaderName = HeaderName::from_static("mcp-protocol-version");

/// HTTP response of the edge.
pub type EdgeResponse = Response<EdgeBody>;

/// Response body.
#[derive(Debug)]
pub enum EdgeBody {
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
pub fn empty_response(status: StatusCode) -> EdgeResponse {
    let mut response = Response::new(EdgeBody::Whole(None));
    *response.status_mut() = status;
    response
}

/// Returns a JSON response.
#[must_use]
pub fn json_response(status: StatusCode, text: impl Into<Bytes>) -> EdgeResponse {
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
pub fn retry_response(
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
pub fn text_response(status: StatusCode, line: impl Into<Bytes>) -> EdgeResponse {
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
pub fn event_response(events: EventBody) -> EdgeResponse {
    stream_response(EdgeBody::Events(Box::new(events)))
}

/// Returns an event stream of server state.
#[must_use]
pub fn watcher_response(watcher: WatcherBody) -> EdgeResponse {
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
