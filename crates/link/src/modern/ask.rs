//! Puts the questions that came in place of an answer to a caller, and collects what it says.

use std::borrow::Cow;
use std::sync::Arc;

use bowline_core::caller::{Ability, CallerEnd, Question, QuestionId};
use bowline_wire::jsonrpc::{write_notification, write_request};
use bowline_wire::mcp::method;
use bowline_wire::object::{field, fields, text};
use bowline_wire::splice::{Edited, replace, write_string};
use bowline_wire::{Message, Span};
use bytes::Bytes;
use tokio::sync::oneshot;

use crate::desk::{ability, marked, secret_wanted};
use crate::link::{LinkError, NoAnswer};

/// Questions that one answer may hold.
const QUESTIONS_MAX: usize = 16;

/// The `resultType` of a result that asks.
const INPUT_REQUIRED: &str = "input_required";

/// What a result asks in place of an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Input<'a> {
    /// The questions, an object; absent where there is only a state.
    requests: Option<&'a [u8]>,
    /// What is to be given back as it was written.
    pub(super) state: Option<&'a [u8]>,
}

impl<'a> Input<'a> {
    /// Reads a result; nothing where it asks nothing.
    pub(super) fn read(result: &'a [u8]) -> Option<Self> {
        if text(result, "resultType")? != INPUT_REQUIRED {
            return None;
        }
        Some(Self {
            requests: field(result, "inputRequests").map(|at| at.of(result)),
            state: field(result, "requestState").map(|at| at.of(result)),
        })
    }
}

/// Asks a caller everything, and returns the value of `inputResponses`; nothing where nothing was
/// asked. Dropped, it takes its questions back.
pub(super) async fn all(
    server: &str,
    caller: &Arc<dyn CallerEnd>,
    input: &Input<'_>,
    addresses: &mut Vec<String>,
) -> Result<Option<Vec<u8>>, LinkError> {
    let Some(requests) = input.requests else {
        return match input.state {
            Some(_) => Ok(None),
            None => Err(LinkError::BadAnswer(
                "it asks for input and for none".into(),
            )),
        };
    };
    if fields(requests).count() > QUESTIONS_MAX {
        let questions_max = QUESTIONS_MAX;
        return Err(LinkError::Unanswered(NoAnswer::TooMany { questions_max }));
    }
    let mut open = Open {
        caller,
        numbers: Vec::new(),
    };
    let mut waits = Vec::new();
    for (key, at) in fields(requests) {
        let asked = Asked::read(server, at.of(requests), addresses)?;
        waits.push((key, open.put(asked)?));
    }
    let mut out = vec![b'{'];
    for (key, wait) in waits {
        if out.len() > 1 {
            out.push(b',');
        }
        write_string(&mut out, &key);
        out.push(b':');
        out.extend_from_slice(&wait.value().await?);
    }
    out.push(b'}');
    // Everything is answered, so there is nothing to take back.
    open.numbers.clear();
    Ok(Some(out))
}

/// One question of a server.
#[derive(Debug)]
struct Asked {
    message: Message,
    method: Arc<str>,
    ability: Ability,
    server: Arc<str>,
}

impl Asked {
    fn read(server: &str, request: &[u8], addresses: &mut Vec<String>) -> Result<Self, LinkError> {
        let bad = || LinkError::BadAnswer("a question in it cannot be read".into());
        let asked = text(request, "method").ok_or_else(bad)?;
        let params = field(request, "params").map(|at| at.of(request));
        let params = params.map(|source| Edited { source, edits: &[] });
        let mut line = Vec::new();
        // Whoever puts it to the caller gives it an id of its own.
        write_request(&mut line, 0, &asked, params);
        let message = Message::parse_peer(line.into()).map_err(|_| bad())?;
        let method: Arc<str> = asked.as_ref().into();
        let Some(ability) = ability(&message) else {
            return Err(LinkError::Unanswered(NoAnswer::Undeclared { method }));
        };
        let message = match ability {
            Ability::ElicitationUrl => named(message, addresses),
            _ => message,
        };
        Ok(Self {
            message,
            method,
            ability,
            server: server.into(),
        })
    }
}

