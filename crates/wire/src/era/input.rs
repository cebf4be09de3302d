//! Questions as results: what a server asks, what a client answers, and the words around them.

use std::borrow::Cow;

use super::change::{Change, Fate, applied, is_object, literal, push_member, rewrite, whole};
use crate::mcp::{code, method};
use crate::object;
use crate::span::Span;

/// How many questions one result may ask.
pub const QUESTIONS_MAX: usize = 64;

/// The answers and the state in the parameters of a further round, by name.
const ANSWERS: &str = "inputResponses";
const STATE: &str = "requestState";

/// Why a result that asks for something cannot be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadInput {
    /// It has neither questions nor a state.
    #[error("the result asks for nothing and has no state")]
    Empty,
    /// What should be the questions is something else.
    #[error("inputRequests is not an object of requests with a method")]
    Requests,
    /// There are more than [`QUESTIONS_MAX`].
    #[error("the result asks more than {QUESTIONS_MAX} questions at once")]
    TooMany,
    /// The state is not a text.
    #[error("requestState is not a string")]
    State,
}

/// One question of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked<'a> {
    /// The name under which its answer is expected.
    pub key: Cow<'a, str>,
    /// The method it would be as a request.
    pub method: Cow<'a, str>,
    /// Its parameters, in the text that was read.
    pub params: Option<Span>,
    /// The whole of it, in the text that was read.
    pub at: Span,
}

/// What a result of the kind `input_required` says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Required<'a> {
    /// The questions, in the order written.
    pub asked: Vec<Asked<'a>>,
    /// Where the state stands, quotes included.
    pub state: Option<Span>,
}

impl<'a> Required<'a> {
    /// Reads a result.
    ///
    /// # Errors
    /// It is not what the specification says that it must be.
    pub fn read(result: &'a [u8]) -> Result<Self, BadInput> {
        let mut required = Self::default();
        let mut requests = None;
        for (key, value) in object::fields(result) {
            match &*key {
                "inputRequests" => requests = Some(value),
                STATE => required.state = Some(value),
                _ => {}
            }
        }
        if let Some(state) = required.state
            && object::string(state.of(result)).is_none()
        {
            return Err(BadInput::State);
        }
        match requests {
            Some(at) => required.asked = asked(result, at)?,
            None if required.state.is_none() => return Err(BadInput::Empty),
            None => {}
        }
        Ok(required)
    }
}

/// Reads the questions of a result or of a task, which stand at `at` of a text.
///
/// # Errors
/// They are no questions, or too many.
pub fn asked(text: &[u8], at: Span) -> Result<Vec<Asked<'_>>, BadInput> {
    if !is_object(at.of(text)) {
        return Err(BadInput::Requests);
    }
    let mut asked = Vec::new();
    for (key, value) in object::fields(at.of(text)) {
        if asked.len() == QUESTIONS_MAX {
            return Err(BadInput::TooMany);
        }
        let value = value.shift(at.start);
        let request = value.of(text);
        let method = object::text(request, "method").ok_or(BadInput::Requests)?;
        let params = object::field(request, "params").map(|at| at.shift(value.start));
        asked.push(Asked {
            key,
            method,
            params,
            at: value,
        });
    }
    Ok(asked)
}

/// A question to write.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The name under which its answer is expected.
    pub key: &'a str,
    /// The method it would be as a request.
    pub method: &'a str,
    /// Its parameters.
    pub params: Option<&'a [u8]>,
}

