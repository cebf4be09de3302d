//! The exec-server protocol: JSON-RPC without the version member, over WebSocket.
//!
//! Bodies are base64 strings; the chunks of a streamed response are numbered from 1. The protocol
//! has no cancellation and no flow control: a slow reader loses the stream.

mod base64;
mod exec_handshake;
mod exec_http;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use bowline_wire::object_members::ObjectMembers;
use bowline_wire::object_writer::ObjectWriter;
use bowline_wire::{FrameError, object};
use bytes::Bytes;

use crate::frames::StreamFault;

use self::base64::encoded_len;
pub use exec_handshake::{
    InitializeParams, parse_session, write_initialize, write_initialized, write_session,
};
pub use exec_http::{
    BodyDelta, ExecHeader, ExecHeaderRef, ExecHttpRequest, ExecHttpRequestRef, ExecHttpResponse,
    RedirectPolicy, write_delta,
};

/// Decoded bytes of one chunk of a streamed response.
pub const DELTA_BYTES_MAX: usize = 1024 * 1024;

/// Values in one message.
pub const NODES_MAX: usize = 256 * 1024;

/// Decoded bytes of an unstreamed body: of every request, and of a buffered response.
pub const BODY_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Bytes of one message: a whole base64 body with overhead.
pub const MESSAGE_BYTES_MAX: usize = encoded_len(BODY_BYTES_MAX) + 1024 * 1024;

/// The id used in responses to unreadable messages.
pub const UNKNOWN_ID: i64 = -1;

/// Error codes.
pub mod code {
    /// Unexpected or unreadable request.
    pub const INVALID_REQUEST: i64 = -32600;
    /// Unknown method.
    pub const METHOD: i64 = -32601;
    /// Invalid parameters.
    pub const INVALID_PARAMS: i64 = -32602;
    /// The request failed.
    pub const INTERNAL: i64 = -32603;
    /// The session is attached to a different connection; may be free later.
    pub const SESSION_ATTACHED: i64 = -32010;
}

/// The method of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecMethod {
    /// The first request.
    Initialize,
    /// The notification after its response.
    Initialized,
    /// An HTTP request.
    HttpRequest,
    /// A chunk of a streamed response.
    BodyDelta,
    /// A health check.
    Status,
    /// An unknown method.
    Unknown(Arc<str>),
}

const METHOD_WORDS: [(ExecMethod, &str); 5] = [
    (ExecMethod::Initialize, "initialize"),
    (ExecMethod::Initialized, "initialized"),
    (ExecMethod::HttpRequest, "http/request"),
    (ExecMethod::BodyDelta, "http/request/bodyDelta"),
    (ExecMethod::Status, "environment/status"),
];

impl ExecMethod {
    fn parse(word: &str) -> Self {
        let known = METHOD_WORDS.iter().find(|(_, known)| *known == word);
        known.map_or_else(
            || Self::Unknown(word.into()),
            |(exec_method, _)| exec_method.clone(),
        )
    }

    /// Returns the wire word.
    #[must_use]
    pub fn as_str(&self) -> &str {
        if let Self::Unknown(word) = self {
            return word;
        }
        let known = METHOD_WORDS.iter().find(|(known, _)| known == self);
        known.map_or("", |(_, word)| word)
    }
}

/// A request id.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ExecRequestId {
    /// An integer.
    Number(i64),
    /// A string.
    Text(Arc<str>),
}

impl ExecRequestId {
    fn parse(bytes: &[u8]) -> Result<Self, FrameError> {
        if let Some(text) = object::parse_string(bytes) {
            return Ok(Self::Text(text.into()));
        }
        let digits = std::str::from_utf8(bytes).ok();
        let number = digits.and_then(|digits| digits.parse().ok());
        number.map(Self::Number).ok_or(FrameError::Member("id"))
    }

