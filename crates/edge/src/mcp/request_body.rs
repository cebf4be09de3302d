//! Reads request bodies within limits of size, rate and time, and parses them: small bodies inline,
//! large bodies off the serving thread.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use bowline_core::call::Principal;
use bowline_core::shares::{ShareError, SharedResource};
use bowline_host::accounts::{PrincipalAccounts, ResourceShare};
use bowline_wire::jsonrpc::{MessageError, find_refused_id, write_error};
use bowline_wire::mcp::code;
use bowline_wire::{RpcMessage, object};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, StatusCode, header};
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming};

use super::{McpCaller, error_http_response, share_exceeded_response};
use crate::event_stream::StreamGuard;
use crate::http_listener;
use crate::response_body::{self, EdgeBody, EdgeResponse};

/// Maximum size of a request body.
pub(crate) const BODY_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Interval of rate checks. Bytes before the first check are not rated.
const RATE_WINDOW: Duration = Duration::from_secs(5);

/// Minimum bytes per second.
const RATE_BYTES_PER_S_MIN: usize = 8 * 1024;

/// Minimum bytes per check interval.
const RATE_WINDOW_BYTES_MIN: usize = RATE_BYTES_PER_S_MIN * 5;

/// Maximum total time of a body, so that a trickle of bytes cannot last forever.
const BODY_TIME_MAX: Duration = Duration::from_secs(300);

/// Reason for not reading a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyError {
    /// The content type is not JSON.
    NotJson,
    /// The body is compressed.
    Encoded,
    /// The client accepts no response type of ours.
    NotAcceptable,
    /// The body is too large.
    TooLarge,
    /// The body arrived too slowly.
    TooSlow,
    /// The share of incomplete bodies is exhausted.
    OverShare(ShareError),
    /// The connection broke.
    Broken,
}

impl BodyError {
    /// Returns the error response.
    pub(crate) fn into_response(self) -> EdgeResponse {
        let (status, message) = match self {
            Self::OverShare(cause) => {
                return with_connection_close(share_exceeded_response(None, cause));
            }
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
            Self::TooSlow => (
                StatusCode::REQUEST_TIMEOUT,
                "the body did not arrive in time",
            ),
            Self::Broken => (StatusCode::BAD_REQUEST, "the body did not arrive whole"),
        };
        let response = error_http_response(status, None, code::INVALID_REQUEST, message);
        match self {
            Self::TooLarge | Self::TooSlow | Self::Broken => with_connection_close(response),
            _ => response,
        }
    }
}

/// Closes the connection, since the rest of the body must not be parsed as the next request.
fn with_connection_close(mut response: EdgeResponse) -> EdgeResponse {
    let close = header::HeaderValue::from_static("close");
    response.headers_mut().insert(header::CONNECTION, close);
    response
}

/// The account charged for request bodies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyAccount<'a> {
    pub(crate) accounts: &'a PrincipalAccounts,
    pub(crate) principal: &'a Principal,
}

/// A body, and its share if the body did not arrive at once.
pub(crate) type BodyWithShare = (Bytes, Option<BodyShare>);

