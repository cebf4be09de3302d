//! Rounds of a stateless call: each request ends with the response, or with requests for input.
//! Then the call is parked until the client sends the call again with its answers and the sealed
//! state. Sessions never take this step.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bowline_core::error::{CallError, ExecutionStatus};
use bowline_core::sync::lock;
use bowline_wire::era::input_required::{self, InputRequest};
use bowline_wire::object;
use bowline_wire::splice::{replace_span, write_string};
use bytes::Bytes;

use super::call_params::{CallKind, CallParams};
use super::modern_call::{self, OpenRound};
use super::modern_call_handle::{ModernCallHandle, RoundEvent};
use super::modern_response::ModernResponder;
use super::parked_calls::ResumeError;
use super::request_state::{self, ParkedRound, RequestState, RequestStateError};
use super::{CallFuture, CallResponse};
use crate::modern_mcp::ModernRequest;

/// Delay after the first server request, to gather requests sent together.
const GATHER_DELAY: Duration = Duration::from_millis(5);

/// Cancels the call on drop, unless the client got a response: leaving early means cancellation.
struct CancelOnDrop<'a> {
    responder: &'a ModernResponder,
    handle: &'a ModernCallHandle,
    is_answered: bool,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.handle.cancel();
            forget_parked(self.responder, self.handle);
        }
    }
}

/// Removes a finished call from the parked calls.
fn forget_parked(responder: &ModernResponder, call_handle: &ModernCallHandle) {
    if let Some(handle) = call_handle.parked_handle() {
        lock(&responder.edge.modern_calls.parked).remove(handle);
    }
}

/// Runs the first round: within its request until the server requests input, from then on in a
/// task, because the call outlives the request.
pub(super) async fn first_round(
    responder: Arc<ModernResponder>,
    handle: Arc<ModernCallHandle>,
    mut running: CallFuture,
) -> CallResponse {
    let outcome = poll_fn(|cx| {
        if let Poll::Ready(outcome) = running.as_mut().poll(cx) {
            return Poll::Ready(Some(outcome));
        }
        handle.poll_open_request(cx).map(|()| None)
    })
    .await;
    if let Some(outcome) = outcome {
        return responder.outcome_response(&handle, outcome);
    }
    let call = Arc::clone(&handle);
    responder.edge.host.tasks().spawn("call", async move {
        let outcome = running.await;
        call.finish(outcome);
    });
    finish_round(responder, handle).await
}

/// Continues a parked call with the input of a request.
pub(super) fn resume_call(
    request: &ModernRequest<'_>,
    responder: ModernResponder,
    call_params: &CallParams,
    ticket: ParkedRound,
) -> Result<OpenRound, CallResponse> {
    let now = responder.edge.host.clock().now();
    let parked = &responder.edge.modern_calls.parked;
    let resumed = lock(parked).resume(ticket.handle, ticket.round, now);
    let handle = resumed.map_err(|error| {
        let error = match error {
            ResumeError::Finished | ResumeError::AlreadyUsed => ContinuationError::AlreadyUsed,
            ResumeError::Expired => ContinuationError::State(RequestStateError::Expired),
        };
        responder.call_error(&to_call_error(error))
    })?;
    let options = modern_call::round_options(request, &responder.params, call_params);
    let round = handle.begin_round(options);
    if let Some(answers) = object::field(&responder.params, "inputResponses") {
        let answers = answers.slice(&responder.params);
        for (key, at) in object::fields(answers) {
            handle.answer_request(&key, at.slice(answers));
        }
    }
    Ok(OpenRound {
        stream: modern_call::accepted_stream(&responder, round),
        responding: Box::pin(finish_round(Arc::new(responder), handle)),
    })
}

/// Waits for the end of a round, while the call runs in a task: the outcome, or server requests
/// that park the call.
async fn finish_round(
    responder: Arc<ModernResponder>,
    handle: Arc<ModernCallHandle>,
) -> CallResponse {
    let mut cancel_guard = CancelOnDrop {
        responder: &responder,
        handle: &handle,
        is_answered: false,
    };
    let response = wait_decision(&responder, &handle).await;
    cancel_guard.is_answered = true;
    response
}

async fn wait_decision(
    responder: &ModernResponder,
    handle: &Arc<ModernCallHandle>,
) -> CallResponse {
    loop {
        if let RoundEvent::Finished(outcome) = poll_fn(|cx| handle.poll_event(cx)).await {
            forget_parked(responder, handle);
            return responder.outcome_response(handle, outcome);
        }
        // Gives the server time to send further requests.
        tokio::time::sleep(GATHER_DELAY).await;
        if !handle.has_open_requests() {
            continue;
        }
        if let Some(result) = park_call(responder, handle) {
            handle.mark_away();
            return responder.result_response(&result);
        }
        // The call cannot be parked, so the requests are refused.
        handle.refuse_open();
    }
}

/// Parks a call and writes its `input_required` result; `None` if the call cannot be parked or no
/// request is pending any more.
pub(crate) fn park_call(
    responder: &ModernResponder,
    call_handle: &Arc<ModernCallHandle>,
) -> Option<Vec<u8>> {
    let edge = &responder.edge;
    let now = edge.host.clock().now();
    let (handle, round) = {
        let mut parked = lock(&edge.modern_calls.parked);
        match call_handle.parked_handle() {
            Some(handle) => (handle, parked.park_again(handle, now)?),
            None => {
                let own = &responder.principal.name;
                parked.park(own, Arc::clone(call_handle), now).ok()?
            }
        }
    };
    call_handle.set_parked_handle(handle);
    let digest = responder.request_digest();
    let ticket = RequestState::Parked(ParkedRound {
        boot_id: edge.modern_calls.boot_id,
        handle,
        round,
    });
    let now_ms = edge.host.clock().unix_ms();
    let sealed = request_state::seal_state(
        edge.sessions.seal(),
        responder.state_binding(&digest),
        now_ms,
        &ticket,
    );
    let written = sealed.and_then(|sealed| write_input_required(call_handle, &sealed));
    if written.is_none() {
        lock(&edge.modern_calls.parked).unpark(handle);
    }
    written
}

