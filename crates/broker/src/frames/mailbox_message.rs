//! A mailbox message.

use std::sync::Arc;

use bytes::Bytes;

use super::FrameError;
use super::encode_frame;
use super::{BrokerRequest, BrokerResponse, LiveRequest, ResultForm};
use bowline_wire::ByteSpan;
use bowline_wire::ObjectEditor;
use bowline_wire::object_members::{ObjectMembers, slice_bytes};
use bowline_wire::object_writer::ObjectWriter;
use bowline_wire::scan;

/// The sender of a message. Set by the hub.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessageSender {
    /// The mailbox for replies.
    pub session_id: Arc<str>,
    /// The role of the credential.
    pub role: Option<Arc<str>>,
    /// The principal represented by the hub.
    pub principal: Option<Arc<str>>,
}

/// A message: `{id, from, kind, body, created_at, correlation_id?, ttl_ms?}`. Unknown members stay
/// in `raw` and pass through. Equal messages have equal text.
#[derive(Clone, Debug)]
pub struct MailboxMessage {
    /// The id, unique per sender, for deduplication.
    pub id: Arc<str>,
    /// The claimed sender; trusted only if set by the hub.
    pub sender: Option<MessageSender>,
    /// The kind: `mcp_request`, `mcp_reply`, or anything else.
    pub kind: Arc<str>,
    /// The body, one JSON value.
    pub body: Bytes,
    /// The answered request.
    pub correlation_id: Option<Arc<str>>,
    /// Lifetime of the message.
    pub ttl_ms: Option<u64>,
    /// The whole object as received; [`write`](Self::write) puts the newer members in.
    pub raw: Bytes,
    /// Whether the sender is newer than `raw`.
    is_sender_new: bool,
    /// Whether the lifetime is newer than `raw`.
    is_ttl_new: bool,
}

/// Bytes of a sender and a lifetime; names are short.
const STAMP_BYTES: usize = 1024;

/// The kind of a request.
pub const REQUEST_KIND: &str = "mcp_request";

/// The kind of a reply.
pub const REPLY_KIND: &str = "mcp_reply";

/// The content of a new message.
#[derive(Clone, Copy, Debug)]
pub struct MessageDraft<'a> {
    /// The id.
    pub id: &'a str,
    /// The kind.
    pub kind: &'a str,
    /// The body.
    pub body: MessageBody<'a>,
    /// The answered request.
    pub correlation_id: Option<&'a str>,
    /// Lifetime of the message.
    pub ttl_ms: Option<u64>,
    /// Creation time in milliseconds since 1970.
    pub created_at_ms: u64,
}

