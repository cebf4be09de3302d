//! Calls: from the caller's bytes to the host, and back as JSON or as a stream.

use std::future::{Future, poll_fn};
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bowline_core::call::{Call, Reply, Subject, TaskVerb};
use bowline_core::caller::CallerEnd;
use bowline_core::error::{CallError, Execution};
use bowline_wire::mcp::{code, method};
use bowline_wire::{Message, Span, object};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};

use super::{Caller, elder, error, outbox};
use crate::edge::Edge;
use crate::edge::body::{self, Answer};
use crate::edge::errors::{self, TooMuch};
use crate::edge::key;
use crate::edge::run;
use crate::edge::session::{CallEnd, Cancelled, Session};
use crate::edge::stream::Source as _;
use crate::edge::trace;

/// A call that takes longer is answered with a stream, which keeps the connection alive and can
/// be resumed.
const STREAM_AFTER: Duration = Duration::from_secs(5);

/// A call under way that owns all it needs, so that it can move into a task.
pub(super) type Running = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// What came of a call.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    /// The whole JSON-RPC answer.
    pub(super) answer: Bytes,
    /// Set where the call was one too many.
    pub(super) too_much: Option<TooMuch>,
}

impl From<Bytes> for Outcome {
    fn from(answer: Bytes) -> Self {
        Self {
            answer,
            too_much: None,
        }
    }
}

/// The requests that a server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::edge) enum Ask {
    Tool,
    Prompt,
    Resource,
    Complete,
    Task(TaskVerb),
}

impl Ask {
    /// Returns what this method asks for, if servers answer it.
    pub(super) fn of(method: &str) -> Option<Self> {
        match method {
            method::TOOLS_CALL => Some(Self::Tool),
            method::PROMPTS_GET => Some(Self::Prompt),
            method::RESOURCES_READ => Some(Self::Resource),
            method::COMPLETION_COMPLETE => Some(Self::Complete),
            method::TASKS_GET => Some(Self::Task(TaskVerb::Get)),
            method::TASKS_RESULT => Some(Self::Task(TaskVerb::Result)),
            method::TASKS_CANCEL => Some(Self::Task(TaskVerb::Cancel)),
            _ => None,
        }
    }

    /// Returns what is wrong with parameters that name nothing.
    pub(in crate::edge) const fn missing(self) -> &'static str {
        match self {
            Self::Tool => "tools/call needs the name of a tool",
            Self::Prompt => "prompts/get needs the name of a prompt",
            Self::Resource => "resources/read needs a uri",
            Self::Complete => "completion/complete needs a ref to a prompt or a resource",
            Self::Task(_) => "a task is asked for by its taskId",
        }
    }
}

/// Gives a request to the host; the answer that refuses it when it is not one.
pub(super) fn begin(
    caller: Caller<'_>,
    session: &Session,
    message: &Message,
    ask: Ask,
    end: Arc<dyn CallerEnd>,
) -> Result<Running, Bytes> {
    let id = message.id_span().map_or(Bytes::from_static(b"null"), |at| {
        message.bytes().slice(at.start..at.end)
    });
    let invalid = |text| error(Some(&id), code::INVALID_PARAMS, text);
    let Some(params_at) = message.params_span() else {
        return Err(invalid(ask.missing()));
    };
    let params = message.bytes().slice(params_at.start..params_at.end);
    let Some(asked) = read_params(&params, ask) else {
        return Err(invalid(ask.missing()));
    };
    let meta = asked.meta.map(|at| at.of(&params));
    let run = run::read(&caller.parts.headers, meta);
    let run = run.map_err(|run::Malformed| invalid(run::MALFORMED))?;
    let run = run.map(|run| caller.edge.run_of(caller.principal, &run));
    let key = key::read(meta).map_err(|key::Malformed| invalid(key::MALFORMED))?;
    let Some(cancelled) = session.in_flight.enter(&id) else {
        let text = "a request with this id is under way in this session";
        return Err(error(Some(&id), code::INVALID_REQUEST, text));
    };
    let said = trace::read(&caller.parts.headers, meta);
    let trace = caller.edge.traces.tracer.place(said);
    let call = Call {
        principal: Arc::clone(caller.principal),
        scope: caller.scope.clone(),
        subject: asked.subject,
        params,
        name_at: asked.name_at,
        makes_task: asked.makes_task,
        progress_at: asked.progress_at,
        id,
        deadline: None,
        caller: Some(end),
        trace,
        run,
        key,
        stateless: None,
    };
    Ok(Box::pin(carry(Arc::clone(caller.edge), call, cancelled)))
}

