//! Calls of sessions (2024-11-05 to 2025-11-25): reads the request, and writes the outcome in the
//! legacy era.

use std::borrow::Cow;
use std::sync::Arc;

use bowline_core::call::{BodyKind, CallReply, CallRequest, CallSubject, TaskOperation};
use bowline_core::client_handle::ClientHandle;
use bowline_core::era::Era;
use bowline_wire::RpcMessage;
use bowline_wire::era::error_translation;
use bowline_wire::era::result_translation::{self, ResultKind};
use bowline_wire::era::task_translation::{self, ParsedTask, TaskStatus};
use bowline_wire::jsonrpc::write_result;
use bowline_wire::mcp::{code, method};
use bytes::Bytes;
use http::StatusCode;

use super::call_params::{self, CallKind};
use super::{CallResponse, CallResult, CallStream, ResponseFuture};
use crate::call_errors;
use crate::client_session::{ClientSession, SessionCallHandle};
use crate::mcp::{McpCaller, accepts_type, error_response};
use crate::response_body::{self, EdgeResponse};

/// Handles a request that servers answer.
pub(crate) async fn handle_call(
    caller: McpCaller<'_>,
    session: &Arc<ClientSession>,
    message: &RpcMessage,
    kind: CallKind,
) -> EdgeResponse {
    // A client that does not accept SSE gets no notifications or server requests, but the call
    // still belongs to its session; otherwise a server request would be attributed to a different
    // session.
    let handle = accepts_type(caller.parts, "text/event-stream").then(|| {
        let id = Bytes::copy_from_slice(message.id().unwrap_or_default());
        SessionCallHandle::new(session, id, Vec::new())
    });
    let client = client_handle(session, handle.as_ref());
    match start_call(caller, session, message, kind, client) {
        Ok(running) => {
            let stream = handle.map(|handle| handle as Arc<dyn CallStream>);
            super::respond(caller.edge, running, stream).await
        }
        Err(refused) => response_body::json_response(StatusCode::OK, refused),
    }
}

/// Returns the handle of a call whose client accepts SSE, or a handle that takes only the reply.
pub(crate) fn client_handle(
    session: &ClientSession,
    handle: Option<&Arc<SessionCallHandle>>,
) -> Arc<dyn ClientHandle> {
    match handle {
        Some(handle) => Arc::clone(handle) as Arc<dyn ClientHandle>,
        None => session.handle_without_stream(),
    }
}

/// Starts a call on the host; `Err` holds the error response for an invalid request.
pub(crate) fn start_call(
    caller: McpCaller<'_>,
    session: &ClientSession,
    message: &RpcMessage,
    kind: CallKind,
    client: Arc<dyn ClientHandle>,
) -> Result<ResponseFuture, Bytes> {
    let id = message.id_span().map_or(Bytes::from_static(b"null"), |at| {
        message.bytes().slice(at.start..at.end)
    });
    let invalid = |text| error_response(Some(&id), code::INVALID_PARAMS, text);
    let missing_target = || invalid(kind.missing_target_text());
    let params_at = message.params_span().ok_or_else(missing_target)?;
    let params = message.bytes().slice(params_at.start..params_at.end);
    let call_params = call_params::parse_params(&params, kind).ok_or_else(missing_target)?;
    let call = call_params::build_call(caller, id.clone(), params, call_params).map_err(invalid)?;
    let Some(cancelled) = session.in_flight.register(&id) else {
        let text = "a request with this id is under way in this session";
        return Err(error_response(Some(&id), code::INVALID_REQUEST, text));
    };
    let mut call = call;
    call.message.client = Some(client);
    let edge = Arc::clone(caller.edge);
    Ok(Box::pin(async move {
        let outcome = super::run_call(&edge, &call, cancelled).await;
        write_outcome(&call, outcome)
    }))
}

/// Writes the outcome of a call for its session.
fn write_outcome(call: &CallRequest, outcome: CallResult) -> CallResponse {
    match outcome {
        Ok(reply) => downgrade_reply(call, reply).into(),
        Err(error) => {
            let text = call_errors::error_response(&call.message.id, &error);
            CallResponse::from(text).limited_by(&error)
        }
    }
}

/// Reply body in the legacy era.
#[derive(Debug, PartialEq, Eq)]
enum LegacyReply<'a> {
    Result(Cow<'a, [u8]>),
    Error(Cow<'a, [u8]>),
    /// A reply without a legacy equivalent.
    Unsupported(&'static str),
}

/// Returns the reply in the legacy era.
fn downgrade_reply(call: &CallRequest, reply: CallReply) -> Bytes {
    if reply.response.era == Era::Legacy {
        return reply.response.bytes;
    }
    let body = reply.response.body_bytes();
    let legacy_reply = match reply.response.body {
        BodyKind::Error => {
            LegacyReply::Error(error_translation::to_legacy(body, call.subject.method()))
        }
        BodyKind::Result => downgrade_result(&call.subject, call.wants_task, body),
    };
    match legacy_reply {
        // Unchanged.
        LegacyReply::Result(Cow::Borrowed(same)) | LegacyReply::Error(Cow::Borrowed(same))
            if same.len() == body.len() =>
        {
            reply.response.bytes.clone()
        }
        LegacyReply::Result(result) => {
            let mut out = Vec::with_capacity(result.len() + call.message.id.len() + ENVELOPE_BYTES);
            write_result(&mut out, &call.message.id, &result);
            out.into()
        }
        LegacyReply::Error(error) => call_errors::server_error_response(&call.message.id, &error),
        LegacyReply::Unsupported(words) => {
            error_response(Some(&call.message.id), code::INTERNAL, words)
        }
    }
}

/// Envelope bytes beyond id and body.
const ENVELOPE_BYTES: usize = 40;

fn downgrade_result<'a>(
    subject: &CallSubject,
    wants_task: bool,
    body: &'a [u8],
) -> LegacyReply<'a> {
    match (result_translation::result_kind(body), subject) {
        (ResultKind::Complete | ResultKind::Absent, CallSubject::Task { operation, .. }) => {
            downgrade_task(*operation, body)
        }
        (ResultKind::Complete | ResultKind::Absent, _) => {
            LegacyReply::Result(result_translation::to_legacy(body, subject.method()))
        }
        (ResultKind::Task, CallSubject::Tool(_)) if wants_task => {
            LegacyReply::Result(Cow::Owned(task_translation::created_to_legacy(body)))
        }
        (ResultKind::Task, _) => {
            LegacyReply::Unsupported("the server made a task of a request that did not want one")
        }
        (ResultKind::InputRequired, _) => {
            LegacyReply::Unsupported("the server asks for something, and nobody was asked")
        }
        (ResultKind::Unknown, _) => LegacyReply::Unsupported(
            "the server's result is of a kind that this gateway does not know",
        ),
    }
}

