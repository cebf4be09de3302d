//! Requests over HTTP, the heads of their answers, and the pieces of their bodies.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;

use super::{BODY_BYTES_MAX, DELTA_BYTES_MAX, Id, Verb, base64, encoded_len, request, result};
use crate::frame::FrameError;
use crate::members::Members;
use crate::object;
use crate::writer::Object;

/// Headers of one message.
const HEADERS_MAX: usize = 1_024;

/// One header. Those of a name stay in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Its name.
    pub name: Arc<str>,
    /// Its value, or what stands before the secret.
    pub value: Arc<str>,
    /// The name of a secret of the other side that is put behind the value.
    pub secret: Option<Arc<str>>,
}

/// A header to be written.
#[derive(Clone, Copy, Debug)]
pub struct HeaderRef<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its value, or what stands before the secret.
    pub value: &'a str,
    /// The name of a secret of the other side that is put behind the value.
    pub secret: Option<&'a str>,
}

/// What becomes of an answer that sends the client elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Redirects {
    /// The executor goes there.
    #[default]
    Follow,
    /// The answer is given as it is.
    Stop,
}

impl Redirects {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Follow => "follow",
            Self::Stop => "stop",
        }
    }
}

/// A request that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The method.
    pub method: Arc<str>,
    /// The address, absolute.
    pub url: Arc<str>,
    /// The headers.
    pub headers: Vec<Header>,
    /// The body.
    pub body: Option<Bytes>,
    /// How long it may take in all, in milliseconds.
    pub timeout_ms: Option<u64>,
    /// What becomes of an answer that leads elsewhere.
    pub redirects: Redirects,
    /// What the pieces of its answer are called.
    pub request_id: Arc<str>,
    /// Whether the body of the answer is sent in pieces.
    pub is_streamed: bool,
}

/// A request to be written.
#[derive(Clone, Debug)]
pub struct AskedRef<'a> {
    /// The method.
    pub method: &'a str,
    /// The address, absolute.
    pub url: &'a str,
    /// The headers.
    pub headers: &'a [HeaderRef<'a>],
    /// The body.
    pub body: Option<&'a [u8]>,
    /// How long it may take in all, in milliseconds.
    pub timeout_ms: Option<u64>,
    /// What becomes of an answer that leads elsewhere.
    pub redirects: Redirects,
    /// What the pieces of its answer are called.
    pub request_id: &'a str,
    /// Whether the body of the answer is sent in pieces.
    pub is_streamed: bool,
}

const ASKED: [&str; 8] = [
    "method",
    "url",
    "headers",
    "bodyBase64",
    "timeoutMs",
    "redirectPolicy",
    "requestId",
    "streamResponse",
];

const HEADER: [&str; 3] = ["name", "value", "valueEnvVar"];

impl Asked {
    /// Reads what a request says.
    ///
    /// # Errors
    /// A member is missing or is not what it must be.
    pub fn read(params: &Bytes) -> Result<Self, FrameError> {
        let members = Members::of_text(params, &ASKED)?;
        let redirects = match members.text_if("redirectPolicy")?.as_deref() {
            None | Some("follow") => Redirects::Follow,
            Some("stop") => Redirects::Stop,
            Some(_) => return Err(FrameError::Member("redirectPolicy")),
        };
        Ok(Self {
            method: members.text("method")?,
            url: members.text("url")?,
            headers: headers(&members)?,
            body: body(&members)?,
            timeout_ms: members.number_if("timeoutMs")?,
            redirects,
            request_id: members.text("requestId")?,
            is_streamed: members.flag_if("streamResponse")?.unwrap_or_default(),
        })
    }
}

