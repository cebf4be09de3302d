//! `tools/call`: from the caller's bytes to the host, and back as JSON or as a stream.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;

use bowline_core::call::{Call, Reply};
use bowline_core::caller::{CallerEnd, Deaf};
use bowline_core::error::{CallError, Execution};
use bowline_wire::mcp::code;
use bowline_wire::{Message, Span, object};
use bytes::Bytes;
use http::StatusCode;
use tokio::sync::mpsc;

use super::{Caller, failure, read};
use crate::edge::Edge;
use crate::edge::body::{self, Answer};
use crate::edge::errors;
use crate::edge::session::{Cancelled, Session};
use crate::edge::stream::{self, EventBody, Guard};

/// What a call needs from its parameters.
struct Asked {
    tool: Arc<str>,
    name_at: Range<usize>,
    progress_at: Option<Range<usize>>,
}

/// A call under way that owns all it needs, so that it can move into a stream.
type Running = Pin<Box<dyn Future<Output = Bytes> + Send>>;

/// Answers `tools/call`.
pub(super) async fn answer(caller: Caller<'_>, session: &Session, message: &Message) -> Answer {
    let id = Bytes::copy_from_slice(message.id().unwrap_or(b"null"));
    let invalid = |text| failure(StatusCode::OK, message.id(), code::INVALID_PARAMS, text);
    let Some(params_at) = message.params_span() else {
        return invalid("tools/call needs params");
    };
    let params = message.bytes().slice(params_at.start..params_at.end);
    let Some(asked) = read_params(&params) else {
        return invalid("tools/call needs the name of a tool");
    };
    let Some(cancelled) = session.in_flight.enter(&id) else {
        let text = "a request with this id is under way in this session";
        return failure(StatusCode::OK, message.id(), code::INVALID_REQUEST, text);
    };
    // Only progress can come before the answer, and only to a caller that asked for it.
    let streams = asked.progress_at.is_some() && read::accepts(caller.parts, "text/event-stream");
    let (sink, events) = if streams {
        let (sink, events) = stream::sink(session.key);
        (Some(sink), Some(events))
    } else {
        let deaf: Arc<dyn CallerEnd> = Arc::new(Deaf(session.key));
        (Some(deaf), None)
    };
    let call = Call {
        principal: Arc::clone(caller.principal),
        scope: caller.scope.clone(),
        tool: asked.tool,
        params,
        name_at: asked.name_at,
        progress_at: asked.progress_at,
        id,
        deadline: None,
        caller: sink,
    };
    match events {
        None => body::json(StatusCode::OK, run(caller.edge, call, cancelled).await),
        Some(events) => with_progress(caller.edge, call, cancelled, events).await,
    }
}

/// Runs a call to its one end.
async fn run(edge: &Arc<Edge>, call: Call, mut cancelled: Cancelled) -> Bytes {
    let id = call.id.clone();
    let outcome = tokio::select! {
        biased;
        outcome = edge.host.call(call) => outcome,
        Ok(()) = &mut cancelled.signal => Err(CallError::Cancelled {
            execution: Execution::Unknown,
        }),
    };
    written(&id, outcome)
}

/// Answers with plain JSON if the answer comes first, with a stream if progress does.
async fn with_progress(
    edge: &Arc<Edge>,
    call: Call,
    cancelled: Cancelled,
    mut events: mpsc::Receiver<Bytes>,
) -> Answer {
    let owned = Arc::clone(edge);
    let mut running: Running = Box::pin(async move { run(&owned, call, cancelled).await });
    let first = tokio::select! {
        biased;
        Some(first) = events.recv() => Some(first),
        answer = &mut running => {
            // Progress that came just before the answer is still told before it.
            let Ok(first) = events.try_recv() else {
                return body::json(StatusCode::OK, answer);
            };
            running = Box::pin(std::future::ready(answer));
            Some(first)
        }
        () = tokio::time::sleep(stream::KEEP_ALIVE) => None,
    };
    let (sender, outgoing) = stream::channel();
    let (alive, ended) = tokio::sync::oneshot::channel();
    let pump = pump(running, events, sender, ended);
    edge.host.tasks().spawn("call stream", pump);
    body::events(EventBody::of_call(outgoing, first, Box::new(Alive(alive))))
}

/// Lives as long as the caller's stream does.
#[derive(Debug)]
struct Alive(
    #[expect(dead_code, reason = "its drop is what counts")] tokio::sync::oneshot::Sender<()>,
);

impl Guard for Alive {}

/// Carries progress and then the answer to the caller; a caller that left ends the call.
async fn pump(
    mut running: Running,
    mut events: mpsc::Receiver<Bytes>,
    sender: stream::EventSender,
    mut ended: tokio::sync::oneshot::Receiver<()>,
) {
    loop {
        tokio::select! {
            biased;
            Some(event) = events.recv() => sender.push_frame(event),
            answer = &mut running => {
                while let Ok(event) = events.try_recv() {
                    sender.push_frame(event);
                }
                sender.finish(&answer).await;
                return;
            }
            _ = &mut ended => return,
        }
    }
}

fn written(id: &[u8], outcome: Result<Reply, CallError>) -> Bytes {
    match outcome {
        Ok(reply) => reply.answer,
        Err(error) => errors::answer(id, &error),
    }
}

fn read_params(params: &[u8]) -> Option<Asked> {
    let mut name = None;
    let mut meta = None;
    for (key, at) in object::fields(params) {
        match key.as_ref() {
            "name" => name = Some(at),
            "_meta" => meta = Some(at),
            _ => {}
        }
    }
    let name: Span = name?;
    let tool = object::string(name.of(params))?;
    let progress_at = meta.and_then(|meta: Span| {
        let token = object::field(meta.of(params), "progressToken")?;
        let token = token.shift(meta.start);
        Some(token.start..token.end)
    });
    Some(Asked {
        tool: tool.into(),
        name_at: name.start..name.end,
        progress_at,
    })
}
