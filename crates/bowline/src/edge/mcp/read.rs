//! Reads the body of a request, within bounds of size and time.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use bowline_wire::jsonrpc::{Refusal, refused_id, write_error};
use bowline_wire::mcp::code;
use bytes::{Bytes, BytesMut};
use http::request::Parts;
use http::{HeaderMap, StatusCode, header};
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming};

use super::failure;
use crate::edge::body::{self, Answer};

/// Bytes of a request.
pub(crate) const BODY_BYTES_MAX: usize = 8 * 1024 * 1024;

/// How long a body may pause.
const BODY_IDLE: Duration = Duration::from_secs(30);

/// How long a body may take in all, so that a byte now and then does not last for ever.
const BODY_TIME: Duration = Duration::from_secs(300);

/// Why a body was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// It is not declared to be JSON.
    NotJson,
    /// It is compressed.
    Encoded,
    /// The caller cannot take what we answer with.
    NotAcceptable,
    /// It is too large.
    TooLarge,
    /// It paused too long.
    Slow,
    /// The connection broke.
    Broken,
}

impl Unread {
    /// Returns the answer that says so.
    pub(crate) fn answer(self) -> Answer {
        let (status, message) = match self {
            Self::NotJson => (
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "the body must be application/json",
            ),
            Self::Encoded => (
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "the body must not be compressed",
            ),
            Self::NotAcceptable => (
                StatusCode::NOT_ACCEPTABLE,
                "accept application/json and text/event-stream",
            ),
            Self::TooLarge => (
                StatusCode::PAYLOAD_TOO_LARGE,
                "the body is larger than 8 MiB",
            ),
            Self::Slow => (
                StatusCode::REQUEST_TIMEOUT,
                "the body did not arrive in time",
            ),
            Self::Broken => (StatusCode::BAD_REQUEST, "the body did not arrive whole"),
        };
        let mut answer = failure(status, None, code::INVALID_REQUEST, message);
        if matches!(self, Self::TooLarge | Self::Slow | Self::Broken) {
            // What is left of the body must not be read as the next request.
            answer.headers_mut().insert(
                header::CONNECTION,
                header::HeaderValue::from_static("close"),
            );
        }
        answer
    }
}

/// Reads a body that a POST to an MCP endpoint may have.
pub(crate) async fn body(parts: &Parts, incoming: Incoming) -> Result<Bytes, Unread> {
    if !is_json(&parts.headers) {
        return Err(Unread::NotJson);
    }
    if !accepts(parts, "application/json") && !accepts(parts, "text/event-stream") {
        return Err(Unread::NotAcceptable);
    }
    bounded(&parts.headers, incoming).await
}

/// Reads a body up to the limit, whatever it holds.
pub(crate) async fn bounded<B>(headers: &HeaderMap, incoming: B) -> Result<Bytes, Unread>
where
    B: Body<Data = Bytes> + Unpin,
{
    if headers.contains_key(header::CONTENT_ENCODING) {
        return Err(Unread::Encoded);
    }
    if incoming.size_hint().lower() > BODY_BYTES_MAX as u64 {
        return Err(Unread::TooLarge);
    }
    // Nearly every body is there, in one piece, before it is asked for: no timer, no copy.
    let mut incoming = incoming;
    let there = poll_fn(|cx| Poll::Ready(Pin::new(&mut incoming).poll_frame(cx))).await;
    let first = match there {
        Poll::Ready(frame) => data(frame)?,
        Poll::Pending => Bytes::new(),
    };
    if incoming.is_end_stream() {
        return Ok(first);
    }
    tokio::time::timeout(BODY_TIME, rest(first, incoming))
        .await
        .unwrap_or(Err(Unread::Slow))
}

