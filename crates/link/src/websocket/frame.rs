//! Frames of a WebSocket: read out of a buffer, written into one.

use std::hash::{BuildHasher, RandomState};
use std::io::Cursor;
use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use thiserror::Error;
use tokio_tungstenite::tungstenite::protocol::frame::FrameHeader;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Control, Data, OpCode};

use super::{Form, Side};

/// The most that a control frame may say, in bytes; the standard's number.
pub(super) const CONTROL_BYTES_MAX: usize = 125;

/// What is smaller is copied out of the buffer that it came in, in bytes: a small message that
/// waits somewhere must not keep a large buffer alive.
const COPY_OUT_BYTES_MAX: usize = 16 * 1024;

/// The code of a close that gives none.
const NO_CODE: u16 = 1005;

/// What came.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Came {
    Message(Bytes),
    Ping(Bytes),
    Close {
        code: u16,
        reason: Arc<str>,
    },
    /// A pong, or what nobody reads.
    Nothing,
}

/// Why what came is not valid.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(super) enum Fault {
    #[error("a frame breaks the protocol")]
    Frame,
    #[error("a message is larger than {0} bytes")]
    TooLarge(usize),
    #[error("a text is not UTF-8")]
    NoText,
}

impl Fault {
    /// The code with which the connection is closed.
    pub(super) const fn code(self) -> u16 {
        match self {
            Self::Frame => 1002,
            Self::TooLarge(_) => 1009,
            Self::NoText => 1007,
        }
    }
}

/// Puts messages together from frames.
#[derive(Debug)]
pub(super) struct Decoder {
    side: Side,
    /// Which messages are read, and as what.
    form: Form,
    message_bytes_max: usize,
    /// The frame whose payload is not here yet.
    head: Option<(FrameHeader, usize)>,
    /// A message of which more frames will come.
    partial: Option<(Data, BytesMut)>,
}

impl Decoder {
    /// Takes messages of up to so many bytes from now on.
    pub(super) const fn allow(&mut self, message_bytes_max: usize) {
        self.message_bytes_max = message_bytes_max;
    }

    pub(super) const fn new(side: Side, form: Form, message_bytes_max: usize) -> Self {
        Self {
            side,
            form,
            message_bytes_max,
            head: None,
            partial: None,
        }
    }

    /// Takes the next frame out of what was read, if it is there whole.
    pub(super) fn step(&mut self, read: &mut BytesMut) -> Result<Option<Came>, Fault> {
        let (head, len) = match self.head.take() {
            Some(head) => head,
            None => match self.head(read)? {
                Some(head) => head,
                None => return Ok(None),
            },
        };
        if read.len() < len {
            self.head = Some((head, len));
            return Ok(None);
        }
        let mut payload = take(read, len);
        if let Some(mask) = head.mask {
            apply(&mut payload, mask);
        }
        match head.opcode {
            OpCode::Control(control) => came(control, payload.freeze()).map(Some),
            OpCode::Data(data) => self.data(data, head.is_final, payload).map(Some),
        }
    }

    /// Returns how many bytes are missing to the frame that has begun.
    pub(super) fn missing(&self, read: &BytesMut) -> usize {
        let len = self.head.as_ref().map_or(0, |(_, len)| *len);
        len.saturating_sub(read.len())
    }

    fn head(&self, read: &mut BytesMut) -> Result<Option<(FrameHeader, usize)>, Fault> {
        let mut cursor = Cursor::new(&read[..]);
        let parsed = FrameHeader::parse(&mut cursor).map_err(|_| Fault::Frame)?;
        let Some((head, len)) = parsed else {
            return Ok(None);
        };
        let taken = usize::try_from(cursor.position()).unwrap_or(usize::MAX);
        // Only what dials masks what it says.
        let masked = self.side == Side::Server;
        if head.rsv1 || head.rsv2 || head.rsv3 || head.mask.is_some() != masked {
            return Err(Fault::Frame);
        }
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        match head.opcode {
            OpCode::Control(_) if !head.is_final || len > CONTROL_BYTES_MAX => {
                return Err(Fault::Frame);
            }
            OpCode::Control(_) => {}
            OpCode::Data(data) => {
                let begun = self.partial.as_ref().map(|(_, bytes)| bytes.len());
                if (data == Data::Continue) != begun.is_some() {
                    return Err(Fault::Frame);
                }
                if len.saturating_add(begun.unwrap_or_default()) > self.message_bytes_max {
                    return Err(Fault::TooLarge(self.message_bytes_max));
                }
            }
        }
        read.advance(taken.min(read.len()));
        Ok(Some((head, len)))
    }

    fn data(&mut self, data: Data, is_final: bool, payload: BytesMut) -> Result<Came, Fault> {
        let (kind, whole) = match self.partial.take() {
            None => (data, payload),
            Some((kind, mut begun)) => {
                begun.extend_from_slice(&payload);
                (kind, begun)
            }
        };
        if !is_final {
            self.partial = Some((kind, whole));
            return Ok(Came::Nothing);
        }
        let is_text = match self.form {
            Form::Text if kind != Data::Text => return Ok(Came::Nothing),
            Form::Text | Form::TextOrBytes => true,
            Form::Binary => kind == Data::Text,
        };
        match is_text && std::str::from_utf8(&whole).is_err() {
            true => Err(Fault::NoText),
            false => Ok(Came::Message(whole.freeze())),
        }
    }
}

