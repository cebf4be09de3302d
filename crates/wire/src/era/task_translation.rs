//! Translates tasks between eras: core tasks of 2025-11-25, and the tasks extension.

use std::borrow::Cow;

use crate::object::{self, is_object};
use crate::object_editor::{MemberList, ObjectEditor};
use crate::splice::ByteSpan;

/// Status of a task, with the same words in both eras.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskStatus {
    /// In progress.
    Working,
    /// Waiting for client input.
    InputRequired,
    /// Finished with a result.
    Completed,
    /// Finished with an error.
    Failed,
    /// Cancelled.
    Cancelled,
}

impl TaskStatus {
    /// Returns the wire word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::InputRequired => "input_required",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Parses the wire word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [
            Self::Working,
            Self::InputRequired,
            Self::Completed,
            Self::Failed,
            Self::Cancelled,
        ]
        .into_iter()
        .find(|known| known.as_str() == word)
    }

    /// Whether the status is final.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}

/// A task of either era. Spans refer to the parsed text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedTask<'a> {
    /// The task id.
    pub id: Cow<'a, str>,
    /// The id, including quotes.
    pub id_at: ByteSpan,
    /// The status.
    pub status: TaskStatus,
    /// The poll interval.
    pub poll_ms: Option<u64>,
    /// Retention; absent if unlimited.
    pub ttl_ms: Option<u64>,
    /// The result (modern).
    pub result: Option<ByteSpan>,
    /// The error (modern).
    pub error: Option<ByteSpan>,
    /// The input requests (modern).
    pub input_requests: Option<ByteSpan>,
}

impl<'a> ParsedTask<'a> {
    /// Parses a task object; `None` without an id or a known status.
    #[must_use]
    pub fn parse(text: &'a [u8]) -> Option<Self> {
        let end = text.len();
        Self::parse_at(text, ByteSpan { start: 0, end })
    }

    /// Parses the legacy result that creates a task.
    #[must_use]
    pub fn parse_created(result: &'a [u8]) -> Option<Self> {
        Self::parse_at(result, object::field(result, "task")?)
    }

    fn parse_at(text: &'a [u8], at: ByteSpan) -> Option<Self> {
        let (mut id, mut status) = (None, None);
        let (mut poll_ms, mut ttl_ms) = (None, None);
        let (mut result, mut error, mut requests) = (None, None, None);
        let number = |at: ByteSpan| std::str::from_utf8(at.slice(text)).ok()?.parse().ok();
        for (key, value) in object::fields(at.slice(text)) {
            let value = value.shift(at.start);
            match &*key {
                "taskId" => id = Some(value),
                "status" => status = Some(value),
                "pollIntervalMs" | "pollInterval" => poll_ms = number(value),
                "ttlMs" | "ttl" => ttl_ms = number(value),
                "result" => result = Some(value),
                "error" => error = Some(value),
                "inputRequests" => requests = Some(value),
                _ => {}
            }
        }
        let id_at = id?;
        Some(Self {
            id: object::parse_string(id_at.slice(text))?,
            id_at,
            status: TaskStatus::parse(&object::parse_string(status?.slice(text))?)?,
            poll_ms,
            ttl_ms,
            result,
            error,
            input_requests: requests,
        })
    }
}

/// Translates a task of the extension to the result of legacy `tasks/get` or `tasks/cancel`, or to
/// the parameters of the notification; the outcome is requested separately there.
#[must_use]
pub fn to_legacy(task: &[u8]) -> Vec<u8> {
    rename_members(task, &LEGACY_NAMES, MemberList::default(), |key| {
        matches!(
            key,
            b"resultType" | b"result" | b"error" | b"inputRequests" | b"requestState"
        )
    })
}

