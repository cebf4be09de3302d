//! Puts the questions that came in place of an answer to a caller, and collects what it says.

use std::borrow::Cow;
use std::sync::Arc;

use bowline_core::caller::{Ability, CallerEnd, Question, QuestionId};
use bowline_wire::Message;
use bowline_wire::era::input::{
    BadInput, QUESTIONS_MAX, Required, further_round, question_to_legacy,
};
use bowline_wire::jsonrpc::{write_notification, write_request};
use bowline_wire::mcp::method;
use bowline_wire::object::text;
use bowline_wire::splice::{Edited, write_string};
use bytes::Bytes;
use tokio::sync::oneshot;

use crate::desk::{ability, marked, secret_wanted};
use crate::link::{LinkError, NoAnswer};

/// Asks a caller everything that a result asks, and returns the members of the next round. The
/// ids of addresses that its user agreed to open are added to `addresses`. Dropped, it takes its
/// questions back.
pub(super) async fn all(
    server: &str,
    caller: &Arc<dyn CallerEnd>,
    result: &[u8],
    addresses: &mut Vec<String>,
) -> Result<Vec<u8>, LinkError> {
    let required = required(result)?;
    let mut open = Open {
        caller,
        numbers: Vec::new(),
    };
    let mut waits = Vec::new();
    for asked in &required.asked {
        let params = asked.params.map(|at| at.of(result));
        let mut question = Asked::read(server, &asked.method, params)?;
        let address = question.address.take();
        waits.push((address, open.put(question)?));
    }
    let mut answers = Vec::new();
    for (address, wait) in waits {
        let answer = wait.value().await?;
        // Who declined waits for nothing to be done there.
        addresses.extend(address.filter(|_| text(&answer, "action").as_deref() == Some("accept")));
        answers.push(answer);
    }
    // Everything is answered, so there is nothing to take back.
    open.numbers.clear();
    let keys = required.asked.iter().map(|asked| asked.key.as_ref());
    let answers = keys.zip(answers.iter().map(AsRef::as_ref));
    let state = required.state.map(|at| at.of(result));
    Ok(further_round(answers, state))
}

/// Returns the members of the next round where a result asks nothing, and only wants to be asked
/// for again.
pub(super) fn nobody(result: &[u8]) -> Result<Vec<u8>, LinkError> {
    let required = required(result)?;
    if !required.asked.is_empty() {
        return Err(LinkError::Unanswered(NoAnswer::Nobody));
    }
    let state = required.state.map(|at| at.of(result));
    Ok(further_round(std::iter::empty(), state))
}

fn required(result: &[u8]) -> Result<Required<'_>, LinkError> {
    Required::read(result).map_err(|bad| match bad {
        BadInput::TooMany => LinkError::Unanswered(NoAnswer::TooMany {
            questions_max: QUESTIONS_MAX,
        }),
        bad => LinkError::BadAnswer(bad.to_string().into()),
    })
}

/// One question of a server.
#[derive(Debug)]
struct Asked {
    /// The id of the address that it sends a user to.
    address: Option<String>,
    message: Message,
    method: Arc<str>,
    ability: Ability,
    server: Arc<str>,
}

impl Asked {
    fn read(server: &str, method: &str, params: Option<&[u8]>) -> Result<Self, LinkError> {
        let id = address()?;
        let params = params.map(|params| question_to_legacy(method, params, &id));
        let address = matches!(params, Some(Cow::Owned(_))).then_some(id);
        let params = params.as_deref();
        let params = params.map(|source| Edited { source, edits: &[] });
        let mut line = Vec::new();
        // Whoever puts it to the caller gives it an id of its own.
        write_request(&mut line, 0, method, params);
        let message = Message::parse_peer(line.into());
        let bad = |_| LinkError::BadAnswer("a question in it cannot be read".into());
        let message = message.map_err(bad)?;
        let method: Arc<str> = method.into();
        match ability(&message) {
            Some(ability) => Ok(Self {
                address,
                message,
                method,
                ability,
                server: server.into(),
            }),
            None => Err(LinkError::Unanswered(NoAnswer::Undeclared { method })),
        }
    }
}

/// Returns an id for an address that a user may be sent to, which nobody can guess.
fn address() -> Result<String, LinkError> {
    let mut random = [0; 16];
    let failed = |error: getrandom::Error| NoAnswer::NotSent(error.to_string().into());
    getrandom::fill(&mut random).map_err(failed)?;
    Ok(format!("{:032x}", u128::from_ne_bytes(random)))
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
            ..
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
