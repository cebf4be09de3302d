//! Builds the call of a peer's request around the received bytes.

use std::ops::Range;
use std::sync::Arc;

use bowline_core::call::{
    CallRequest, CallSubject, EndpointScope, Principal, RequestMessage, TaskOperation,
};
use bowline_core::era::{Era, StatelessContext};
use bowline_core::error::FailureReport;
use bowline_core::lane::KEY_META;
use bowline_tools::ToolArguments;
use bowline_wire::ByteSpan;
use bowline_wire::mcp::method;
use bowline_wire::object;
use bowline_wire::splice::write_string;
use bytes::Bytes;

use super::{BackendRequest, run_from_context};
use crate::failures;
use crate::frames::{BrokerArguments, BrokerRequest};

/// JSON-RPC id of calls; broker responses carry no id.
const CALL_ID: &[u8] = b"1";

/// Builds the call of a request that a server answers: full parameters unchanged, or bare
/// arguments in new parameters. `None` if no server answers the request; `authorize` then does not
/// run.
///
/// # Errors
/// The parameters of a tool call do not name its tool, or the sender is not authorized.
pub fn build_call(
    job: &BackendRequest,
    scope: EndpointScope,
    authorize: impl FnOnce() -> Result<Arc<Principal>, FailureReport>,
) -> Result<Option<CallRequest>, FailureReport> {
    let named = match &job.request {
        BrokerRequest::Call {
            tool, arguments, ..
        } => Some(tool_params(tool, arguments)?),
        BrokerRequest::Mcp { method, params, .. } => {
            let params = params.clone();
            params.and_then(|params| find_subject(method, params))
        }
        BrokerRequest::Manifest => None,
    };
    let Some((subject, params, name_at)) = named else {
        return Ok(None);
    };
    let context = job.request.context();
    let era = context.map_or(Era::Legacy, |context| context.era);
    Ok(Some(CallRequest {
        principal: authorize()?,
        scope,
        subject,
        name_at: name_at.start..name_at.end,
        wants_task: wants_task(&params),
        deadline: Some(job.incoming.deadline),
        run: context.and_then(run_from_context),
        idempotency_key: meta_key(&params).or_else(|| job.key.clone()),
        stateless: stateless_context(&params, era),
        message: RequestMessage {
            progress_at: progress_token(&params),
            id: Bytes::from_static(CALL_ID),
            client: job.incoming.client.clone(),
            trace: None,
            params,
            era,
        },
    }))
}

/// Returns the arguments of a tool call.
pub(super) fn tool_arguments(
    tool: &Arc<str>,
    arguments: &BrokerArguments,
) -> Result<ToolArguments, FailureReport> {
    let (_, params, _) = tool_params(tool, arguments)?;
    let at = object::field(&params, "arguments");
    Ok(at.map_or_else(ToolArguments::default, |at| {
        ToolArguments::new_unchecked(params.slice(at.start..at.end))
    }))
}

/// The subject of a request, its parameters, and where the parameters name the subject.
type NamedParams = (CallSubject, Bytes, ByteSpan);

/// Takes full parameters unchanged, or wraps bare arguments.
fn tool_params(tool: &Arc<str>, arguments: &BrokerArguments) -> Result<NamedParams, FailureReport> {
    let params = match arguments {
        BrokerArguments::Params(params) => params,
        BrokerArguments::ParamsWithContext(call) => &call.params,
        BrokerArguments::Object(object) => return Ok(wrap_arguments(tool, object)),
        BrokerArguments::Text(text) => return Ok(wrap_arguments(tool, &text.json)),
        BrokerArguments::None => return Ok(wrap_arguments(tool, b"{}")),
    };
    // The parser already rejected duplicate keys.
    let named = find_subject(method::TOOLS_CALL, params.clone());
    let named = named.filter(|(subject, ..)| subject.name() == tool);
    named.ok_or_else(|| {
        failures::bad_request(&"the parameters do not name the tool that is asked for")
    })
}

/// Finds the subject of a request; `None` if no server answers the method or the parameters lack
/// the subject.
fn find_subject(method: &str, params: Bytes) -> Option<NamedParams> {
    let task = |operation| move |id| CallSubject::Task { id, operation };
    let (subject, at) = match method {
        method::TOOLS_CALL => parse_subject(&params, "name", CallSubject::Tool)?,
        method::PROMPTS_GET => parse_subject(&params, "name", CallSubject::Prompt)?,
        method::RESOURCES_READ => parse_subject(&params, "uri", CallSubject::Resource)?,
        method::TASKS_GET => parse_subject(&params, "taskId", task(TaskOperation::Get))?,
        method::TASKS_RESULT => parse_subject(&params, "taskId", task(TaskOperation::Result))?,
        method::TASKS_UPDATE => parse_subject(&params, "taskId", task(TaskOperation::Update))?,
        method::TASKS_CANCEL => parse_subject(&params, "taskId", task(TaskOperation::Cancel))?,
        method::COMPLETION_COMPLETE => parse_completion(&params)?,
        _ => return None,
    };
    Some((subject, params, at))
}

