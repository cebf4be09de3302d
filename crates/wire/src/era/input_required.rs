//! Input requests as results (`input_required`): requests, responses and continuation state.

use std::borrow::Cow;

use crate::mcp::{code, method};
use crate::object::{self, is_object};
use crate::object_editor::{MemberList, ObjectEditor};
use crate::splice::{ByteSpan, to_literal};

/// Input requests per result.
pub const QUESTIONS_MAX: usize = 64;

/// Member names of a continuation: responses and state.
const INPUT_RESPONSES: &str = "inputResponses";
const REQUEST_STATE: &str = "requestState";

/// Why an `input_required` result is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InputError {
    /// Neither requests nor state.
    #[error("the result asks for nothing and has no state")]
    Empty,
    /// `inputRequests` is invalid.
    #[error("inputRequests is not an object of requests with a method")]
    Requests,
    /// More than [`QUESTIONS_MAX`].
    #[error("the result asks more than {QUESTIONS_MAX} questions at once")]
    TooMany,
    /// `requestState` is not a string.
    #[error("requestState is not a string")]
    State,
}

/// One input request of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedInputRequest<'a> {
    /// The key of the expected response.
    pub key: Cow<'a, str>,
    /// The method of the corresponding request.
    pub method: Cow<'a, str>,
    /// The parameters, as a span of the parsed text.
    pub params: Option<ByteSpan>,
    /// The whole request, as a span of the parsed text.
    pub at: ByteSpan,
}

/// Content of an `input_required` result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InputRequired<'a> {
    /// The requests, in order.
    pub requests: Vec<ParsedInputRequest<'a>>,
    /// The state, including quotes.
    pub state: Option<ByteSpan>,
}

impl<'a> InputRequired<'a> {
    /// Parses a result.
    ///
    /// # Errors
    /// The result violates the specification.
    pub fn parse(result: &'a [u8]) -> Result<Self, InputError> {
        let mut required = Self::default();
        let mut requests = None;
        for (key, value) in object::fields(result) {
            match &*key {
                "inputRequests" => requests = Some(value),
                REQUEST_STATE => required.state = Some(value),
                _ => {}
            }
        }
        if let Some(state) = required.state
            && object::parse_string(state.slice(result)).is_none()
        {
            return Err(InputError::State);
        }
        match requests {
            Some(at) => required.requests = parse_input_requests(result, at)?,
            None if required.state.is_none() => return Err(InputError::Empty),
            None => {}
        }
        Ok(required)
    }
}

/// Parses the input requests of a result or a task at `at` of a text.
///
/// # Errors
/// The requests are invalid or too many.
pub fn parse_input_requests(
    text: &[u8],
    at: ByteSpan,
) -> Result<Vec<ParsedInputRequest<'_>>, InputError> {
    if !is_object(at.slice(text)) {
        return Err(InputError::Requests);
    }
    let mut requests = Vec::new();
    for (key, value) in object::fields(at.slice(text)) {
        if requests.len() == QUESTIONS_MAX {
            return Err(InputError::TooMany);
        }
        let value = value.shift(at.start);
        let request = value.slice(text);
        let method = object::text_field(request, "method").ok_or(InputError::Requests)?;
        let params = object::field(request, "params").map(|at| at.shift(value.start));
        requests.push(ParsedInputRequest {
            key,
            method,
            params,
            at: value,
        });
    }
    Ok(requests)
}

/// An input request to write.
#[derive(Clone, Copy, Debug)]
pub struct InputRequest<'a> {
    /// The key of the expected response.
    pub key: &'a str,
    /// The method of the corresponding request.
    pub method: &'a str,
    /// The parameters.
    pub params: Option<&'a [u8]>,
}

