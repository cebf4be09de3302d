//! Writes request heads, parses response heads and derives the body framing.

use std::mem::MaybeUninit;

use bytes::{Buf, BytesMut};
use http::{Method, StatusCode};
use httparse::{Header, ParserConfig, Status};

use super::super::super::http_client::{
    HttpError, HttpRequest, ResponseHeaders, write_header_line,
};
use super::super::HttpClientLimits;
use super::body_decoder::BodyDecoder;

/// Header slots, whatever the client limit.
const HEADERS_MAX: usize = 256;

/// A response head.
#[derive(Debug)]
pub(super) struct Http1Head {
    pub(super) status: StatusCode,
    pub(super) headers: ResponseHeaders,
    pub(super) body: BodyDecoder,
    /// Whether the connection is reusable afterwards.
    pub(super) is_reusable: bool,
}

/// Writes a request head with framing headers.
pub(super) fn write_request_head(out: &mut Vec<u8>, request: &HttpRequest<'_>) {
    let uri = request.endpoint.uri();
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
    out.extend_from_slice(request.shared_headers.as_bytes());
    for (name, value) in &request.headers {
        write_header_line(out, name, value);
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

/// Takes a response head from the buffer; `None` while incomplete.
///
/// # Errors
/// The head violates the grammar or a limit, or the framing is ambiguous.
pub(super) fn parse_response_head(
    buffer: &mut BytesMut,
    limits: &HttpClientLimits,
    method: &Method,
) -> Result<Option<Http1Head>, HttpError> {
    if buffer.is_empty() {
        return Ok(None);
    }
    if !buffer.starts_with(b"H") {
        return Err(head_error("it is no HTTP"));
    }
    let mut room = [const { MaybeUninit::<Header<'_>>::uninit() }; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut []);
    let headers_max = limits.headers_max.min(HEADERS_MAX);
    let room = room.get_mut(..headers_max).unwrap_or_default();
    let parser = ParserConfig::default();
    let parsed = parser.parse_response_with_uninit_headers(&mut response, buffer, room);
    let length = match parsed.map_err(|error| HttpError::BadHead(error.to_string().into()))? {
        Status::Complete(length) if length <= limits.head_bytes_max => length,
        Status::Partial if buffer.len() < limits.head_bytes_max => return Ok(None),
        Status::Complete(_) | Status::Partial => return Err(head_error("it is too long")),
    };
    let status = response
        .code
        .and_then(|code| StatusCode::from_u16(code).ok());
    let status = status.ok_or_else(|| head_error("the status is not valid"))?;
    let framing = FramingHeaders::from_headers(response.headers)?;
    let is_http11 = response.version == Some(1);
    let body = framing.body_decoder(status, method, is_http11)?;
    let head = Http1Head {
        status,
        headers: ResponseHeaders::from_lines(header_lines(buffer, length)),
        is_reusable: is_http11 && !framing.closes && body.has_known_end(),
        body,
    };
    buffer.advance(length);
    Ok(Some(head))
}

fn head_error(reason: &'static str) -> HttpError {
    HttpError::BadHead(reason.into())
}

/// Returns the header lines without status line and final empty line.
fn header_lines(buffer: &[u8], length: usize) -> &[u8] {
    let head = buffer.get(..length).unwrap_or_default();
    let first = memchr::memchr(b'\n', head).map_or(length, |end| end + 1);
    let lines = head.get(first..).unwrap_or_default();
    let whole = lines
        .strip_suffix(b"\r\n")
        .or_else(|| lines.strip_suffix(b"\n"));
    whole.unwrap_or(lines)
}

/// Headers for body framing and connection reuse.
#[derive(Debug, Default)]
struct FramingHeaders {
    length: Option<u64>,
    is_chunked: bool,
    closes: bool,
}

impl FramingHeaders {
    fn from_headers(headers: &[Header<'_>]) -> Result<Self, HttpError> {
        let mut framing = Self::default();
        for Header { name, value } in headers {
            // Compare the name length first, to rule out most headers.
            match name.len() {
                10 if name.eq_ignore_ascii_case("connection") => {
                    let mut words = value.split(|byte| *byte == b',');
                    framing.closes |=
                        words.any(|word| word.trim_ascii().eq_ignore_ascii_case(b"close"));
                }
                14 if name.eq_ignore_ascii_case("content-length") => {
                    let length =
                        parse_digits(value).ok_or_else(|| head_error("the length is no number"))?;
                    if framing.length.is_some_and(|other| other != length) {
                        return Err(head_error("there are two lengths"));
                    }
                    framing.length = Some(length);
                }
                17 if name.eq_ignore_ascii_case("transfer-encoding") => {
                    let is_known = value.trim_ascii().eq_ignore_ascii_case(b"chunked");
                    if framing.is_chunked || !is_known {
                        return Err(head_error("the transfer encoding is not known"));
                    }
                    framing.is_chunked = true;
                }
                _ => {}
            }
        }
        Ok(framing)
    }

    /// Returns the body decoder.
    fn body_decoder(
        &self,
        status: StatusCode,
        method: &Method,
        is_http11: bool,
    ) -> Result<BodyDecoder, HttpError> {
        // Two framings would let two readers see different responses.
        if self.is_chunked && self.length.is_some() {
            return Err(head_error("it has both a length and a transfer encoding"));
        }
        if self.is_chunked && !is_http11 {
            return Err(head_error("a transfer encoding is not known to HTTP/1.0"));
        }
        let is_empty = status.is_informational()
            || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
            || *method == Method::HEAD;
        Ok(match self.length {
            _ if is_empty => BodyDecoder::with_length(0),
            Some(length) => BodyDecoder::with_length(length),
            None if self.is_chunked => BodyDecoder::new_chunked(),
            None => BodyDecoder::new_until_close(),
        })
    }
}

/// Parses digits only.
fn parse_digits(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |number, byte| {
        let digit = byte.is_ascii_digit().then(|| byte - b'0')?;
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}
