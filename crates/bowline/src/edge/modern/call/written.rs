//! What came of a call, written as this era has it under the id of the request that waits for it.

use std::sync::Arc;

use bowline_core::call::{Body, Reply};
use bowline_core::caller::{Ability, CallerEnd as _};
use bowline_core::era::Era;
use bowline_core::error::CallError;
use bowline_link::{Unfit, relayed};
use bowline_wire::era::error as era_error;
use bowline_wire::era::input::{self, Ask, Required};
use bowline_wire::era::result::{Completing, ResultKind, kind, to_modern};
use bowline_wire::era::tasks::{Task, created_to_modern};
use bowline_wire::jsonrpc::write_error;
use bowline_wire::mcp::{code, method};
use bowline_wire::object;
use bowline_wire::splice::{replace, write_string};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};

use super::{End, Outcome, Told};
use crate::edge::body::{self, Answer};
use crate::edge::errors::{self, TooMuch};
use crate::edge::mcp::call::Ask as Asks;
use crate::edge::mcp::{error, result};
use crate::edge::modern::result::info_of;
use crate::edge::modern::state::{self, State};
use crate::edge::modern::status;
use crate::edge::modern::tasks::{self, TASKS, id};

/// An answer with what HTTP says beside it.
#[derive(Debug)]
pub(in crate::edge::modern) struct Written {
    pub(in crate::edge::modern) answer: Bytes,
    status: StatusCode,
    /// Set where the call was one too many.
    too_much: Option<TooMuch>,
}

impl Written {
    fn with(status: StatusCode, answer: Bytes) -> Self {
        Self {
            answer,
            status,
            too_much: None,
        }
    }

    /// Says that parameters cannot be read.
    pub(in crate::edge::modern) fn of_invalid(told: &Told, text: &str) -> Self {
        let refused = error(Some(&told.id), code::INVALID_PARAMS, text);
        Self::with(StatusCode::OK, refused)
    }

    /// Answers a request with this and nothing before it.
    pub(in crate::edge::modern) fn alone(self) -> Answer {
        let mut answer = body::json(self.status, self.answer);
        let seconds = self.too_much.and_then(TooMuch::seconds);
        if let Some(seconds) = seconds {
            let wait = HeaderValue::from(seconds);
            answer.headers_mut().insert(header::RETRY_AFTER, wait);
        }
        answer
    }
}

impl Told {
    /// Answers parameters that cannot be read.
    pub(in crate::edge::modern) fn invalid(&self, text: &str) -> Answer {
        let refused = error(Some(&self.id), code::INVALID_PARAMS, text);
        body::json(StatusCode::OK, refused)
    }

    /// Answers that there is no answer.
    pub(in crate::edge::modern) fn failed(&self, failed: &CallError) -> Answer {
        self.failure(failed).alone()
    }

    /// Writes a result of this era.
    pub(in crate::edge::modern) fn result(&self, whole: &[u8]) -> Written {
        Written::with(StatusCode::OK, result(&self.id, whole))
    }

    /// Writes what came of a call.
    pub(in crate::edge::modern) fn outcome(&self, end: &End, outcome: Outcome) -> Written {
        // A server that had to ask and could not has not done what was wanted. Where it did not
        // answer, nobody knows what it did, and that is what its caller must hear.
        if let Some(ability) = end.lacking()
            && outcome.as_ref().is_ok_and(has_failed)
        {
            return self.missing(ability);
        }
        match outcome {
            Ok(reply) => match reply.body {
                Body::Result => self.answered(end, reply),
                Body::Error => self.refused(end, &reply),
            },
            Err(failed) => self.failure(&failed),
        }
    }