fn wrap_arguments(tool: &Arc<str>, arguments: &[u8]) -> NamedParams {
    let mut params = Vec::with_capacity(tool.len() + arguments.len() + 32);
    params.extend_from_slice(b"{\"name\":");
    let start = params.len();
    write_string(&mut params, tool);
    let end = params.len();
    params.extend_from_slice(b",\"arguments\":");
    params.extend_from_slice(arguments);
    params.push(b'}');
    let subject = CallSubject::Tool(Arc::clone(tool));
    (subject, params.into(), ByteSpan { start, end })
}

/// Returns whether the caller wants a task in place of the result.
fn wants_task(params: &[u8]) -> bool {
    object::field(params, "task").is_some()
}

fn progress_token(params: &[u8]) -> Option<Range<usize>> {
    let meta = object::field(params, "_meta")?;
    let token = object::field(meta.slice(params), "progressToken")?;
    let token = token.shift(meta.start);
    Some(token.start..token.end)
}

/// Returns the idempotency key in `_meta`, text or not.
fn meta_key(params: &Bytes) -> Option<Arc<str>> {
    let meta = object::field(params, "_meta")?.slice(params);
    let value = object::field(meta, KEY_META)?.slice(meta);
    let text = object::parse_string(value).unwrap_or_else(|| String::from_utf8_lossy(value));
    Some(text.as_ref().into())
}

/// Returns the stateless context of a modern call. The receiving edge already checked the headers.
fn stateless_context(params: &Bytes, era: Era) -> Option<Box<StatelessContext>> {
    let has = |key| object::field(params, key).is_some();
    (era == Era::Modern).then(|| {
        Box::new(StatelessContext {
            header_claims: None,
            is_continuation: has("inputResponses") || has("requestState"),
            // The task id is the server's own id, as the hub knows the task.
            task_id: None,
        })
    })
}

/// Parses the subject from a member of the parameters.
fn parse_subject(
    params: &[u8],
    key: &str,
    subject: impl FnOnce(Arc<str>) -> CallSubject,
) -> Option<(CallSubject, ByteSpan)> {
    let at = object::field(params, key)?;
    let name = object::parse_string(at.slice(params))?;
    Some((subject(name.into()), at))
}

/// Parses the reference of a completion request.
fn parse_completion(params: &[u8]) -> Option<(CallSubject, ByteSpan)> {
    let reference = object::field(params, "ref")?;
    let inside = reference.slice(params);
    let (subject, at) = match object::text_field(inside, "type")?.as_ref() {
        "ref/prompt" => parse_subject(inside, "name", CallSubject::CompletePrompt)?,
        "ref/resource" => parse_subject(inside, "uri", CallSubject::CompleteResource)?,
        _ => return None,
    };
    Some((subject, at.shift(reference.start)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_whole(params: &'static str) -> Result<NamedParams, FailureReport> {
        let params = Bytes::from_static(params.as_bytes());
        tool_params(&"t".into(), &BrokerArguments::Params(params))
    }

    #[test]
    fn whole_params_keep_bytes_and_name_tool() {
        let text = r#"{ "_meta":{"progressToken":7}, "arguments":{"a":1.0}, "name":"t" }"#;
        let (subject, params, name_at) = parse_whole(text).unwrap();
        assert_eq!(params, text.as_bytes());
        assert_eq!(name_at.slice(&params), b"\"t\"");
        assert_eq!(&text[progress_token(&params).unwrap()], "7");
        let whole = BrokerArguments::Params(params);
        let arguments = tool_arguments(subject.name(), &whole).unwrap();
        assert_eq!(arguments.raw(), &br#"{"a":1.0}"#[..]);
        assert!(!wants_task(text.as_bytes()));
        let (_, with_task, _) = parse_whole(r#"{"name":"t","task":{}}"#).unwrap();
        assert!(wants_task(&with_task));
        for bad in [
            r#"{"name":"other"}"#,
            r#"{"arguments":{}}"#,
            r#"{"name":7}"#,
            "[]",
        ] {
            assert_eq!(
                &*parse_whole(bad).unwrap_err().code,
                failures::BAD_REQUEST,
                "{bad}"
            );
        }
    }

    #[test]
    fn wrapped_arguments_keep_their_bytes() {
        let object = Bytes::from_static(br#"{"n":1e400, "s":"\u00e9"}"#);
        let (tool, bare) = ("a\"b".into(), BrokerArguments::Object(object.clone()));
        assert_eq!(tool_arguments(&tool, &bare).unwrap().raw(), &object);
        let (_, params, name_at) = tool_params(&tool, &bare).unwrap();
        let name = name_at.slice(&params);
        assert_eq!(object::parse_string(name).unwrap(), "a\"b");
        let (_, params, _) = tool_params(&"t".into(), &BrokerArguments::None).unwrap();
        assert_eq!(params, &br#"{"name":"t","arguments":{}}"#[..]);
    }
}
