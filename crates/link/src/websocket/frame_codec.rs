//! WebSocket frame codec.

use std::hash::{BuildHasher, RandomState};
use std::io::Cursor;
use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use thiserror::Error;
use tokio_tungstenite::tungstenite::protocol::frame::FrameHeader;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Control, Data, OpCode};

use super::close_codes::NO_CODE;
use super::{MessageFormat, WebSocketRole};

/// Largest control frame payload, from RFC 6455.
pub(super) const CONTROL_BYTES_MAX: usize = 125;

/// Payloads up to this size are copied out of the read buffer: a small queued message must not keep
/// a large buffer alive.
const COPY_OUT_BYTES_MAX: usize = 16 * 1024;

/// A received frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReceivedFrame {
    Message(Bytes),
    Ping(Bytes),
    Close {
        code: u16,
        reason: Arc<str>,
    },
    /// A pong, or an ignored message.
    Nothing,
}

/// Why input is invalid.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(super) enum FrameFault {
    #[error("a frame breaks the protocol")]
    Frame,
    #[error("a message is larger than {0} bytes")]
    TooLarge(usize),
    #[error("a text is not UTF-8")]
    InvalidUtf8,
}

impl FrameFault {
    /// Returns the close code.
    pub(super) const fn close_code(self) -> u16 {
        match self {
            Self::Frame => 1002,
            Self::TooLarge(_) => 1009,
            Self::InvalidUtf8 => 1007,
        }
    }
}

/// Assembles messages from frames.
#[derive(Debug)]
pub(super) struct FrameDecoder {
    side: WebSocketRole,
    /// Accepted message format.
    format: MessageFormat,
    message_bytes_max: usize,
    /// Header of a frame whose payload is incomplete.
    pending_header: Option<(FrameHeader, usize)>,
    /// A fragmented message.
    partial: Option<(Data, BytesMut)>,
}

impl FrameDecoder {
    /// Sets the largest accepted message.
    pub(super) const fn set_message_bytes_max(&mut self, message_bytes_max: usize) {
        self.message_bytes_max = message_bytes_max;
    }

    pub(super) const fn new(
        side: WebSocketRole,
        format: MessageFormat,
        message_bytes_max: usize,
    ) -> Self {
        Self {
            side,
            format,
            message_bytes_max,
            pending_header: None,
            partial: None,
        }
    }

    /// Takes the next complete frame from the buffer.
    pub(super) fn next_frame(
        &mut self,
        read: &mut BytesMut,
    ) -> Result<Option<ReceivedFrame>, FrameFault> {
        let (head, len) = match self.pending_header.take() {
            Some(head) => head,
            None => match self.parse_header(read)? {
                Some(head) => head,
                None => return Ok(None),
            },
        };
        if read.len() < len {
            self.pending_header = Some((head, len));
            return Ok(None);
        }
        let mut payload = take_bytes(read, len);
        if let Some(mask) = head.mask {
            apply_mask(&mut payload, mask);
        }
        match head.opcode {
            OpCode::Control(control) => parse_control(control, payload.freeze()).map(Some),
            OpCode::Data(data) => self.push_data(data, head.is_final, payload).map(Some),
        }
    }

    /// Returns the missing bytes of the current frame.
    pub(super) fn missing_bytes(&self, read: &BytesMut) -> usize {
        let len = self.pending_header.as_ref().map_or(0, |(_, len)| *len);
        len.saturating_sub(read.len())
    }

    fn parse_header(
        &self,
        read: &mut BytesMut,
    ) -> Result<Option<(FrameHeader, usize)>, FrameFault> {
        let mut cursor = Cursor::new(&read[..]);
        let parsed = FrameHeader::parse(&mut cursor).map_err(|_| FrameFault::Frame)?;
        let Some((head, len)) = parsed else {
            return Ok(None);
        };
        let header_bytes = usize::try_from(cursor.position()).unwrap_or(usize::MAX);
        // Only clients mask their frames.
        let masked = self.side == WebSocketRole::Server;
        if head.rsv1 || head.rsv2 || head.rsv3 || head.mask.is_some() != masked {
            return Err(FrameFault::Frame);
        }
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        match head.opcode {
            OpCode::Control(_) if !head.is_final || len > CONTROL_BYTES_MAX => {
                return Err(FrameFault::Frame);
            }
            OpCode::Control(_) => {}
            OpCode::Data(data) => {
                let partial_bytes = self.partial.as_ref().map(|(_, bytes)| bytes.len());
                if (data == Data::Continue) != partial_bytes.is_some() {
                    return Err(FrameFault::Frame);
                }
                if len.saturating_add(partial_bytes.unwrap_or_default()) > self.message_bytes_max {
                    return Err(FrameFault::TooLarge(self.message_bytes_max));
                }
            }
        }
        read.advance(header_bytes.min(read.len()));
        Ok(Some((head, len)))
    }

    fn push_data(
        &mut self,
        data: Data,
        is_final: bool,
        payload: BytesMut,
    ) -> Result<ReceivedFrame, FrameFault> {
        let (kind, whole) = match self.partial.take() {
            None => (data, payload),
            Some((kind, mut begun)) => {
                begun.extend_from_slice(&payload);
                (kind, begun)
            }
        };
        if !is_final {
            self.partial = Some((kind, whole));
            return Ok(ReceivedFrame::Nothing);
        }
        let is_text = match self.format {
            MessageFormat::Text if kind != Data::Text => return Ok(ReceivedFrame::Nothing),
            MessageFormat::Text | MessageFormat::TextOrBytes => true,
            MessageFormat::Binary => kind == Data::Text,
        };
        match is_text && std::str::from_utf8(&whole).is_err() {
            true => Err(FrameFault::InvalidUtf8),
            false => Ok(ReceivedFrame::Message(whole.freeze())),
        }
    }
}

