//! HTTP requests, response heads and body chunks.

use std::borrow::Cow;
use std::sync::Arc;

use bowline_wire::object_members::ObjectMembers;
use bowline_wire::object_writer::ObjectWriter;
use bowline_wire::{FrameError, object};
use bytes::Bytes;

use super::{
    BODY_BYTES_MAX, DELTA_BYTES_MAX, ExecMethod, ExecRequestId, base64, encoded_len, write_request,
    write_result,
};

/// Headers of one message.
const HEADERS_MAX: usize = 1_024;

/// One header. Headers of the same name keep their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecHeader {
    /// The name.
    pub name: Arc<str>,
    /// The value, or the prefix of a secret.
    pub value: Arc<str>,
    /// The name of an executor secret appended to the value.
    pub secret_name: Option<Arc<str>>,
}

/// A header to write.
#[derive(Clone, Copy, Debug)]
pub struct ExecHeaderRef<'a> {
    /// The name.
    pub name: &'a str,
    /// The value, or the prefix of a secret.
    pub value: &'a str,
    /// The name of an executor secret appended to the value.
    pub secret_name: Option<&'a str>,
}

/// Handling of redirects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RedirectPolicy {
    /// The executor follows redirects.
    #[default]
    Follow,
    /// Redirects are returned as responses.
    Stop,
}

impl RedirectPolicy {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Follow => "follow",
            Self::Stop => "stop",
        }
    }
}

/// A requested HTTP request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecHttpRequest {
    /// The method.
    pub method: Arc<str>,
    /// The absolute URL.
    pub url: Arc<str>,
    /// The headers.
    pub headers: Vec<ExecHeader>,
    /// The body.
    pub body: Option<Bytes>,
    /// Total timeout in milliseconds.
    pub timeout_ms: Option<u64>,
    /// Handling of redirects.
    pub redirects: RedirectPolicy,
    /// Identifies the chunks of the response.
    pub request_id: Arc<str>,
    /// Whether the response body is streamed.
    pub is_streamed: bool,
}

/// A request to write.
#[derive(Clone, Debug)]
pub struct ExecHttpRequestRef<'a> {
    /// The method.
    pub method: &'a str,
    /// The absolute URL.
    pub url: &'a str,
    /// The headers.
    pub headers: &'a [ExecHeaderRef<'a>],
    /// The body.
    pub body: Option<&'a [u8]>,
    /// Total timeout in milliseconds.
    pub timeout_ms: Option<u64>,
    /// Handling of redirects.
    pub redirects: RedirectPolicy,
    /// Identifies the chunks of the response.
    pub request_id: &'a str,
    /// Whether the response body is streamed.
    pub is_streamed: bool,
}

const REQUEST_MEMBERS: [&str; 8] = [
    "method",
    "url",
    "headers",
    "bodyBase64",
    "timeoutMs",
    "redirectPolicy",
    "requestId",
    "streamResponse",
];

const HEADER_MEMBERS: [&str; 3] = ["name", "value", "valueEnvVar"];

impl ExecHttpRequest {
    /// Parses the parameters of a request.
    ///
    /// # Errors
    /// A member is missing or invalid.
    pub fn parse(params: &Bytes) -> Result<Self, FrameError> {
        let members = ObjectMembers::parse(params, &REQUEST_MEMBERS)?;
        let redirects = match members.optional_text("redirectPolicy")?.as_deref() {
            None | Some("follow") => RedirectPolicy::Follow,
            Some("stop") => RedirectPolicy::Stop,
            Some(_) => return Err(FrameError::Member("redirectPolicy")),
        };
        Ok(Self {
            method: members.required_text("method")?,
            url: members.required_text("url")?,
            headers: parse_headers(&members)?,
            body: parse_body(&members)?,
            timeout_ms: members.optional_number("timeoutMs")?,
            redirects,
            request_id: members.required_text("requestId")?,
            is_streamed: members.optional_flag("streamResponse")?.unwrap_or_default(),
        })
    }
}

