//! Calls of sessions: from request bytes to the host, and back as JSON or as an event stream.

use std::future::{Future, poll_fn};
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bowline_core::call::{CallReply, CallRequest, CallSubject, TaskOperation};
use bowline_core::client_handle::ClientHandle;
use bowline_core::error::{CallError, ExecutionStatus};
use bowline_wire::mcp::{code, method};
use bowline_wire::{ByteSpan, RpcMessage, object};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};

use super::{McpCaller, downgrade, error_response, outbox_resource};
use crate::edge::Edge;
use crate::edge::call_errors::{self, TooManyRequests};
use crate::edge::client_session::{ClientSession, InFlightCall, SessionCallHandle};
use crate::edge::event_stream::EventSource as _;
use crate::edge::idempotency_key;
use crate::edge::response_body::{self, EdgeResponse};
use crate::edge::run_claim;
use crate::edge::trace_context;

/// A call above this duration switches to an event stream, which keeps the connection alive and is
/// resumable.
const STREAM_AFTER: Duration = Duration::from_secs(5);

/// A call in flight that owns its inputs, so that a task can run it.
pub(super) type LegacyCallFuture = Pin<Box<dyn Future<Output = LegacyResponse> + Send>>;

/// Outcome of a call.
#[derive(Clone, Debug)]
pub(super) struct LegacyResponse {
    /// Complete JSON-RPC response.
    pub(super) response: Bytes,
    /// Set if a rate, budget or share limit refused the call.
    pub(super) too_many_requests: Option<TooManyRequests>,
}

impl From<Bytes> for LegacyResponse {
    fn from(bytes: Bytes) -> Self {
        Self {
            response: bytes,
            too_many_requests: None,
        }
    }
}

/// Requests forwarded to servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::edge) enum CallKind {
    Tool,
    Prompt,
    Resource,
    Complete,
    Task(TaskOperation),
}

impl CallKind {
    /// Returns the kind for a method, if servers handle the method.
    pub(super) fn from_method(method: &str) -> Option<Self> {
        match method {
            method::TOOLS_CALL => Some(Self::Tool),
            method::PROMPTS_GET => Some(Self::Prompt),
            method::RESOURCES_READ => Some(Self::Resource),
            method::COMPLETION_COMPLETE => Some(Self::Complete),
            method::TASKS_GET => Some(Self::Task(TaskOperation::Get)),
            method::TASKS_RESULT => Some(Self::Task(TaskOperation::Result)),
            method::TASKS_CANCEL => Some(Self::Task(TaskOperation::Cancel)),
            _ => None,
        }
    }

    /// Returns the error text for parameters without a target.
    pub(in crate::edge) const fn missing_target_text(self) -> &'static str {
        match self {
            Self::Tool => "tools/call needs the name of a tool",
            Self::Prompt => "prompts/get needs the name of a prompt",
            Self::Resource => "resources/read needs a uri",
            Self::Complete => "completion/complete needs a ref to a prompt or a resource",
            Self::Task(_) => "a task is asked for by its taskId",
        }
    }
}

/// Starts a call on the host; `Err` holds the error response for an invalid request.
pub(super) fn start_call(
    caller: McpCaller<'_>,
    session: &ClientSession,
    message: &RpcMessage,
    kind: CallKind,
    handle: Arc<dyn ClientHandle>,
) -> Result<LegacyCallFuture, Bytes> {
    let id = message.id_span().map_or(Bytes::from_static(b"null"), |at| {
        message.bytes().slice(at.start..at.end)
    });
    let invalid = |text| error_response(Some(&id), code::INVALID_PARAMS, text);
    let Some(params_at) = message.params_span() else {
        return Err(invalid(kind.missing_target_text()));
    };
    let params = message.bytes().slice(params_at.start..params_at.end);
    let Some(call_params) = parse_params(&params, kind) else {
        return Err(invalid(kind.missing_target_text()));
    };
    let meta = call_params.meta.map(|at| at.slice(&params));
    let run = run_claim::read_run(&caller.parts.headers, meta);
    let run = run.map_err(|run_claim::InvalidRun| invalid(run_claim::INVALID_RUN))?;
    let run = run.map(|run| caller.edge.enter_run(caller.principal, &run));
    let key = idempotency_key::read_from_meta(meta)
        .map_err(|idempotency_key::InvalidKey| invalid(idempotency_key::INVALID_KEY))?;
    let Some(cancelled) = session.in_flight.register(&id) else {
        let text = "a request with this id is under way in this session";
        return Err(error_response(Some(&id), code::INVALID_REQUEST, text));
    };
    let incoming_trace = trace_context::read_trace(&caller.parts.headers, meta);
    let trace = caller.edge.call_tracing.tracer.assign_trace(incoming_trace);
    let call = CallRequest {
        principal: Arc::clone(caller.principal),
        scope: caller.scope.clone(),
        subject: call_params.subject,
        params,
        name_at: call_params.name_at,
        wants_task: call_params.makes_task,
        progress_at: call_params.progress_at,
        id,
        deadline: None,
        client: Some(handle),
        trace,
        run,
        idempotency_key: key,
        stateless: None,
    };
    Ok(Box::pin(run_call(Arc::clone(caller.edge), call, cancelled)))
}

