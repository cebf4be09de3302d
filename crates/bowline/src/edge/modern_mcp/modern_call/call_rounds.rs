//! Rounds of a call: each ends with the response, or with requests for input.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bowline_core::sync::lock;
use bowline_wire::object;

use super::continuation::{ContinuationError, to_call_error};
use super::modern_response::ModernResponse;
use super::{ModernRequest, ModernResponder, input_required, round_options};
use crate::edge::event_stream::EventSource as _;
use crate::edge::mcp::mcp_call::parse_params;
use crate::edge::modern_mcp::modern_call_handle::{
    CallResult, CallRound, ModernCallHandle, RoundEvent,
};
use crate::edge::modern_mcp::parked_calls::ResumeError;
use crate::edge::modern_mcp::request_state::{ParkedRound, RequestStateError};
use crate::edge::response_body::{self, EdgeResponse};

/// A round above this duration switches to an event stream, which keeps the connection alive.
const STREAM_AFTER: Duration = Duration::from_secs(5);

/// Delay after the first server request, to gather requests sent together.
const GATHER_DELAY: Duration = Duration::from_millis(5);

/// A call in flight that owns its inputs, so that a task can run it.
pub(super) type ModernCallFuture = Pin<Box<dyn Future<Output = CallResult> + Send>>;

/// Cancels the call on drop, unless the client got a response: leaving early means cancellation.
struct CancelOnDrop<'a> {
    told: &'a ModernResponder,
    end: &'a Arc<ModernCallHandle>,
    is_answered: bool,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.end.cancel();
            forget_parked(self.told, self.end);
        }
    }
}

/// Removes a finished call from the parked calls.
fn forget_parked(responder: &ModernResponder, call_handle: &ModernCallHandle) {
    if let Some(handle) = call_handle.parked_handle() {
        lock(&responder.edge.modern_calls.parked).remove(handle);
    }
}

/// Runs the first round of a call.
pub(super) async fn run_first_round(
    responder: ModernResponder,
    handle: Arc<ModernCallHandle>,
    round: Arc<CallRound>,
    mut running: ModernCallFuture,
) -> EdgeResponse {
    // No timer here: the connection task polls in-flight requests periodically.
    let clock = responder.edge.host.clock();
    let until = clock.now().plus(STREAM_AFTER);
    let first_event = poll_fn(|cx| {
        if let Poll::Ready(outcome) = running.as_mut().poll(cx) {
            return Poll::Ready(FirstEvent::Finished(outcome));
        }
        if handle.poll_open_request(cx).is_ready() {
            return Poll::Ready(FirstEvent::InputRequested);
        }
        let has_event = round.buffer().poll_ready(cx).is_ready();
        if responder.accepts_streams && (has_event || clock.now() >= until) {
            return Poll::Ready(FirstEvent::StreamNeeded);
        }
        Poll::Pending
    })
    .await;
    let streams = match first_event {
        FirstEvent::Finished(outcome) => {
            let response = responder.outcome_response(&handle, outcome);
            return deliver_response(&responder, &round, response);
        }
        FirstEvent::InputRequested => false,
        FirstEvent::StreamNeeded => true,
    };
    // From here on the call outlives the request.
    let call = Arc::clone(&handle);
    responder.edge.host.tasks().spawn("call", async move {
        let outcome = running.await;
        call.finish(outcome);
    });
    Box::pin(finish_round(Arc::new(responder), handle, round, streams)).await
}

/// First event of a call.
enum FirstEvent {
    /// The call finished.
    Finished(CallResult),
    /// The server requests input.
    InputRequested,
    /// The server sent a notification, or the call takes long.
    StreamNeeded,
}

/// Handles a continued request for a parked call.
pub(super) async fn resume_call(
    request: &ModernRequest<'_>,
    responder: ModernResponder,
    ticket: ParkedRound,
) -> EdgeResponse {
    let Some(call_params) = parse_params(&responder.params, responder.kind) else {
        return responder.invalid_params_http(responder.kind.missing_target_text());
    };
    let now = responder.edge.host.clock().now();
    let resumed =
        lock(&responder.edge.modern_calls.parked).resume(ticket.handle, ticket.round, now);
    let end = match resumed {
        Ok(end) => end,
        Err(ResumeError::Finished | ResumeError::AlreadyUsed) => {
            return responder.call_error_http(&to_call_error(ContinuationError::AlreadyUsed));
        }
        Err(ResumeError::Expired) => {
            return responder.call_error_http(&to_call_error(ContinuationError::State(
                RequestStateError::Expired,
            )));
        }
    };
    let round = end.begin_round(round_options(request, &responder.params, &call_params));
    if let Some(answers) = object::field(&responder.params, "inputResponses") {
        let answers = answers.slice(&responder.params);
        for (key, at) in object::fields(answers) {
            end.answer_request(&key, at.slice(answers));
        }
    }
    finish_round(Arc::new(responder), end, round, false).await
}

/// Runs the rest of a round, while the call runs in a task.
async fn finish_round(
    responder: Arc<ModernResponder>,
    handle: Arc<ModernCallHandle>,
    round: Arc<CallRound>,
    streams: bool,
) -> EdgeResponse {
    let mut deciding = Box::pin(wait_decision(Arc::clone(&responder), Arc::clone(&handle)));
    if !streams {
        let mut cancel_guard = CancelOnDrop {
            told: &responder,
            end: &handle,
            is_answered: false,
        };
        let clock = responder.edge.host.clock();
        let until = clock.now().plus(STREAM_AFTER);
        let response = poll_fn(|cx| {
            if let Poll::Ready(response) = deciding.as_mut().poll(cx) {
                return Poll::Ready(Some(response));
            }
            let has_event = round.buffer().poll_ready(cx).is_ready();
            if responder.accepts_streams && (has_event || clock.now() >= until) {
                return Poll::Ready(None);
            }
            Poll::Pending
        })
        .await;
        cancel_guard.is_answered = true;
        if let Some(response) = response {
            return deliver_response(&responder, &round, response);
        }
    }
    let events = round.open_stream();
    responder
        .edge
        .host
        .tasks()
        .spawn("call stream", async move {
            let response = deciding.await;
            round.buffer().finish(response.response);
        });
    response_body::event_response(events)
}

/// Waits for the end of a round: the outcome, or server requests that park the call.
async fn wait_decision(
    responder: Arc<ModernResponder>,
    handle: Arc<ModernCallHandle>,
) -> ModernResponse {
    loop {
        if let RoundEvent::Finished(outcome) = poll_fn(|cx| handle.poll_event(cx)).await {
            forget_parked(&responder, &handle);
            return responder.outcome_response(&handle, outcome);
        }
        // Gives the server time to send further requests.
        tokio::time::sleep(GATHER_DELAY).await;
        if !handle.has_open_requests() {
            continue;
        }
        if let Some(result) = input_required::park_call(&responder, &handle) {
            handle.mark_away();
            return responder.result_response(&result);
        }
        // The call cannot be parked, so the requests are refused.
        handle.refuse_open();
    }
}

/// Responds with JSON, or with an event stream if notifications were sent before.
fn deliver_response(
    responder: &ModernResponder,
    round: &Arc<CallRound>,
    response: ModernResponse,
) -> EdgeResponse {
    if !responder.accepts_streams || round.buffer().is_empty() {
        return response.into_http();
    }
    let events = round.open_stream();
    round.buffer().finish(response.response);
    response_body::event_response(events)
}