    fn answered(&self, end: &End, reply: Reply) -> Written {
        let inside = reply.answer.slice(reply.body_at.clone());
        if reply.era == Era::Legacy {
            if self.makes_task
                && let Some(made) = created_to_modern(&inside)
            {
                return self.made(end, &made);
            }
            let info = info_of(&self.edge, &self.principal, &self.scope);
            let known = Completing {
                server_info: Some(&info),
                hint: None,
            };
            return self.result(&to_modern(&inside, self.subject.method(), &known));
        }
        match kind(&inside) {
            ResultKind::InputRequired => self.carried(end, &reply, &inside),
            ResultKind::Task => self.made(end, &inside),
            // What was answered under the id of an earlier request.
            _ if end.handle().is_some() => self.result(&inside),
            ResultKind::Complete | ResultKind::Unknown | ResultKind::Absent => {
                Written::with(StatusCode::OK, reply.answer)
            }
        }
    }

    /// Writes a result of a server of this era that asks: as it is, but for the name of the server
    /// in each question, and for its state, which is sealed so that nobody else can bring it back.
    fn carried(&self, end: &End, reply: &Reply, inside: &[u8]) -> Written {
        let server = reply.server.clone().unwrap_or_default();
        let marked = match object::field(inside, "inputRequests") {
            Some(at) => relayed(&server, end.abilities(), inside, at),
            None => Ok(inside.to_vec()),
        };
        let inside = match marked {
            Ok(marked) => marked,
            Err(unfit) => return self.unasked(server, &unfit),
        };
        let asks = match Required::read(&inside) {
            Ok(asks) => asks,
            Err(bad) => return self.unasked(server, &bad.into()),
        };
        let text = asks.state.and_then(|at| object::string(at.of(&inside)));
        let (Some(at), Some(text)) = (asks.state, text) else {
            return self.result(&inside);
        };
        let digest = self.digest();
        let inner = State::Carried(text.into_owned());
        let now_ms = self.edge.host.clock().unix_ms();
        let seal = self.edge.sessions.sealing();
        let Some(sealed) = state::seal(seal, self.bound(&digest), now_ms, &inner) else {
            let refused = error(Some(&self.id), code::INTERNAL, "no state can be sealed");
            return Written::with(StatusCode::OK, refused);
        };
        let mut literal = Vec::new();
        write_string(&mut literal, &sealed);
        self.result(&replace(&inside, at, &literal))
    }

    /// Says that a server asks what must not reach the caller.
    pub(in crate::edge::modern) fn unasked(&self, server: Arc<str>, unfit: &Unfit) -> Written {
        let reason = unfit.to_string().into();
        tracing::warn!(%server, %reason, "a question is not passed on");
        match unfit {
            Unfit::Undeclared(ability) => self.missing(*ability),
            Unfit::Bad(_) => self.failure(&CallError::BadAnswer { server, reason }),
            Unfit::Unknown(_) | Unfit::Secret(_) => {
                self.failure(&CallError::InputUnanswered { server, reason })
            }
        }
    }

    /// Writes a result that names a new task, under an id that says whose it is.
    fn made(&self, end: &End, result: &[u8]) -> Written {
        let sealed = Task::read(result).and_then(|task| {
            let made = end.task().filter(|made| *made.id == *task.id)?;
            let (seal, boot) = (self.edge.sessions.sealing(), self.edge.calls.boot);
            let created = object::text(result, "createdAt").unwrap_or_default();
            let sealed = id::seal(seal, (&self.principal.name, boot), &made, &created)?;
            let mut literal = Vec::new();
            write_string(&mut literal, &sealed);
            Some(replace(result, task.id_at, &literal))
        });
        if let Some(whole) = sealed {
            return self.result(&whole);
        }
        let text = "the server made a task that cannot be named";
        let refused = error(Some(&self.id), code::INTERNAL, text);
        Written::with(StatusCode::OK, refused)
    }