/// Translates the result that creates a task of the extension to legacy.
#[must_use]
pub fn created_to_legacy(result: &[u8]) -> Vec<u8> {
    let task = rename_members(result, &LEGACY_NAMES, MemberList::default(), |key| {
        matches!(
            key,
            b"resultType" | b"result" | b"error" | b"inputRequests" | b"requestState" | b"_meta"
        )
    });
    let mut members = MemberList::from_member("task", &task);
    if let Some(meta) = object::field(result, "_meta") {
        members.push("_meta", meta.slice(result));
    }
    members.into_object()
}

/// Outcome of a legacy task, included in the extension's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskOutcome<'a> {
    /// No outcome yet.
    Pending,
    /// A result object.
    Result(&'a [u8]),
    /// An error object.
    Error(&'a [u8]),
    /// An object of input requests, as written by [`super::input_required::write_input_requests`].
    InputRequests(&'a [u8]),
}

/// Translates the result of legacy `tasks/get` to the extension.
#[must_use]
pub fn to_modern(task: &[u8], outcome: TaskOutcome<'_>) -> Vec<u8> {
    let mut front = MemberList::from_member("resultType", b"\"complete\"");
    match outcome {
        TaskOutcome::Pending => {}
        TaskOutcome::Result(result) => front.push("result", result),
        TaskOutcome::Error(error) => front.push("error", error),
        TaskOutcome::InputRequests(requests) => front.push("inputRequests", requests),
    }
    rename_members(task, &MODERN_NAMES, front, |key| {
        matches!(key, b"resultType" | b"result" | b"error" | b"inputRequests")
    })
}

/// Translates the legacy result that creates a task to the extension; `None` if no task is named.
#[must_use]
pub fn created_to_modern(result: &[u8]) -> Option<Vec<u8>> {
    let task = object::field(result, "task")?.slice(result);
    if !is_object(task) {
        return None;
    }
    let mut front = MemberList::from_member("resultType", b"\"task\"");
    if let Some(meta) = object::field(result, "_meta") {
        front.push("_meta", meta.slice(result));
    }
    Some(rename_members(task, &MODERN_NAMES, front, |key| {
        matches!(key, b"resultType" | b"_meta")
    }))
}

/// The `_meta` key with the task of a legacy result.
pub const RELATED_TASK_KEY: &str = "io.modelcontextprotocol/related-task";

/// Writes the outcome of a task as the result of legacy `tasks/result`, which names the task.
#[must_use]
pub fn with_related_task(result: &[u8], id: &str) -> Vec<u8> {
    let mut task = MemberList::default();
    task.push_text("taskId", id);
    let mut editor = ObjectEditor::new(result);
    let path = ["_meta", RELATED_TASK_KEY];
    editor.set_first(editor.whole(), &path, task.into_object());
    editor.finish()
}

/// Whether a legacy request asks for a task as the result.
#[must_use]
pub fn wants_task(params: &[u8]) -> bool {
    object::field(params, "task").is_some_and(|at| is_object(at.slice(params)))
}

/// Member names that differ between eras.
const LEGACY_NAMES: [(&[u8], &str); 2] = [(b"ttlMs", "ttl"), (b"pollIntervalMs", "pollInterval")];
const MODERN_NAMES: [(&[u8], &str); 2] = [(b"ttl", "ttlMs"), (b"pollInterval", "pollIntervalMs")];

/// Writes an object with renamed and removed members.
fn rename_members(
    task: &[u8],
    names: &[(&[u8], &str)],
    mut front: MemberList,
    is_removed: impl Fn(&[u8]) -> bool,
) -> Vec<u8> {
    for (key, value) in object::fields(task) {
        if let Some((_, name)) = names.iter().find(|(old, _)| *old == key.as_bytes()) {
            front.push(name, value.slice(task));
        }
    }
    let mut editor = ObjectEditor::new(task);
    let is_object = editor.retain(editor.whole(), |key, _| {
        let mut named = names.iter();
        !is_removed(key) && !named.any(|(old, new)| *old == key || new.as_bytes() == key)
    });
    if !is_object {
        return b"{}".to_vec();
    }
    editor.insert_first(editor.whole(), front);
    editor.finish()
}

#[cfg(test)]
mod tests;
