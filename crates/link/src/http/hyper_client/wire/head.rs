//! Heads: how one is written, and what one says about the body that follows it.

use std::mem::MaybeUninit;

use bytes::{Buf, BytesMut};
use http::{Method, StatusCode};
use httparse::{Header, ParserConfig, Status};

use super::super::super::client::{Headers, HttpError, Outgoing, write_line};
use super::super::ClientLimits;
use super::body::Decoder;

/// Headers of one answer that there is room for, whatever the limits of a client say.
const HEADERS_MAX: usize = 256;

/// The head of an answer.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) status: StatusCode,
    pub(super) headers: Headers,
    pub(super) body: Decoder,
    /// Whether the connection can carry another request after it.
    pub(super) keeps: bool,
}

/// Writes the head of a request, framing included.
pub(super) fn write(out: &mut Vec<u8>, request: &Outgoing<'_>) {
    let uri = request.to.uri();
    out.extend_from_slice(request.method.as_str().as_bytes());
    out.push(b' ');
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    if path.starts_with('?') {
        out.push(b'/');
    }
    out.extend_from_slice(path.as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\nhost: ");
    let host = uri.authority().map_or("", |authority| authority.as_str());
    out.extend_from_slice(host.as_bytes());
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(request.lines.as_bytes());
    for (name, value) in &request.headers {
        write_line(out, name, value);
    }
    match request.body.length() {
        None => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
        Some(0) if request.method != Method::POST => {}
        Some(length) => {
            out.extend_from_slice(b"content-length: ");
            let mut digits = itoa::Buffer::new();
            out.extend_from_slice(digits.format(length).as_bytes());
            out.extend_from_slice(b"\r\n");
        }
    }
    out.extend_from_slice(b"\r\n");
}

/// Takes one head off the buffer; nothing while it is not whole.
///
/// # Errors
/// It breaks the grammar or a limit, or says two things about its body.
pub(super) fn read(
    buffer: &mut BytesMut,
    limits: &ClientLimits,
    method: &Method,
) -> Result<Option<Head>, HttpError> {
    if buffer.is_empty() {
        return Ok(None);
    }
    if !buffer.starts_with(b"H") {
        return Err(bad("it is no HTTP"));
    }
    let mut room = [const { MaybeUninit::<Header<'_>>::uninit() }; HEADERS_MAX];
    let mut answer = httparse::Response::new(&mut []);
    let headers_max = limits.headers_max.min(HEADERS_MAX);
    let room = room.get_mut(..headers_max).unwrap_or_default();
    let parser = ParserConfig::default();
    let parsed = parser.parse_response_with_uninit_headers(&mut answer, buffer, room);
    let length = match parsed.map_err(|error| HttpError::Head(error.to_string().into()))? {
        Status::Complete(length) if length <= limits.head_bytes_max => length,
        Status::Partial if buffer.len() < limits.head_bytes_max => return Ok(None),
        Status::Complete(_) | Status::Partial => return Err(bad("it is too long")),
    };
    let status = answer.code.and_then(|code| StatusCode::from_u16(code).ok());
    let status = status.ok_or_else(|| bad("the status is not valid"))?;
    let said = Said::of(answer.headers)?;
    let is_new = answer.version == Some(1);
    let body = said.body(status, method, is_new)?;
    let head = Head {
        status,
        headers: Headers::from_lines(lines(buffer, length)),
        keeps: is_new && !said.closes && body.has_end(),
        body,
    };
    buffer.advance(length);
    Ok(Some(head))
}

fn bad(reason: &'static str) -> HttpError {
    HttpError::Head(reason.into())
}

/// Returns what follows the first line, without the empty one at the end.
fn lines(buffer: &[u8], length: usize) -> &[u8] {
    let head = buffer.get(..length).unwrap_or_default();
    let first = memchr::memchr(b'\n', head).map_or(length, |end| end + 1);
    let lines = head.get(first..).unwrap_or_default();
    let whole = lines
        .strip_suffix(b"\r\n")
        .or_else(|| lines.strip_suffix(b"\n"));
    whole.unwrap_or(lines)
}

/// What headers say about the body and the connection.
#[derive(Debug, Default)]
struct Said {
    length: Option<u64>,
    is_chunked: bool,
    closes: bool,
}

impl Said {
    fn of(headers: &[Header<'_>]) -> Result<Self, HttpError> {
        let mut said = Self::default();
        for Header { name, value } in headers {
            // The length of a name tells most of them apart.
            match name.len() {
                10 if name.eq_ignore_ascii_case("connection") => {
                    let mut words = value.split(|byte| *byte == b',');
                    said.closes |=
                        words.any(|word| word.trim_ascii().eq_ignore_ascii_case(b"close"));
                }
                14 if name.eq_ignore_ascii_case("content-length") => {
                    let length = number(value).ok_or_else(|| bad("the length is no number"))?;
                    if said.length.is_some_and(|other| other != length) {
                        return Err(bad("there are two lengths"));
                    }
                    said.length = Some(length);
                }
                17 if name.eq_ignore_ascii_case("transfer-encoding") => {
                    let is_known = value.trim_ascii().eq_ignore_ascii_case(b"chunked");
                    if said.is_chunked || !is_known {
                        return Err(bad("the transfer encoding is not known"));
                    }
                    said.is_chunked = true;
                }
                _ => {}
            }
        }
        Ok(said)
    }

    /// Returns how the body is framed.
    fn body(
        &self,
        status: StatusCode,
        method: &Method,
        is_new: bool,
    ) -> Result<Decoder, HttpError> {
        // Who reads one of them and who reads the other would see two different answers.
        if self.is_chunked && self.length.is_some() {
            return Err(bad("it has both a length and a transfer encoding"));
        }
        if self.is_chunked && !is_new {
            return Err(bad("a transfer encoding is not known to HTTP/1.0"));
        }
        let is_empty = status.is_informational()
            || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
            || *method == Method::HEAD;
        Ok(match self.length {
            _ if is_empty => Decoder::of_length(0),
            Some(length) => Decoder::of_length(length),
            None if self.is_chunked => Decoder::chunked(),
            None => Decoder::until_close(),
        })
    }
}

/// Reads digits and nothing else.
fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |number, byte| {
        let digit = byte.is_ascii_digit().then(|| byte - b'0')?;
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}