/// Gives an address that a user is sent to the id that callers of the legacy era know it by;
/// servers of the modern era give it none.
fn named(message: Message, addresses: &mut Vec<String>) -> Message {
    let Some(params) = message.params_span() else {
        return message;
    };
    if field(params.of(message.bytes()), "elicitationId").is_some() {
        return message;
    }
    let mut random = [0; 16];
    if getrandom::fill(&mut random).is_err() {
        return message;
    }
    let id = format!("{:032x}", u128::from_ne_bytes(random));
    let mut member = b"\"elicitationId\":".to_vec();
    write_string(&mut member, &id);
    // `mode` follows.
    member.push(b',');
    let start = params.start + 1;
    let bytes = replace(message.bytes(), Span { start, end: start }, &member);
    match Message::parse_peer(bytes.into()) {
        Ok(message) => {
            addresses.push(id);
            message
        }
        Err(_) => message,
    }
}

/// Tells a caller that what it was sent to is done: the request that asked for it is.
pub(super) fn completed(caller: &Arc<dyn CallerEnd>, addresses: &[String]) {
    for id in addresses {
        let mut params = b"{\"elicitationId\":".to_vec();
        write_string(&mut params, id);
        params.push(b'}');
        let mut out = Vec::new();
        write_notification(&mut out, method::ELICITATION_COMPLETE, Some(&params));
        caller.push(out.into());
    }
}

/// Questions that a caller has not answered; dropped, they are taken back.
#[derive(Debug)]
struct Open<'a> {
    caller: &'a Arc<dyn CallerEnd>,
    numbers: Vec<QuestionId>,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        for number in self.numbers.drain(..) {
            self.caller.withdraw(number);
        }
    }
}

impl Open<'_> {
    fn put(&mut self, asked: Asked) -> Result<Wait, LinkError> {
        let Asked {
            message,
            method,
            ability,
            server,
        } = asked;
        if ability == Ability::ElicitationForm
            && let Some(property) = secret_wanted(message.params().unwrap_or_default())
        {
            tracing::warn!(%server, %property, "a form that asks for a secret is declined");
            return Ok(Wait::Known(DECLINED));
        }
        if !self.caller.abilities().has(ability) {
            return Err(LinkError::Unanswered(NoAnswer::Undeclared { method }));
        }
        let (request, id_at) = marked(&message, &server);
        let (tell, told) = oneshot::channel();
        let reply = move |answer: Option<Bytes>| {
            // Nobody waits any more, which is fine.
            let _ = tell.send(answer);
        };
        let question = Question::new(request, id_at, ability, reply);
        self.numbers.extend(self.caller.ask(question));
        Ok(Wait::For {
            told,
            method,
            ability,
        })
    }
}

/// What a form that nobody is shown is answered with.
const DECLINED: &[u8] = br#"{"action":"decline"}"#;

/// What a question of a person is answered with when the answer is an error or does not come.
const CANCELLED: &[u8] = br#"{"action":"cancel"}"#;

/// An answer that is there, or will be.
#[derive(Debug)]
enum Wait {
    Known(&'static [u8]),
    For {
        told: oneshot::Receiver<Option<Bytes>>,
        method: Arc<str>,
        ability: Ability,
    },
}

impl Wait {
    /// Returns the caller's result.
    async fn value(self) -> Result<Cow<'static, [u8]>, LinkError> {
        let (told, method, ability) = match self {
            Self::Known(value) => return Ok(Cow::Borrowed(value)),
            Self::For {
                told,
                method,
                ability,
            } => (told, method, ability),
        };
        let answer = told.await.ok().flatten();
        let answer = answer.and_then(|answer| Message::parse(answer).ok());
        if let Some(result) = answer.as_ref().and_then(Message::result) {
            return Ok(Cow::Owned(result.to_vec()));
        }
        match ability {
            // A round carries results only; this one says what happened.
            Ability::ElicitationForm | Ability::ElicitationUrl => Ok(Cow::Borrowed(CANCELLED)),
            Ability::Sampling | Ability::SamplingTools | Ability::Roots => {
                Err(LinkError::Unanswered(NoAnswer::Refused { method }))
            }
        }
    }
}
