//! A message as it stands in a mailbox.

use std::sync::Arc;

use bytes::Bytes;

use super::FrameError;
use super::write;
use crate::members::{Members, slice};
use crate::object;
use crate::scan;
use crate::span::Span;
use crate::splice::{Edit, Edited};
use crate::writer::Object;

/// Who sent a message. Stamped by the hub.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct From {
    /// The mailbox, to which replies go.
    pub session_id: Arc<str>,
    /// The role of the credential.
    pub role: Option<Arc<str>>,
    /// The principal on whose behalf the hub itself asks.
    pub principal: Option<Arc<str>>,
}

/// A message: `{id, from, kind, body, created_at, correlation_id?, ttl_ms?}`. Other members stay
/// in `raw` and pass through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letter {
    /// Names it, and makes two that have it the same message of one sender.
    pub id: Arc<str>,
    /// Who sent it, as it says; trusted only where the hub stamped it.
    pub from: Option<From>,
    /// What it is: `mcp_request`, `mcp_reply`, or anything else.
    pub kind: Arc<str>,
    /// What it says, one JSON value.
    pub body: Bytes,
    /// The request that it answers.
    pub correlation_id: Option<Arc<str>>,
    /// How long it is worth delivering.
    pub ttl_ms: Option<u64>,
    /// The whole object as it came.
    pub raw: Bytes,
}

/// The kind of a request.
pub const REQUEST: &str = "mcp_request";

/// The kind of a reply.
pub const REPLY: &str = "mcp_reply";

/// What a letter is made of.
#[derive(Clone, Copy, Debug)]
pub struct Draft<'a> {
    /// Its id.
    pub id: &'a str,
    /// What it is.
    pub kind: &'a str,
    /// What it says, one JSON value.
    pub body: &'a [u8],
    /// The request that it answers.
    pub correlation_id: Option<&'a str>,
    /// How long it is worth delivering.
    pub ttl_ms: Option<u64>,
    /// When it was written, in milliseconds since 1970.
    pub created_at_ms: u64,
}

impl From {
    /// Reads a sender inside a text that was checked before.
    pub(super) fn inside(text: &Bytes, at: Span, what: &'static str) -> Result<Self, FrameError> {
        let members = Members::inside(text, at, &["session_id", "role", "principal"], what)?;
        Ok(Self {
            session_id: members.text_if("session_id")?.unwrap_or_default(),
            role: members.text_if("role")?,
            principal: members.text_if("principal")?,
        })
    }
}

impl Letter {
    /// Writes a letter.
    #[must_use]
    pub fn new(draft: &Draft<'_>) -> Self {
        let mut raw = Vec::with_capacity(draft.body.len() + 256);
        Object::bare(&mut raw)
            .text("id", draft.id)
            .text("kind", draft.kind)
            .text("created_at", &timestamp(draft.created_at_ms))
            .text_if("correlation_id", draft.correlation_id)
            .number_if("ttl_ms", draft.ttl_ms)
            .raw("body", draft.body)
            .end();
        // The body is the last member.
        let end = raw.len().saturating_sub(1);
        let start = end.saturating_sub(draft.body.len());
        let raw = Bytes::from(raw);
        Self {
            id: draft.id.into(),
            from: None,
            kind: draft.kind.into(),
            body: slice(&raw, Span { start, end }),
            correlation_id: draft.correlation_id.map(Into::into),
            ttl_ms: draft.ttl_ms,
            raw,
        }
    }

    /// Reads a letter, the whole of a text.
    ///
    /// # Errors
    /// It is none.
    pub fn read(raw: &Bytes) -> Result<Self, FrameError> {
        scan::walk_around(raw, &mut ()).map_err(|_| FrameError::NoObject)?;
        let start = raw.len() - raw.trim_ascii_start().len();
        let end = raw.trim_ascii_end().len();
        Self::inside(raw, Span { start, end })
    }

    /// Reads a letter inside a text that was checked before.
    pub(super) fn inside(text: &Bytes, at: Span) -> Result<Self, FrameError> {
        const NAMES: [&str; 6] = ["id", "from", "kind", "body", "correlation_id", "ttl_ms"];
        let members = Members::inside(text, at, &NAMES, "message")?;
        let from = members.span("from");
        let from = from.map(|at| From::inside(text, at, "from"));
        Ok(Self {
            id: members.text("id")?,
            from: from.transpose()?,
            kind: members.text("kind")?,
            body: members.value("body")?,
            correlation_id: members.text_if("correlation_id")?,
            ttl_ms: members.number_if("ttl_ms")?,
            raw: slice(text, at),
        })
    }

    /// Returns the message with this sender, and without any that it claimed; every other byte
    /// stays.
    #[must_use]
    pub fn stamped(&self, from: &From) -> Self {
        let mut sender = Vec::new();
        write::sender(from, &mut sender);
        Self {
            from: Some(from.clone()),
            raw: self.with("from", &sender),
            ..self.clone()
        }
    }

    /// Returns the message with this time to live; every other byte stays.
    #[must_use]
    pub fn lasting(&self, ttl_ms: u64) -> Self {
        let mut digits = itoa::Buffer::new();
        Self {
            ttl_ms: Some(ttl_ms),
            raw: self.with("ttl_ms", digits.format(ttl_ms).as_bytes()),
            ..self.clone()
        }
    }

    /// Returns the object with this member, in place of any of that name.
    fn with(&self, name: &str, json: &[u8]) -> Bytes {
        let source = &self.raw[..];
        let mut member = Vec::new();
        let (at, with) = match object::field(source, name) {
            Some(at) => (at, json),
            // Behind the bracket. There is another member, for a letter has an id.
            None => {
                Object::bare(&mut member).raw(name, json).end();
                let inside = member.len().saturating_sub(1);
                if let Some(last) = member.get_mut(inside) {
                    *last = b',';
                }
                (
                    Span { start: 1, end: 1 },
                    member.get(1..).unwrap_or_default(),
                )
            }
        };
        let edits = &[Edit { at, with }];
        Edited { source, edits }.to_vec().into()
    }
}

/// Returns a moment as people and other brokers write it, in UTC.
fn timestamp(since_1970_ms: u64) -> String {
    let (seconds, millis) = (since_1970_ms / 1_000, since_1970_ms % 1_000);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March here, so that a leap day is the last of its year; 400 of them have
    // 146,097 days, and the first such began 719,468 days before 1970.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, later) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    let year = era * 400 + year + later;
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_written_as_a_date() {
        for (ms, want) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_210_096_007, "2024-02-29T12:34:56.007Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (1_767_225_599_000, "2025-12-31T23:59:59.000Z"),
        ] {
            assert_eq!(timestamp(ms), want);
        }
    }
}
