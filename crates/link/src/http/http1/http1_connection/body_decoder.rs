//! Decodes an HTTP/1.1 body from the read buffer.

use bytes::{Buf, Bytes, BytesMut};
use thiserror::Error;

/// Longest chunk-size line, including extensions.
const CHUNK_LINE_BYTES_MAX: usize = 4 * 1024;

/// Total bytes of trailers.
const TRAILER_BYTES_MAX: usize = 16 * 1024;

/// Chunks up to this size are copied, so the buffer stays reusable.
const COPY_BYTES_MAX: usize = 8 * 1024;

/// Decoder state of a body.
#[derive(Debug)]
pub(super) struct BodyDecoder {
    state: BodyDecoderState,
    /// Trailer lines.
    trailers: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyDecoderState {
    /// Remaining bytes.
    Length(u64),
    /// Until the connection closes.
    UntilClose,
    Chunked(ChunkState),
    Finished,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkState {
    /// Chunk-size line.
    Size,
    /// Remaining bytes of a chunk.
    Data(u64),
    /// Line end after a chunk.
    DataEnd,
    /// Trailer lines, with the bytes seen so far.
    Trailer(usize),
}

/// Result of a decode step.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DecodeStep {
    Data(Bytes),
    /// More input is needed.
    More,
    /// The body has ended.
    End,
}

/// Why a body cannot be decoded.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(super) enum BodyFramingError {
    #[error("the size of a chunk is not valid")]
    Size,
    #[error("a chunk is longer than it says")]
    DataEnd,
    #[error("what follows the body is not valid")]
    Trailer,
    #[error("a line of the framing is too long")]
    TooLong,
    #[error("it was closed in the middle of a body")]
    Closed,
}

impl BodyDecoder {
    const fn new(state: BodyDecoderState) -> Self {
        let trailers = Vec::new();
        Self { state, trailers }
    }

    /// Takes the trailer lines.
    pub(super) fn take_trailers(&mut self) -> Bytes {
        std::mem::take(&mut self.trailers).into()
    }

    /// Whether trailers were received.
    pub(super) const fn has_trailers(&self) -> bool {
        !self.trailers.is_empty()
    }

    pub(super) const fn with_length(length: u64) -> Self {
        Self::new(match length {
            0 => BodyDecoderState::Finished,
            length => BodyDecoderState::Length(length),
        })
    }

    pub(super) const fn new_chunked() -> Self {
        Self::new(BodyDecoderState::Chunked(ChunkState::Size))
    }

    pub(super) const fn new_until_close() -> Self {
        Self::new(BodyDecoderState::UntilClose)
    }

    /// Whether the body ends before the connection.
    pub(super) const fn has_known_end(&self) -> bool {
        !matches!(self.state, BodyDecoderState::UntilClose)
    }

    pub(super) fn is_finished(&self) -> bool {
        self.state == BodyDecoderState::Finished
    }

    /// Returns the number of bytes that must still arrive.
    pub(super) const fn expected_bytes(&self) -> u64 {
        match self.state {
            BodyDecoderState::Length(left) | BodyDecoderState::Chunked(ChunkState::Data(left)) => {
                left
            }
            BodyDecoderState::UntilClose
            | BodyDecoderState::Chunked(_)
            | BodyDecoderState::Finished => 0,
        }
    }

    /// Takes the next chunk from the buffer. An error repeats on every later call.
    pub(super) fn next_step(
        &mut self,
        buffer: &mut BytesMut,
    ) -> Result<DecodeStep, BodyFramingError> {
        self.skip_framing(buffer)?;
        let left = match self.state {
            BodyDecoderState::Finished => return Ok(DecodeStep::End),
            BodyDecoderState::Length(left) | BodyDecoderState::Chunked(ChunkState::Data(left)) => {
                left
            }
            BodyDecoderState::UntilClose => u64::MAX,
            BodyDecoderState::Chunked(_) => return Ok(DecodeStep::More),
        };
        if buffer.is_empty() {
            return Ok(DecodeStep::More);
        }
        let count = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
        let piece = take_bytes(buffer, count);
        let left = left.saturating_sub(count as u64);
        self.state = match self.state {
            BodyDecoderState::Length(_) if left == 0 => BodyDecoderState::Finished,
            BodyDecoderState::Length(_) => BodyDecoderState::Length(left),
            BodyDecoderState::Chunked(_) if left == 0 => {
                BodyDecoderState::Chunked(ChunkState::DataEnd)
            }
            BodyDecoderState::Chunked(_) => BodyDecoderState::Chunked(ChunkState::Data(left)),
            same @ (BodyDecoderState::UntilClose | BodyDecoderState::Finished) => same,
        };
        // The end may be buffered already; an error reappears in the next step.
        let _ = self.skip_framing(buffer);
        Ok(DecodeStep::Data(piece))
    }