/// Runs a call until its response or cancellation.
async fn run_call(
    edge: Arc<Edge>,
    call: CallRequest,
    mut cancelled: InFlightCall,
) -> LegacyResponse {
    if let CallSubject::Resource(uri) = &call.subject
        && outbox_resource::is_outbox_uri(uri)
    {
        let (principal, scope) = (&call.principal, &call.scope);
        let read = outbox_resource::read_outbox(&edge, principal, scope, uri, &call.id);
        return Box::pin(read).await.into();
    }
    let outcome = tokio::select! {
        biased;
        outcome = edge.host.call(&call) => outcome,
        Ok(why) = &mut cancelled.signal => Err(why.into_error(ExecutionStatus::Unknown)),
    };
    write_outcome(&call, outcome)
}

fn write_outcome(call: &CallRequest, outcome: Result<CallReply, CallError>) -> LegacyResponse {
    match outcome {
        Ok(reply) => downgrade::downgrade_reply(call, reply).into(),
        Err(error) => LegacyResponse {
            response: call_errors::error_response(&call.id, &error),
            too_many_requests: TooManyRequests::from_error(&error),
        },
    }
}

/// Returns the response to a single request, with status 429 if a limit refused the call.
fn single_response(outcome: LegacyResponse) -> EdgeResponse {
    let Some(too_much) = outcome.too_many_requests else {
        return response_body::json_response(StatusCode::OK, outcome.response);
    };
    let mut response =
        response_body::json_response(StatusCode::TOO_MANY_REQUESTS, outcome.response);
    if let Some(seconds) = too_much.retry_after_seconds() {
        let wait = HeaderValue::from(seconds);
        response.headers_mut().insert(header::RETRY_AFTER, wait);
    }
    response
}

/// Responds with JSON if the response is the first event, otherwise with an event stream.
pub(super) async fn respond_when_ready(
    edge: &Arc<Edge>,
    mut running: LegacyCallFuture,
    handle: Option<Arc<SessionCallHandle>>,
) -> EdgeResponse {
    let Some(handle) = handle else {
        return single_response(running.await);
    };
    // No timer here: the connection task polls in-flight requests periodically.
    let clock = edge.host.clock();
    let until = clock.now().plus(STREAM_AFTER);
    let reply = poll_fn(|cx| {
        if let Poll::Ready(reply) = running.as_mut().poll(cx) {
            return Poll::Ready(Some(reply));
        }
        if handle.buffer().poll_ready(cx).is_ready() || clock.now() >= until {
            return Poll::Ready(None);
        }
        Poll::Pending
    })
    .await;
    match reply {
        Some(outcome) if handle.buffer().is_empty() => single_response(outcome),
        Some(LegacyResponse {
            response: reply, ..
        }) => {
            // Notifications queued before the response are sent first.
            let events = handle.open_stream();
            handle.finish(reply, edge.host.clock().now());
            response_body::event_response(events)
        }
        None => {
            let events = handle.open_stream();
            let clock = Arc::clone(edge.host.clock());
            edge.host.tasks().spawn("call stream", async move {
                let reply = running.await.response;
                handle.finish(reply, clock.now());
            });
            response_body::event_response(events)
        }
    }
}

/// Call parameters used by the gateway.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::edge) struct CallParams {
    pub(in crate::edge) subject: CallSubject,
    pub(in crate::edge) name_at: Range<usize>,
    pub(in crate::edge) makes_task: bool,
    pub(in crate::edge) progress_at: Option<Range<usize>>,
    pub(in crate::edge) meta: Option<ByteSpan>,
}

/// Spans of the relevant members.
#[derive(Debug, Default)]
struct ParamSpans {
    name: Option<ByteSpan>,
    uri: Option<ByteSpan>,
    task_id: Option<ByteSpan>,
    reference: Option<ByteSpan>,
    task: Option<ByteSpan>,
    meta: Option<ByteSpan>,
}

