//! Heads of HTTP requests and responses: HTTP/1.1 text, with metadata for the executor.

use std::sync::Arc;

use bowline_core::secret_header::SecretHeader;
use bowline_wire::object;
use bowline_wire::object_members::ObjectMembers;
use bowline_wire::object_writer::ObjectWriter;
use bytes::{BufMut as _, Bytes, BytesMut};

use super::FrameError;

/// The head of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestHead {
    /// The server, in the gateway's naming; decides the egress rules.
    pub server: Arc<str>,
    /// Initial credit for the response.
    pub credit: u64,
    /// Connect timeout in milliseconds.
    pub connect_ms: Option<u64>,
    /// Timeout for the response head, in milliseconds.
    pub first_byte_ms: Option<u64>,
    /// The body length; absent if unknown in advance.
    pub body_len: Option<u64>,
    /// Headers completed by the executor.
    pub secret_headers: Vec<SecretHeader>,
    /// The method.
    pub method: Arc<str>,
    /// The absolute URL.
    pub url: Arc<str>,
    /// The remaining headers: whole lines, each `name: value` with a line end.
    pub header_lines: Bytes,
}

const REQUEST_MEMBERS: [&str; 8] = [
    "server",
    "credit",
    "connect_ms",
    "first_byte_ms",
    "length",
    "fills",
    "method",
    "url",
];

const SECRET_HEADER_MEMBERS: [&str; 4] = ["header", "before", "secret", "after"];

impl RequestHead {
    pub(super) fn parse(payload: &Bytes) -> Result<Self, FrameError> {
        let (about, lines) = split_parts(payload)?;
        let members = ObjectMembers::parse(&about, &REQUEST_MEMBERS)?;
        let mut fills = Vec::new();
        if let Some(list) = members.optional_raw("fills", b'[')? {
            for span in object::items(&list) {
                let members =
                    ObjectMembers::parse_at(&list, span, &SECRET_HEADER_MEMBERS, "fills")?;
                fills.push(SecretHeader {
                    header: members.required_text("header")?,
                    before: members.required_text("before")?,
                    secret: members.required_text("secret")?,
                    after: members.required_text("after")?,
                });
            }
        }
        Ok(Self {
            server: members.required_text("server")?,
            credit: members.optional_number("credit")?.unwrap_or_default(),
            connect_ms: members.optional_number("connect_ms")?,
            first_byte_ms: members.optional_number("first_byte_ms")?,
            body_len: members.optional_number("length")?,
            secret_headers: fills,
            method: members.required_text("method")?,
            url: members.required_text("url")?,
            header_lines: lines,
        })
    }

    pub(super) fn write(&self, out: &mut BytesMut) {
        let mut about = Vec::with_capacity(128);
        ObjectWriter::begin(&mut about)
            .text("server", &self.server)
            .number("credit", self.credit)
            .number_if("connect_ms", self.connect_ms)
            .number_if("first_byte_ms", self.first_byte_ms)
            .number_if("length", self.body_len)
            .text("method", &self.method)
            .text("url", &self.url)
            .value_with("fills", |out| {
                write_secret_headers(&self.secret_headers, out)
            })
            .end();
        write_parts(&about, &self.header_lines, out);
    }
}

fn write_secret_headers(fills: &[SecretHeader], out: &mut Vec<u8>) {
    out.push(b'[');
    for (at, fill) in fills.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        ObjectWriter::begin(out)
            .text("header", &fill.header)
            .text("before", &fill.before)
            .text("secret", &fill.secret)
            .text("after", &fill.after)
            .end();
    }
    out.push(b']');
}

/// The head of a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResponseHead {
    /// The status.
    pub status: u16,
    /// The headers as received: whole lines, each `name: value` with a line end.
    pub header_lines: Bytes,
}

impl ResponseHead {
    pub(super) fn parse(payload: &Bytes) -> Result<Self, FrameError> {
        let status = payload.first_chunk().ok_or(FrameError::Binary)?;
        Ok(Self {
            status: u16::from_be_bytes(*status),
            header_lines: payload.slice(2..),
        })
    }

    pub(super) fn write(&self, out: &mut BytesMut) {
        out.put_u16(self.status);
        out.extend_from_slice(&self.header_lines);
    }
}

/// Splits the output of [`write_parts`].
fn split_parts(payload: &Bytes) -> Result<(Bytes, Bytes), FrameError> {
    let (length, rest) = payload.split_first_chunk::<4>().ok_or(FrameError::Binary)?;
    let length = u32::from_be_bytes(*length);
    let length = usize::try_from(length).map_err(|_wide| FrameError::Binary)?;
    if length > rest.len() {
        return Err(FrameError::Binary);
    }
    let rest = payload.slice(4..);
    Ok((rest.slice(..length), rest.slice(length..)))
}

/// Writes two texts with a length prefix.
fn write_parts(first: &[u8], second: &[u8], out: &mut BytesMut) {
    out.put_u32(u32::try_from(first.len()).unwrap_or(u32::MAX));
    out.extend_from_slice(first);
    out.extend_from_slice(second);
}
