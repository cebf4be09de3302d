//! What a note says, as a row: names, words and hashes, and what was said only where it is wanted.

use std::borrow::Cow;
use std::sync::Arc;

use bowline_core::call::{self, Body, Reply, Scope, Subject};
use bowline_core::error::{CallError, Origin};
use bowline_core::hex::hex;
use bowline_journal::audit::{Payload, Render, Row};
use bowline_wire::object;
use sha2::{Digest as _, Sha256};

use super::{End, Note, REFUSED_TEXT_BYTES_MAX, Target};

/// Longest arguments and longest result that are kept, in bytes; what is cut says so.
pub const PAYLOAD_BYTES_MAX: usize = 16 * 1024;

/// Longest text of any other kind, in bytes: names and URIs are the caller's.
const TEXT_BYTES_MAX: usize = 1_024;

/// Stands at the end of a text that was cut.
const CUT: char = '…';

/// Takes secrets out of a text.
pub type Clean = Box<dyn for<'a> Fn(&'a str) -> Cow<'a, str> + Send + Sync>;

/// What of a note is shown.
pub struct Shows {
    /// Takes secrets out of every text that callers and servers have a hand in.
    pub clean: Clean,
    /// Whether arguments and results are kept, and not only their hashes.
    pub payload: bool,
}

impl Default for Shows {
    fn default() -> Self {
        Self {
            clean: Box::new(|text| Cow::Borrowed(text)),
            payload: false,
        }
    }
}

impl std::fmt::Debug for Shows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shows = f.debug_struct("Shows");
        shows
            .field("payload", &self.payload)
            .finish_non_exhaustive()
    }
}

/// Returns what turns notes into rows.
#[must_use]
pub fn render(shows: Shows) -> Render<Note> {
    Arc::new(move |note| row(note, &shows))
}

fn row<'a>(note: &'a Note, shows: &Shows) -> Row<'a> {
    // What did not run is worth less than what did, and costs its caller nothing.
    let bytes_max = if note.is_refusal() {
        REFUSED_TEXT_BYTES_MAX
    } else {
        TEXT_BYTES_MAX
    };
    let text = |text: &'a str| shows.text(text, bytes_max);
    let mut row = Row::new(note.kind, note.at_ms);
    let (server, name) = target(note);
    if let Some(principal) = &note.principal {
        row.principal = Some(text(&principal.name));
        let credential = Some(&*principal.credential).filter(|id| !id.is_empty());
        row.credential = credential.map(Cow::Borrowed);
    }
    let principal_peer = note.principal.as_ref().and_then(|who| who.peer.0);
    let peer = note.peer.or(principal_peer);
    row.peer = peer.map(|peer| peer.to_string().into());
    row.count = note.count.map(|count| count.number);
    row.since_ms = note.count.map(|count| count.since_ms);
    row.session = Some(note.session).filter(|session| *session != 0);
    row.scope = note.scope.as_ref().map(scope);
    row.server = server.map(text);
    row.name = name.map(text);
    let method = note.subject.as_ref().map(Subject::method);
    row.method = note.method.or(method).map(Cow::Borrowed);
    row.duration_us = note.took_us;
    row.key = note.key.as_deref().map(text);
    row.id = note.id.as_deref().map(text);
    row.reason = note.reason.as_deref().map(text);
    let arguments = arguments(note);
    row.arguments = arguments.map(digest);
    let mut result = None;
    match &note.end {
        End::Cancelled => {
            row.outcome = Some("cancelled".into());
            row.class = Some("cancelled".into());
        }
        End::Word(word) => row.outcome = Some((*word).into()),
        End::Failed(error) => failed(error, &mut row, (shows, bytes_max)),
        End::Refused {
            class,
            execution,
            origin,
            reason,
        } => {
            row.outcome = Some("failed".into());
            row.class = Some(class.as_str().into());
            row.execution = Some(execution.as_str().into());
            row.origin = Some(origin.as_str().into());
            row.reason = Some(text(reason)).filter(|reason| !reason.is_empty());
        }
        End::Reply(reply) => {
            result = reply.answer.get(reply.body_at.clone());
            row.outcome = Some(outcome(note, reply).into());
            row.execution = Some("completed".into());
            row.origin = Some(reply.origin.as_str().into());
            if reply.origin == call::Origin::Queued {
                queued(result.unwrap_or_default(), &mut row);
            }
        }
    }
    row.result = result.map(digest);
    if shows.payload {
        let said = |bytes: &'a [u8]| shows.said(bytes);
        row.payload = Some(Payload {
            arguments: arguments.map(said),
            result: result.map(said),
        });
    }
    row
}