/// Reads what follows the first piece.
async fn rest<B>(first: Bytes, mut incoming: B) -> Result<Bytes, Unread>
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut whole = BytesMut::from(first);
    while !incoming.is_end_stream() {
        let more = tokio::time::timeout(BODY_IDLE, incoming.frame())
            .await
            .map_err(|_| Unread::Slow)?;
        if more.is_none() {
            break;
        }
        let more = data(more)?;
        if whole.len() + more.len() > BODY_BYTES_MAX {
            return Err(Unread::TooLarge);
        }
        whole.extend_from_slice(&more);
    }
    Ok(whole.freeze())
}

/// Returns what a frame holds. Trailers say nothing we act on.
fn data<E>(frame: Option<Result<Frame<Bytes>, E>>) -> Result<Bytes, Unread> {
    match frame {
        None => Ok(Bytes::new()),
        Some(Err(_)) => Err(Unread::Broken),
        Some(Ok(frame)) => Ok(frame.into_data().unwrap_or_default()),
    }
}

/// Answers a body that is not a message.
pub(crate) fn refused(text: &[u8], refusal: Refusal) -> Answer {
    body::json(StatusCode::OK, refusal_of(text, refusal))
}

/// Writes the answer to what is not a message.
pub(crate) fn refusal_of(text: &[u8], refusal: Refusal) -> Bytes {
    let mut message = refusal.to_string();
    if let Some(source) = std::error::Error::source(&refusal) {
        message.push_str(": ");
        message.push_str(&source.to_string());
    }
    let id = match refusal {
        Refusal::Json(_) => None,
        _ => refused_id(text),
    };
    let mut out = Vec::new();
    write_error(&mut out, id, refusal.code(), &message, None);
    out.into()
}

/// Whether the caller takes this kind of answer; one that does not say takes all.
pub(crate) fn accepts(parts: &Parts, kind: &str) -> bool {
    let mut values = parts.headers.get_all(header::ACCEPT).iter().peekable();
    match values.peek() {
        None => return true,
        // What every client of the protocol sends.
        Some(value) if value.as_bytes() == b"application/json, text/event-stream" => return true,
        Some(_) => {}
    }
    values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|range| range.split(';').next().unwrap_or_default().trim())
        .any(|range| {
            range == "*/*"
                || range.eq_ignore_ascii_case(kind)
                || range
                    .strip_suffix("/*")
                    .is_some_and(|prefix| kind.split('/').next() == Some(prefix))
        })
}

pub(crate) fn is_json(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests turn this clock")]
mod tests {
    use std::convert::Infallible;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use hyper::body::Frame;
    use tokio::time::{Instant, Interval};

    use super::*;

    /// A body that sends a few bytes at each tick, for ever.
    struct Drip {
        bytes: Bytes,
        ticks: Interval,
    }

    impl Drip {
        fn new(bytes: usize, pause: Duration) -> Self {
            let mut ticks = tokio::time::interval(pause);
            ticks.reset();
            Self {
                bytes: vec![b' '; bytes].into(),
                ticks,
            }
        }
    }

    impl Body for Drip {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            self.ticks
                .poll_tick(cx)
                .map(|_| Some(Ok(Frame::data(self.bytes.clone()))))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_pauses_too_long_is_given_up() {
        let started = Instant::now();
        let drip = Drip::new(1, BODY_IDLE + Duration::from_secs(1));
        let read = bounded(&HeaderMap::new(), drip).await;
        assert_eq!(read, Err(Unread::Slow));
        assert_eq!(started.elapsed(), BODY_IDLE);
        assert_eq!(Unread::Slow.answer().status(), StatusCode::REQUEST_TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn an_endless_body_is_stopped_at_the_limit_and_at_the_deadline() {
        let drip = Drip::new(BODY_BYTES_MAX / 4, Duration::from_millis(1));
        let read = bounded(&HeaderMap::new(), drip).await;
        assert_eq!(read, Err(Unread::TooLarge));
        // A byte now and then is not a pause, and still must end.
        let started = Instant::now();
        let drip = Drip::new(1, BODY_IDLE / 2);
        let read = bounded(&HeaderMap::new(), drip).await;
        assert_eq!(read, Err(Unread::Slow));
        assert_eq!(started.elapsed(), BODY_TIME);
    }
}
