//! JSON-RPC messages over raw bytes: the envelope is read, the rest stays as it was written.

use bytes::Bytes;

use crate::mcp::code;
use crate::object;
use crate::scan::{self, Fault, Keys};
use crate::span::Span;
use crate::text::Literal;

mod write;
pub use write::{write_error, write_notification, write_request, write_result};

/// A checked message with the places of what its envelope holds.
#[derive(Clone, Debug)]
pub struct Message {
    bytes: Bytes,
    kind: Kind,
    id: Option<Span>,
    method: Option<Method>,
    params: Option<Span>,
    result: Option<Span>,
    error: Option<Span>,
}

/// What a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Has a method and an id.
    Request,
    /// Has a method and no id.
    Notification,
    /// Has a result or an error.
    Answer,
}

/// Why a message is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It is not JSON as we take it.
    #[error("the message is not valid JSON")]
    Json(#[source] Fault),
    /// A member of the envelope differs from a name of the protocol, or from another, in case
    /// only: some servers would read another message.
    #[error("the message is not clear")]
    Envelope(#[source] Fault),
    /// A member of the parameters does.
    #[error("the parameters are not clear")]
    Params(#[source] Fault),
    /// It is an array.
    #[error("batches are not supported")]
    Batch,
    /// It is neither an object nor an array.
    #[error("the message is not an object")]
    NotObject,
    /// `jsonrpc` is not `"2.0"`.
    #[error("the member `jsonrpc` is not \"2.0\"")]
    BadVersion,
    /// `id` is neither a string nor an integer, or an answer with a result has none.
    #[error("the member `id` is not a string or an integer")]
    BadId,
    /// `method` is not a string.
    #[error("the member `method` is not a string")]
    BadMethod,
    /// It is neither a request nor a notification nor an answer.
    #[error("the message has neither a method nor one of result and error")]
    Shape,
}

impl Refusal {
    /// The JSON-RPC code of the answer to such a message.
    #[must_use]
    pub const fn code(self) -> i64 {
        match self {
            Self::Json(_) => code::PARSE,
            Self::Params(_) => code::INVALID_PARAMS,
            Self::Envelope(_)
            | Self::Batch
            | Self::NotObject
            | Self::BadVersion
            | Self::BadId
            | Self::BadMethod
            | Self::Shape => code::INVALID_REQUEST,
        }
    }
}

impl Message {
    /// Reads a message of a caller, strictly: no object repeats a key, no member of the protocol
    /// is spelled in other case (see [`crate::fold`]), `jsonrpc` is there, an answer has one of
    /// result and error, and an error is an object.
    ///
    /// # Errors
    /// Why the message is not taken.
    pub fn parse(bytes: Bytes) -> Result<Self, Refusal> {
        read(bytes, Sender::Caller)
    }

    /// Reads a message of a server, as widely as is safe: `jsonrpc` may be absent, payloads may
    /// repeat a key, and of result and error one may be null when the other counts.
    ///
    /// # Errors
    /// Why the message is not taken.
    pub fn parse_peer(bytes: Bytes) -> Result<Self, Refusal> {
        read(bytes, Sender::Peer)
    }

    /// What the message is for. A method decides first.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// The whole message as it was written.
    #[must_use]
    pub const fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The whole message as it was written.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }

    /// The id as it was written: `1` and `"1"` are two ids. Nothing when it is null.
    #[must_use]
    pub fn id(&self) -> Option<&[u8]> {
        self.text(self.id)
    }

    /// The place of the id.
    #[must_use]
    pub const fn id_span(&self) -> Option<Span> {
        self.id
    }

    /// The method, its escapes resolved.
    #[must_use]
    pub fn method(&self) -> Option<&str> {
        match self.method.as_ref()? {
            Method::Written(span) => std::str::from_utf8(span.of(&self.bytes)).ok(),
            Method::Resolved(text) => Some(text),
        }
    }

    /// The parameters, whatever they are.
    #[must_use]
    pub fn params(&self) -> Option<&[u8]> {
        self.text(self.params)
    }

    /// The place of the parameters.
    #[must_use]
    pub const fn params_span(&self) -> Option<Span> {
        self.params
    }

    /// The result, which may be `null`.
    #[must_use]
    pub fn result(&self) -> Option<&[u8]> {
        self.text(self.result)
    }

    /// The place of the result.
    #[must_use]
    pub const fn result_span(&self) -> Option<Span> {
        self.result
    }

    /// The error.
    #[must_use]
    pub fn error(&self) -> Option<&[u8]> {
        self.text(self.error)
    }

    /// The place of the error.
    #[must_use]
    pub const fn error_span(&self) -> Option<Span> {
        self.error
    }

    fn text(&self, span: Option<Span>) -> Option<&[u8]> {
        span.map(|span| span.of(&self.bytes))
    }
}

/// The id of a message that was refused, as far as it can be told, so that the sender can
/// match the error. Nothing (that is, null) when there is none, more than one, or a wrong one.
#[must_use]
pub fn refused_id(bytes: &[u8]) -> Option<&[u8]> {
    std::str::from_utf8(bytes).ok()?;
    let mut ids = object::fields(bytes).filter(|(key, _)| key == "id");
    let (_, span) = ids.next()?;
    if ids.next().is_some() {
        return None;
    }
    // The message may be no JSON at all, and what we answer must be.
    let id = span.of(bytes);
    (is_id(id) && scan::check(id, Keys::Any).is_ok()).then_some(id)
}

/// Where a method stands.
#[derive(Clone, Debug)]
enum Method {
    /// In the message, between its quotes.
    Written(Span),
    /// Here, because the message writes it with escapes.
    Resolved(Box<str>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sender {
    Caller,
    Peer,
}

/// The members of the envelope that we know; others are allowed and stay in the bytes.
#[derive(Debug, Default)]
struct Envelope {
    version: Option<Span>,
    id: Option<Span>,
    method: Option<Span>,
    params: Option<Span>,
    result: Option<Span>,
    error: Option<Span>,
}

impl scan::Sink for Envelope {
    #[inline]
    fn member(&mut self, key: Literal<'_>, value: Span) {
        let slot = match &*key.meaning() {
            b"jsonrpc" => &mut self.version,
            b"id" => &mut self.id,
            b"method" => &mut self.method,
            b"params" => &mut self.params,
            b"result" => &mut self.result,
            b"error" => &mut self.error,
            _ => return,
        };
        *slot = Some(value);
    }
}

fn read(bytes: Bytes, sender: Sender) -> Result<Message, Refusal> {
    let keys = match sender {
        Sender::Caller => Keys::Message,
        Sender::Peer => Keys::UniqueOutside,
    };
    let mut envelope = Envelope::default();
    scan::walk(&bytes, keys, &mut envelope).map_err(refusal)?;
    match bytes.trim_ascii_start().first() {
        Some(b'{') => {}
        Some(b'[') => return Err(Refusal::Batch),
        _ => return Err(Refusal::NotObject),
    }
    version(&bytes, envelope.version, sender)?;
    let method = envelope.method.map(|at| method(&bytes, at)).transpose()?;
    let (result, error) = if method.is_some() {
        (envelope.result, envelope.error)
    } else {
        outcome(&bytes, &envelope, sender)?
    };
    let id = id(&bytes, envelope.id)?;
    let kind = match (&method, id) {
        (Some(_), Id::Given(_)) => Kind::Request,
        (Some(_), Id::Absent) => Kind::Notification,
        // An error may answer a message whose id its sender could not read.
        (None, Id::Given(_)) => Kind::Answer,
        (None, Id::Null | Id::Absent) if error.is_some() => Kind::Answer,
        (Some(_), Id::Null) | (None, Id::Null | Id::Absent) => return Err(Refusal::BadId),
    };
    let id = match id {
        Id::Given(span) => Some(span),
        Id::Null | Id::Absent => None,
    };
    let params = envelope.params;
    Ok(Message {
        bytes,
        kind,
        id,
        method,
        params,
        result,
        error,
    })
}

const fn refusal(fault: Fault) -> Refusal {
    match fault {
        Fault::Alike {
            in_params: true, ..
        } => Refusal::Params(fault),
        Fault::Alike { .. } => Refusal::Envelope(fault),
        _ => Refusal::Json(fault),
    }
}

fn version(bytes: &[u8], at: Option<Span>, sender: Sender) -> Result<(), Refusal> {
    let right = match at.map(|at| at.of(bytes)) {
        Some(b"\"2.0\"") => true,
        Some(other) => object::string(other).as_deref() == Some("2.0"),
        None => sender == Sender::Peer,
    };
    if right {
        Ok(())
    } else {
        Err(Refusal::BadVersion)
    }
}

fn method(bytes: &[u8], at: Span) -> Result<Method, Refusal> {
    let text = at.of(bytes);
    if let Some(b'"') = text.first()
        && memchr::memchr(b'\\', text).is_none()
    {
        let (start, end) = (at.start + 1, at.end - 1);
        return Ok(Method::Written(Span { start, end }));
    }
    let resolved = object::string(text).ok_or(Refusal::BadMethod)?;
    Ok(Method::Resolved(resolved.into()))
}

/// Result and error of an answer, exactly one of them.
fn outcome(
    bytes: &[u8],
    envelope: &Envelope,
    sender: Sender,
) -> Result<(Option<Span>, Option<Span>), Refusal> {
    let is_null = |at: Span| at.of(bytes) == b"null";
    let is_object = |at: Span| at.of(bytes).first() == Some(&b'{');
    match (sender, envelope.result, envelope.error) {
        (_, Some(result), None) => Ok((Some(result), None)),
        (Sender::Caller, None, Some(error)) if is_object(error) => Ok((None, Some(error))),
        (Sender::Peer, None, Some(error)) if !is_null(error) => Ok((None, Some(error))),
        // Some servers always write both members. The null one says nothing.
        (Sender::Peer, Some(result), Some(error)) if is_null(error) => Ok((Some(result), None)),
        (Sender::Peer, Some(result), Some(error)) if is_null(result) => Ok((None, Some(error))),
        _ => Err(Refusal::Shape),
    }
}

#[derive(Clone, Copy, Debug)]
enum Id {
    Given(Span),
    Null,
    Absent,
}

fn id(bytes: &[u8], at: Option<Span>) -> Result<Id, Refusal> {
    match at {
        None => Ok(Id::Absent),
        Some(at) if at.of(bytes) == b"null" => Ok(Id::Null),
        Some(at) if is_id(at.of(bytes)) => Ok(Id::Given(at)),
        Some(_) => Err(Refusal::BadId),
    }
}

/// Whether a JSON value is a string or is written as an integer.
fn is_id(value: &[u8]) -> bool {
    match value.split_first() {
        Some((b'"', _)) => true,
        Some((b'-' | b'0'..=b'9', rest)) => rest.iter().all(u8::is_ascii_digit),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