    /// Writes an error of a server.
    pub(in crate::edge::modern) fn refused(&self, end: &End, reply: &Reply) -> Written {
        let inside = reply.answer.slice(reply.body_at.clone());
        if reply.era == Era::Modern {
            let status = era_error::code_of(&inside).map_or(StatusCode::OK, status::of);
            return Written::with(status, reply.answer.clone());
        }
        if let Some(addresses) = input::addresses(&inside)
            && self.can_be_asked()
        {
            return self.addresses(end, &addresses);
        }
        // A tool that only runs as a task is of no use to who takes none.
        if !self.tasks && tasks::is_required(self) {
            return self.lacks(TASKS);
        }
        let uri = (self.ask == Asks::Resource).then(|| self.subject.name().as_ref());
        let inside = era_error::to_modern(&inside, uri);
        let status = era_error::code_of(&inside).map_or(StatusCode::OK, status::of);
        let mut out = Vec::with_capacity(self.id.len() + inside.len() + 40);
        out.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
        out.extend_from_slice(&self.id);
        out.extend_from_slice(b",\"error\":");
        out.extend_from_slice(&inside);
        out.push(b'}');
        Written::with(status, out.into())
    }

    /// Whether servers may ask during such a request.
    pub(super) const fn can_be_asked(&self) -> bool {
        matches!(self.ask, Asks::Tool | Asks::Prompt | Asks::Resource)
    }

    /// Asks the user to open addresses before the request is sent again. The server did nothing
    /// yet and keeps nothing, so no state comes with it.
    fn addresses(&self, end: &End, addresses: &[Vec<u8>]) -> Written {
        if !end.abilities().has(Ability::ElicitationUrl) {
            return self.missing(Ability::ElicitationUrl);
        }
        let keys: Vec<_> = (1..=addresses.len())
            .map(|nth| format!("ask-{nth}"))
            .collect();
        let asks = keys.iter().zip(addresses).map(|(key, params)| Ask {
            key,
            method: method::ELICITATION_CREATE,
            params: Some(params),
        });
        let asks: Vec<_> = asks.collect();
        self.result(&input::required(&asks, None))
    }

    /// Refuses a request that needs what its client did not declare.
    fn missing(&self, ability: Ability) -> Written {
        let wanted: &[u8] = match ability {
            Ability::Sampling => br#"{"sampling":{}}"#,
            Ability::SamplingTools => br#"{"sampling":{"tools":{}}}"#,
            Ability::ElicitationForm => br#"{"elicitation":{"form":{}}}"#,
            Ability::ElicitationUrl => br#"{"elicitation":{"url":{}}}"#,
            Ability::Roots => br#"{"roots":{}}"#,
        };
        self.lacks(wanted)
    }

    /// Refuses a request that needs these capabilities, which its client did not declare.
    pub(in crate::edge::modern) fn lacks(&self, wanted: &[u8]) -> Written {
        let data = [b"{\"requiredCapabilities\":", wanted, b"}"].concat();
        let text = "the client did not declare a capability that this request needs";
        let mut out = Vec::new();
        let number = code::MISSING_CAPABILITY;
        write_error(&mut out, Some(&self.id), number, text, Some(&data));
        Written::with(status::of(number), out.into())
    }

    pub(in crate::edge::modern) fn failure(&self, failed: &CallError) -> Written {
        let answer = errors::answer(&self.id, failed);
        let too_much = TooMuch::of(failed);
        let plain = || {
            let at = object::field(&answer, "error").map(|at| at.of(&answer));
            at.and_then(era_error::code_of)
                .map_or(StatusCode::OK, status::of)
        };
        let status = too_much.map_or_else(plain, |_| StatusCode::TOO_MANY_REQUESTS);
        let answer = match failed {
            CallError::UnknownResource { uri } => self.not_there(&answer, uri),
            _ => answer,
        };
        Written {
            answer,
            status,
            too_much,
        }
    }

    /// Says of a resource that there is none as this era does.
    fn not_there(&self, answer: &Bytes, uri: &Arc<str>) -> Bytes {
        let Some(at) = object::field(answer, "error") else {
            return answer.clone();
        };
        let inside = era_error::to_modern(at.of(answer), Some(uri));
        replace(answer, at, &inside).into()
    }
}

/// Whether an answer says that what was asked for was not done.
fn has_failed(reply: &Reply) -> bool {
    let inside = reply.answer.get(reply.body_at.clone()).unwrap_or_default();
    let is_error = || object::field(inside, "isError").is_some_and(|at| at.of(inside) == b"true");
    reply.body == Body::Error || is_error()
}