impl ExecHttpRequestRef<'_> {
    /// Returns the message.
    #[must_use]
    pub fn to_bytes(&self, id: i64) -> Bytes {
        let body = encoded_len(self.body.map_or(0, <[u8]>::len));
        let capacity = body.saturating_add(self.url.len()).saturating_add(512);
        write_request(id, &ExecMethod::HttpRequest, capacity, |out| {
            let object = ObjectWriter::begin(out)
                .text("method", self.method)
                .text("url", self.url)
                .value_with("headers", |out| write_headers(self.headers, out));
            let object = match self.body {
                Some(body) => {
                    object.value_with("bodyBase64", |out| base64::write_encoded(body, out))
                }
                None => object.raw("bodyBase64", b"null"),
            };
            object
                .number_if("timeoutMs", self.timeout_ms)
                .text("redirectPolicy", self.redirects.as_str())
                .text("requestId", self.request_id)
                .flag("streamResponse", self.is_streamed)
                .end();
        })
    }
}

fn parse_headers<const N: usize>(
    members: &ObjectMembers<'_, N>,
) -> Result<Vec<ExecHeader>, FrameError> {
    let Some(list) = members.optional_raw("headers", b'[')? else {
        return Ok(Vec::new());
    };
    let mut headers = Vec::new();
    for span in object::items(&list) {
        if headers.len() == HEADERS_MAX {
            return Err(FrameError::Member("headers"));
        }
        let members = ObjectMembers::parse_at(&list, span, &HEADER_MEMBERS, "headers")?;
        headers.push(ExecHeader {
            name: members.required_text("name")?,
            value: members.required_text("value")?,
            secret_name: members.optional_text("valueEnvVar")?,
        });
    }
    Ok(headers)
}

fn write_headers(headers: &[ExecHeaderRef<'_>], out: &mut Vec<u8>) {
    out.push(b'[');
    for (at, header) in headers.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        ObjectWriter::begin(out)
            .text("name", header.name)
            .text("value", header.value)
            .text_if("valueEnvVar", header.secret_name)
            .end();
    }
    out.push(b']');
}

fn parse_body<const N: usize>(members: &ObjectMembers<'_, N>) -> Result<Option<Bytes>, FrameError> {
    let Some(text) = members.optional_raw("bodyBase64", b'"')? else {
        return Ok(None);
    };
    let text = object::parse_string(&text).ok_or(FrameError::Member("bodyBase64"))?;
    // Checked before decoding.
    if text.len() > encoded_len(BODY_BYTES_MAX) || decoded_len(&text) > BODY_BYTES_MAX {
        return Err(FrameError::Member("bodyBase64"));
    }
    base64::decode_text(text.as_bytes(), "bodyBase64").map(Some)
}

/// An HTTP response: head, and body unless streamed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecHttpResponse {
    /// The status.
    pub status: u16,
    /// The headers.
    pub headers: Vec<ExecHeader>,
    /// The body.
    pub body: Bytes,
}

const RESPONSE_MEMBERS: [&str; 3] = ["status", "headers", "bodyBase64"];

impl ExecHttpResponse {
    /// Parses a response.
    ///
    /// # Errors
    /// A member is missing or invalid.
    pub fn parse(result: &Bytes) -> Result<Self, FrameError> {
        let members = ObjectMembers::parse(result, &RESPONSE_MEMBERS)?;
        let status = members.optional_number("status")?;
        let status = status.and_then(|status| u16::try_from(status).ok());
        Ok(Self {
            status: status.ok_or(FrameError::Member("status"))?,
            headers: parse_headers(&members)?,
            body: parse_body(&members)?.ok_or(FrameError::Member("bodyBase64"))?,
        })
    }