/// Runs a call to its one end.
async fn carry(edge: Arc<Edge>, call: Call, mut cancelled: Cancelled) -> Outcome {
    if let Subject::Resource(uri) = &call.subject
        && outbox::is_ours(uri)
    {
        let who = (&*call.principal, &call.scope);
        let read = outbox::read(&edge, who, uri, &call.id);
        return Box::pin(read).await.into();
    }
    let outcome = tokio::select! {
        biased;
        outcome = edge.host.call(&call) => outcome,
        Ok(why) = &mut cancelled.signal => Err(why.into_error(Execution::Unknown)),
    };
    written(&call, outcome)
}

fn written(call: &Call, outcome: Result<Reply, CallError>) -> Outcome {
    match outcome {
        Ok(reply) => elder::answer(call, reply).into(),
        Err(error) => Outcome {
            answer: errors::answer(&call.id, &error),
            too_much: TooMuch::of(&error),
        },
    }
}

/// Answers a single request, which HTTP may say is one too many.
fn alone(outcome: Outcome) -> Answer {
    let Some(too_much) = outcome.too_much else {
        return body::json(StatusCode::OK, outcome.answer);
    };
    let mut answer = body::json(StatusCode::TOO_MANY_REQUESTS, outcome.answer);
    if let Some(seconds) = too_much.seconds() {
        let wait = HeaderValue::from(seconds);
        answer.headers_mut().insert(header::RETRY_AFTER, wait);
    }
    answer
}

/// Answers with plain JSON if the answer comes first, with a stream if anything else does.
pub(super) async fn answer(
    edge: &Arc<Edge>,
    mut running: Running,
    end: Option<Arc<CallEnd>>,
) -> Answer {
    let Some(end) = end else {
        return alone(running.await);
    };
    // No timer of its own: the keeper of the connection looks at what is under way now and then.
    let clock = edge.host.clock();
    let until = clock.now().plus(STREAM_AFTER);
    let answer = poll_fn(|cx| {
        if let Poll::Ready(answer) = running.as_mut().poll(cx) {
            return Poll::Ready(Some(answer));
        }
        if end.line().poll_waiting(cx).is_ready() || clock.now() >= until {
            return Poll::Ready(None);
        }
        Poll::Pending
    })
    .await;
    match answer {
        Some(outcome) if end.line().is_empty() => alone(outcome),
        Some(Outcome { answer, .. }) => {
            // What came just before the answer is still told before it.
            let events = end.open();
            end.finish(answer, edge.host.clock().now());
            body::events(events)
        }
        None => {
            let events = end.open();
            let clock = Arc::clone(edge.host.clock());
            edge.host.tasks().spawn("call stream", async move {
                let answer = running.await.answer;
                end.finish(answer, clock.now());
            });
            body::events(events)
        }
    }
}

/// What a call needs from its parameters.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::edge) struct Asked {
    pub(in crate::edge) subject: Subject,
    pub(in crate::edge) name_at: Range<usize>,
    pub(in crate::edge) makes_task: bool,
    pub(in crate::edge) progress_at: Option<Range<usize>>,
    pub(in crate::edge) meta: Option<Span>,
}

/// The members of the parameters that we act on.
#[derive(Debug, Default)]
struct Members {
    name: Option<Span>,
    uri: Option<Span>,
    task_id: Option<Span>,
    reference: Option<Span>,
    task: Option<Span>,
    meta: Option<Span>,
}

pub(in crate::edge) fn read_params(params: &[u8], ask: Ask) -> Option<Asked> {
    let members = members(params);
    let (subject, name_at) = match ask {
        Ask::Tool => named(params, members.name, Subject::Tool)?,
        Ask::Prompt => named(params, members.name, Subject::Prompt)?,
        Ask::Resource => named(params, members.uri, Subject::Resource)?,
        Ask::Task(verb) => named(params, members.task_id, |id| Subject::Task { id, verb })?,
        Ask::Complete => completed(params, members.reference?)?,
    };
    let progress_at = members.meta.and_then(|meta| {
        let token = object::field(meta.of(params), "progressToken")?;
        let token = token.shift(meta.start);
        Some(token.start..token.end)
    });
    Some(Asked {
        subject,
        name_at,
        makes_task: members.task.is_some(),
        progress_at,
        meta: members.meta,
    })
}