/// Writes an `input_required` result.
#[must_use]
pub fn write_input_required(requests: &[InputRequest<'_>], state: Option<&str>) -> Vec<u8> {
    let mut members = MemberList::from_member("resultType", b"\"input_required\"");
    if !requests.is_empty() || state.is_none() {
        members.push("inputRequests", &write_input_requests(requests));
    }
    if let Some(state) = state {
        members.push_text(REQUEST_STATE, state);
    }
    members.into_object()
}

/// Writes input requests as an object, for a result or a task.
#[must_use]
pub fn write_input_requests(requests: &[InputRequest<'_>]) -> Vec<u8> {
    let mut all = MemberList::default();
    for input_request in requests {
        let mut request = MemberList::default();
        request.push_text("method", input_request.method);
        if let Some(params) = input_request.params {
            request.push("params", params);
        }
        all.push(input_request.key, &request.into_object());
    }
    all.into_object()
}

/// Members of a continued request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContinuationParams<'a> {
    /// The responses by key, if any. Spans refer to the parameters.
    pub responses: Vec<(Cow<'a, str>, ByteSpan)>,
    /// The span of all responses.
    pub responses_at: Option<ByteSpan>,
    /// The state, including quotes.
    pub state: Option<ByteSpan>,
}

impl<'a> ContinuationParams<'a> {
    /// Parses parameters.
    #[must_use]
    pub fn parse(params: &'a [u8]) -> Self {
        let mut round = Self::default();
        for (key, value) in object::fields(params) {
            match &*key {
                INPUT_RESPONSES => round.responses_at = Some(value),
                REQUEST_STATE => round.state = Some(value),
                _ => {}
            }
        }
        if let Some(at) = round.responses_at {
            let fields = object::fields(at.slice(params));
            round.responses = fields
                .map(|(key, value)| (key, value.shift(at.start)))
                .collect();
        }
        round
    }

    /// Whether the request continues an `input_required` result.
    #[must_use]
    pub const fn is_continuation(&self) -> bool {
        self.responses_at.is_some() || self.state.is_some()
    }
}

/// Returns parameters without continuation members.
#[must_use]
pub fn strip_continuation(params: &[u8]) -> Cow<'_, [u8]> {
    let mut editor = ObjectEditor::new(params);
    editor.retain(editor.whole(), |key, _| {
        key != INPUT_RESPONSES.as_bytes() && key != REQUEST_STATE.as_bytes()
    });
    editor.finish_cow()
}

/// Returns continuation members, to precede the parameters
/// ([`add_meta`](super::request_meta::add_meta)): `state` is a JSON string as written by the
/// server.
#[must_use]
pub fn write_continuation<'a>(
    answers: impl IntoIterator<Item = (&'a str, &'a [u8])>,
    state: Option<&[u8]>,
) -> MemberList {
    let mut all = MemberList::default();
    for (key, answer) in answers {
        all.push(key, answer);
    }
    let mut members = MemberList::from_member(INPUT_RESPONSES, &all.into_object());
    if let Some(state) = state {
        members.push(REQUEST_STATE, state);
    }
    members
}

/// Translates the parameters of an input request to legacy, adding the id required for URL
/// elicitation.
#[must_use]
pub fn request_to_legacy<'a>(method: &str, params: &'a [u8], id: &str) -> Cow<'a, [u8]> {
    let named = || object::field(params, "elicitationId").is_some();
    if method != method::ELICITATION_CREATE || !is_url_mode(params) || named() {
        return Cow::Borrowed(params);
    }
    let mut editor = ObjectEditor::new(params);
    editor.set_first(editor.whole(), &["elicitationId"], to_literal(id));
    editor.finish_cow()
}

/// Translates the parameters of a legacy server request to modern: without the elicitation id of a
/// URL, and without a task request.
#[must_use]
pub fn request_to_modern<'a>(method: &str, params: &'a [u8]) -> Cow<'a, [u8]> {
    let address = method == method::ELICITATION_CREATE && is_url_mode(params);
    let mut editor = ObjectEditor::new(params);
    editor.retain(editor.whole(), |key, _| match key {
        b"task" => false,
        b"elicitationId" => !address,
        _ => true,
    });
    editor.finish_cow()
}

/// Returns the parameters of each URL elicitation in a legacy error, as modern input requests;
/// `None` for different errors.
#[must_use]
pub fn url_elicitations(error: &[u8]) -> Option<Vec<Vec<u8>>> {
    if super::error_translation::error_code(error) != Some(code::URL_ELICITATION_REQUIRED) {
        return None;
    }
    let data = object::field(error, "data")?.slice(error);
    let all = object::field(data, "elicitations")?.slice(data);
    let mut addresses = Vec::new();
    for at in object::items(all).take(QUESTIONS_MAX) {
        let params = at.slice(all);
        if !is_url_mode(params) {
            return None;
        }
        let request = request_to_modern(method::ELICITATION_CREATE, params);
        addresses.push(request.into_owned());
    }
    (!addresses.is_empty()).then_some(addresses)
}

fn is_url_mode(params: &[u8]) -> bool {
    object::text_field(params, "mode").as_deref() == Some("url")
}

#[cfg(test)]
mod tests;
