//! What a request brings from an earlier one: answers, and the state that says to what.

use bowline_core::error::{CallError, Execution};
use bowline_wire::object;
use bowline_wire::splice::{replace, write_string};
use bytes::Bytes;

use super::Told;
use crate::edge::mcp::call::Ask;
use crate::edge::modern::state::{self, Refused, State, Ticket};

/// What a request brings.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Brought {
    /// Nothing: it begins something.
    Nothing,
    /// Answers for a server that keeps no state.
    Answers,
    /// The parameters as the server expects them, with what it wrote as their state.
    Carried(Bytes),
    /// Answers for a call that waits here.
    Parked(Ticket),
}

/// Reads what a request brings, or says why it is not taken; then nothing was done.
pub(super) fn read(told: &Told) -> Result<Brought, CallError> {
    if !matches!(told.ask, Ask::Tool | Ask::Prompt | Ask::Resource) {
        return Ok(Brought::Nothing);
    }
    let (mut answers, mut state) = (None, None);
    for (key, at) in object::fields(&told.params) {
        match key.as_ref() {
            "inputResponses" => answers = Some(at),
            "requestState" => state = Some(at),
            _ => {}
        }
    }
    if let Some(at) = answers
        && !are_answers(at.of(&told.params))
    {
        return Err(refused(Refusal::NoAnswers));
    }
    let Some(at) = state else {
        let brought = answers.map_or(Brought::Nothing, |_| Brought::Answers);
        return Ok(brought);
    };
    let text = object::string(at.of(&told.params));
    let text = text.ok_or_else(|| refused(Refusal::State(Refused::Forged)))?;
    let edge = &told.edge;
    let now_ms = edge.host.clock().unix_ms();
    let digest = told.digest();
    let opened = state::open(edge.sessions.sealing(), told.bound(&digest), now_ms, &text);
    match opened.map_err(|why| refused(Refusal::State(why)))? {
        State::Carried(inner) => {
            let mut literal = Vec::new();
            write_string(&mut literal, &inner);
            Ok(Brought::Carried(replace(&told.params, at, &literal).into()))
        }
        State::Parked(ticket) if ticket.boot != edge.calls.boot => Err(CallError::InputLost),
        State::Parked(ticket) => Ok(Brought::Parked(ticket)),
    }
}

/// Whether a value is an object of objects.
fn are_answers(value: &[u8]) -> bool {
    let is_object = |value: &[u8]| value.trim_ascii_start().starts_with(b"{");
    is_object(value) && object::fields(value).all(|(_, at)| is_object(at.of(value)))
}

/// Why what a request brings is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    NoAnswers,
    State(Refused),
    Used,
}

/// Says why, and what is known of the call that the state was given for.
pub(super) const fn refused(why: Refusal) -> CallError {
    let (reason, execution) = match why {
        Refusal::NoAnswers => (
            "inputResponses is an object with an object for each question",
            Execution::NotStarted,
        ),
        Refusal::State(Refused::Forged) => (
            "this gateway did not write it, or not so",
            Execution::NotStarted,
        ),
        Refusal::State(Refused::NotYours) => (
            "it was given to another caller or at another endpoint",
            Execution::NotStarted,
        ),
        Refusal::State(Refused::OtherRequest) => {
            ("it was given for another request", Execution::NotStarted)
        }
        Refusal::State(Refused::Expired) => ("it is too old", Execution::Unknown),
        Refusal::Used => ("it was used before", Execution::Unknown),
    };
    CallError::InputRefused { reason, execution }
}
