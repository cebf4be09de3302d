//! Tasks of the one era in the shapes of the other: core tasks of 2025-11-25, and the extension.

use std::borrow::Cow;

use super::change::{Fate, applied, is_object, push_member, rewrite, whole};
use crate::mcp::meta;
use crate::object;
use crate::span::Span;

/// How a task stands; both eras have the same words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It goes on.
    Working,
    /// It waits for an answer of the client.
    InputRequired,
    /// It has a result.
    Completed,
    /// It ended with an error.
    Failed,
    /// It was given up.
    Cancelled,
}

impl Status {
    /// Returns its word on the wire.
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

    /// Returns the status of that word.
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

    /// Whether nothing comes after it.
    #[must_use]
    pub const fn is_end(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}

/// A task as either era says it. Places are those in the text that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task<'a> {
    /// Its name.
    pub id: Cow<'a, str>,
    /// Where its name stands, quotes included.
    pub id_at: Span,
    /// How it stands.
    pub status: Status,
    /// How long to wait before asking again.
    pub poll_ms: Option<u64>,
    /// How long it is kept; absent where for ever.
    pub ttl_ms: Option<u64>,
    /// Its result (modern).
    pub result: Option<Span>,
    /// Its error (modern).
    pub error: Option<Span>,
    /// What it asks (modern).
    pub requests: Option<Span>,
}

impl<'a> Task<'a> {
    /// Reads an object that is a task; nothing where it has no name or no known status.
    #[must_use]
    pub fn read(text: &'a [u8]) -> Option<Self> {
        Self::read_at(text, whole(text))
    }

    /// Reads the result of the legacy era that names a new task.
    #[must_use]
    pub fn read_created(result: &'a [u8]) -> Option<Self> {
        Self::read_at(result, object::field(result, "task")?)
    }

    fn read_at(text: &'a [u8], at: Span) -> Option<Self> {
        let (mut id, mut status) = (None, None);
        let (mut poll_ms, mut ttl_ms) = (None, None);
        let (mut result, mut error, mut requests) = (None, None, None);
        let number = |at: Span| std::str::from_utf8(at.of(text)).ok()?.parse().ok();
        for (key, value) in object::fields(at.of(text)) {
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
            id: object::string(id_at.of(text))?,
            id_at,
            status: Status::parse(&object::string(status?.of(text))?)?,
            poll_ms,
            ttl_ms,
            result,
            error,
            requests,
        })
    }
}

/// Writes a task of the extension as the result of the legacy `tasks/get` or `tasks/cancel`, or as
/// the parameters of its notification: what it came to is asked for by itself there.
#[must_use]
pub fn to_legacy(task: &[u8]) -> Vec<u8> {
    renamed(task, &LEGACY, Vec::new(), |key| {
        matches!(
            key,
            b"resultType" | b"result" | b"error" | b"inputRequests" | b"requestState"
        )
    })
}

/// Writes the result that names a new task of the extension as that of the legacy era.
#[must_use]
pub fn created_to_legacy(result: &[u8]) -> Vec<u8> {
    let task = renamed(result, &LEGACY, Vec::new(), |key| {
        matches!(
            key,
            b"resultType" | b"result" | b"error" | b"inputRequests" | b"requestState" | b"_meta"
        )
    });
    let mut members = Vec::with_capacity(task.len() + 16);
    push_member(&mut members, "task", &task);
    if let Some(meta) = object::field(result, "_meta") {
        push_member(&mut members, "_meta", meta.of(result));
    }
    [b"{", &*members, b"}"].concat()
}