/// Notes what names a stored call; its answer says it.
fn queued<'a>(result: &'a [u8], row: &mut Row<'a>) {
    let said = object::field(result, "structuredContent").map(|at| at.of(result));
    let said = said.unwrap_or_default();
    row.execution = None;
    row.outcome = Some("queued".into());
    row.id = object::text(said, "id");
    row.key = object::text(said, "idempotencyKey").or_else(|| row.key.take());
}

/// Returns which server it was about and the server's own name of it, as far as that is known.
pub(super) fn target(note: &Note) -> (Option<&str>, Option<&str>) {
    let asked = note.subject.as_ref().map(|subject| &**subject.name());
    let scoped = match &note.scope {
        Some(Scope::Server(server)) => Some(&**server),
        Some(Scope::All | Scope::Profile(_)) | None => None,
    };
    match (&note.target, &note.end) {
        (Target::Route(route), _) => (Some(&route.server), Some(&route.name)),
        (Target::Named { server, name }, _) => (server.as_deref().or(scoped), Some(name)),
        (
            Target::Unknown,
            End::Failed(
                CallError::Denied { server, name, .. }
                | CallError::PinChanged { server, tool: name },
            ),
        ) => (Some(server), Some(name)),
        (Target::Unknown, _) => (scoped, asked),
    }
}

fn scope(scope: &Scope) -> Cow<'_, str> {
    match scope {
        Scope::All => "all".into(),
        Scope::Server(server) => format!("server:{server}").into(),
        Scope::Profile(profile) => format!("profile:{profile}").into(),
    }
}

/// Returns how a reply ended: its server refused the request, or the tool ran and failed, or all
/// went well.
fn outcome(note: &Note, reply: &Reply) -> &'static str {
    let result = reply.answer.get(reply.body_at.clone()).unwrap_or_default();
    match (reply.body, &note.subject) {
        (Body::Error, _) => "rejected",
        (Body::Result, Some(Subject::Tool(_))) if is_error(result) => "tool_error",
        (Body::Result, _) => "ok",
    }
}

fn is_error(result: &[u8]) -> bool {
    object::field(result, "isError").is_some_and(|at| at.of(result) == b"true")
}

fn failed(error: &CallError, row: &mut Row<'_>, (shows, bytes_max): (&Shows, usize)) {
    row.outcome = Some("failed".into());
    row.class = Some(error.class().as_str().into());
    row.execution = Some(error.execution().as_str().into());
    row.origin = Some(error.origin().as_str().into());
    // What a server said of a failure is its answer, and kept as little.
    if shows.payload || error.origin() != Origin::Upstream {
        let reason = error.to_string();
        row.reason = Some(shows.text(&reason, bytes_max).into_owned().into());
    }
}

/// Returns the arguments as the caller wrote them; a resource has none but its URI.
fn arguments(note: &Note) -> Option<&[u8]> {
    object::field(&note.params, "arguments").map(|at| at.of(&note.params))
}

fn digest(bytes: &[u8]) -> Cow<'static, str> {
    hex(&Sha256::digest(bytes)).into()
}

impl Shows {
    fn said<'a>(&self, bytes: &'a [u8]) -> Cow<'a, str> {
        // A character that is cut in two is not worth an error.
        let some = bytes.get(..PAYLOAD_BYTES_MAX).unwrap_or(bytes);
        match String::from_utf8_lossy(some) {
            Cow::Borrowed(text) if some.len() == bytes.len() => (self.clean)(text),
            text => {
                let text = format!("{}{CUT}", text.trim_end_matches('\u{fffd}'));
                (self.clean)(&text).into_owned().into()
            }
        }
    }

    /// Returns a text without secrets, and not too long.
    fn text<'a>(&self, text: &'a str, bytes_max: usize) -> Cow<'a, str> {
        if text.len() <= bytes_max {
            return (self.clean)(text);
        }
        let some = text.as_bytes().get(..bytes_max).unwrap_or_default();
        // A character that is cut in two is left out.
        let text = String::from_utf8_lossy(some);
        let text = format!("{}{CUT}", text.trim_end_matches('\u{fffd}'));
        (self.clean)(&text).into_owned().into()
    }
}