/// Share of a body until its request is answered.
#[derive(Debug)]
pub(crate) struct BodyShare(#[expect(dead_code, reason = "its drop is what counts")] ResourceShare);

impl StreamGuard for BodyShare {}

/// Keeps the share of a body until the response, or until the end of a streamed response.
pub(crate) fn attach_body_share(
    mut response: EdgeResponse,
    share: Option<BodyShare>,
) -> EdgeResponse {
    if let (EdgeBody::Events(events), Some(share)) = (response.body_mut(), share) {
        events.attach_guard(Box::new(share));
    }
    response
}

/// Reads the body of a POST to an MCP endpoint.
pub(crate) async fn read_mcp_body(
    parts: &Parts,
    incoming: Incoming,
    account: BodyAccount<'_>,
) -> Result<BodyWithShare, BodyError> {
    if !is_json_content(&parts.headers) {
        return Err(BodyError::NotJson);
    }
    if !accepts_type(parts, "application/json") && !accepts_type(parts, "text/event-stream") {
        return Err(BodyError::NotAcceptable);
    }
    read_bounded(&parts.headers, incoming, account).await
}

/// Reads a body up to the limit, without checking its type.
pub(crate) async fn read_bounded<B>(
    headers: &HeaderMap,
    incoming: B,
    account: BodyAccount<'_>,
) -> Result<BodyWithShare, BodyError>
where
    B: Body<Data = Bytes> + Unpin,
{
    if headers.contains_key(header::CONTENT_ENCODING) {
        return Err(BodyError::Encoded);
    }
    if incoming.size_hint().lower() > BODY_BYTES_MAX as u64 {
        return Err(BodyError::TooLarge);
    }
    // Nearly every body is already complete in a single frame: no timer, no copy.
    let mut incoming = incoming;
    let first_poll = poll_fn(|cx| Poll::Ready(Pin::new(&mut incoming).poll_frame(cx))).await;
    let first = match first_poll {
        Poll::Ready(frame) => frame_data(frame)?,
        Poll::Pending => Bytes::new(),
    };
    if incoming.is_end_stream() {
        return Ok((first, None));
    }
    let buffer = BodyBuffer::new(first, &incoming, account)?;
    tokio::time::timeout(BODY_TIME_MAX, read_rest(buffer, incoming))
        .await
        .unwrap_or(Err(BodyError::TooSlow))
}

/// Partial body, charged by allocated memory.
struct BodyBuffer {
    bytes: Vec<u8>,
    share: ResourceShare,
    /// Declared content length, if any.
    declared_length: Option<usize>,
}

impl BodyBuffer {
    fn new<B>(first: Bytes, rest: &B, account: BodyAccount<'_>) -> Result<Self, BodyError>
    where
        B: Body<Data = Bytes>,
    {
        let left = rest.size_hint().exact();
        let left = left.and_then(|left| usize::try_from(left).ok());
        let declared = left.map(|left| first.len().saturating_add(left));
        let amount = first.len() as u64;
        let BodyAccount {
            accounts,
            principal,
        } = account;
        let share = accounts.take_share(principal, SharedResource::BodyBytes, amount);
        Ok(Self {
            bytes: first.into(),
            share: share.map_err(BodyError::OverShare)?,
            declared_length: declared,
        })
    }

    /// Appends a frame; memory grows with received bytes, not with the declared length.
    fn extend(&mut self, more: &[u8]) -> Result<(), BodyError> {
        let len = self.bytes.len() + more.len();
        if len > BODY_BYTES_MAX {
            return Err(BodyError::TooLarge);
        }
        let counted = usize::try_from(self.share.amount()).unwrap_or(usize::MAX);
        if len > counted {
            let doubled = counted.saturating_mul(2).max(len);
            let room = doubled
                .min(self.declared_length.unwrap_or(BODY_BYTES_MAX))
                .max(len);
            let grown = self.share.grow((room - counted) as u64);
            grown.map_err(BodyError::OverShare)?;
            // Exact, so that the allocation equals the charge.
            self.bytes.reserve_exact(room - self.bytes.len());
        }
        self.bytes.extend_from_slice(more);
        Ok(())
    }
}

/// Reads the frames after the first.
async fn read_rest<B>(mut buffer: BodyBuffer, mut incoming: B) -> Result<BodyWithShare, BodyError>
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut looks = tokio::time::interval(RATE_WINDOW);
    looks.reset();
    // Satisfies the first check regardless of earlier bytes.
    let mut arrived = RATE_WINDOW_BYTES_MIN;
    while !incoming.is_end_stream() {
        let more = tokio::select! {
            biased;
            more = incoming.frame() => more,
            _ = looks.tick() => {
                if arrived < RATE_WINDOW_BYTES_MIN {
                    return Err(BodyError::TooSlow);
                }
                arrived = 0;
                continue;
            }
        };
        if more.is_none() {
            break;
        }
        let more = frame_data(more)?;
        arrived = arrived.saturating_add(more.len());
        buffer.extend(&more)?;
    }
    Ok((buffer.bytes.into(), Some(BodyShare(buffer.share))))
}

/// Returns the data of a frame. Trailers are ignored.
fn frame_data<E>(frame: Option<Result<Frame<Bytes>, E>>) -> Result<Bytes, BodyError> {
    match frame {
        None => Ok(Bytes::new()),
        Some(Err(_)) => Err(BodyError::Broken),
        Some(Ok(frame)) => Ok(frame.into_data().unwrap_or_default()),
    }
}

/// Returns the response to a body that is not a message.
pub(crate) fn refusal_response(text: &[u8], refusal: MessageError) -> EdgeResponse {
    response_body::json_response(StatusCode::OK, refusal_message(text, refusal))
}

/// Writes the error for a body that is not a message.
pub(crate) fn refusal_message(text: &[u8], refusal: MessageError) -> Bytes {
    let mut message = refusal.to_string();
    if let Some(source) = std::error::Error::source(&refusal) {
        message.push_str(": ");
        message.push_str(&source.to_string());
    }
    let id = match refusal {
        MessageError::Json(_) => None,
        _ => find_refused_id(text),
    };
    let mut out = Vec::new();
    write_error(&mut out, id, refusal.code(), &message, None);
    out.into()
}

/// Larger bodies are parsed off the serving thread: a body of nothing but keys takes up to 60 ms
/// per MiB.
const LARGE_BODY_BYTES_MIN: usize = 256 * 1024;

/// Retry delay for a principal with too many large bodies in flight.
const BUSY_WAIT: Duration = Duration::from_secs(1);

/// Reason for not returning a single message.
#[derive(Debug)]
pub(super) enum ParseFailure {
    /// The body is a batch.
    Batch,
    /// The body is not a message; holds the error response.
    Refused(Bytes),
    /// The principal has too many large bodies in flight.
    Busy(Box<EdgeResponse>),
}

/// A batch message: raw bytes and parse result.
pub(super) type BatchItem = (Bytes, Result<RpcMessage, MessageError>);

/// Parses a body as a single message.
pub(super) async fn parse_message(
    caller: McpCaller<'_>,
    text: &Bytes,
) -> Result<RpcMessage, ParseFailure> {
    if text.len() <= LARGE_BODY_BYTES_MIN {
        return parse_single(text);
    }
    let owned = text.clone();
    // Boxed to keep the future of a plain call small.
    let parsed = Box::pin(parse_off_thread(caller, move || parse_single(&owned))).await;
    parsed.map_err(|busy| ParseFailure::Busy(Box::new(busy)))?
}

/// Parses the messages of a batch, at most `messages_max` plus one to detect an excess.
pub(super) async fn parse_batch(
    caller: McpCaller<'_>,
    text: &Bytes,
    messages_max: usize,
) -> Result<Vec<BatchItem>, EdgeResponse> {
    let split = move |text: &Bytes| {
        let items = object::items(text).take(messages_max + 1);
        let items = items.map(|at| text.slice(at.start..at.end));
        items
            .map(|item| (item.clone(), RpcMessage::parse_from_client(item)))
            .collect()
    };
    if text.len() <= LARGE_BODY_BYTES_MIN {
        return Ok(split(text));
    }
    let owned = text.clone();
    parse_off_thread(caller, move || split(&owned)).await
}

fn parse_single(text: &Bytes) -> Result<RpcMessage, ParseFailure> {
    RpcMessage::parse_from_client(text.clone()).map_err(|refusal| match refusal {
        MessageError::Batch => ParseFailure::Batch,
        refusal => ParseFailure::Refused(refusal_message(text, refusal)),
    })
}

/// Runs a parser off the serving thread.
async fn parse_off_thread<T: Send + 'static>(
    caller: McpCaller<'_>,
    parser: impl FnOnce() -> T + Send + 'static,
) -> Result<T, EdgeResponse> {
    let principal = caller.principal;
    let parsed = caller.edge.host.offload().run_job(principal, parser).await;
    parsed.map_err(|_| http_listener::too_fast_response(principal, BUSY_WAIT))
}

