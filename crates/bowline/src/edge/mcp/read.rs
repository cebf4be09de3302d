//! Reads the body of a request, within bounds of size and time.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use bowline_core::call::Principal;
use bowline_core::shares::{Resource, ShareError};
use bowline_host::accounts::{PrincipalAccounts, Share};
use bowline_wire::jsonrpc::{Refusal, refused_id, write_error};
use bowline_wire::mcp::code;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, StatusCode, header};
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming};

use super::{failure, over_share};
use crate::edge::body::{self, Answer, EdgeBody};
use crate::edge::stream::Guard;

/// Bytes of a request.
pub(crate) const BODY_BYTES_MAX: usize = 8 * 1024 * 1024;

/// How often it is looked at how much of a body arrived. What arrives before the first look is
/// not judged.
const RATE_WINDOW: Duration = Duration::from_secs(5);

/// Bytes a second that arrive of a body at least.
const RATE_BYTES_PER_S_MIN: usize = 8 * 1024;

/// Bytes that arrive between two looks at least.
const RATE_WINDOW_BYTES_MIN: usize = RATE_BYTES_PER_S_MIN * 5;

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
    /// It arrived too slowly.
    Slow,
    /// Bodies that have not arrived whole hold as much as they may.
    OverShare(ShareError),
    /// The connection broke.
    Broken,
}

impl Unread {
    /// Returns the answer that says so.
    pub(crate) fn answer(self) -> Answer {
        let (status, message) = match self {
            Self::OverShare(cause) => return closing(over_share(None, cause)),
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
        let answer = failure(status, None, code::INVALID_REQUEST, message);
        match self {
            Self::TooLarge | Self::Slow | Self::Broken => closing(answer),
            _ => answer,
        }
    }
}

/// What is left of a body must not be read as the next request.
fn closing(mut answer: Answer) -> Answer {
    let close = header::HeaderValue::from_static("close");
    answer.headers_mut().insert(header::CONNECTION, close);
    answer
}

/// A body, and what it counts in the share of its principal where it did not arrive at once.
pub(crate) type Paid = (Bytes, Option<BodyShare>);

/// What a body counts until its request is answered.
#[derive(Debug)]
pub(crate) struct BodyShare(#[expect(dead_code, reason = "its drop is what counts")] Share);

impl Guard for BodyShare {}

/// Has a body count until its request is answered, and to the end of a stream that answers it.
pub(crate) fn held(mut answer: Answer, share: Option<BodyShare>) -> Answer {
    if let (EdgeBody::Events(events), Some(share)) = (answer.body_mut(), share) {
        events.keep(Box::new(share));
    }
    answer
}

/// Reads a body that a POST to an MCP endpoint may have.
pub(crate) async fn body(
    parts: &Parts,
    incoming: Incoming,
    payer: (&PrincipalAccounts, &Principal),
) -> Result<Paid, Unread> {
    if !is_json(&parts.headers) {
        return Err(Unread::NotJson);
    }
    if !accepts(parts, "application/json") && !accepts(parts, "text/event-stream") {
        return Err(Unread::NotAcceptable);
    }
    bounded(&parts.headers, incoming, payer).await
}

/// Reads a body up to the limit, whatever it holds.
pub(crate) async fn bounded<B>(
    headers: &HeaderMap,
    incoming: B,
    payer: (&PrincipalAccounts, &Principal),
) -> Result<Paid, Unread>
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
        return Ok((first, None));
    }
    let buffer = Buffer::new(first, &incoming, payer)?;
    tokio::time::timeout(BODY_TIME, rest(buffer, incoming))
        .await
        .unwrap_or(Err(Unread::Slow))
}

/// What arrived of a body, counted by the memory that it takes.
struct Buffer {
    bytes: Vec<u8>,
    share: Share,
    /// How long the body is, where that was declared.
    declared: Option<usize>,
}

impl Buffer {
    fn new<B>(
        first: Bytes,
        rest: &B,
        (accounts, principal): (&PrincipalAccounts, &Principal),
    ) -> Result<Self, Unread>
    where
        B: Body<Data = Bytes>,
    {
        let left = rest.size_hint().exact();
        let left = left.and_then(|left| usize::try_from(left).ok());
        let declared = left.map(|left| first.len().saturating_add(left));
        let amount = first.len() as u64;
        let share = accounts.take(principal, Resource::BodyBytes, amount);
        Ok(Self {
            bytes: first.into(),
            share: share.map_err(Unread::OverShare)?,
            declared,
        })
    }

