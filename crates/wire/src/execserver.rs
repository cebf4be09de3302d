//! What a client and an exec-server say to each other: JSON-RPC without its version member.
//!
//! One message a WebSocket message. Bodies are base64 in members of JSON; the pieces of a
//! streamed answer are numbered from 1. It has no cancel and no credit: who reads too slowly
//! loses the stream.

mod base64;
mod http;
mod open;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use bytes::Bytes;

use crate::executor::Fault;
use crate::frame::FrameError;
use crate::members::Members;
use crate::object;
use crate::writer::Object;

use self::base64::encoded_len;
pub use http::{Answered, Asked, AskedRef, Delta, Header, HeaderRef, Redirects, write_delta};
pub use open::{Initialize, initialize, initialized, opened, session};

/// Bytes of a body that one piece of a streamed answer carries, decoded.
pub const DELTA_BYTES_MAX: usize = 1024 * 1024;

/// Values in one message.
pub const NODES_MAX: usize = 256 * 1024;

/// Bytes of a body that is not streamed, decoded: of every request, and of a buffered answer.
pub const BODY_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Bytes of one message: a whole body as base64, and what stands around it.
pub const MESSAGE_BYTES_MAX: usize = encoded_len(BODY_BYTES_MAX) + 1024 * 1024;

/// A text that cannot be read is answered under this id.
pub const NO_ID: i64 = -1;

/// The codes of refusals.
pub mod code {
    /// It comes at the wrong time, or cannot be read.
    pub const INVALID_REQUEST: i64 = -32600;
    /// There is no such method.
    pub const METHOD: i64 = -32601;
    /// What is asked for cannot be done as it is.
    pub const INVALID_PARAMS: i64 = -32602;
    /// It was tried and failed.
    pub const INTERNAL: i64 = -32603;
    /// Another connection has this session; later it may be free.
    pub const SESSION_ATTACHED: i64 = -32010;
}

/// What a message is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verb {
    /// The first request.
    Initialize,
    /// What follows its answer.
    Initialized,
    /// A request over HTTP.
    Request,
    /// A piece of a streamed answer.
    Delta,
    /// Whether the other side can work.
    Status,
    /// Something else.
    Other(Arc<str>),
}

const VERBS: [(Verb, &str); 5] = [
    (Verb::Initialize, "initialize"),
    (Verb::Initialized, "initialized"),
    (Verb::Request, "http/request"),
    (Verb::Delta, "http/request/bodyDelta"),
    (Verb::Status, "environment/status"),
];

impl Verb {
    fn parse(word: &str) -> Self {
        let known = VERBS.iter().find(|(_, known)| *known == word);
        known.map_or_else(|| Self::Other(word.into()), |(verb, _)| verb.clone())
    }

    /// Returns the word on the wire.
    #[must_use]
    pub fn as_str(&self) -> &str {
        if let Self::Other(word) = self {
            return word;
        }
        let known = VERBS.iter().find(|(known, _)| known == self);
        known.map_or("", |(_, word)| word)
    }
}

/// Which request a message is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Id {
    /// A whole number.
    Number(i64),
    /// A text.
    Text(Arc<str>),
}

impl Id {
    fn read(bytes: &[u8]) -> Result<Self, FrameError> {
        if let Some(text) = object::string(bytes) {
            return Ok(Self::Text(text.into()));
        }
        let digits = std::str::from_utf8(bytes).ok();
        let number = digits.and_then(|digits| digits.parse().ok());
        number.map(Self::Number).ok_or(FrameError::Member("id"))
    }

    /// Writes it as a member.
    fn member<'a>(&self, to: Object<'a>) -> Object<'a> {
        match self {
            Self::Number(number) => to.integer("id", *number),
            Self::Text(text) => to.text("id", text),
        }
    }
}

/// Why a request was not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What kind of refusal it is.
    pub code: i64,
    /// A text for people.
    pub message: Arc<str>,
    /// What exactly went wrong, where the other side is one of ours.
    pub fault: Option<Fault>,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// It wants an answer.
    Request {
        /// Its number.
        id: Id,
        /// What it is.
        verb: Verb,
        /// What it says; `null` where it says nothing.
        params: Bytes,
    },
    /// It wants none.
    Notice {
        /// What it is.
        verb: Verb,
        /// What it says; `null` where it says nothing.
        params: Bytes,
    },
    /// The answer to a request.
    Result {
        /// The number of the request.
        id: Id,
        /// What it says.
        result: Bytes,
    },
    /// There is no answer to a request.
    Refused {
        /// The number of the request.
        id: Id,
        /// Why.
        refusal: Refusal,
    },
}

