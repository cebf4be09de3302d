//! The one path of a call through the edge: read, start, wait or stream, respond.
//!
//! Sessions and stateless clients take the same steps. The protocol eras differ at the two ends
//! only: [`session_call`] and [`modern_call`] read a request into a `CallRequest` and write its
//! outcome, as a future of the [`CallResponse`]. [`respond`] drives that future for both. One step
//! exists for stateless clients alone: a call whose server needs input is parked between two
//! requests ([`call_rounds`]), because such a client answers by sending the call again.

pub(crate) mod call_params;
pub(crate) mod call_rounds;
pub(crate) mod modern_call;
pub(crate) mod modern_call_handle;
pub(crate) mod modern_response;
pub(crate) mod parked_calls;
pub(crate) mod request_state;
pub(crate) mod session_call;

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bowline_core::call::{CallReply, CallRequest, CallSubject};
use bowline_core::error::{CallError, ExecutionStatus};
use bowline_core::time::MonotonicTime;
use bytes::Bytes;
use http::StatusCode;
use tokio::sync::oneshot::error::RecvError;

use super::Edge;
use super::call_errors::TooManyRequests;
use super::client_session::CancelReason;
use super::event_stream::{EventBody, EventSource};
use super::mcp::outbox_resource;
use super::response_body::{self, EdgeResponse};

/// A response above this duration becomes an event stream, which keeps the connection alive.
const STREAM_AFTER: Duration = Duration::from_secs(5);

/// Outcome of a call on the host.
pub(crate) type CallResult = Result<CallReply, CallError>;

/// A started call. The future owns its inputs, so that a task can run it.
type CallFuture = Pin<Box<dyn Future<Output = CallResult> + Send>>;

/// A started call that ends with the response in the era of its client.
pub(crate) type ResponseFuture = Pin<Box<dyn Future<Output = CallResponse> + Send>>;

/// A JSON-RPC response, with the HTTP status for the case that no events precede the response.
#[derive(Clone, Debug)]
pub(crate) struct CallResponse {
    /// Complete JSON-RPC response.
    pub(crate) text: Bytes,
    status: StatusCode,
    retry_after_s: Option<u64>,
}

impl CallResponse {
    /// Creates a response with an HTTP status.
    pub(crate) const fn new(status: StatusCode, text: Bytes) -> Self {
        Self {
            text,
            status,
            retry_after_s: None,
        }
    }

    /// Replaces the status by 429 if a rate, budget or share limit refused the call.
    pub(crate) fn limited_by(mut self, error: &CallError) -> Self {
        if let Some(limit) = TooManyRequests::from_error(error) {
            self.status = StatusCode::TOO_MANY_REQUESTS;
            self.retry_after_s = limit.retry_after_seconds();
        }
        self
    }

    /// Returns the JSON response.
    pub(crate) fn into_http(self) -> EdgeResponse {
        response_body::retry_response(self.status, self.text, self.retry_after_s)
    }
}

impl From<Bytes> for CallResponse {
    fn from(text: Bytes) -> Self {
        Self::new(StatusCode::OK, text)
    }
}

/// Events of one response: notifications and server requests that wait for the client, then the
/// response itself.
pub(crate) trait CallStream: EventSource {
    /// Opens the stream of past and future events.
    fn open_stream(self: Arc<Self>) -> EventBody;

    /// Appends the response and ends the stream.
    fn finish(&self, response: Bytes, now: MonotonicTime);
}

/// Runs a call on the host until its outcome or its cancellation.
pub(crate) async fn run_call(
    edge: &Edge,
    call: &CallRequest,
    cancelled: impl Future<Output = Result<CancelReason, RecvError>> + Send,
) -> CallResult {
    if let CallSubject::Resource(uri) = &call.subject
        && outbox_resource::is_outbox_uri(uri)
    {
        return Box::pin(outbox_resource::read_outbox(edge, call, uri)).await;
    }
    tokio::select! {
        biased;
        outcome = edge.host.call(call) => outcome,
        Ok(why) = cancelled => Err(why.into_error(ExecutionStatus::Unknown)),
    }
}

/// Responds with JSON if the response is the first event, otherwise with an event stream. `stream`
/// is absent for a client that does not accept SSE.
pub(crate) async fn respond(
    edge: &Edge,
    mut responding: ResponseFuture,
    stream: Option<Arc<dyn CallStream>>,
) -> EdgeResponse {
    let Some(stream) = stream else {
        return responding.await.into_http();
    };
    // No timer here: the connection task polls in-flight requests periodically.
    let clock = edge.host.clock();
    let until = clock.now().plus(STREAM_AFTER);
    let response = poll_fn(|cx| {
        if let Poll::Ready(response) = responding.as_mut().poll(cx) {
            return Poll::Ready(Some(response));
        }
        if stream.buffer().poll_ready(cx).is_ready() || clock.now() >= until {
            return Poll::Ready(None);
        }
        Poll::Pending
    })
    .await;
    if let Some(response) = response {
        if stream.buffer().is_empty() {
            return response.into_http();
        }
        // Notifications queued before the response are sent first.
        let events = Arc::clone(&stream).open_stream();
        stream.finish(response.text, clock.now());
        return response_body::event_response(events);
    }
    let events = Arc::clone(&stream).open_stream();
    let clock = Arc::clone(clock);
    edge.host.tasks().spawn("call stream", async move {
        let response = responding.await;
        stream.finish(response.text, clock.now());
    });
    response_body::event_response(events)
}