    /// Handles the close of the connection.
    pub(super) fn on_close(&mut self) -> Result<(), BodyFramingError> {
        match self.state {
            BodyDecoderState::UntilClose | BodyDecoderState::Finished => {
                self.state = BodyDecoderState::Finished;
                Ok(())
            }
            BodyDecoderState::Length(_) | BodyDecoderState::Chunked(_) => {
                Err(BodyFramingError::Closed)
            }
        }
    }

    /// Skips buffered framing bytes.
    fn skip_framing(&mut self, buffer: &mut BytesMut) -> Result<(), BodyFramingError> {
        while let BodyDecoderState::Chunked(at) = self.state {
            let (bytes_max, broken) = match at {
                ChunkState::Data(_) => return Ok(()),
                ChunkState::Size => (CHUNK_LINE_BYTES_MAX, BodyFramingError::Size),
                ChunkState::DataEnd => (2, BodyFramingError::DataEnd),
                ChunkState::Trailer(seen) => (
                    TRAILER_BYTES_MAX.saturating_sub(seen),
                    BodyFramingError::Trailer,
                ),
            };
            let Some(length) = find_line(buffer, bytes_max, broken)? else {
                return Ok(());
            };
            let text = buffer.get(..length.saturating_sub(2)).unwrap_or_default();
            if matches!(at, ChunkState::Trailer(_)) && !text.is_empty() {
                self.trailers
                    .extend_from_slice(buffer.get(..length).unwrap_or_default());
            }
            self.state = match at {
                ChunkState::Size => match parse_chunk_size(text).ok_or(broken)? {
                    0 => BodyDecoderState::Chunked(ChunkState::Trailer(0)),
                    size => BodyDecoderState::Chunked(ChunkState::Data(size)),
                },
                ChunkState::Trailer(_) if text.is_empty() => BodyDecoderState::Finished,
                ChunkState::Trailer(seen) => {
                    BodyDecoderState::Chunked(ChunkState::Trailer(seen + length))
                }
                ChunkState::DataEnd | ChunkState::Data(_) => {
                    BodyDecoderState::Chunked(ChunkState::Size)
                }
            };
            buffer.advance(length);
        }
        Ok(())
    }
}

/// Takes bytes from the buffer: copies small chunks, splits off large chunks.
fn take_bytes(buffer: &mut BytesMut, length: usize) -> Bytes {
    if length > COPY_BYTES_MAX {
        return buffer.split_to(length).freeze();
    }
    let piece = Bytes::copy_from_slice(buffer.get(..length).unwrap_or_default());
    buffer.advance(length);
    piece
}

/// Returns the length of the first line with its end; `None` while incomplete.
fn find_line(
    buffer: &[u8],
    bytes_max: usize,
    broken: BodyFramingError,
) -> Result<Option<usize>, BodyFramingError> {
    let within = buffer.get(..bytes_max).unwrap_or(buffer);
    let Some(end) = memchr::memchr(b'\n', within) else {
        if broken == BodyFramingError::DataEnd && !b"\r\n".starts_with(within) {
            return Err(broken);
        }
        return match buffer.len() < bytes_max {
            true => Ok(None),
            false => Err(BodyFramingError::TooLong),
        };
    };
    let text = within.get(..end).unwrap_or_default();
    // A bare CR or LF makes the line ambiguous.
    let Some((b'\r', text)) = text.split_last() else {
        return Err(broken);
    };
    if memchr::memchr(b'\r', text).is_some() {
        return Err(broken);
    }
    Ok(Some(end + 1))
}

/// Parses a chunk size; extensions are ignored.
fn parse_chunk_size(text: &[u8]) -> Option<u64> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_hexdigit());
    let digits = digits.count();
    let (digits, rest) = text.split_at_checked(digits)?;
    let rest = rest.trim_ascii_start();
    if digits.is_empty() || !(rest.is_empty() || rest.starts_with(b";")) {
        return None;
    }
    digits.iter().try_fold(0_u64, |size, byte| {
        let digit = char::from(*byte).to_digit(16)?;
        size.checked_mul(16)?.checked_add(u64::from(digit))
    })
}
