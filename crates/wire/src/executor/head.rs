//! Heads of requests and answers: the text of HTTP/1.1, with what only the executor is told.

use std::sync::Arc;

use bytes::{BufMut as _, Bytes, BytesMut};

use super::FrameError;
use crate::members::Members;
use crate::object;
use crate::writer::Object;

/// A header whose value, or a part of it, only the executor knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fill {
    /// Its name.
    pub header: Arc<str>,
    /// What stands before the secret.
    pub before: Arc<str>,
    /// The name under which the executor has it.
    pub secret: Arc<str>,
    /// What stands behind it.
    pub after: Arc<str>,
}

/// A request that is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// The server that it is for, as the gateway calls it: what it may reach goes by that.
    pub server: Arc<str>,
    /// How many bytes of the answer may be sent before the gateway says that it takes more.
    pub credit: u64,
    /// How long the connection may take, in milliseconds.
    pub connect_ms: Option<u64>,
    /// How long the head of the answer may take from now on, in milliseconds.
    pub first_byte_ms: Option<u64>,
    /// How long the body is; absent where nobody knows it before its end.
    pub length: Option<u64>,
    /// Headers that the executor completes.
    pub fills: Vec<Fill>,
    /// The method.
    pub method: Arc<str>,
    /// The address, absolute.
    pub url: Arc<str>,
    /// The other headers: whole lines, each `name: value` with its end.
    pub lines: Bytes,
}

const ASKED: [&str; 8] = [
    "server",
    "credit",
    "connect_ms",
    "first_byte_ms",
    "length",
    "fills",
    "method",
    "url",
];

const FILL: [&str; 4] = ["header", "before", "secret", "after"];

impl Asked {
    pub(super) fn read(said: &Bytes) -> Result<Self, FrameError> {
        let (about, lines) = split(said)?;
        let members = Members::of_text(&about, &ASKED)?;
        let mut fills = Vec::new();
        if let Some(list) = members.begun("fills", b'[')? {
            for span in object::items(&list) {
                let members = Members::inside(&list, span, &FILL, "fills")?;
                fills.push(Fill {
                    header: members.text("header")?,
                    before: members.text("before")?,
                    secret: members.text("secret")?,
                    after: members.text("after")?,
                });
            }
        }
        Ok(Self {
            server: members.text("server")?,
            credit: members.number_if("credit")?.unwrap_or_default(),
            connect_ms: members.number_if("connect_ms")?,
            first_byte_ms: members.number_if("first_byte_ms")?,
            length: members.number_if("length")?,
            fills,
            method: members.text("method")?,
            url: members.text("url")?,
            lines,
        })
    }

    pub(super) fn write(&self, out: &mut BytesMut) {
        let mut about = Vec::with_capacity(128);
        Object::bare(&mut about)
            .text("server", &self.server)
            .number("credit", self.credit)
            .number_if("connect_ms", self.connect_ms)
            .number_if("first_byte_ms", self.first_byte_ms)
            .number_if("length", self.length)
            .text("method", &self.method)
            .text("url", &self.url)
            .nested("fills", |out| fills(&self.fills, out))
            .end();
        join(&about, &self.lines, out);
    }
}

fn fills(fills: &[Fill], out: &mut Vec<u8>) {
    out.push(b'[');
    for (at, fill) in fills.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        Object::bare(out)
            .text("header", &fill.header)
            .text("before", &fill.before)
            .text("secret", &fill.secret)
            .text("after", &fill.after)
            .end();
    }
    out.push(b']');
}

/// The head of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answered {
    /// The status.
    pub status: u16,
    /// The headers as they came: whole lines, each `name: value` with its end.
    pub lines: Bytes,
}

impl Answered {
    pub(super) fn read(said: &Bytes) -> Result<Self, FrameError> {
        let status = said.first_chunk().ok_or(FrameError::Binary)?;
        Ok(Self {
            status: u16::from_be_bytes(*status),
            lines: said.slice(2..),
        })
    }

    pub(super) fn write(&self, out: &mut BytesMut) {
        out.put_u16(self.status);
        out.extend_from_slice(&self.lines);
    }
}

/// Takes apart what [`join`] made.
fn split(said: &Bytes) -> Result<(Bytes, Bytes), FrameError> {
    let (length, rest) = said.split_first_chunk::<4>().ok_or(FrameError::Binary)?;
    let length = u32::from_be_bytes(*length);
    let length = usize::try_from(length).map_err(|_wide| FrameError::Binary)?;
    if length > rest.len() {
        return Err(FrameError::Binary);
    }
    let rest = said.slice(4..);
    Ok((rest.slice(..length), rest.slice(length..)))
}

/// Writes one text and another behind it, so that both can be told apart.
fn join(first: &[u8], second: &[u8], out: &mut BytesMut) {
    out.put_u32(u32::try_from(first.len()).unwrap_or(u32::MAX));
    out.extend_from_slice(first);
    out.extend_from_slice(second);
}
