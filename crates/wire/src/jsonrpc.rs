//! JSON-RPC messages over raw bytes: only the envelope is parsed.

use bytes::Bytes;

use crate::mcp::code;
use crate::object;
use crate::scan::{self, JsonError, KeyPolicy};
use crate::splice::ByteSpan;
use crate::string_literal::StringLiteral;

mod envelope;

pub use envelope::{
    Envelope, flatten_lines, write_error, write_notification, write_request, write_result,
};

/// A validated message with the spans of its envelope.
#[derive(Clone, Debug)]
pub struct RpcMessage {
    bytes: Bytes,
    kind: MessageKind,
    id: Option<ByteSpan>,
    method: Option<MethodName>,
    params: Option<ByteSpan>,
    result: Option<ByteSpan>,
    error: Option<ByteSpan>,
}

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// Method and id.
    Request,
    /// Method without id.
    Notification,
    /// Result or error.
    Response,
}

/// Why a message is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// Invalid JSON.
    #[error("the message is not valid JSON")]
    Json(#[source] JsonError),
    /// An envelope member differs only in case from a protocol name or a second member, so some
    /// servers would read a different message.
    #[error("the message is not clear")]
    Envelope(#[source] JsonError),
    /// The same for a member of the parameters.
    #[error("the parameters are not clear")]
    Params(#[source] JsonError),
    /// An array.
    #[error("batches are not supported")]
    Batch,
    /// Neither an object nor an array.
    #[error("the message is not an object")]
    NotObject,
    /// `jsonrpc` is not `"2.0"`.
    #[error("the member `jsonrpc` is not \"2.0\"")]
    BadVersion,
    /// `id` is neither a string nor an integer, or missing in a response with a result.
    #[error("the member `id` is not a string or an integer")]
    BadId,
    /// `method` is not a string.
    #[error("the member `method` is not a string")]
    BadMethod,
    /// Neither a request nor a notification nor a response.
    #[error("the message has neither a method nor one of result and error")]
    Shape,
}

impl MessageError {
    /// Returns the JSON-RPC error code for the response.
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

impl RpcMessage {
    /// Parses a client message strictly: no duplicate keys in any object, no case variants of
    /// protocol names (see [`crate::case_fold`]), `jsonrpc` present, exactly one of result and
    /// error in a response, and an object as the error.
    ///
    /// # Errors
    /// The message is refused.
    pub fn parse_from_client(bytes: Bytes) -> Result<Self, MessageError> {
        parse_message(bytes, SenderKind::Client)
    }

    /// Parses a server message leniently: `jsonrpc` may be absent, payloads may repeat keys, and
    /// one of result and error may be null.
    ///
    /// # Errors
    /// The message is refused.
    pub fn parse_from_server(bytes: Bytes) -> Result<Self, MessageError> {
        parse_message(bytes, SenderKind::Server)
    }

    /// Returns the kind. The method decides first.
    #[must_use]
    pub const fn kind(&self) -> MessageKind {
        self.kind
    }

    /// Returns the whole message.
    #[must_use]
    pub const fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Returns the whole message.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }

    /// Returns the raw id: `1` and `"1"` are two ids. `None` for null.
    #[must_use]
    pub fn id(&self) -> Option<&[u8]> {
        self.span_bytes(self.id)
    }

    /// Returns the span of the id.
    #[must_use]
    pub const fn id_span(&self) -> Option<ByteSpan> {
        self.id
    }

    /// Returns the method, unescaped.
    #[must_use]
    pub fn method(&self) -> Option<&str> {
        match self.method.as_ref()? {
            MethodName::InPlace(span) => std::str::from_utf8(span.slice(&self.bytes)).ok(),
            MethodName::Unescaped(text) => Some(text),
        }
    }

    /// Returns the parameters, of any type.
    #[must_use]
    pub fn params(&self) -> Option<&[u8]> {
        self.span_bytes(self.params)
    }

    /// Returns the span of the parameters.
    #[must_use]
    pub const fn params_span(&self) -> Option<ByteSpan> {
        self.params
    }

    /// Returns the result, possibly `null`.
    #[must_use]
    pub fn result(&self) -> Option<&[u8]> {
        self.span_bytes(self.result)
    }

    /// Returns the span of the result.
    #[must_use]
    pub const fn result_span(&self) -> Option<ByteSpan> {
        self.result
    }

    /// Returns the error.
    #[must_use]
    pub fn error(&self) -> Option<&[u8]> {
        self.span_bytes(self.error)
    }

    /// Returns the span of the error.
    #[must_use]
    pub const fn error_span(&self) -> Option<ByteSpan> {
        self.error
    }

    fn span_bytes(&self, span: Option<ByteSpan>) -> Option<&[u8]> {
        span.map(|span| span.slice(&self.bytes))
    }
}

/// Returns the id of a refused message, so that the sender can match the error. `None` (null) if
/// absent, duplicate or invalid.
#[must_use]
pub fn find_refused_id(bytes: &[u8]) -> Option<&[u8]> {
    std::str::from_utf8(bytes).ok()?;
    let mut ids = object::fields(bytes).filter(|(key, _)| key == "id");
    let (_, span) = ids.next()?;
    if ids.next().is_some() {
        return None;
    }
    // The message may be invalid JSON, but the response must be valid.
    let id = span.slice(bytes);
    (is_valid_id(id) && scan::check_json(id, KeyPolicy::Any).is_ok()).then_some(id)
}

/// The method of a message.
#[derive(Clone, Debug)]
enum MethodName {
    /// A span between the quotes.
    InPlace(ByteSpan),
    /// Unescaped copy of an escaped method.
    Unescaped(Box<str>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SenderKind {
    Client,
    Server,
}

/// The known envelope members; unknown members are allowed and stay in the bytes.
#[derive(Debug, Default)]
struct RpcEnvelope {
    version: Option<ByteSpan>,
    id: Option<ByteSpan>,
    method: Option<ByteSpan>,
    params: Option<ByteSpan>,
    result: Option<ByteSpan>,
    error: Option<ByteSpan>,
}

impl scan::MemberSink for RpcEnvelope {
    #[inline]
    fn on_member(&mut self, key: StringLiteral<'_>, value: ByteSpan) {
        let slot = match &*key.unescape() {
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

fn parse_message(bytes: Bytes, sender: SenderKind) -> Result<RpcMessage, MessageError> {
    let keys = match sender {
        SenderKind::Client => KeyPolicy::Message,
        SenderKind::Server => KeyPolicy::UniqueOutermost,
    };
    let mut envelope = RpcEnvelope::default();
    scan::scan_members(&bytes, keys, &mut envelope).map_err(to_message_error)?;
    match bytes.trim_ascii_start().first() {
        Some(b'{') => {}
        Some(b'[') => return Err(MessageError::Batch),
        _ => return Err(MessageError::NotObject),
    }
    check_version(&bytes, envelope.version, sender)?;
    let method = envelope
        .method
        .map(|at| parse_method(&bytes, at))
        .transpose()?;
    let (result, error) = if method.is_some() {
        (envelope.result, envelope.error)
    } else {
        select_outcome(&bytes, &envelope, sender)?
    };
    let id = parse_id(&bytes, envelope.id)?;
    let kind = match (&method, id) {
        (Some(_), EnvelopeId::Given(_)) => MessageKind::Request,
        (Some(_), EnvelopeId::Absent) => MessageKind::Notification,
        // An error may respond to a message with an unreadable id.
        (None, EnvelopeId::Given(_)) => MessageKind::Response,
        (None, EnvelopeId::Null | EnvelopeId::Absent) if error.is_some() => MessageKind::Response,
        (Some(_), EnvelopeId::Null) | (None, EnvelopeId::Null | EnvelopeId::Absent) => {
            return Err(MessageError::BadId);
        }
    };
    let id = match id {
        EnvelopeId::Given(span) => Some(span),
        EnvelopeId::Null | EnvelopeId::Absent => None,
    };
    let params = envelope.params;
    Ok(RpcMessage {
        bytes,
        kind,
        id,
        method,
        params,
        result,
        error,
    })
}

const fn to_message_error(fault: JsonError) -> MessageError {
    match fault {
        JsonError::CaseConflict {
            in_params: true, ..
        } => MessageError::Params(fault),
        JsonError::CaseConflict { .. } => MessageError::Envelope(fault),
        _ => MessageError::Json(fault),
    }
}

fn check_version(
    bytes: &[u8],
    at: Option<ByteSpan>,
    sender: SenderKind,
) -> Result<(), MessageError> {
    let right = match at.map(|at| at.slice(bytes)) {
        Some(b"\"2.0\"") => true,
        Some(other) => object::parse_string(other).as_deref() == Some("2.0"),
        None => sender == SenderKind::Server,
    };
    if right {
        Ok(())
    } else {
        Err(MessageError::BadVersion)
    }
}

fn parse_method(bytes: &[u8], at: ByteSpan) -> Result<MethodName, MessageError> {
    let text = at.slice(bytes);
    if let Some(b'"') = text.first()
        && memchr::memchr(b'\\', text).is_none()
    {
        let (start, end) = (at.start + 1, at.end - 1);
        return Ok(MethodName::InPlace(ByteSpan { start, end }));
    }
    let resolved = object::parse_string(text).ok_or(MessageError::BadMethod)?;
    Ok(MethodName::Unescaped(resolved.into()))
}

/// Returns result and error of a response, exactly one set.
fn select_outcome(
    bytes: &[u8],
    envelope: &RpcEnvelope,
    sender: SenderKind,
) -> Result<(Option<ByteSpan>, Option<ByteSpan>), MessageError> {
    let is_null = |at: ByteSpan| at.slice(bytes) == b"null";
    let is_object = |at: ByteSpan| at.slice(bytes).first() == Some(&b'{');
    match (sender, envelope.result, envelope.error) {
        (_, Some(result), None) => Ok((Some(result), None)),
        (SenderKind::Client, None, Some(error)) if is_object(error) => Ok((None, Some(error))),
        (SenderKind::Server, None, Some(error)) if !is_null(error) => Ok((None, Some(error))),
        // Some servers always write both members; the null member is ignored.
        (SenderKind::Server, Some(result), Some(error)) if is_null(error) => {
            Ok((Some(result), None))
        }
        (SenderKind::Server, Some(result), Some(error)) if is_null(result) => {
            Ok((None, Some(error)))
        }
        _ => Err(MessageError::Shape),
    }
}

#[derive(Clone, Copy, Debug)]
enum EnvelopeId {
    Given(ByteSpan),
    Null,
    Absent,
}

fn parse_id(bytes: &[u8], at: Option<ByteSpan>) -> Result<EnvelopeId, MessageError> {
    match at {
        None => Ok(EnvelopeId::Absent),
        Some(at) if at.slice(bytes) == b"null" => Ok(EnvelopeId::Null),
        Some(at) if is_valid_id(at.slice(bytes)) => Ok(EnvelopeId::Given(at)),
        Some(_) => Err(MessageError::BadId),
    }
}

/// Whether a JSON value is a string or an integer.
fn is_valid_id(value: &[u8]) -> bool {
    match value.split_first() {
        Some((b'"', _)) => true,
        Some((b'-' | b'0'..=b'9', rest)) => rest.iter().all(u8::is_ascii_digit),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