fn members(params: &[u8]) -> Members {
    let mut members = Members::default();
    for (key, at) in object::fields(params) {
        let slot = match key.as_ref() {
            "name" => &mut members.name,
            "uri" => &mut members.uri,
            "taskId" => &mut members.task_id,
            "ref" => &mut members.reference,
            "task" => &mut members.task,
            "_meta" => &mut members.meta,
            _ => continue,
        };
        *slot = Some(at);
    }
    members
}

fn named(
    params: &[u8],
    at: Option<Span>,
    subject: impl FnOnce(Arc<str>) -> Subject,
) -> Option<(Subject, Range<usize>)> {
    let at = at?;
    let name = object::string(at.of(params))?;
    Some((subject(name.into()), at.start..at.end))
}

/// Reads what an argument is to be completed of.
fn completed(params: &[u8], reference: Span) -> Option<(Subject, Range<usize>)> {
    let inside = reference.of(params);
    let kind = object::field(inside, "type")?;
    let at = |key| object::field(inside, key).map(|at| at.shift(reference.start));
    match object::string(kind.of(inside))?.as_ref() {
        "ref/prompt" => named(params, at("name"), Subject::CompletePrompt),
        "ref/resource" => named(params, at("uri"), Subject::CompleteResource),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_names_its_subject_in_its_own_way() {
        let get = TaskVerb::Get;
        for (ask, params, want, literal) in [
            (
                Ask::Tool,
                r#"{"name":"a\u0062","arguments":{"uri":"no"}}"#,
                Subject::Tool("ab".into()),
                r#""a\u0062""#,
            ),
            (
                Ask::Prompt,
                r#"{"uri":"no","name":"p"}"#,
                Subject::Prompt("p".into()),
                "\"p\"",
            ),
            (
                Ask::Resource,
                r#"{"name":"no","uri":"x://y"}"#,
                Subject::Resource("x://y".into()),
                "\"x://y\"",
            ),
            (
                Ask::Task(get),
                r#"{"taskId":"t"}"#,
                Subject::Task {
                    id: "t".into(),
                    verb: get,
                },
                "\"t\"",
            ),
            (
                Ask::Complete,
                r#"{"name":"no","ref": {"type":"ref/prompt","uri":"no","name":"p"}}"#,
                Subject::CompletePrompt("p".into()),
                "\"p\"",
            ),
            (
                Ask::Complete,
                r#"{"ref":{"uri":"x://{y}","type":"ref/resource"}}"#,
                Subject::CompleteResource("x://{y}".into()),
                "\"x://{y}\"",
            ),
        ] {
            let asked = read_params(params.as_bytes(), ask).unwrap();
            assert_eq!(asked.subject, want, "{params}");
            assert_eq!(&params[asked.name_at], literal, "{params}");
            assert!(!asked.makes_task);
            assert_eq!(asked.progress_at, None);
        }
        let params = r#"{"name":"a","task":{},"_meta":{"x":1,"progressToken": 7}}"#;
        let asked = read_params(params.as_bytes(), Ask::Tool).unwrap();
        assert!(asked.makes_task);
        assert_eq!(&params[asked.progress_at.unwrap()], "7");
    }

    #[test]
    fn parameters_that_name_nothing_are_refused() {
        for (ask, params) in [
            (Ask::Tool, "{}"),
            (Ask::Tool, r#"{"name":1}"#),
            (Ask::Tool, r#"{"uri":"a"}"#),
            (Ask::Resource, r#"{"name":"a"}"#),
            (Ask::Complete, r#"{"name":"a"}"#),
            (Ask::Complete, r#"{"ref":{"type":"ref/other","name":"a"}}"#),
            (Ask::Complete, r#"{"ref":{"type":"ref/prompt","uri":"a"}}"#),
            (Ask::Task(TaskVerb::Cancel), "[]"),
        ] {
            assert_eq!(read_params(params.as_bytes(), ask), None, "{params}");
        }
    }
}