/// Takes bytes out of what was read: small ones are copied, large ones keep their place.
fn take(read: &mut BytesMut, len: usize) -> BytesMut {
    match read.get(..len) {
        Some(small) if len <= COPY_OUT_BYTES_MAX => {
            let small = BytesMut::from(small);
            read.advance(len);
            small
        }
        _ => read.split_to(len),
    }
}

fn came(control: Control, payload: Bytes) -> Result<Came, Fault> {
    match control {
        Control::Ping => Ok(Came::Ping(payload)),
        Control::Pong => Ok(Came::Nothing),
        Control::Close => {
            let Some((code, reason)) = payload.split_first_chunk::<2>() else {
                return match payload.is_empty() {
                    true => Ok(Came::Close {
                        code: NO_CODE,
                        reason: "".into(),
                    }),
                    false => Err(Fault::Frame),
                };
            };
            let reason = std::str::from_utf8(reason).map_err(|_| Fault::NoText)?;
            Ok(Came::Close {
                code: u16::from_be_bytes(*code),
                reason: reason.into(),
            })
        }
        Control::Reserved(_) => Err(Fault::Frame),
    }
}

/// Writes frames.
#[derive(Debug)]
pub(super) struct Encoder {
    /// Whoever dials masks what it says, with a mask that nobody can foretell.
    masks: Option<Masks>,
}

#[derive(Debug)]
struct Masks {
    key: RandomState,
    count: u64,
}

impl Encoder {
    pub(super) fn new(side: Side) -> Self {
        let masks = match side {
            Side::Server => None,
            Side::Client => Some(Masks {
                key: RandomState::new(),
                count: 0,
            }),
        };
        Self { masks }
    }

    pub(super) fn message(&mut self, form: Form, message: &[u8], out: &mut Vec<u8>) {
        self.write(opcode(form), message, out);
    }

    /// Writes what stands before a message; returns the message as it is to follow. One that
    /// nobody else holds is not copied.
    pub(super) fn apart(&mut self, form: Form, message: Bytes, out: &mut Vec<u8>) -> Bytes {
        let Some(mask) = self.begin(opcode(form), message.len(), out) else {
            return message;
        };
        let message = message.try_into_mut();
        let mut masked = message.unwrap_or_else(|shared| BytesMut::from(&shared[..]));
        apply(&mut masked, mask);
        masked.freeze()
    }

    pub(super) fn ping(&mut self, out: &mut Vec<u8>) {
        self.write(OpCode::Control(Control::Ping), &[], out);
    }

    pub(super) fn pong(&mut self, said: &[u8], out: &mut Vec<u8>) {
        self.write(OpCode::Control(Control::Pong), said, out);
    }

    pub(super) fn close(&mut self, code: u16, reason: &str, out: &mut Vec<u8>) {
        let mut payload = Vec::new();
        // What means that no code came must not be sent.
        if code != NO_CODE {
            payload.extend_from_slice(&code.to_be_bytes());
            let room = CONTROL_BYTES_MAX - payload.len();
            let fits = |(at, char): &(usize, char)| at + char.len_utf8() <= room;
            let end = reason.char_indices().take_while(fits).last();
            let end = end.map_or(0, |(at, char)| at + char.len_utf8());
            payload.extend_from_slice(reason.as_bytes().get(..end).unwrap_or_default());
        }
        self.write(OpCode::Control(Control::Close), &payload, out);
    }

    fn write(&mut self, opcode: OpCode, payload: &[u8], out: &mut Vec<u8>) {
        let mask = self.begin(opcode, payload.len(), out);
        let start = out.len();
        out.extend_from_slice(payload);
        if let (Some(mask), Some(written)) = (mask, out.get_mut(start..)) {
            apply(written, mask);
        }
    }

    fn begin(&mut self, opcode: OpCode, len: usize, out: &mut Vec<u8>) -> Option<[u8; 4]> {
        let mask = self.masks.as_mut().map(Masks::next);
        let head = FrameHeader {
            opcode,
            mask,
            ..FrameHeader::default()
        };
        let len = u64::try_from(len).unwrap_or(u64::MAX);
        let written = head.format(len, out);
        debug_assert!(written.is_ok(), "memory takes what is written");
        mask
    }
}

const fn opcode(form: Form) -> OpCode {
    OpCode::Data(match form {
        Form::Text | Form::TextOrBytes => Data::Text,
        Form::Binary => Data::Binary,
    })
}

impl Masks {
    fn next(&mut self) -> [u8; 4] {
        self.count = self.count.wrapping_add(1);
        let [a, b, c, d, ..] = self.key.hash_one(self.count).to_le_bytes();
        [a, b, c, d]
    }
}

/// Masks bytes, or takes the mask off again.
fn apply(bytes: &mut [u8], mask: [u8; 4]) {
    let wide = u64::from(u32::from_ne_bytes(mask));
    let wide = wide << 32 | wide;
    let (words, rest) = bytes.as_chunks_mut::<8>();
    for word in words {
        *word = (u64::from_ne_bytes(*word) ^ wide).to_ne_bytes();
    }
    for (byte, mask) in rest.iter_mut().zip(mask.iter().cycle()) {
        *byte ^= mask;
    }
}