    /// Returns the message of a response; the body is empty if streamed.
    #[must_use]
    pub fn encode(
        id: &ExecRequestId,
        status: u16,
        headers: &[ExecHeaderRef<'_>],
        body: &[u8],
    ) -> Bytes {
        let capacity = encoded_len(body.len()).saturating_add(512);
        write_result(id, capacity, |out| {
            ObjectWriter::begin(out)
                .number("status", u64::from(status))
                .value_with("headers", |out| write_headers(headers, out))
                .value_with("bodyBase64", |out| base64::write_encoded(body, out))
                .end();
        })
    }
}

/// A chunk of a streamed response body, decoded on demand.
#[derive(Debug)]
pub struct BodyDelta<'a> {
    /// The request of the response.
    pub request_id: Cow<'a, str>,
    /// The sequence number.
    pub seq: u64,
    /// Whether this is the last chunk.
    pub is_done: bool,
    /// The cause of a premature end; only in the last chunk.
    pub error: Option<Arc<str>>,
    text: Cow<'a, str>,
}

impl<'a> BodyDelta<'a> {
    /// Parses a chunk.
    ///
    /// # Errors
    /// A member is missing or invalid, or the chunk is too long.
    pub fn parse(params: &'a Bytes) -> Result<Self, FrameError> {
        let mut values: [Option<&'a [u8]>; 5] = [None; 5];
        let names = ["requestId", "seq", "deltaBase64", "done", "error"];
        for (key, value) in object::fields(params) {
            for (name, slot) in names.iter().zip(&mut values) {
                if key == *name && slot.replace(value.slice(params)).is_some() {
                    return Err(FrameError::Member(name));
                }
            }
        }
        let [id, seq, text, done, error] = values;
        let string = |value: Option<&'a [u8]>, name| {
            let value = value.and_then(object::parse_string);
            value.ok_or(FrameError::Member(name))
        };
        let text = string(text, "deltaBase64")?;
        // Checked before decoding.
        if text.len() > encoded_len(DELTA_BYTES_MAX) || decoded_len(&text) > DELTA_BYTES_MAX {
            return Err(FrameError::Member("deltaBase64"));
        }
        let seq = seq.and_then(|digits| std::str::from_utf8(digits).ok());
        let seq = seq.and_then(|digits| digits.parse().ok());
        let is_done = match done {
            None | Some(b"false") => false,
            Some(b"true") => true,
            Some(_) => return Err(FrameError::Member("done")),
        };
        let error = match error {
            None | Some(b"null") => None,
            raw => Some(string(raw, "error")?.into()),
        };
        Ok(Self {
            request_id: string(id, "requestId")?,
            seq: seq.ok_or(FrameError::Member("seq"))?,
            is_done,
            error,
            text,
        })
    }

    /// Returns the decoded length.
    #[must_use]
    pub fn len(&self) -> usize {
        decoded_len(&self.text)
    }

    /// Whether the chunk is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Decodes the chunk.
    ///
    /// # Errors
    /// The text is not base64.
    pub fn decode(&self) -> Result<Bytes, FrameError> {
        base64::decode_text(self.text.as_bytes(), "deltaBase64")
    }
}

fn decoded_len(text: &str) -> usize {
    base64::decoded_len(text.as_bytes())
}

/// Returns the message of a chunk; `end` is set in the last chunk: clean or failed.
#[must_use]
pub fn write_delta(
    request_id: &str,
    seq: u64,
    bytes: &[u8],
    end: Option<Result<(), &str>>,
) -> Bytes {
    let capacity = encoded_len(bytes.len()) + request_id.len() + 128;
    let mut out = Vec::with_capacity(capacity);
    let write = |out: &mut Vec<u8>| {
        let object = ObjectWriter::begin(out)
            .text("requestId", request_id)
            .number("seq", seq)
            .value_with("deltaBase64", |out| base64::write_encoded(bytes, out))
            .flag("done", end.is_some());
        match end {
            Some(Err(error)) => object.text("error", error),
            _ => object.raw("error", b"null"),
        }
        .end();
    };
    ObjectWriter::begin(&mut out)
        .text("method", ExecMethod::BodyDelta.as_str())
        .value_with("params", write)
        .end();
    out.into()
}
