//! The bodies we answer with: whole bytes, a stream of events, or what the API router made.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Body, Frame, SizeHint};

use super::large::LargeBody;
use super::stream::EventBody;
use super::watcher::Watcher;

/// The header that carries a session id.
pub const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");

/// The header that carries the negotiated revision.
pub const REVISION: HeaderName = HeaderName::from_static("mcp-protocol-version");

/// An answer on its way out.
pub type Answer = Response<EdgeBody>;

/// The body of an answer.
#[derive(Debug)]
pub enum EdgeBody {
    /// All of it, taken when it was sent.
    Whole(Option<Bytes>),
    /// All of it, in pieces.
    Large(Box<LargeBody>),
    /// Events as they come.
    Events(Box<EventBody>),
    /// What happens to servers.
    Watcher(Box<Watcher>),
    /// The API's.
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

/// Answers with `status` and nothing else.
#[must_use]
pub fn empty(status: StatusCode) -> Answer {
    let mut answer = Response::new(EdgeBody::Whole(None));
    *answer.status_mut() = status;
    answer
}

/// Answers with one JSON text.
#[must_use]
pub fn json(status: StatusCode, text: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(EdgeBody::Whole(Some(text.into())));
    *answer.status_mut() = status;
    answer.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    answer
}

/// Answers with one line of text.
#[must_use]
pub fn text(status: StatusCode, line: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(EdgeBody::Whole(Some(line.into())));
    *answer.status_mut() = status;
    answer.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    answer
}

/// Answers with a stream of events.
#[must_use]
pub fn events(events: EventBody) -> Answer {
    streamed(EdgeBody::Events(Box::new(events)))
}

/// Answers with what happens to servers.
#[must_use]
pub fn watcher(watcher: Watcher) -> Answer {
    streamed(EdgeBody::Watcher(Box::new(watcher)))
}

fn streamed(body: EdgeBody) -> Answer {
    let mut answer = Response::new(body);
    let headers = answer.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream"),
    );
    headers.insert(
        header::CACHE_CONTROL,
        HeaderValue::from_static("no-cache, no-transform"),
    );
    // Tells a reverse proxy not to hold events back.
    headers.insert(
        HeaderName::from_static("x-accel-buffering"),
        HeaderValue::from_static("no"),
    );
    answer
}