    /// Writes the id as a member.
    fn write_member<'a>(&self, to: ObjectWriter<'a>) -> ObjectWriter<'a> {
        match self {
            Self::Number(number) => to.integer("id", *number),
            Self::Text(text) => to.text("id", text),
        }
    }
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecRefusal {
    /// The error code.
    pub code: i64,
    /// A text for people.
    pub message: Arc<str>,
    /// The precise fault, from a Bowline executor.
    pub stream_fault: Option<StreamFault>,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecMessage {
    /// A request.
    Request {
        /// The request id.
        id: ExecRequestId,
        /// The method.
        method: ExecMethod,
        /// The parameters; `null` if absent.
        params: Bytes,
    },
    /// A notification.
    Notification {
        /// The method.
        method: ExecMethod,
        /// The parameters; `null` if absent.
        params: Bytes,
    },
    /// A response with a result.
    Result {
        /// The request id.
        id: ExecRequestId,
        /// The result.
        result: Bytes,
    },
    /// A response with an error.
    Error {
        /// The request id.
        id: ExecRequestId,
        /// The error.
        refusal: ExecRefusal,
    },
}

const MESSAGE_MEMBERS: [&str; 5] = ["id", "method", "params", "result", "error"];

const REFUSAL_MEMBERS: [&str; 3] = ["code", "message", "data"];

impl ExecMessage {
    /// Parses a message.
    ///
    /// # Errors
    /// The message is invalid, or holds too many values.
    pub fn parse(message: &Bytes) -> Result<Self, FrameError> {
        let members = ObjectMembers::parse(message, &MESSAGE_MEMBERS)?;
        if has_too_many_nodes(message) {
            return Err(FrameError::TooManyValues);
        }
        let id = || ExecRequestId::parse(&members.required_value("id")?);
        let params = || {
            let params = members.required_value("params");
            params.unwrap_or(Bytes::from_static(b"null"))
        };
        if let Ok(method) = members.required_value("method") {
            let word = object::parse_string(&method).ok_or(FrameError::Member("method"))?;
            let exec_method = ExecMethod::parse(&word);
            return Ok(match members.required_value("id") {
                Err(_) => Self::Notification {
                    method: exec_method,
                    params: params(),
                },
                Ok(id) => Self::Request {
                    id: ExecRequestId::parse(&id)?,
                    method: exec_method,
                    params: params(),
                },
            });
        }
        if let Ok(result) = members.required_value("result") {
            return Ok(Self::Result { id: id()?, result });
        }
        let error = members.required_value("error")?;
        let members = ObjectMembers::parse(&error, &REFUSAL_MEMBERS)?;
        let code = members.required_value("code")?;
        let code = std::str::from_utf8(&code).ok();
        let refusal = ExecRefusal {
            code: code
                .and_then(|code| code.parse().ok())
                .ok_or(FrameError::Member("code"))?,
            message: members.optional_text("message")?.unwrap_or_default(),
            stream_fault: members
                .required_value("data")
                .ok()
                .as_ref()
                .and_then(parse_fault),
        };
        Ok(Self::Error { id: id()?, refusal })
    }
}

/// Parses a fault; foreign executors may send anything here.
fn parse_fault(data: &Bytes) -> Option<StreamFault> {
    object::text_field(data, "code")?;
    StreamFault::parse(data).ok()
}

/// Whether a valid JSON text holds more values than allowed.
fn has_too_many_nodes(text: &[u8]) -> bool {
    // Each value takes a byte and a separator.
    text.len() / 2 > NODES_MAX && count_nodes(text) > NODES_MAX
}

/// Counts the values of a valid JSON text: one, plus one per comma, plus one per nonempty array or
/// object.
fn count_nodes(mut text: &[u8]) -> usize {
    let mut count = 1_usize;
    let mut opened = false;
    while let Some((first, rest)) = text.split_first() {
        text = rest;
        match first {
            b' ' | b'\n' | b'\r' | b'\t' => continue,
            b',' => count += 1,
            b'}' | b']' if opened => {}
            _ if opened => count += 1,
            _ => {}
        }
        opened = matches!(first, b'{' | b'[');
        if *first == b'"' {
            text = skip_string(text);
        }
    }
    count
}

/// Returns the text after the closing quote of a string.
fn skip_string(mut text: &[u8]) -> &[u8] {
    while let Some(at) = memchr::memchr2(b'"', b'\\', text) {
        let is_end = text.get(at) == Some(&b'"');
        let skipped = if is_end { at + 1 } else { at + 2 };
        text = text.get(skipped..).unwrap_or_default();
        if is_end {
            break;
        }
    }
    text
}

/// Writes a request.
fn write_request(
    id: i64,
    method: &ExecMethod,
    capacity: usize,
    write: impl FnOnce(&mut Vec<u8>),
) -> Bytes {
    let mut out = Vec::with_capacity(capacity.saturating_add(64));
    ObjectWriter::begin(&mut out)
        .integer("id", id)
        .text("method", method.as_str())
        .value_with("params", write)
        .end();
    out.into()
}

/// Writes a response.
fn write_result(id: &ExecRequestId, capacity: usize, write: impl FnOnce(&mut Vec<u8>)) -> Bytes {
    let mut out = Vec::with_capacity(capacity.saturating_add(64));
    let object = ObjectWriter::begin(&mut out);
    id.write_member(object).value_with("result", write).end();
    out.into()
}

/// Returns the response to a health check: ready.
#[must_use]
pub fn status_ready(id: &ExecRequestId) -> Bytes {
    write_result(id, 32, |out| {
        out.extend_from_slice(br#"{"status":"ready"}"#)
    })
}

/// Writes an error response.
#[must_use]
pub fn write_refusal(id: &ExecRequestId, refusal: &ExecRefusal) -> Bytes {
    let mut out = Vec::with_capacity(refusal.message.len() + 128);
    let about = |out: &mut Vec<u8>| {
        let object = ObjectWriter::begin(out).integer("code", refusal.code);
        let object = match &refusal.stream_fault {
            Some(fault) => object.raw("data", &fault.to_vec()),
            None => object,
        };
        object.text("message", &refusal.message).end();
    };
    id.write_member(ObjectWriter::begin(&mut out).value_with("error", about))
        .end();
    out.into()
}

/// Writes the error response to an unreadable message.
#[must_use]
pub fn write_malformed(error: FrameError) -> Bytes {
    let refusal = ExecRefusal {
        code: code::INVALID_REQUEST,
        message: error.to_string().into(),
        stream_fault: None,
    };
    write_refusal(&ExecRequestId::Number(UNKNOWN_ID), &refusal)
}
