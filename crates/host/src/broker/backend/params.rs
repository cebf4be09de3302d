//! The parameters of a call as a host or an executor wants them, around the bytes that came.

use std::ops::Range;
use std::sync::Arc;

use bowline_core::call::{Subject, TaskVerb};
use bowline_core::era::{Era, Stateless};
use bowline_core::error::Failure;
use bowline_core::lane::KEY_META;
use bowline_wire::broker::Arguments;
use bowline_wire::mcp::method;
use bowline_wire::object;
use bowline_wire::span::Span;
use bowline_wire::splice::write_string;
use bytes::Bytes;

use crate::broker::failures;
use crate::tools;

/// The parameters of a request that a server answers, and what stands where in them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Given {
    pub(super) subject: Subject,
    pub(super) params: Bytes,
    pub(super) name_at: Range<usize>,
    pub(super) progress_at: Option<Range<usize>>,
    pub(super) makes_task: bool,
}

impl Given {
    /// Takes parameters as they are, or writes them around arguments.
    pub(super) fn read(tool: &str, arguments: &Arguments) -> Result<Self, Failure> {
        match arguments {
            Arguments::Params(params) => Self::whole(tool, params),
            Arguments::Told(told) => Self::whole(tool, &told.params),
            Arguments::Object(object) => Ok(Self::around(tool, object)),
            Arguments::Text(text) => Ok(Self::around(tool, &text.json)),
            Arguments::None => Ok(Self::around(tool, b"{}")),
        }
    }

    /// The name in the parameters must be the one that is asked for. That no key comes twice was
    /// seen when they were read.
    fn whole(tool: &str, params: &Bytes) -> Result<Self, Failure> {
        let given = Self::of(method::TOOLS_CALL, Some(params));
        let given = given.filter(|given| **given.subject.name() == *tool);
        given.ok_or_else(|| {
            failures::bad_request(&"the parameters do not name the tool that is asked for")
        })
    }

    /// Returns the idempotency key that stands in `_meta`, be it text or not.
    pub(super) fn key(&self) -> Option<Arc<str>> {
        let meta = object::field(&self.params, "_meta")?.of(&self.params);
        let value = object::field(meta, KEY_META)?.of(meta);
        let text = object::string(value).unwrap_or_else(|| String::from_utf8_lossy(value));
        Some(text.as_ref().into())
    }

    /// Takes the parameters of a request as they are; nothing where no server answers this method,
    /// or the parameters do not say what is meant.
    pub(super) fn of(asked: &str, params: Option<&Bytes>) -> Option<Self> {
        let params = params?;
        let task = |verb| move |id| Subject::Task { id, verb };
        let (subject, at) = match asked {
            method::TOOLS_CALL => named(params, "name", Subject::Tool)?,
            method::PROMPTS_GET => named(params, "name", Subject::Prompt)?,
            method::RESOURCES_READ => named(params, "uri", Subject::Resource)?,
            method::TASKS_GET => named(params, "taskId", task(TaskVerb::Get))?,
            method::TASKS_RESULT => named(params, "taskId", task(TaskVerb::Result))?,
            method::TASKS_UPDATE => named(params, "taskId", task(TaskVerb::Update))?,
            method::TASKS_CANCEL => named(params, "taskId", task(TaskVerb::Cancel))?,
            method::COMPLETION_COMPLETE => completed(params)?,
            _ => return None,
        };
        let meta = object::field(params, "_meta");
        let token = meta.and_then(|meta| {
            let token = object::field(meta.of(params), "progressToken")?;
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

    /// Says what a call of the modern era brings beside its parameters. What its headers said was
    /// looked at where it came in.
    pub(super) fn stateless(&self, era: Era) -> Option<Box<Stateless>> {
        let has = |key| object::field(&self.params, key).is_some();
        (era == Era::Modern).then(|| {
            Box::new(Stateless {
                claims: None,
                retried: has("inputResponses") || has("requestState"),
                // The id is the server's own, as the hub has it.
                task: None,
            })
        })
    }

    fn around(tool: &str, arguments: &[u8]) -> Self {
        let mut params = Vec::with_capacity(tool.len() + arguments.len() + 32);
        params.extend_from_slice(b"{\"name\":");
        let start = params.len();
        write_string(&mut params, tool);
        let name_at = start..params.len();
        params.extend_from_slice(b",\"arguments\":");
        params.extend_from_slice(arguments);
        params.push(b'}');
        Self {
            subject: Subject::Tool(tool.into()),
            params: params.into(),
            name_at,
            progress_at: None,
            makes_task: false,
        }
    }

    /// Returns the arguments alone.
    pub(super) fn arguments(&self) -> tools::Arguments {
        let at = object::field(&self.params, "arguments");
        at.map_or_else(tools::Arguments::default, |at| {
            tools::Arguments::unchecked(self.params.slice(at.start..at.end))
        })
    }
}

/// Reads who is meant by a member of the parameters.
fn named(
    params: &[u8],
    key: &str,
    subject: impl FnOnce(Arc<str>) -> Subject,
) -> Option<(Subject, Span)> {
    let at = object::field(params, key)?;
    let name = object::string(at.of(params))?;
    Some((subject(name.into()), at))
}

/// Reads of what an argument is to be completed.
fn completed(params: &[u8]) -> Option<(Subject, Span)> {
    let reference = object::field(params, "ref")?;
    let inside = reference.of(params);
    let (subject, at) = match object::text(inside, "type")?.as_ref() {
        "ref/prompt" => named(inside, "name", Subject::CompletePrompt)?,
        "ref/resource" => named(inside, "uri", Subject::CompleteResource)?,
        _ => return None,
    };
    Some((subject, at.shift(reference.start)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(params: &'static str) -> Result<Given, Failure> {
        let params = Bytes::from_static(params.as_bytes());
        Given::read("t", &Arguments::Params(params))
    }

    #[test]
    fn whole_parameters_stay_as_they_came_and_name_the_tool() {
        let text = r#"{ "_meta":{"progressToken":7}, "arguments":{"a":1.0}, "name":"t" }"#;
        let given = whole(text).unwrap();
        assert_eq!(given.params, text.as_bytes());
        assert_eq!(&text[given.name_at.clone()], "\"t\"");
        assert_eq!(&text[given.progress_at.clone().unwrap()], "7");
        assert_eq!(given.arguments().raw(), &br#"{"a":1.0}"#[..]);
        assert!(!given.makes_task);
        assert!(whole(r#"{"name":"t","task":{}}"#).unwrap().makes_task);
        for bad in [
            r#"{"name":"other"}"#,
            r#"{"arguments":{}}"#,
            r#"{"name":7}"#,
            "[]",
        ] {
            assert_eq!(
                &*whole(bad).unwrap_err().code,
                failures::BAD_REQUEST,
                "{bad}"
            );
        }
    }

    #[test]
    fn arguments_are_written_around_byte_for_byte() {
        let object = Bytes::from_static(br#"{"n":1e400, "s":"\u00e9"}"#);
        let given = Given::read("a\"b", &Arguments::Object(object.clone())).unwrap();
        assert_eq!(given.arguments().raw(), &object);
        let name = given.params.slice(given.name_at);
        assert_eq!(object::string(&name).unwrap(), "a\"b");
        let none = Given::read("t", &Arguments::None).unwrap();
        assert_eq!(none.params, &br#"{"name":"t","arguments":{}}"#[..]);
    }
}