impl AskedRef<'_> {
    /// Returns the message.
    #[must_use]
    pub fn to_bytes(&self, id: i64) -> Bytes {
        let body = encoded_len(self.body.map_or(0, <[u8]>::len));
        let capacity = body.saturating_add(self.url.len()).saturating_add(512);
        request(id, &Verb::Request, capacity, |out| {
            let object = Object::bare(out)
                .text("method", self.method)
                .text("url", self.url)
                .nested("headers", |out| write_headers(self.headers, out));
            let object = match self.body {
                Some(body) => object.nested("bodyBase64", |out| base64::write(body, out)),
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

fn headers<const N: usize>(members: &Members<'_, N>) -> Result<Vec<Header>, FrameError> {
    let Some(list) = members.begun("headers", b'[')? else {
        return Ok(Vec::new());
    };
    let mut headers = Vec::new();
    for span in object::items(&list) {
        if headers.len() == HEADERS_MAX {
            return Err(FrameError::Member("headers"));
        }
        let members = Members::inside(&list, span, &HEADER, "headers")?;
        headers.push(Header {
            name: members.text("name")?,
            value: members.text("value")?,
            secret: members.text_if("valueEnvVar")?,
        });
    }
    Ok(headers)
}

fn write_headers(headers: &[HeaderRef<'_>], out: &mut Vec<u8>) {
    out.push(b'[');
    for (at, header) in headers.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        Object::bare(out)
            .text("name", header.name)
            .text("value", header.value)
            .text_if("valueEnvVar", header.secret)
            .end();
    }
    out.push(b']');
}

fn body<const N: usize>(members: &Members<'_, N>) -> Result<Option<Bytes>, FrameError> {
    let Some(text) = members.begun("bodyBase64", b'"')? else {
        return Ok(None);
    };
    let text = object::string(&text).ok_or(FrameError::Member("bodyBase64"))?;
    // Looked at before anything is decoded.
    if text.len() > encoded_len(BODY_BYTES_MAX) || decoded_len(&text) > BODY_BYTES_MAX {
        return Err(FrameError::Member("bodyBase64"));
    }
    base64::read(text.as_bytes(), "bodyBase64").map(Some)
}

/// The answer to a request: its head, and its body where that is not streamed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The status.
    pub status: u16,
    /// The headers.
    pub headers: Vec<Header>,
    /// The body.
    pub body: Bytes,
}

const ANSWERED: [&str; 3] = ["status", "headers", "bodyBase64"];

impl Answered {
    /// Reads what an answer says.
    ///
    /// # Errors
    /// A member is missing or is not what it must be.
    pub fn read(answer: &Bytes) -> Result<Self, FrameError> {
        let members = Members::of_text(answer, &ANSWERED)?;
        let status = members.number_if("status")?;
        let status = status.and_then(|status| u16::try_from(status).ok());
        Ok(Self {
            status: status.ok_or(FrameError::Member("status"))?,
            headers: headers(&members)?,
            body: body(&members)?.ok_or(FrameError::Member("bodyBase64"))?,
        })
    }

    /// Returns the message of an answer; the body is empty where it is streamed.
    #[must_use]
    pub fn write(id: &Id, status: u16, headers: &[HeaderRef<'_>], body: &[u8]) -> Bytes {
        let capacity = encoded_len(body.len()).saturating_add(512);
        result(id, capacity, |out| {
            Object::bare(out)
                .number("status", u64::from(status))
                .nested("headers", |out| write_headers(headers, out))
                .nested("bodyBase64", |out| base64::write(body, out))
                .end();
        })
    }
}

/// A piece of the body of a streamed answer. It is decoded when somebody wants it.
#[derive(Debug)]
pub struct Delta<'a> {
    /// The request whose answer it belongs to.
    pub request_id: Cow<'a, str>,
    /// Its number.
    pub seq: u64,
    /// Whether it is the last.
    pub is_done: bool,
    /// Why nothing more comes; then it is the last.
    pub error: Option<Arc<str>>,
    text: Cow<'a, str>,
}

impl<'a> Delta<'a> {
    /// Reads a piece.
    ///
    /// # Errors
    /// A member is missing or is not what it must be, or the piece is longer than one may be.
    pub fn read(params: &'a Bytes) -> Result<Self, FrameError> {
        let mut found: [Option<&'a [u8]>; 5] = [None; 5];
        let names = ["requestId", "seq", "deltaBase64", "done", "error"];
        for (key, value) in object::fields(params) {
            for (name, slot) in names.iter().zip(&mut found) {
                if key == *name && slot.replace(value.of(params)).is_some() {
                    return Err(FrameError::Member(name));
                }
            }
        }
        let [id, seq, text, done, error] = found;
        let string = |value: Option<&'a [u8]>, name| {
            let value = value.and_then(object::string);
            value.ok_or(FrameError::Member(name))
        };
        let text = string(text, "deltaBase64")?;
        // Looked at before anything is decoded.
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
            said => Some(string(said, "error")?.into()),
        };
        Ok(Self {
            request_id: string(id, "requestId")?,
            seq: seq.ok_or(FrameError::Member("seq"))?,
            is_done,
            error,
            text,
        })
    }

    /// Returns how many bytes it carries.
    #[must_use]
    pub fn len(&self) -> usize {
        decoded_len(&self.text)
    }

    /// Whether it carries nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Returns what it carries.
    ///
    /// # Errors
    /// It is no base64.
    pub fn decode(&self) -> Result<Bytes, FrameError> {
        base64::read(self.text.as_bytes(), "deltaBase64")
    }
}

fn decoded_len(text: &str) -> usize {
    base64::decoded_len(text.as_bytes())
}

/// Returns the message of a piece; `end` is there in the last: whether it ends as it should.
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
        let object = Object::bare(out)
            .text("requestId", request_id)
            .number("seq", seq)
            .nested("deltaBase64", |out| base64::write(bytes, out))
            .flag("done", end.is_some());
        match end {
            Some(Err(error)) => object.text("error", error),
            _ => object.raw("error", b"null"),
        }
        .end();
    };
    Object::bare(&mut out)
        .text("method", Verb::Delta.as_str())
        .nested("params", write)
        .end();
    out.into()
}