/// Writes a result that asks.
#[must_use]
pub fn required(questions: &[Ask<'_>], state: Option<&str>) -> Vec<u8> {
    let mut members = Vec::new();
    push_member(&mut members, "resultType", b"\"input_required\"");
    if !questions.is_empty() || state.is_none() {
        push_member(&mut members, "inputRequests", &requests(questions));
    }
    if let Some(state) = state {
        push_member(&mut members, STATE, &literal(state));
    }
    [b"{", &*members, b"}"].concat()
}

/// Writes questions as an object, for a result or for a task.
#[must_use]
pub fn requests(questions: &[Ask<'_>]) -> Vec<u8> {
    let mut all = Vec::new();
    for question in questions {
        let mut request = Vec::new();
        push_member(&mut request, "method", &literal(question.method));
        if let Some(params) = question.params {
            push_member(&mut request, "params", params);
        }
        push_member(&mut all, question.key, &[b"{", &*request, b"}"].concat());
    }
    [b"{", &*all, b"}"].concat()
}

/// What the parameters of a request say that only a further round says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Round<'a> {
    /// The answers by the names of their questions, where there are any. Places are those in the
    /// parameters.
    pub answers: Vec<(Cow<'a, str>, Span)>,
    /// Where all the answers stand.
    pub answers_at: Option<Span>,
    /// Where the state stands, quotes included.
    pub state: Option<Span>,
}

impl<'a> Round<'a> {
    /// Reads parameters.
    #[must_use]
    pub fn read(params: &'a [u8]) -> Self {
        let mut round = Self::default();
        for (key, value) in object::fields(params) {
            match &*key {
                ANSWERS => round.answers_at = Some(value),
                STATE => round.state = Some(value),
                _ => {}
            }
        }
        if let Some(at) = round.answers_at {
            let fields = object::fields(at.of(params));
            round.answers = fields
                .map(|(key, value)| (key, value.shift(at.start)))
                .collect();
        }
        round
    }

    /// Whether the request goes on with one that was answered with a question.
    #[must_use]
    pub const fn is_further(&self) -> bool {
        self.answers_at.is_some() || self.state.is_some()
    }
}

/// Returns parameters without what only a further round says.
#[must_use]
pub fn first_round(params: &[u8]) -> Cow<'_, [u8]> {
    let mut changes: Vec<Change> = Vec::new();
    let fate = |key: &[u8], _| match key == ANSWERS.as_bytes() || key == STATE.as_bytes() {
        true => Fate::Goes,
        false => Fate::Stays,
    };
    rewrite(params, whole(params), Vec::new(), fate, &mut changes);
    match changes.is_empty() {
        true => Cow::Borrowed(params),
        false => Cow::Owned(applied(params, &mut changes)),
    }
}

/// Writes the members of a further round, to be put in front of the parameters
/// ([`Stamp::front`](super::meta::Stamp::front)): `state` is a JSON string as its server wrote it.
#[must_use]
pub fn further_round<'a>(
    answers: impl IntoIterator<Item = (&'a str, &'a [u8])>,
    state: Option<&[u8]>,
) -> Vec<u8> {
    let mut all = Vec::new();
    for (key, answer) in answers {
        push_member(&mut all, key, answer);
    }
    let mut members = Vec::new();
    push_member(&mut members, ANSWERS, &[b"{", &*all, b"}"].concat());
    if let Some(state) = state {
        push_member(&mut members, STATE, state);
    }
    members
}

/// Returns the parameters of a question as a server of the legacy era would have written them.
/// There, an address to open has an id by which the end of it can be told.
#[must_use]
pub fn question_to_legacy<'a>(method: &str, params: &'a [u8], id: &str) -> Cow<'a, [u8]> {
    let named = || object::field(params, "elicitationId").is_some();
    if method != method::ELICITATION_CREATE || !is_url(params) || named() {
        return Cow::Borrowed(params);
    }
    let mut front = Vec::new();
    push_member(&mut front, "elicitationId", &literal(id));
    let mut changes = Vec::new();
    let all = whole(params);
    rewrite(params, all, front, |_, _| Fate::Stays, &mut changes);
    Cow::Owned(applied(params, &mut changes))
}

/// Returns the parameters of a legacy server's request as a question of the modern era: without
/// the id of an address, and without the wish that the answer be a task.
#[must_use]
pub fn question_to_modern<'a>(method: &str, params: &'a [u8]) -> Cow<'a, [u8]> {
    let address = method == method::ELICITATION_CREATE && is_url(params);
    let mut changes = Vec::new();
    let fate = |key: &[u8], _| match key {
        b"task" => Fate::Goes,
        b"elicitationId" if address => Fate::Goes,
        _ => Fate::Stays,
    };
    rewrite(params, whole(params), Vec::new(), fate, &mut changes);
    match changes.is_empty() {
        true => Cow::Borrowed(params),
        false => Cow::Owned(applied(params, &mut changes)),
    }
}

/// Returns the parameters of each address that a legacy server's error wants opened, as questions
/// of the modern era; nothing where the error is another.
#[must_use]
pub fn addresses(error: &[u8]) -> Option<Vec<Vec<u8>>> {
    if super::error::code_of(error) != Some(code::URL_ELICITATION_REQUIRED) {
        return None;
    }
    let data = object::field(error, "data")?.of(error);
    let all = object::field(data, "elicitations")?.of(data);
    let mut addresses = Vec::new();
    for at in object::items(all).take(QUESTIONS_MAX) {
        let params = at.of(all);
        if !is_url(params) {
            return None;
        }
        let question = question_to_modern(method::ELICITATION_CREATE, params);
        addresses.push(question.into_owned());
    }
    (!addresses.is_empty()).then_some(addresses)
}

fn is_url(params: &[u8]) -> bool {
    object::text(params, "mode").as_deref() == Some("url")
}

#[cfg(test)]
mod tests;
