//! Answers of servers of the modern era, in the words of a session of the other one.

use std::borrow::Cow;

use bowline_core::call::{Body, Call, Reply, Subject, TaskVerb};
use bowline_core::era::Era;
use bowline_wire::era::error;
use bowline_wire::era::result::{self, ResultKind};
use bowline_wire::era::tasks::{self, Status, Task};
use bowline_wire::jsonrpc::write_result;
use bowline_wire::mcp::{code, method};
use bytes::Bytes;

/// What a request came to.
#[derive(Debug, PartialEq, Eq)]
enum Said<'a> {
    Result(Cow<'a, [u8]>),
    Error(Cow<'a, [u8]>),
    /// Nothing that a session could be told.
    Strange(&'static str),
}

/// Returns the answer of a call as its session understands it.
pub(super) fn answer(call: &Call, reply: Reply) -> Bytes {
    if reply.era == Era::Legacy {
        return reply.answer;
    }
    let body = reply.answer.get(reply.body_at.clone()).unwrap_or_default();
    let said = match reply.body {
        Body::Error => Said::Error(error::to_legacy(body, call.subject.method())),
        Body::Result => of_result(&call.subject, call.makes_task, body),
    };
    match said {
        // Nothing changed.
        Said::Result(Cow::Borrowed(same)) | Said::Error(Cow::Borrowed(same))
            if same.len() == body.len() =>
        {
            reply.answer.clone()
        }
        Said::Result(result) => {
            let mut out = Vec::with_capacity(result.len() + call.id.len() + ENVELOPE_BYTES);
            write_result(&mut out, &call.id, &result);
            out.into()
        }
        Said::Error(error) => failed(&call.id, &error),
        Said::Strange(words) => super::error(Some(&call.id), code::INTERNAL, words),
    }
}

/// What an answer needs beside its id and its body.
const ENVELOPE_BYTES: usize = 40;

fn of_result<'a>(subject: &Subject, wants_task: bool, body: &'a [u8]) -> Said<'a> {
    match (result::kind(body), subject) {
        (ResultKind::Complete | ResultKind::Absent, Subject::Task { verb, .. }) => {
            of_task(*verb, body)
        }
        (ResultKind::Complete | ResultKind::Absent, _) => {
            Said::Result(result::to_legacy(body, subject.method()))
        }
        (ResultKind::Task, Subject::Tool(_)) if wants_task => {
            Said::Result(Cow::Owned(tasks::created_to_legacy(body)))
        }
        (ResultKind::Task, _) => {
            Said::Strange("the server made a task of a request that did not want one")
        }
        (ResultKind::InputRequired, _) => {
            Said::Strange("the server asks for something, and nobody was asked")
        }
        (ResultKind::Unknown, _) => {
            Said::Strange("the server's result is of a kind that this gateway does not know")
        }
    }
}

/// Says how a task stands, or what it came to.
fn of_task(verb: TaskVerb, body: &[u8]) -> Said<'_> {
    let Some(task) = Task::read(body) else {
        return Said::Result(result::to_legacy(body, method::TASKS_GET));
    };
    match (verb, task.status) {
        (TaskVerb::Get | TaskVerb::Cancel | TaskVerb::Update, _) => {
            Said::Result(Cow::Owned(tasks::to_legacy(body)))
        }
        (TaskVerb::Result, Status::Completed) => {
            let result = task.result.map_or(&b"{}"[..], |at| at.of(body));
            let result = result::to_legacy(result, method::TOOLS_CALL);
            Said::Result(Cow::Owned(tasks::related(&result, &task.id)))
        }
        (TaskVerb::Result, Status::Failed) => match task.error {
            Some(at) => Said::Error(error::to_legacy(at.of(body), method::TOOLS_CALL)),
            None => Said::Strange("the task failed"),
        },
        (TaskVerb::Result, Status::Cancelled) => Said::Strange("the task was cancelled"),
        (TaskVerb::Result, Status::Working | Status::InputRequired) => {
            Said::Strange("the task has no result yet")
        }
    }
}

/// Writes an answer around an error object.
fn failed(id: &[u8], error: &[u8]) -> Bytes {
    let head = &br#"{"jsonrpc":"2.0","id":"#[..];
    [head, id, br#","error":"#, error, b"}"].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(subject: &Subject, body: &str, want: &Said<'_>) {
        assert_eq!(of_result(subject, true, body.as_bytes()), *want, "{body}");
    }

    fn result(text: &str) -> Said<'_> {
        Said::Result(Cow::Borrowed(text.as_bytes()))
    }

    #[test]
    fn a_session_is_told_only_what_its_revision_has() {
        let tool = Subject::Tool("t".into());
        check(
            &tool,
            r#"{"resultType":"complete","content":[],"structuredContent":[1]}"#,
            &result(r#"{"content":[{"type":"text","text":"[1]"}]}"#),
        );
        let read = Subject::Resource("a://b".into());
        check(
            &read,
            r#"{"resultType":"complete","contents":[],"ttlMs":5,"cacheScope":"public"}"#,
            &result(r#"{"contents":[]}"#),
        );
        let made = r#"{"resultType":"task","taskId":"1","status":"working","ttlMs":null}"#;
        check(
            &tool,
            made,
            &result(r#"{"task":{"ttl":null,"taskId":"1","status":"working"}}"#),
        );
        for (wants, body) in [
            (false, made),
            (
                true,
                r#"{"resultType":"input_required","requestState":"s"}"#,
            ),
            (true, r#"{"resultType":"new"}"#),
        ] {
            let said = of_result(&tool, wants, body.as_bytes());
            assert!(matches!(said, Said::Strange(_)), "{body}");
        }
    }

    #[test]
    fn a_task_is_told_as_its_verb_asks() {
        let task = |verb| Subject::Task {
            id: "1".into(),
            verb,
        };
        let done = r#"{"resultType":"complete","taskId":"1","status":"completed","ttlMs":9,"result":{"content":[],"resultType":"complete"}}"#;
        let plain = r#"{"ttl":9,"taskId":"1","status":"completed"}"#;
        check(&task(TaskVerb::Get), done, &result(plain));
        check(&task(TaskVerb::Cancel), done, &result(plain));
        let related =
            r#"{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"1"}},"content":[]}"#;
        check(&task(TaskVerb::Result), done, &result(related));
        let failed = r#"{"taskId":"1","status":"failed","error":{"code":-32020,"message":"m"}}"#;
        let want = Said::Error(Cow::Borrowed(br#"{"code":-32603,"message":"m"}"#));
        check(&task(TaskVerb::Result), failed, &want);
        for open in ["working", "input_required", "cancelled"] {
            let body = format!(r#"{{"taskId":"1","status":"{open}"}}"#);
            let said = of_result(&task(TaskVerb::Result), false, body.as_bytes());
            assert!(matches!(said, Said::Strange(_)), "{body}");
        }
    }
}