/// The body of a new message, written in place.
#[derive(Clone, Copy, Debug)]
pub enum MessageBody<'a> {
    /// A request.
    Request(&'a BrokerRequest),
    /// The whole response to a stored request.
    Reply(&'a BrokerResponse),
    /// One JSON value, as written.
    Json(&'a [u8]),
}

impl MessageBody<'_> {
    fn write(self, out: &mut Vec<u8>) {
        match self {
            Self::Request(request) => request.write(out),
            Self::Reply(response) => response.write(ResultForm::Whole, out),
            Self::Json(json) => out.extend_from_slice(json),
        }
    }
}

impl MessageSender {
    /// Parses a sender inside validated text.
    pub(super) fn parse_at(
        text: &Bytes,
        at: ByteSpan,
        member: &'static str,
    ) -> Result<Self, FrameError> {
        let members =
            ObjectMembers::parse_at(text, at, &["session_id", "role", "principal"], member)?;
        Ok(Self {
            session_id: members.optional_text("session_id")?.unwrap_or_default(),
            role: members.optional_text("role")?,
            principal: members.optional_text("principal")?,
        })
    }
}

impl MailboxMessage {
    /// Builds a message.
    #[must_use]
    pub fn new(draft: &MessageDraft<'_>) -> Self {
        let mut raw = Vec::with_capacity(256);
        let mut start = 0;
        ObjectWriter::begin(&mut raw)
            .text("id", draft.id)
            .text("kind", draft.kind)
            .text("created_at", &format_timestamp(draft.created_at_ms))
            .text_if("correlation_id", draft.correlation_id)
            .number_if("ttl_ms", draft.ttl_ms)
            .value_with("body", |out| {
                start = out.len();
                draft.body.write(out);
            })
            .end();
        // The body is the last member.
        let end = raw.len().saturating_sub(1);
        raw.shrink_to_fit();
        let raw = Bytes::from(raw);
        Self {
            id: draft.id.into(),
            sender: None,
            kind: draft.kind.into(),
            body: slice_bytes(&raw, ByteSpan { start, end }),
            correlation_id: draft.correlation_id.map(Into::into),
            ttl_ms: draft.ttl_ms,
            raw,
            is_sender_new: false,
            is_ttl_new: false,
        }
    }

    /// Returns a live request as the message that it would be if stored: without `raw`, because
    /// nothing of it is stored or sent on.
    #[must_use]
    pub fn from_live(request: LiveRequest) -> Self {
        Self {
            id: request.id,
            sender: request.caller,
            kind: REQUEST_KIND.into(),
            body: request.body,
            correlation_id: None,
            ttl_ms: request.ttl_ms,
            raw: Bytes::new(),
            is_sender_new: false,
            is_ttl_new: false,
        }
    }

    /// Parses a whole text as a message.
    ///
    /// # Errors
    /// The message is invalid.
    pub fn parse(raw: &Bytes) -> Result<Self, FrameError> {
        scan::check_carrier(raw).map_err(|_| FrameError::NoObject)?;
        let start = raw.len() - raw.trim_ascii_start().len();
        let end = raw.trim_ascii_end().len();
        Self::parse_at(raw, ByteSpan { start, end })
    }

    /// Parses a message inside validated text.
    pub(super) fn parse_at(text: &Bytes, at: ByteSpan) -> Result<Self, FrameError> {
        const NAMES: [&str; 6] = ["id", "from", "kind", "body", "correlation_id", "ttl_ms"];
        let members = ObjectMembers::parse_at(text, at, &NAMES, "message")?;
        let from = members.span("from");
        let from = from.map(|at| MessageSender::parse_at(text, at, "from"));
        Ok(Self {
            id: members.required_text("id")?,
            sender: from.transpose()?,
            kind: members.required_text("kind")?,
            body: members.required_value("body")?,
            correlation_id: members.optional_text("correlation_id")?,
            ttl_ms: members.optional_number("ttl_ms")?,
            raw: slice_bytes(text, at),
            is_sender_new: false,
            is_ttl_new: false,
        })
    }

    /// Returns the message with this sender instead of any claimed sender.
    #[must_use]
    pub fn with_sender(self, from: MessageSender) -> Self {
        Self {
            sender: Some(from),
            is_sender_new: true,
            ..self
        }
    }

    /// Returns the message with this lifetime.
    #[must_use]
    pub fn with_ttl(self, ttl_ms: u64) -> Self {
        Self {
            ttl_ms: Some(ttl_ms),
            is_ttl_new: true,
            ..self
        }
    }

    /// Appends the message as text: the received bytes, with a newer sender or lifetime in place.
    pub fn write(&self, out: &mut Vec<u8>) {
        let sender = self.sender.as_ref().filter(|_| self.is_sender_new);
        let ttl_ms = self.ttl_ms.filter(|_| self.is_ttl_new);
        if sender.is_none() && ttl_ms.is_none() {
            return out.extend_from_slice(&self.raw);
        }
        let mut editor = ObjectEditor::new(&self.raw);
        let whole = editor.whole();
        if let Some(sender) = sender {
            let mut text = Vec::new();
            encode_frame::write_sender(sender, &mut text);
            editor.set_first(whole, &["from"], text);
        }
        if let Some(ttl_ms) = ttl_ms {
            editor.set_first(whole, &["ttl_ms"], ttl_ms.to_string().into_bytes());
        }
        editor.edited().write(out);
    }

    /// Returns the message as text.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        let mut text = Vec::with_capacity(self.text_capacity());
        self.write(&mut text);
        text.into()
    }

    /// Returns the room that the text takes at most, unless a name is very long.
    #[must_use]
    pub(crate) const fn text_capacity(&self) -> usize {
        self.raw.len() + STAMP_BYTES
    }
}

impl PartialEq for MailboxMessage {
    fn eq(&self, other: &Self) -> bool {
        self.to_bytes() == other.to_bytes()
    }
}

impl Eq for MailboxMessage {}

/// Formats a time in UTC (RFC 3339), as in existing brokers.
fn format_timestamp(since_1970_ms: u64) -> String {
    let (seconds, millis) = (since_1970_ms / 1_000, since_1970_ms % 1_000);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years start in March here, so a leap day is the last day of its year; 400 years have 146,097
    // days, and the first such cycle started 719,468 days before 1970.
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
    fn timestamp_is_formatted_as_date() {
        for (ms, want) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_210_096_007, "2024-02-29T12:34:56.007Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (1_767_225_599_000, "2025-12-31T23:59:59.000Z"),
        ] {
            assert_eq!(format_timestamp(ms), want);
        }
    }
}
