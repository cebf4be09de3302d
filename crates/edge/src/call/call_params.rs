//! What the gateway reads of a call before the call starts: target, progress token, run,
//! idempotency key and trace. Both eras declare these members alike. Also selects the calls to
//! record, and assigns their span ids.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use bowline_core::call::{CallRequest, CallSubject, RequestMessage, TaskOperation};
use bowline_core::era::Era;
use bowline_core::lane::KEY_META;
use bowline_core::trace::{self, CallTrace, SpanId, TraceContext, TraceId};
use bowline_host::broker::TracePlacer;
use bowline_wire::mcp::method;
use bowline_wire::{ByteSpan, object};
use bytes::Bytes;
use http::{HeaderMap, HeaderName};

use crate::mcp::McpCaller;

/// Requests forwarded to servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallKind {
    Tool,
    Prompt,
    Resource,
    Complete,
    Task(TaskOperation),
}

impl CallKind {
    /// Returns the kind for a method, if servers handle the method.
    pub(crate) fn from_method(method: &str) -> Option<Self> {
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
    pub(crate) const fn missing_target_text(self) -> &'static str {
        match self {
            Self::Tool => "tools/call needs the name of a tool",
            Self::Prompt => "prompts/get needs the name of a prompt",
            Self::Resource => "resources/read needs a uri",
            Self::Complete => "completion/complete needs a ref to a prompt or a resource",
            Self::Task(_) => "a task is asked for by its taskId",
        }
    }
}

/// Builds a call from the request `id` with these parameters. The client handle and the stateless
/// context are the caller's to set, since both depend on the era.
///
/// # Errors
/// The text of an error about invalid parameters.
pub(crate) fn build_call(
    caller: McpCaller<'_>,
    id: Bytes,
    params: Bytes,
    call_params: CallParams,
) -> Result<CallRequest, &'static str> {
    let headers = &caller.parts.headers;
    let meta = call_params.meta.map(|at| at.slice(&params));
    let run = read_run(headers, meta).map_err(|InvalidRun| INVALID_RUN)?;
    let run = run.map(|run| caller.edge.enter_run(caller.principal, &run));
    let key = read_key(meta).map_err(|InvalidKey| INVALID_KEY)?;
    let trace = read_trace(headers, meta);
    let trace = caller.edge.call_tracing.tracer.assign_trace(trace);
    Ok(CallRequest {
        principal: Arc::clone(caller.principal),
        scope: caller.scope.clone(),
        subject: call_params.subject,
        name_at: call_params.name_at,
        wants_task: call_params.makes_task,
        deadline: None,
        run,
        idempotency_key: key,
        stateless: None,
        message: RequestMessage {
            params,
            progress_at: call_params.progress_at,
            id,
            client: None,
            trace,
            era: Era::Legacy,
        },
    })
}

/// Call parameters used by the gateway.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CallParams {
    pub(crate) subject: CallSubject,
    pub(crate) name_at: Range<usize>,
    pub(crate) makes_task: bool,
    pub(crate) progress_at: Option<Range<usize>>,
    pub(crate) meta: Option<ByteSpan>,
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

pub(crate) fn parse_params(params: &[u8], kind: CallKind) -> Option<CallParams> {
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

/// `_meta` member with the run.
const RUN_META_KEY: &str = "dev.bowline/run";

/// Header with the run, for callers without access to `_meta`.
const RUN_HEADER: HeaderName = HeaderName::from_static("bowline-run");

/// Maximum length of a run id.
const ID_CHARS_MAX: usize = 128;

/// Error text for a malformed run. A run is a limit and is never ignored.
pub(crate) const INVALID_RUN: &str = "a run is {\"id\":\"...\",\"calls\":N} in _meta, \
     or the header Bowline-Run: id=...; calls=N; its id is 1 to 128 visible characters";

/// A run as declared by a caller.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RunClaim<'a> {
    pub(crate) id: Cow<'a, str>,
    /// Maximum number of calls in the run.
    pub(crate) calls: u64,
}

/// A malformed run declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InvalidRun;

/// Reads the run of a call: `_meta` takes precedence over the header.
pub(crate) fn read_run<'a>(
    headers: &'a HeaderMap,
    meta: Option<&'a [u8]>,
) -> Result<Option<RunClaim<'a>>, InvalidRun> {
    let in_meta = meta.and_then(|meta| object::field(meta, RUN_META_KEY).map(|at| at.slice(meta)));
    if let Some(run) = in_meta {
        return parse_meta(run).map(Some).ok_or(InvalidRun);
    }
    let mut lines = headers.get_all(RUN_HEADER).iter();
    let Some(line) = lines.next() else {
        return Ok(None);
    };
    let alone = lines.next().is_none();
    let text = line.to_str().ok().filter(|_| alone);
    text.and_then(parse_header).map(Some).ok_or(InvalidRun)
}

fn parse_meta(run: &[u8]) -> Option<RunClaim<'_>> {
    let calls = object::field(run, "calls")?.slice(run);
    let calls = std::str::from_utf8(calls).ok()?;
    parse_claim(object::text_field(run, "id")?, calls)
}

fn parse_header(text: &str) -> Option<RunClaim<'_>> {
    let (mut id, mut calls) = (None, None);
    for part in text.split(';') {
        let (key, value) = part.trim().split_once('=')?;
        let slot = match key {
            "id" => &mut id,
            "calls" => &mut calls,
            _ => return None,
        };
        if slot.replace(value).is_some() {
            return None;
        }
    }
    parse_claim(id?.into(), calls?)
}