pub(in crate::edge) fn parse_params(params: &[u8], kind: CallKind) -> Option<CallParams> {
    let members = param_spans(params);
    let (subject, name_at) = match kind {
        CallKind::Tool => parse_name(params, members.name, CallSubject::Tool)?,
        CallKind::Prompt => parse_name(params, members.name, CallSubject::Prompt)?,
        CallKind::Resource => parse_name(params, members.uri, CallSubject::Resource)?,
        CallKind::Task(operation) => parse_name(params, members.task_id, |id| CallSubject::Task {
            id,
            operation,
        })?,
        CallKind::Complete => parse_completion_ref(params, members.reference?)?,
    };
    let progress_at = members.meta.and_then(|meta| {
        let token = object::field(meta.slice(params), "progressToken")?;
        let token = token.shift(meta.start);
        Some(token.start..token.end)
    });
    Some(CallParams {
        subject,
        name_at,
        makes_task: members.task.is_some(),
        progress_at,
        meta: members.meta,
    })
}

fn param_spans(params: &[u8]) -> ParamSpans {
    let mut members = ParamSpans::default();
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

fn parse_name(
    params: &[u8],
    at: Option<ByteSpan>,
    subject: impl FnOnce(Arc<str>) -> CallSubject,
) -> Option<(CallSubject, Range<usize>)> {
    let at = at?;
    let name = object::parse_string(at.slice(params))?;
    Some((subject(name.into()), at.start..at.end))
}

/// Parses the reference of a completion request.
fn parse_completion_ref(params: &[u8], reference: ByteSpan) -> Option<(CallSubject, Range<usize>)> {
    let inside = reference.slice(params);
    let kind = object::field(inside, "type")?;
    let at = |key| object::field(inside, key).map(|at| at.shift(reference.start));
    match object::parse_string(kind.slice(inside))?.as_ref() {
        "ref/prompt" => parse_name(params, at("name"), CallSubject::CompletePrompt),
        "ref/resource" => parse_name(params, at("uri"), CallSubject::CompleteResource),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn params_name_subject_per_method() {
        let get = TaskOperation::Get;
        for (ask, params, want, literal) in [
            (
                CallKind::Tool,
                r#"{"name":"a\u0062","arguments":{"uri":"no"}}"#,
                CallSubject::Tool("ab".into()),
                r#""a\u0062""#,
            ),
            (
                CallKind::Prompt,
                r#"{"uri":"no","name":"p"}"#,
                CallSubject::Prompt("p".into()),
                "\"p\"",
            ),
            (
                CallKind::Resource,
                r#"{"name":"no","uri":"x://y"}"#,
                CallSubject::Resource("x://y".into()),
                "\"x://y\"",
            ),
            (
                CallKind::Task(get),
                r#"{"taskId":"t"}"#,
                CallSubject::Task {
                    id: "t".into(),
                    operation: get,
                },
                "\"t\"",
            ),
            (
                CallKind::Complete,
                r#"{"name":"no","ref": {"type":"ref/prompt","uri":"no","name":"p"}}"#,
                CallSubject::CompletePrompt("p".into()),
                "\"p\"",
            ),
            (
                CallKind::Complete,
                r#"{"ref":{"uri":"x://{y}","type":"ref/resource"}}"#,
                CallSubject::CompleteResource("x://{y}".into()),
                "\"x://{y}\"",
            ),
        ] {
            let asked = parse_params(params.as_bytes(), ask).unwrap();
            assert_eq!(asked.subject, want, "{params}");
            assert_eq!(&params[asked.name_at], literal, "{params}");
            assert!(!asked.makes_task);
            assert_eq!(asked.progress_at, None);
        }
        let params = r#"{"name":"a","task":{},"_meta":{"x":1,"progressToken": 7}}"#;
        let asked = parse_params(params.as_bytes(), CallKind::Tool).unwrap();
        assert!(asked.makes_task);
        assert_eq!(&params[asked.progress_at.unwrap()], "7");
    }

    #[test]
    fn params_without_subject_are_refused() {
        for (ask, params) in [
            (CallKind::Tool, "{}"),
            (CallKind::Tool, r#"{"name":1}"#),
            (CallKind::Tool, r#"{"uri":"a"}"#),
            (CallKind::Resource, r#"{"name":"a"}"#),
            (CallKind::Complete, r#"{"name":"a"}"#),
            (
                CallKind::Complete,
                r#"{"ref":{"type":"ref/other","name":"a"}}"#,
            ),
            (
                CallKind::Complete,
                r#"{"ref":{"type":"ref/prompt","uri":"a"}}"#,
            ),
            (CallKind::Task(TaskOperation::Cancel), "[]"),
        ] {
            assert_eq!(parse_params(params.as_bytes(), ask), None, "{params}");
        }
    }
}