/// Translates the state or result of a task.
fn downgrade_task(verb: TaskOperation, body: &[u8]) -> LegacyReply<'_> {
    let Some(task) = ParsedTask::parse(body) else {
        return LegacyReply::Result(result_translation::to_legacy(body, method::TASKS_GET));
    };
    match (verb, task.status) {
        (TaskOperation::Get | TaskOperation::Cancel | TaskOperation::Update, _) => {
            LegacyReply::Result(Cow::Owned(task_translation::to_legacy(body)))
        }
        (TaskOperation::Result, TaskStatus::Completed) => {
            let result = task.result.map_or(&b"{}"[..], |at| at.slice(body));
            let result = result_translation::to_legacy(result, method::TOOLS_CALL);
            LegacyReply::Result(Cow::Owned(task_translation::with_related_task(
                &result, &task.id,
            )))
        }
        (TaskOperation::Result, TaskStatus::Failed) => match task.error {
            Some(at) => LegacyReply::Error(error_translation::to_legacy(
                at.slice(body),
                method::TOOLS_CALL,
            )),
            None => LegacyReply::Unsupported("the task failed"),
        },
        (TaskOperation::Result, TaskStatus::Cancelled) => {
            LegacyReply::Unsupported("the task was cancelled")
        }
        (TaskOperation::Result, TaskStatus::Working | TaskStatus::InputRequired) => {
            LegacyReply::Unsupported("the task has no result yet")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_downgrade(subject: &CallSubject, body: &str, want: &LegacyReply<'_>) {
        assert_eq!(
            downgrade_result(subject, true, body.as_bytes()),
            *want,
            "{body}"
        );
    }

    fn legacy_result(text: &str) -> LegacyReply<'_> {
        LegacyReply::Result(Cow::Borrowed(text.as_bytes()))
    }

    #[test]
    fn result_is_reduced_to_legacy_fields() {
        let tool = CallSubject::Tool("t".into());
        assert_downgrade(
            &tool,
            r#"{"resultType":"complete","content":[],"structuredContent":[1]}"#,
            &legacy_result(r#"{"content":[{"type":"text","text":"[1]"}]}"#),
        );
        let read = CallSubject::Resource("a://b".into());
        assert_downgrade(
            &read,
            r#"{"resultType":"complete","contents":[],"ttlMs":5,"cacheScope":"public"}"#,
            &legacy_result(r#"{"contents":[]}"#),
        );
        let made = r#"{"resultType":"task","taskId":"1","status":"working","ttlMs":null}"#;
        assert_downgrade(
            &tool,
            made,
            &legacy_result(r#"{"task":{"ttl":null,"taskId":"1","status":"working"}}"#),
        );
        for (wants, body) in [
            (false, made),
            (
                true,
                r#"{"resultType":"input_required","requestState":"s"}"#,
            ),
            (true, r#"{"resultType":"new"}"#),
        ] {
            let said = downgrade_result(&tool, wants, body.as_bytes());
            assert!(matches!(said, LegacyReply::Unsupported(_)), "{body}");
        }
    }

    #[test]
    fn task_reply_depends_on_operation() {
        let task = |operation| CallSubject::Task {
            id: "1".into(),
            operation,
        };
        let done = r#"{"resultType":"complete","taskId":"1","status":"completed","ttlMs":9,"result":{"content":[],"resultType":"complete"}}"#;
        let plain = r#"{"ttl":9,"taskId":"1","status":"completed"}"#;
        assert_downgrade(&task(TaskOperation::Get), done, &legacy_result(plain));
        assert_downgrade(&task(TaskOperation::Cancel), done, &legacy_result(plain));
        let related =
            r#"{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"1"}},"content":[]}"#;
        assert_downgrade(&task(TaskOperation::Result), done, &legacy_result(related));
        let failed = r#"{"taskId":"1","status":"failed","error":{"code":-32020,"message":"m"}}"#;
        let want = LegacyReply::Error(Cow::Borrowed(br#"{"code":-32603,"message":"m"}"#));
        assert_downgrade(&task(TaskOperation::Result), failed, &want);
        for open in ["working", "input_required", "cancelled"] {
            let body = format!(r#"{{"taskId":"1","status":"{open}"}}"#);
            let said = downgrade_result(&task(TaskOperation::Result), false, body.as_bytes());
            assert!(matches!(said, LegacyReply::Unsupported(_)), "{body}");
        }
    }
}
