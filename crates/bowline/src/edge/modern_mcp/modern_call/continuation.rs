//! Parses a continued request: `inputResponses` and the sealed `requestState`.

use bowline_core::error::{CallError, ExecutionStatus};
use bowline_wire::object;
use bowline_wire::splice::{replace_span, write_string};
use bytes::Bytes;

use super::ModernResponder;
use crate::edge::mcp::mcp_call::CallKind;
use crate::edge::modern_mcp::request_state::{self, ParkedRound, RequestState, RequestStateError};

/// Kind of continuation.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Continuation {
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
pub(super) fn parse_continuation(responder: &ModernResponder) -> Result<Continuation, CallError> {
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
pub(super) enum ContinuationError {
    InvalidResponses,
    State(RequestStateError),
    AlreadyUsed,
}

/// Converts to a call error with the execution status of the original call.
pub(super) const fn to_call_error(error: ContinuationError) -> CallError {
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
