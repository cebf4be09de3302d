//! Unwraps the call inside a `call_tool`.

use std::sync::Arc;

use bowline_core::call::{CallRequest, CallSubject};
use bowline_wire::splice::to_literal;
use bowline_wire::{ObjectEditor, object};

use super::{call_arguments, params_arguments};

/// Returns the tool named in the parameters of a `call_tool`.
pub(crate) fn wrapped_tool_name(params: &[u8]) -> Option<Arc<str>> {
    object::text_field(params_arguments(params), "name").map(Into::into)
}

/// Returns the call wrapped in a `call_tool`: same caller, id and `_meta`, with the wrapped tool
/// and arguments. `None` if malformed.
pub(crate) fn wrapped_call(call: &CallRequest) -> Option<CallRequest> {
    let arguments = call_arguments(call);
    let tool = object::text_field(arguments, "name")?;
    let tool_arguments = object::field(arguments, "arguments").map(|at| at.slice(arguments));
    // Models write null for missing arguments.
    let tool_arguments = tool_arguments
        .filter(|tool_arguments| *tool_arguments != b"null")
        .unwrap_or(b"{}");
    if !tool_arguments.starts_with(b"{") {
        return None;
    }
    let mut editor = ObjectEditor::new(&call.message.params);
    let whole = editor.whole();
    editor.set_first(whole, &["name"], to_literal(&tool));
    editor.set_first(whole, &["arguments"], tool_arguments);
    let progress_at = call.message.progress_at.as_ref();
    let progress_at = progress_at.map(|at| editor.moved_range(at));
    let params = editor.finish();
    let name_at = object::field(&params, "name")?.to_range();
    let mut inner = call.clone();
    if let Some(stateless) = &mut inner.stateless {
        // Header claims refer to the listed tool `call_tool`, not to the wrapped tool.
        stateless.header_claims = None;
    }
    inner.subject = CallSubject::Tool(tool.as_ref().into());
    inner.name_at = name_at;
    inner.message.params = params.into();
    inner.message.progress_at = progress_at;
    Some(inner)
}

#[cfg(test)]
mod tests {
    use bowline_core::call::{EndpointScope, Principal, RequestMessage, Role};
    use bowline_core::era::Era;
    use bytes::Bytes;

    use super::*;

    fn call_tool_request(params: &'static str) -> CallRequest {
        let token = params.find("\"T\"");
        CallRequest {
            principal: Arc::new(Principal::new("ann", Role::Owner)),
            scope: EndpointScope::All,
            subject: CallSubject::Tool("call_tool".into()),
            name_at: 0..0,
            wants_task: false,
            deadline: None,
            run: None,
            idempotency_key: None,
            stateless: None,
            message: RequestMessage {
                params: Bytes::from_static(params.as_bytes()),
                progress_at: token.map(|at| at..at + 3),
                id: Bytes::from_static(b"1"),
                client: None,
                trace: None,
                era: Era::Legacy,
            },
        }
    }

    #[test]
    fn wrapped_call_keeps_argument_bytes_and_token() {
        let asked = call_tool_request(
            r#"{"_meta":{"a":1,"progressToken":"T"},"name":"call_tool","arguments":{"name":"s__\u0061","arguments":{"n": 1.50}},"task":{}}"#,
        );
        let inner = wrapped_call(&asked).unwrap();
        assert_eq!(inner.subject, CallSubject::Tool("s__a".into()));
        assert_eq!(
            inner.message.params,
            r#"{"_meta":{"a":1,"progressToken":"T"},"name":"s__a","arguments":{"n": 1.50},"task":{}}"#
        );
        assert_eq!(&inner.message.params[inner.name_at], b"\"s__a\"");
        assert_eq!(
            &inner.message.params[inner.message.progress_at.unwrap()],
            b"\"T\""
        );
    }

    #[test]
    fn malformed_call_tool_is_none() {
        for params in [
            r#"{"name":"call_tool"}"#,
            r#"{"name":"call_tool","arguments":{}}"#,
            r#"{"name":"call_tool","arguments":{"name":1}}"#,
            r#"{"name":"call_tool","arguments":{"name":"a","arguments":[1]}}"#,
            r#"{"name":"call_tool","arguments":{"name":"a","arguments":"{}"}}"#,
        ] {
            assert!(
                wrapped_call(&call_tool_request(params)).is_none(),
                "{params}"
            );
        }
        let none = wrapped_call(&call_tool_request(
            r#"{"arguments":{"name":"a","arguments":null}}"#,
        ))
        .unwrap();
        assert_eq!(none.message.params, r#"{"name":"a","arguments":{}}"#);
    }
}