    /// Takes what arrived; memory grows with it and not with what was declared.
    fn extend(&mut self, more: &[u8]) -> Result<(), Unread> {
        let len = self.bytes.len() + more.len();
        if len > BODY_BYTES_MAX {
            return Err(Unread::TooLarge);
        }
        let counted = usize::try_from(self.share.amount()).unwrap_or(usize::MAX);
        if len > counted {
            let doubled = counted.saturating_mul(2).max(len);
            let room = doubled
                .min(self.declared.unwrap_or(BODY_BYTES_MAX))
                .max(len);
            let grown = self.share.grow((room - counted) as u64);
            grown.map_err(Unread::OverShare)?;
            // Exactly: what is taken is what is counted.
            self.bytes.reserve_exact(room - self.bytes.len());
        }
        self.bytes.extend_from_slice(more);
        Ok(())
    }
}

/// Reads what follows the first piece.
async fn rest<B>(mut buffer: Buffer, mut incoming: B) -> Result<Paid, Unread>
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut looks = tokio::time::interval(RATE_WINDOW);
    looks.reset();
    // Enough for the first look, whatever arrives before it.
    let mut arrived = RATE_WINDOW_BYTES_MIN;
    while !incoming.is_end_stream() {
        let more = tokio::select! {
            biased;
            more = incoming.frame() => more,
            _ = looks.tick() => {
                if arrived < RATE_WINDOW_BYTES_MIN {
                    return Err(Unread::Slow);
                }
                arrived = 0;
                continue;
            }
        };
        if more.is_none() {
            break;
        }
        let more = data(more)?;
        arrived = arrived.saturating_add(more.len());
        buffer.extend(&more)?;
    }
    Ok((buffer.bytes.into(), Some(BodyShare(buffer.share))))
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

    use bowline_core::call::Role;
    use bowline_core::shares::{ShareLimit, ShareLimits};
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

    fn ann() -> (PrincipalAccounts, Principal) {
        let limit = ShareLimit::new(64 * MIB, 16 * MIB);
        let limits = ShareLimits::default().with(Resource::BodyBytes, limit);
        let accounts = PrincipalAccounts::new(limits);
        (accounts, Principal::new("ann", Role::None))
    }

    const MIB: u64 = 1024 * 1024;

    async fn read(drip: Drip, (accounts, ann): &(PrincipalAccounts, Principal)) -> Unread {
        let read = bounded(&HeaderMap::new(), drip, (accounts, ann)).await;
        assert_eq!(accounts.held(&ann.name, Resource::BodyBytes), 0);
        read.unwrap_err()
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_pauses_too_long_is_given_up() {
        let started = Instant::now();
        let drip = Drip::new(1, 10 * RATE_WINDOW);
        assert_eq!(read(drip, &ann()).await, Unread::Slow);
        assert_eq!(started.elapsed(), 2 * RATE_WINDOW);
        assert_eq!(Unread::Slow.answer().status(), StatusCode::REQUEST_TIMEOUT);
        // Some bytes now and then are no rate.
        let drip = Drip::new(1_024, Duration::from_secs(1));
        assert_eq!(read(drip, &ann()).await, Unread::Slow);
        assert_eq!(started.elapsed(), 4 * RATE_WINDOW);
    }

    #[tokio::test(start_paused = true)]
    async fn an_endless_body_is_stopped_at_the_limit_and_at_the_deadline() {
        let drip = Drip::new(BODY_BYTES_MAX / 4, Duration::from_millis(1));
        assert_eq!(read(drip, &ann()).await, Unread::TooLarge);
        let started = Instant::now();
        let drip = Drip::new(RATE_BYTES_PER_S_MIN * 2, Duration::from_secs(1));
        assert_eq!(read(drip, &ann()).await, Unread::Slow);
        assert_eq!(started.elapsed(), BODY_TIME);
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_beyond_the_share_are_refused() {
        let (accounts, ann) = ann();
        let taken = accounts.take(&ann, Resource::BodyBytes, 15 * MIB).unwrap();
        let drip = || Drip::new(512 * 1024, Duration::from_millis(1));
        let payer = (&accounts, &ann);
        let refused = bounded(&HeaderMap::new(), drip(), payer).await.unwrap_err();
        let cause = ShareError::Principal {
            resource: Resource::BodyBytes,
            limit: 16 * MIB,
        };
        assert_eq!(refused, Unread::OverShare(cause));
        let answer = refused.answer();
        assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(answer.headers()[header::CONNECTION], "close");
        drop(taken);
        let read = bounded(&HeaderMap::new(), drip(), payer).await;
        assert_eq!(read.unwrap_err(), Unread::TooLarge);
    }
}