/// Takes bytes from the buffer: copies small payloads, splits off large payloads.
fn take_bytes(read: &mut BytesMut, len: usize) -> BytesMut {
    match read.get(..len) {
        Some(small) if len <= COPY_OUT_BYTES_MAX => {
            let small = BytesMut::from(small);
            read.advance(len);
            small
        }
        _ => read.split_to(len),
    }
}

fn parse_control(control: Control, payload: Bytes) -> Result<ReceivedFrame, FrameFault> {
    match control {
        Control::Ping => Ok(ReceivedFrame::Ping(payload)),
        Control::Pong => Ok(ReceivedFrame::Nothing),
        Control::Close => {
            let Some((code, reason)) = payload.split_first_chunk::<2>() else {
                return match payload.is_empty() {
                    true => Ok(ReceivedFrame::Close {
                        code: NO_CODE,
                        reason: "".into(),
                    }),
                    false => Err(FrameFault::Frame),
                };
            };
            let reason = std::str::from_utf8(reason).map_err(|_| FrameFault::InvalidUtf8)?;
            Ok(ReceivedFrame::Close {
                code: u16::from_be_bytes(*code),
                reason: reason.into(),
            })
        }
        Control::Reserved(_) => Err(FrameFault::Frame),
    }
}

/// Writes frames.
#[derive(Debug)]
pub(super) struct FrameEncoder {
    /// Present for clients, which must mask their frames unpredictably.
    masks: Option<MaskGenerator>,
}

#[derive(Debug)]
struct MaskGenerator {
    key: RandomState,
    count: u64,
}

impl FrameEncoder {
    pub(super) fn new(side: WebSocketRole) -> Self {
        let masks = match side {
            WebSocketRole::Server => None,
            WebSocketRole::Client => Some(MaskGenerator {
                key: RandomState::new(),
                count: 0,
            }),
        };
        Self { masks }
    }

    pub(super) fn write_message(&mut self, form: MessageFormat, message: &[u8], out: &mut Vec<u8>) {
        self.write_frame(data_opcode(form), message, out);
    }

    /// Writes the header of a message and returns its payload, masked if needed. An unshared
    /// payload is not copied.
    pub(super) fn write_header_for(
        &mut self,
        form: MessageFormat,
        message: Bytes,
        out: &mut Vec<u8>,
    ) -> Bytes {
        let Some(mask) = self.write_frame_header(data_opcode(form), message.len(), out) else {
            return message;
        };
        let message = message.try_into_mut();
        let mut masked = message.unwrap_or_else(|shared| BytesMut::from(&shared[..]));
        apply_mask(&mut masked, mask);
        masked.freeze()
    }

    pub(super) fn write_ping(&mut self, out: &mut Vec<u8>) {
        self.write_frame(OpCode::Control(Control::Ping), &[], out);
    }

    pub(super) fn write_pong(&mut self, payload: &[u8], out: &mut Vec<u8>) {
        self.write_frame(OpCode::Control(Control::Pong), payload, out);
    }

    pub(super) fn write_close(&mut self, code: u16, reason: &str, out: &mut Vec<u8>) {
        let mut payload = Vec::new();
        // Code 1005 must not be sent.
        if code != NO_CODE {
            payload.extend_from_slice(&code.to_be_bytes());
            let room = CONTROL_BYTES_MAX - payload.len();
            let fits = |(at, char): &(usize, char)| at + char.len_utf8() <= room;
            let end = reason.char_indices().take_while(fits).last();
            let end = end.map_or(0, |(at, char)| at + char.len_utf8());
            payload.extend_from_slice(reason.as_bytes().get(..end).unwrap_or_default());
        }
        self.write_frame(OpCode::Control(Control::Close), &payload, out);
    }

    fn write_frame(&mut self, opcode: OpCode, payload: &[u8], out: &mut Vec<u8>) {
        let mask = self.write_frame_header(opcode, payload.len(), out);
        let start = out.len();
        out.extend_from_slice(payload);
        if let (Some(mask), Some(written)) = (mask, out.get_mut(start..)) {
            apply_mask(written, mask);
        }
    }

    fn write_frame_header(
        &mut self,
        opcode: OpCode,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Option<[u8; 4]> {
        let mask = self.masks.as_mut().map(MaskGenerator::next_mask);
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

const fn data_opcode(form: MessageFormat) -> OpCode {
    OpCode::Data(match form {
        MessageFormat::Text | MessageFormat::TextOrBytes => Data::Text,
        MessageFormat::Binary => Data::Binary,
    })
}

impl MaskGenerator {
    fn next_mask(&mut self) -> [u8; 4] {
        self.count = self.count.wrapping_add(1);
        let [a, b, c, d, ..] = self.key.hash_one(self.count).to_le_bytes();
        [a, b, c, d]
    }
}

/// Masks or unmasks bytes.
fn apply_mask(bytes: &mut [u8], mask: [u8; 4]) {
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