/// What a task of the legacy era came to, which the extension says with its status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Came<'a> {
    /// Nothing yet.
    Nothing,
    /// A result: an object.
    Result(&'a [u8]),
    /// An error: an object.
    Error(&'a [u8]),
    /// Questions: an object, as [`super::input::requests`] writes it.
    Questions(&'a [u8]),
}

/// Writes the result of the legacy `tasks/get` as that of the extension.
#[must_use]
pub fn to_modern(task: &[u8], came: Came<'_>) -> Vec<u8> {
    let mut front = Vec::new();
    push_member(&mut front, "resultType", b"\"complete\"");
    match came {
        Came::Nothing => {}
        Came::Result(result) => push_member(&mut front, "result", result),
        Came::Error(error) => push_member(&mut front, "error", error),
        Came::Questions(requests) => push_member(&mut front, "inputRequests", requests),
    }
    renamed(task, &MODERN, front, |key| {
        matches!(key, b"resultType" | b"result" | b"error" | b"inputRequests")
    })
}

/// Writes the legacy result that names a new task as that of the extension; nothing where it
/// names none.
#[must_use]
pub fn created_to_modern(result: &[u8]) -> Option<Vec<u8>> {
    let task = object::field(result, "task")?.of(result);
    if !is_object(task) {
        return None;
    }
    let mut front = Vec::new();
    push_member(&mut front, "resultType", b"\"task\"");
    if let Some(meta) = object::field(result, "_meta") {
        push_member(&mut front, "_meta", meta.of(result));
    }
    Some(renamed(task, &MODERN, front, |key| {
        matches!(key, b"resultType" | b"_meta")
    }))
}

/// The key of `_meta` that names the task a legacy result belongs to.
pub const RELATED: &str = "io.modelcontextprotocol/related-task";

/// Writes what a task came to as the result of the legacy `tasks/result`, which names its task.
#[must_use]
pub fn related(result: &[u8], id: &str) -> Vec<u8> {
    let mut named = Vec::new();
    push_member(&mut named, "taskId", &super::change::literal(id));
    let mut member = Vec::new();
    push_member(&mut member, RELATED, &[b"{", &*named, b"}"].concat());
    let mut changes = Vec::new();
    let stays = |_: &[u8], _: Span| Fate::Stays;
    match object::field(result, "_meta") {
        Some(at) if is_object(at.of(result)) => {
            let others = |key: &[u8], _: Span| match key == RELATED.as_bytes() {
                true => Fate::Goes,
                false => Fate::Stays,
            };
            rewrite(result, at, member, others, &mut changes);
        }
        Some(at) => changes.push((at, [b"{", &*member, b"}"].concat())),
        None => {
            let mut meta = Vec::new();
            push_member(&mut meta, "_meta", &[b"{", &*member, b"}"].concat());
            rewrite(result, whole(result), meta, stays, &mut changes);
        }
    }
    applied(result, &mut changes)
}

/// Whether a request of the legacy era wants a task for its answer.
#[must_use]
pub fn is_wanted(params: &[u8]) -> bool {
    object::field(params, "task").is_some_and(|at| is_object(at.of(params)))
}

/// The extension's name and an empty object, as a member of `extensions`.
#[must_use]
pub fn extension() -> Vec<u8> {
    let mut out = Vec::new();
    push_member(&mut out, meta::TASKS, b"{}");
    out
}

/// What the two eras call the same members.
const LEGACY: [(&[u8], &str); 2] = [(b"ttlMs", "ttl"), (b"pollIntervalMs", "pollInterval")];
const MODERN: [(&[u8], &str); 2] = [(b"ttl", "ttlMs"), (b"pollInterval", "pollIntervalMs")];

/// Writes an object with some members under other names, and without some.
fn renamed(
    task: &[u8],
    names: &[(&[u8], &str)],
    mut front: Vec<u8>,
    goes: impl Fn(&[u8]) -> bool,
) -> Vec<u8> {
    for (key, value) in object::fields(task) {
        if let Some((_, name)) = names.iter().find(|(old, _)| *old == key.as_bytes()) {
            push_member(&mut front, name, value.of(task));
        }
    }
    let mut changes = Vec::new();
    let fate = |key: &[u8], _| {
        let known = names
            .iter()
            .any(|(old, new)| *old == key || new.as_bytes() == key);
        match known || goes(key) {
            true => Fate::Goes,
            false => Fate::Stays,
        }
    };
    if rewrite(task, whole(task), front, fate, &mut changes) {
        applied(task, &mut changes)
    } else {
        b"{}".to_vec()
    }
}

#[cfg(test)]
mod tests;