/// Writes the pending requests; `None` if none.
fn write_input_required(handle: &ModernCallHandle, state: &str) -> Option<Vec<u8>> {
    let open = open_requests(handle);
    let requests: Vec<_> = open
        .iter()
        .map(OwnedInputRequest::as_input_request)
        .collect();
    (!requests.is_empty()).then(|| input_required::write_input_required(&requests, Some(state)))
}

/// A pending server request in modern form.
#[derive(Debug)]
pub(crate) struct OwnedInputRequest {
    key: String,
    method: String,
    params: Option<Vec<u8>>,
}

impl OwnedInputRequest {
    /// Returns a borrowed view for writing.
    pub(crate) fn as_input_request(&self) -> InputRequest<'_> {
        InputRequest {
            key: &self.key,
            method: &self.method,
            params: self.params.as_deref(),
        }
    }
}

/// Returns the pending server requests.
pub(crate) fn open_requests(handle: &ModernCallHandle) -> Vec<OwnedInputRequest> {
    let mut open = Vec::new();
    handle.for_each_open(|key, request| {
        let method = object::text_field(request, "method").unwrap_or_default();
        let params = object::field(request, "params").map(|at| at.slice(request));
        let params =
            params.map(|params| input_required::request_to_modern(&method, params).into_owned());
        open.push(OwnedInputRequest {
            key: key.to_owned(),
            method: method.into_owned(),
            params,
        });
    });
    open
}

/// What a request continues: `inputResponses` and the sealed `requestState` tell.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Continuation {
    /// None: the request starts a call.
    FirstRequest,
    /// Responses for a server without `requestState`.
    Responses,
    /// Parameters with the server's own `requestState` restored.
    ServerState(Bytes),
    /// Responses for a parked call.
    Parked(ParkedRound),
}

/// Parses the continuation, or returns the error; on error nothing was started.
pub(crate) fn parse_continuation(responder: &ModernResponder) -> Result<Continuation, CallError> {
    if !matches!(
        responder.kind,
        CallKind::Tool | CallKind::Prompt | CallKind::Resource
    ) {
        return Ok(Continuation::FirstRequest);
    }
    let (mut answers, mut state) = (None, None);
    for (key, at) in object::fields(&responder.params) {
        match key.as_ref() {
            "inputResponses" => answers = Some(at),
            "requestState" => state = Some(at),
            _ => {}
        }
    }
    if let Some(at) = answers
        && !is_object_of_objects(at.slice(&responder.params))
    {
        return Err(to_call_error(ContinuationError::InvalidResponses));
    }
    let Some(at) = state else {
        let continuation = answers.map_or(Continuation::FirstRequest, |_| Continuation::Responses);
        return Ok(continuation);
    };
    let text = object::parse_string(at.slice(&responder.params));
    let text =
        text.ok_or_else(|| to_call_error(ContinuationError::State(RequestStateError::Forged)))?;
    let edge = &responder.edge;
    let now_ms = edge.host.clock().unix_ms();
    let digest = responder.request_digest();
    let opened = request_state::open_state(
        edge.sessions.seal(),
        responder.state_binding(&digest),
        now_ms,
        &text,
    );
    match opened.map_err(|error| to_call_error(ContinuationError::State(error)))? {
        RequestState::ServerState(inner) => {
            let mut literal = Vec::new();
            write_string(&mut literal, &inner);
            Ok(Continuation::ServerState(
                replace_span(&responder.params, at, &literal).into(),
            ))
        }
        RequestState::Parked(ticket) if ticket.boot_id != edge.modern_calls.boot_id => {
            Err(CallError::InputLost)
        }
        RequestState::Parked(ticket) => Ok(Continuation::Parked(ticket)),
    }
}

/// Returns whether a value is an object of objects.
fn is_object_of_objects(value: &[u8]) -> bool {
    let is_object = |value: &[u8]| value.trim_ascii_start().starts_with(b"{");
    is_object(value) && object::fields(value).all(|(_, at)| is_object(at.slice(value)))
}

/// Reason for refusing a continuation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContinuationError {
    InvalidResponses,
    State(RequestStateError),
    AlreadyUsed,
}

/// Converts to a call error with the execution status of the original call.
pub(crate) const fn to_call_error(error: ContinuationError) -> CallError {
    let (reason, execution) = match error {
        ContinuationError::InvalidResponses => (
            "inputResponses is an object with an object for each question",
            ExecutionStatus::NotStarted,
        ),
        ContinuationError::State(RequestStateError::Forged) => (
            "this gateway did not write it, or not so",
            ExecutionStatus::NotStarted,
        ),
        ContinuationError::State(RequestStateError::WrongCaller) => (
            "it was given to another caller or at another endpoint",
            ExecutionStatus::NotStarted,
        ),
        ContinuationError::State(RequestStateError::WrongRequest) => (
            "it was given for another request",
            ExecutionStatus::NotStarted,
        ),
        ContinuationError::State(RequestStateError::Expired) => {
            ("it is too old", ExecutionStatus::Unknown)
        }
        ContinuationError::AlreadyUsed => ("it was used before", ExecutionStatus::Unknown),
    };
    CallError::InputRefused { reason, execution }
}
