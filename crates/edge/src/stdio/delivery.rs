//! Delivers responses of the gateway to the client, resuming broken streams.

use std::time::Duration;

use bowline_link::http::http_client::{HttpBody, HttpResponse};
use bowline_wire::sse::SseDecoder;
use bytes::Bytes;
use http::{StatusCode, header};

use super::message::{self, ShimFailure, flatten_line};
use super::shim::{ClientLines, EVENT_LIMITS, ShimSession, StdioShim, refused_failure};
use crate::gateway_client::RESPONSE_BYTES_MAX;

/// Maximum resumes of a broken stream without a new event.
const RESUMES_MAX: u32 = 5;
/// Default wait before a resume.
const RETRY_WAIT: Duration = Duration::from_millis(100);
/// Maximum wait before a resume.
const RETRY_WAIT_MAX: Duration = Duration::from_secs(5);

/// Whether the client sees the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseRecipient {
    Client,
    Discard,
}

/// The recipient of a response.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResponseTarget<'a> {
    /// The id of the request, if a response is expected.
    pub(super) id: Option<&'a str>,
    pub(super) recipient: ResponseRecipient,
    pub(super) client: &'a ClientLines,
}

/// Position in a stream.
#[derive(Debug, Default)]
struct ShimStreamPosition {
    /// The id of the last event, for `Last-Event-ID`.
    last_event_id: Option<String>,
    retry: Option<Duration>,
    /// Resumes since the last new event.
    resumes: u32,
}

impl StdioShim {
    /// Delivers the response to a message of `session`. Returns the response, or the reason for a
    /// missing one.
    pub(super) async fn deliver_response(
        &self,
        mut response: HttpResponse,
        session: &ShimSession,
        target: ResponseTarget<'_>,
    ) -> Result<Bytes, ShimFailure> {
        let status = response.status;
        if is_event_stream(&response) {
            return self.read_stream(response, session, target).await;
        }
        let body = response.body.read_whole(RESPONSE_BYTES_MAX).await;
        let body = body.map_err(|_error| response_lost())?;
        let Some(id) = target.id else {
            return if status.is_success() {
                Ok(body)
            } else {
                Err(refused_failure(status, &body))
            };
        };
        let line = flatten_line(&body);
        if message::is_response_to(&line, id) {
            if target.recipient == ResponseRecipient::Client {
                let _sent = target.client.send(line.clone()).await;
            }
            return Ok(line);
        }
        Err(if status.is_success() {
            response_lost()
        } else {
            refused_failure(status, &body)
        })
    }

    /// Reads a stream up to the response. A broken stream is resumed if it has event ids.
    async fn read_stream(
        &self,
        response: HttpResponse,
        session: &ShimSession,
        target: ResponseTarget<'_>,
    ) -> Result<Bytes, ShimFailure> {
        let mut position = ShimStreamPosition::default();
        let mut body = response.body;
        loop {
            if let Some(response_line) = target.forward_events(body, &mut position).await? {
                return Ok(response_line);
            }
            if target.id.is_none() {
                return Ok(Bytes::new());
            }
            body = self.resume_stream(session, &mut position).await?.body;
        }
    }

    /// Reopens a stream after its last event.
    async fn resume_stream(
        &self,
        session: &ShimSession,
        position: &mut ShimStreamPosition,
    ) -> Result<HttpResponse, ShimFailure> {
        while let Some(event_id) = &position.last_event_id {
            position.resumes += 1;
            if position.resumes > RESUMES_MAX {
                break;
            }
            tokio::time::sleep(position.retry.unwrap_or(RETRY_WAIT).min(RETRY_WAIT_MAX)).await;
            match self.open_notification_stream(session, Some(event_id)).await {
                Ok(response) if is_event_stream(&response) => return Ok(response),
                // The gateway no longer knows the call.
                Ok(response) if response.status == StatusCode::NOT_FOUND => break,
                Ok(_) => {}
                Err(url) => {
                    // The gateway is away: the next attempt uses the relocated gateway.
                    let _failure = self.relocate_gateway(&url).await;
                }
            }
        }
        Err(response_lost())
    }
}

impl ResponseTarget<'_> {
    /// Forwards events until the response, or until the stream ends without one.
    async fn forward_events(
        self,
        mut body: HttpBody,
        position: &mut ShimStreamPosition,
    ) -> Result<Option<Bytes>, ShimFailure> {
        let mut decoder = SseDecoder::new(EVENT_LIMITS);
        while let Some(Ok(chunk)) = body.next_chunk().await {
            decoder.push(&chunk).map_err(|_too_long| response_lost())?;
            while let Some(event) = decoder.next() {
                position.resumes = 0;
                position.retry = event.retry_ms.map(Duration::from_millis).or(position.retry);
                position.last_event_id = event.id.or_else(|| position.last_event_id.take());
                let line = flatten_line(&event.data);
                let is_response = self.id.is_some_and(|id| message::is_response_to(&line, id));
                if !line.is_empty() && (self.recipient == ResponseRecipient::Client || !is_response)
                {
                    let _sent = self.client.send(line.clone()).await;
                }
                if is_response {
                    return Ok(Some(line));
                }
            }
        }
        Ok(None)
    }
}

pub(super) fn is_event_stream(response: &HttpResponse) -> bool {
    let kind = response.headers.get(&header::CONTENT_TYPE);
    let is_events = kind.is_some_and(|kind| kind.starts_with(b"text/event-stream"));
    response.status.is_success() && is_events
}

/// Builds the failure of a request whose response was lost.
pub(super) fn response_lost() -> ShimFailure {
    ShimFailure::unknown(
        "The connection to the gateway was lost before the answer came. The call may have run; \
         do not repeat it unless that is safe.",
    )
}