fn parse_claim<'a>(id: Cow<'a, str>, calls: &str) -> Option<RunClaim<'a>> {
    let visible = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_graphic());
    let plain = calls.bytes().all(|byte| byte.is_ascii_digit());
    if !visible || id.len() > ID_CHARS_MAX || !plain {
        return None;
    }
    let calls = calls.parse().ok()?;
    Some(RunClaim { id, calls })
}

/// Maximum length of a key.
const KEY_CHARS_MAX: usize = 256;

/// Error text for a malformed key. A malformed key is never ignored, because the call might then
/// run twice.
pub(crate) const INVALID_KEY: &str =
    "an idempotency key is a string of 1 to 256 visible ASCII characters";

/// A malformed idempotency key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InvalidKey;

/// Reads the key of a call from its `_meta`.
pub(crate) fn read_key(meta: Option<&[u8]>) -> Result<Option<Arc<str>>, InvalidKey> {
    let Some((meta, at)) = meta.and_then(|meta| Some((meta, object::field(meta, KEY_META)?)))
    else {
        return Ok(None);
    };
    let key = object::parse_string(at.slice(meta)).ok_or(InvalidKey)?;
    parse_key(&key).map(Some)
}

/// Validates a text as a key.
pub(crate) fn parse_key(text: &str) -> Result<Arc<str>, InvalidKey> {
    let fits = (1..=KEY_CHARS_MAX).contains(&text.len());
    match fits && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(text.into()),
        false => Err(InvalidKey),
    }
}

const TRACEPARENT: HeaderName = HeaderName::from_static(trace::TRACEPARENT);

const TRACESTATE: HeaderName = HeaderName::from_static(trace::TRACESTATE);

/// Reads the trace of a call: `_meta` takes precedence over headers, which may belong to the
/// transport. Invalid values are ignored.
pub(crate) fn read_trace(headers: &HeaderMap, meta: Option<&[u8]>) -> Option<CallTrace> {
    meta.and_then(trace_in_meta)
        .or_else(|| trace_in_headers(headers))
}

fn trace_in_meta(meta: &[u8]) -> Option<CallTrace> {
    let parent = object::text_field(meta, trace::TRACEPARENT)?;
    let state = object::text_field(meta, trace::TRACESTATE);
    let read = CallTrace::parse(&parent, state.as_deref())?;
    Some(CallTrace {
        in_params: true,
        ..read
    })
}

fn trace_in_headers(headers: &HeaderMap) -> Option<CallTrace> {
    let mut parents = headers.get_all(TRACEPARENT).iter();
    let parent = parents.next()?.to_str().ok()?;
    if parents.next().is_some() {
        return None;
    }
    // Several header lines form a single list.
    let states = headers.get_all(TRACESTATE).iter();
    let states: Vec<_> = states.filter_map(|line| line.to_str().ok()).collect();
    CallTrace::parse(parent, Some(&states.join(",")))
}

/// Assigns calls to traces.
#[derive(Clone, Copy, Debug)]
pub struct CallTracer {
    /// Fraction of root traces to record; absent when tracing is off.
    sample: Option<f64>,
}

impl CallTracer {
    /// Records nothing; trace contexts of callers pass through.
    #[must_use]
    pub const fn noop() -> Self {
        Self { sample: None }
    }

    /// Records calls sampled by their caller, and this fraction of calls without a trace context.
    #[must_use]
    pub const fn new(sample: f64) -> Self {
        Self {
            sample: Some(sample),
        }
    }

    /// Returns the trace of a call: a new child span when the call is recorded, else the caller's
    /// trace unchanged.
    #[must_use]
    pub fn assign_trace(self, caller_trace: Option<CallTrace>) -> Option<Arc<CallTrace>> {
        let Some(sample) = self.sample else {
            return caller_trace.map(Arc::new);
        };
        let trace = match caller_trace {
            Some(caller_trace) if caller_trace.context.is_sampled() => {
                Self::child_span(&caller_trace).unwrap_or(caller_trace)
            }
            Some(caller_trace) => caller_trace,
            None => Self::root_span(sample)?,
        };
        Some(Arc::new(trace))
    }

    fn child_span(caller_trace: &CallTrace) -> Option<CallTrace> {
        let caller = caller_trace.context;
        Some(CallTrace {
            context: TraceContext {
                span: random_span_id()?,
                ..caller
            },
            trace_state: caller_trace.trace_state.clone(),
            parent_span: Some(caller.span),
            is_recorded: true,
            in_params: false,
        })
    }

    fn root_span(sample: f64) -> Option<CallTrace> {
        let trace = TraceId::new(random_bytes()?)?;
        // The last bits of the trace id decide, so other samplers decide the same way.
        if sample < 1.0 && trace.sampling_ratio() >= sample {
            return None;
        }
        Some(CallTrace {
            context: TraceContext::new_sampled(trace, random_span_id()?),
            trace_state: None,
            parent_span: None,
            is_recorded: true,
            in_params: false,
        })
    }
}

impl TracePlacer for CallTracer {
    fn place_in_trace(&self, caller_trace: Option<CallTrace>) -> Option<Arc<CallTrace>> {
        Self::assign_trace(*self, caller_trace)
    }
}

fn random_span_id() -> Option<SpanId> {
    SpanId::new(random_bytes()?)
}

/// Returns random bytes; a call without an id is not recorded but still runs.
fn random_bytes<const N: usize>() -> Option<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests;
