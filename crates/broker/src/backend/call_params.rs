//! Builds call parameters for a host or an executor around the received bytes.

use std::ops::Range;
use std::sync::Arc;

use bowline_core::call::{CallSubject, TaskOperation};
use bowline_core::era::{Era, StatelessContext};
use bowline_core::error::FailureReport;
use bowline_core::lane::KEY_META;
use bowline_wire::mcp::method;
use bowline_wire::object;
use bowline_wire::span::ByteSpan;
use bowline_wire::splice::write_string;
use bytes::Bytes;

use crate::failures;
use crate::frames::BrokerArguments;

/// Parameters of a request that a server answers, with the byte ranges of name and progress token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendCallParams {
    pub subject: CallSubject,
    pub params: Bytes,
    pub name_at: Range<usize>,
    pub progress_at: Option<Range<usize>>,
    pub makes_task: bool,
}

impl BackendCallParams {
    /// Takes full parameters unchanged, or wraps bare arguments.
    pub fn from_arguments(tool: &str, arguments: &BrokerArguments) -> Result<Self, FailureReport> {
        match arguments {
            BrokerArguments::Params(params) => Self::from_params(tool, params),
            BrokerArguments::ParamsWithContext(told) => Self::from_params(tool, &told.params),
            BrokerArguments::Object(object) => Ok(Self::wrap_arguments(tool, object)),
            BrokerArguments::Text(text) => Ok(Self::wrap_arguments(tool, &text.json)),
            BrokerArguments::None => Ok(Self::wrap_arguments(tool, b"{}")),
        }
    }

    /// Requires the name in the parameters to match the requested tool. The parser already
    /// rejected duplicate keys.
    fn from_params(tool: &str, params: &Bytes) -> Result<Self, FailureReport> {
        let parsed = Self::from_method(method::TOOLS_CALL, Some(params));
        let parsed = parsed.filter(|parsed| **parsed.subject.name() == *tool);
        parsed.ok_or_else(|| {
            failures::bad_request(&"the parameters do not name the tool that is asked for")
        })
    }

    /// Returns the idempotency key in `_meta`, text or not.
    pub fn idempotency_key(&self) -> Option<Arc<str>> {
        let meta = object::field(&self.params, "_meta")?.slice(&self.params);
        let value = object::field(meta, KEY_META)?.slice(meta);
        let text = object::parse_string(value).unwrap_or_else(|| String::from_utf8_lossy(value));
        Some(text.as_ref().into())
    }

    /// Takes the parameters of a request unchanged; `None` if no server answers the method or the
    /// parameters lack the subject.
    pub fn from_method(method: &str, params: Option<&Bytes>) -> Option<Self> {
        let params = params?;
        let task = |operation| move |id| CallSubject::Task { id, operation };
        let (subject, at) = match method {
            method::TOOLS_CALL => parse_subject(params, "name", CallSubject::Tool)?,
            method::PROMPTS_GET => parse_subject(params, "name", CallSubject::Prompt)?,
            method::RESOURCES_READ => parse_subject(params, "uri", CallSubject::Resource)?,
            method::TASKS_GET => parse_subject(params, "taskId", task(TaskOperation::Get))?,
            method::TASKS_RESULT => parse_subject(params, "taskId", task(TaskOperation::Result))?,
            method::TASKS_UPDATE => parse_subject(params, "taskId", task(TaskOperation::Update))?,
            method::TASKS_CANCEL => parse_subject(params, "taskId", task(TaskOperation::Cancel))?,
            method::COMPLETION_COMPLETE => parse_completion(params)?,
            _ => return None,
        };
        let meta = object::field(params, "_meta");
        let token = meta.and_then(|meta| {
            let token = object::field(meta.slice(params), "progressToken")?;
            Some(token.shift(meta.start))
        });
        Some(Self {
            subject,
            params: params.clone(),
            name_at: at.start..at.end,
            progress_at: token.map(|token| token.start..token.end),
            makes_task: object::field(params, "task").is_some(),
        })
    }

    /// Returns the stateless context of a modern call. The receiving edge already checked the
    /// headers.
    pub fn stateless_call(&self, era: Era) -> Option<Box<StatelessContext>> {
        let has = |key| object::field(&self.params, key).is_some();
        (era == Era::Modern).then(|| {
            Box::new(StatelessContext {
                header_claims: None,
                is_continuation: has("inputResponses") || has("requestState"),
                // The task id is the server's own id, as the hub knows the task.
                task_id: None,
            })
        })
    }

    fn wrap_arguments(tool: &str, arguments: &[u8]) -> Self {
        let mut params = Vec::with_capacity(tool.len() + arguments.len() + 32);
        params.extend_from_slice(b"{\"name\":");
        let start = params.len();
        write_string(&mut params, tool);
        let name_at = start..params.len();
        params.extend_from_slice(b",\"arguments\":");
        params.extend_from_slice(arguments);
        params.push(b'}');
        Self {
            subject: CallSubject::Tool(tool.into()),
            params: params.into(),
            name_at,
            progress_at: None,
            makes_task: false,
        }
    }

    /// Returns only the arguments.
    pub fn arguments(&self) -> bowline_tools::ToolArguments {
        let at = object::field(&self.params, "arguments");
        at.map_or_else(bowline_tools::ToolArguments::default, |at| {
            bowline_tools::ToolArguments::new_unchecked(self.params.slice(at.start..at.end))
        })
    }
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

    fn parse_whole(params: &'static str) -> Result<BackendCallParams, FailureReport> {
        let params = Bytes::from_static(params.as_bytes());
        BackendCallParams::from_arguments("t", &BrokerArguments::Params(params))
    }

    #[test]
    fn whole_params_keep_bytes_and_name_tool() {
        let text = r#"{ "_meta":{"progressToken":7}, "arguments":{"a":1.0}, "name":"t" }"#;
        let given = parse_whole(text).unwrap();
        assert_eq!(given.params, text.as_bytes());
        assert_eq!(&text[given.name_at.clone()], "\"t\"");
        assert_eq!(&text[given.progress_at.clone().unwrap()], "7");
        assert_eq!(given.arguments().raw(), &br#"{"a":1.0}"#[..]);
        assert!(!given.makes_task);
        assert!(parse_whole(r#"{"name":"t","task":{}}"#).unwrap().makes_task);
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
        let given =
            BackendCallParams::from_arguments("a\"b", &BrokerArguments::Object(object.clone()))
                .unwrap();
        assert_eq!(given.arguments().raw(), &object);
        let name = given.params.slice(given.name_at);
        assert_eq!(object::parse_string(&name).unwrap(), "a\"b");
        let none = BackendCallParams::from_arguments("t", &BrokerArguments::None).unwrap();
        assert_eq!(none.params, &br#"{"name":"t","arguments":{}}"#[..]);
    }
}