const SAID: [&str; 5] = ["id", "method", "params", "result", "error"];

const REFUSAL: [&str; 3] = ["code", "message", "data"];

impl Said {
    /// Reads a message.
    ///
    /// # Errors
    /// It is none, or holds more values than one may.
    pub fn read(message: &Bytes) -> Result<Self, FrameError> {
        let members = Members::of_text(message, &SAID)?;
        if too_many_nodes(message) {
            return Err(FrameError::TooManyValues);
        }
        let id = || Id::read(&members.value("id")?);
        let params = || {
            let params = members.value("params");
            params.unwrap_or(Bytes::from_static(b"null"))
        };
        if let Ok(method) = members.value("method") {
            let word = object::string(&method).ok_or(FrameError::Member("method"))?;
            let verb = Verb::parse(&word);
            return Ok(match members.value("id") {
                Err(_) => Self::Notice {
                    verb,
                    params: params(),
                },
                Ok(id) => Self::Request {
                    id: Id::read(&id)?,
                    verb,
                    params: params(),
                },
            });
        }
        if let Ok(result) = members.value("result") {
            return Ok(Self::Result { id: id()?, result });
        }
        let error = members.value("error")?;
        let members = Members::of_text(&error, &REFUSAL)?;
        let code = members.value("code")?;
        let code = std::str::from_utf8(&code).ok();
        let refusal = Refusal {
            code: code
                .and_then(|code| code.parse().ok())
                .ok_or(FrameError::Member("code"))?,
            message: members.text_if("message")?.unwrap_or_default(),
            fault: members.value("data").ok().as_ref().and_then(fault),
        };
        Ok(Self::Refused { id: id()?, refusal })
    }
}

/// Reads what went wrong; others may put anything here.
fn fault(data: &Bytes) -> Option<Fault> {
    object::text(data, "code")?;
    Fault::read(data).ok()
}

/// Whether a text that is valid JSON holds more values than a message may.
fn too_many_nodes(text: &[u8]) -> bool {
    // Each takes a byte, and one more parts it from the next.
    text.len() / 2 > NODES_MAX && nodes(text) > NODES_MAX
}

/// Counts the values of a text that is valid JSON: one, one more behind each comma, and one more
/// inside each array and object that is not empty.
fn nodes(mut text: &[u8]) -> usize {
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
            text = behind_string(text);
        }
    }
    count
}

/// Returns what follows the closing quote of a string.
fn behind_string(mut text: &[u8]) -> &[u8] {
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

/// Returns the message of a request.
fn request(id: i64, verb: &Verb, capacity: usize, write: impl FnOnce(&mut Vec<u8>)) -> Bytes {
    let mut out = Vec::with_capacity(capacity.saturating_add(64));
    Object::bare(&mut out)
        .integer("id", id)
        .text("method", verb.as_str())
        .nested("params", write)
        .end();
    out.into()
}

/// Returns the message of an answer.
fn result(id: &Id, capacity: usize, write: impl FnOnce(&mut Vec<u8>)) -> Bytes {
    let mut out = Vec::with_capacity(capacity.saturating_add(64));
    let begun = Object::bare(&mut out);
    id.member(begun).nested("result", write).end();
    out.into()
}

/// Returns the message that the other side can work.
#[must_use]
pub fn ready(id: &Id) -> Bytes {
    result(id, 32, |out| {
        out.extend_from_slice(br#"{"status":"ready"}"#)
    })
}

/// Returns the message of a refusal.
#[must_use]
pub fn refused(id: &Id, refusal: &Refusal) -> Bytes {
    let mut out = Vec::with_capacity(refusal.message.len() + 128);
    let about = |out: &mut Vec<u8>| {
        let object = Object::bare(out).integer("code", refusal.code);
        let object = match &refusal.fault {
            Some(fault) => object.raw("data", &fault.to_vec()),
            None => object,
        };
        object.text("message", &refusal.message).end();
    };
    id.member(Object::bare(&mut out).nested("error", about))
        .end();
    out.into()
}

/// Returns the message that a text could not be read.
#[must_use]
pub fn malformed(error: FrameError) -> Bytes {
    let refusal = Refusal {
        code: code::INVALID_REQUEST,
        message: error.to_string().into(),
        fault: None,
    };
    refused(&Id::Number(NO_ID), &refusal)
}
