//! Writes the JSON-RPC envelope around a payload: the only place that spells one.

use std::ops::Range;

use bowline_core::call::BodyKind;

use crate::splice::{EditedText, write_string};

/// Bytes of the longest envelope besides id, method and payload.
const ENVELOPE_BYTES: usize = br#"{"jsonrpc":"2.0","id":,"method":"","params":}"#.len();

/// A message without its payload. Ids are JSON, written as given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Envelope<'a> {
    /// A request; the payload is `params`.
    Request {
        /// The id.
        id: &'a [u8],
        /// The method.
        method: &'a str,
    },
    /// A notification; the payload is `params`.
    Notification {
        /// The method.
        method: &'a str,
    },
    /// A successful response; the payload is `result`.
    Result {
        /// The id of the request.
        id: &'a [u8],
    },
    /// A failed response; the payload is `error`, an error object.
    Error {
        /// The id of the request; null if absent.
        id: Option<&'a [u8]>,
    },
}

impl<'a> Envelope<'a> {
    /// Returns the envelope of a response with this body.
    #[must_use]
    pub const fn from_body(id: &'a [u8], body: BodyKind) -> Self {
        match body {
            BodyKind::Result => Self::Result { id },
            BodyKind::Error => Self::Error { id: Some(id) },
        }
    }

    /// Appends the message with the payload that `write_payload` appends, verbatim. Without a
    /// payload, the member is left out. Returns the range of the payload.
    #[inline]
    pub fn write(
        self,
        out: &mut Vec<u8>,
        write_payload: impl FnOnce(&mut Vec<u8>),
    ) -> Range<usize> {
        let (id, method, member) = self.parts();
        out.extend_from_slice(br#"{"jsonrpc":"2.0""#);
        if let Some(id) = id {
            out.extend_from_slice(br#","id":"#);
            out.extend_from_slice(id);
        }
        if let Some(method) = method {
            out.extend_from_slice(br#","method":"#);
            write_string(out, method);
        }
        let head_end = out.len();
        out.extend_from_slice(member);
        let start = out.len();
        write_payload(out);
        if out.len() == start {
            debug_assert!(method.is_some(), "a response has a payload");
            out.truncate(head_end);
        }
        let payload = start.min(out.len())..out.len();
        out.push(b'}');
        payload
    }

    /// Returns the message with this payload, verbatim, in one allocation.
    #[must_use]
    pub fn to_vec(self, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.capacity(payload.len()));
        self.write(&mut out, |out| out.extend_from_slice(payload));
        out
    }

    /// Returns a capacity that holds the message with a payload of this size.
    #[must_use]
    pub fn capacity(self, payload_bytes: usize) -> usize {
        let (id, method, _) = self.parts();
        let own = id.map_or(0, <[u8]>::len) + method.map_or(0, str::len);
        ENVELOPE_BYTES + own + payload_bytes
    }

    /// Returns id, method and the start of the member with the payload.
    const fn parts(self) -> (Option<&'a [u8]>, Option<&'a str>, &'static [u8]) {
        const PARAMS: &[u8] = br#","params":"#;
        match self {
            Self::Request { id, method } => (Some(id), Some(method), PARAMS),
            Self::Notification { method } => (None, Some(method), PARAMS),
            Self::Result { id } => (Some(id), None, br#","result":"#),
            Self::Error { id: Some(id) } => (Some(id), None, br#","error":"#),
            Self::Error { id: None } => (Some(b"null"), None, br#","error":"#),
        }
    }
}

/// Appends a request as one line, without a line end.
pub fn write_request(out: &mut Vec<u8>, id: u64, method: &str, params: Option<EditedText<'_>>) {
    let mut digits = itoa::Buffer::new();
    let id = digits.format(id).as_bytes();
    write_line(out, Envelope::Request { id, method }, |out| {
        if let Some(params) = params {
            params.write(out);
        }
    });
}

/// Appends a notification as one line, without a line end.
pub fn write_notification(out: &mut Vec<u8>, method: &str, params: Option<&[u8]>) {
    write_line(out, Envelope::Notification { method }, |out| {
        out.extend_from_slice(params.unwrap_or_default());
    });
}

/// Appends a response with a result as one line, without a line end. Returns the range of the
/// result.
pub fn write_result(out: &mut Vec<u8>, id: &[u8], result: &[u8]) -> Range<usize> {
    let envelope = Envelope::Result { id };
    out.reserve(envelope.capacity(result.len()));
    write_line(out, envelope, |out| out.extend_from_slice(result))
}

/// Appends a response with an error as one line, without a line end; a missing id is written as
/// null. `data` is JSON. Returns the range of the error object.
pub fn write_error(
    out: &mut Vec<u8>,
    id: Option<&[u8]>,
    code: i64,
    message: &str,
    data: Option<&[u8]>,
) -> Range<usize> {
    write_line(out, Envelope::Error { id }, |out| {
        out.extend_from_slice(br#"{"code":"#);
        out.extend_from_slice(itoa::Buffer::new().format(code).as_bytes());
        out.extend_from_slice(br#","message":"#);
        write_string(out, message);
        if let Some(data) = data {
            out.extend_from_slice(br#","data":"#);
            out.extend_from_slice(data);
        }
        out.push(b'}');
    })
}

/// Appends a message as one line: line breaks between tokens of the payload become spaces.
fn write_line(
    out: &mut Vec<u8>,
    envelope: Envelope<'_>,
    write_payload: impl FnOnce(&mut Vec<u8>),
) -> Range<usize> {
    let start = out.len();
    let payload = envelope.write(out, write_payload);
    flatten_lines(out.get_mut(start..).unwrap_or_default());
    payload
}

/// Flattens a message to one line. JSON allows raw line breaks only between tokens, with the same
/// meaning as a space.
pub fn flatten_lines(message: &mut [u8]) {
    let mut rest = message;
    while let Some(at) = memchr::memchr2(b'\n', b'\r', rest) {
        let (_, tail) = rest.split_at_mut(at);
        let Some((byte, tail)) = tail.split_first_mut() else {
            return;
        };
        *byte = b' ';
        rest = tail;
    }
}