/// Returns whether the client accepts a media type; without `Accept` every type is accepted.
pub(crate) fn accepts_type(parts: &Parts, kind: &str) -> bool {
    let mut values = parts.headers.get_all(header::ACCEPT).iter().peekable();
    match values.peek() {
        None => return true,
        // Sent by every conforming client.
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

pub(crate) fn is_json_content(headers: &HeaderMap) -> bool {
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

    /// A body that sends a few bytes per tick, forever.
    struct DripBody {
        bytes: Bytes,
        ticks: Interval,
    }

    impl DripBody {
        fn new(bytes: usize, pause: Duration) -> Self {
            let mut ticks = tokio::time::interval(pause);
            ticks.reset();
            Self {
                bytes: vec![b' '; bytes].into(),
                ticks,
            }
        }
    }

    impl Body for DripBody {
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

    fn test_accounts() -> PrincipalAccounts {
        let limit = ShareLimit::new(64 * MIB, 16 * MIB);
        PrincipalAccounts::new(ShareLimits::default().with_limit(SharedResource::BodyBytes, limit))
    }

    const MIB: u64 = 1024 * 1024;

    async fn read_error(drip: DripBody) -> BodyError {
        let (accounts, ann) = (test_accounts(), Principal::new("ann", Role::None));
        let account = BodyAccount {
            accounts: &accounts,
            principal: &ann,
        };
        let read = read_bounded(&HeaderMap::new(), drip, account).await;
        assert_eq!(accounts.usage_of(&ann.name, SharedResource::BodyBytes), 0);
        read.unwrap_err()
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_body_times_out() {
        let started = Instant::now();
        let drip = DripBody::new(1, 10 * RATE_WINDOW);
        assert_eq!(read_error(drip).await, BodyError::TooSlow);
        assert_eq!(started.elapsed(), 2 * RATE_WINDOW);
        assert_eq!(
            BodyError::TooSlow.into_response().status(),
            StatusCode::REQUEST_TIMEOUT
        );
        // A trickle of bytes is below the minimum rate.
        let drip = DripBody::new(1_024, Duration::from_secs(1));
        assert_eq!(read_error(drip).await, BodyError::TooSlow);
        assert_eq!(started.elapsed(), 4 * RATE_WINDOW);
    }

    #[tokio::test(start_paused = true)]
    async fn endless_body_stops_at_size_and_deadline() {
        let drip = DripBody::new(BODY_BYTES_MAX / 4, Duration::from_millis(1));
        assert_eq!(read_error(drip).await, BodyError::TooLarge);
        let started = Instant::now();
        let drip = DripBody::new(RATE_BYTES_PER_S_MIN * 2, Duration::from_secs(1));
        assert_eq!(read_error(drip).await, BodyError::TooSlow);
        assert_eq!(started.elapsed(), BODY_TIME_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_beyond_share_are_refused() {
        let (accounts, ann) = (test_accounts(), Principal::new("ann", Role::None));
        let taken = accounts
            .take_share(&ann, SharedResource::BodyBytes, 15 * MIB)
            .unwrap();
        let drip = || DripBody::new(512 * 1024, Duration::from_millis(1));
        let account = BodyAccount {
            accounts: &accounts,
            principal: &ann,
        };
        let refused = read_bounded(&HeaderMap::new(), drip(), account)
            .await
            .unwrap_err();
        let cause = ShareError::Principal {
            resource: SharedResource::BodyBytes,
            limit: 16 * MIB,
        };
        assert_eq!(refused, BodyError::OverShare(cause));
        let response = refused.into_response();
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers()[header::CONNECTION], "close");
        drop(taken);
        let read = read_bounded(&HeaderMap::new(), drip(), account).await;
        assert_eq!(read.unwrap_err(), BodyError::TooLarge);
    }
}
