//! Finds the pieces of a body, and its end, in what was read from a connection.

use bytes::{Buf, Bytes, BytesMut};
use thiserror::Error;

/// The line before a chunk, extensions included.
const CHUNK_LINE_BYTES_MAX: usize = 4 * 1024;

/// The lines after the last chunk, together.
const TRAILER_BYTES_MAX: usize = 16 * 1024;

/// A piece up to here is copied, so that the buffer it stood in can be used again.
const COPY_BYTES_MAX: usize = 8 * 1024;

/// How much of a body is still to come.
#[derive(Debug)]
pub(super) struct Decoder {
    state: State,
    /// Lines that followed the last chunk.
    trailers: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// So many bytes.
    Length(u64),
    /// All there is.
    UntilClose,
    Chunked(Chunked),
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chunked {
    /// The line before a chunk.
    Size,
    /// So many bytes of a chunk.
    Data(u64),
    /// The end of the line after a chunk.
    DataEnd,
    /// Lines after the last chunk, of which so many bytes were seen.
    Trailer(usize),
}

/// What the buffer holds of a body.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    Data(Bytes),
    /// Nothing yet.
    More,
    /// The body is over.
    End,
}

/// Why a body cannot be read on.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(super) enum Broken {
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

impl Decoder {
    const fn new(state: State) -> Self {
        let trailers = Vec::new();
        Self { state, trailers }
    }

    /// Takes the lines that followed the last chunk.
    pub(super) fn trailers(&mut self) -> Bytes {
        std::mem::take(&mut self.trailers).into()
    }

    /// Whether there are such lines.
    pub(super) const fn has_trailers(&self) -> bool {
        !self.trailers.is_empty()
    }

    pub(super) const fn of_length(length: u64) -> Self {
        Self::new(match length {
            0 => State::Over,
            length => State::Length(length),
        })
    }

    pub(super) const fn chunked() -> Self {
        Self::new(State::Chunked(Chunked::Size))
    }

    pub(super) const fn until_close() -> Self {
        Self::new(State::UntilClose)
    }

    /// Whether it ends before the connection does.
    pub(super) const fn has_end(&self) -> bool {
        !matches!(self.state, State::UntilClose)
    }

    pub(super) fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// Returns how many bytes will come for certain.
    pub(super) const fn expects(&self) -> u64 {
        match self.state {
            State::Length(left) | State::Chunked(Chunked::Data(left)) => left,
            State::UntilClose | State::Chunked(_) | State::Over => 0,
        }
    }

    /// Takes the next piece off the buffer. After an error there is the same error again.
    pub(super) fn step(&mut self, buffer: &mut BytesMut) -> Result<Step, Broken> {
        self.skip_framing(buffer)?;
        let left = match self.state {
            State::Over => return Ok(Step::End),
            State::Length(left) | State::Chunked(Chunked::Data(left)) => left,
            State::UntilClose => u64::MAX,
            State::Chunked(_) => return Ok(Step::More),
        };
        if buffer.is_empty() {
            return Ok(Step::More);
        }
        let here = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
        let piece = take(buffer, here);
        let left = left.saturating_sub(here as u64);
        self.state = match self.state {
            State::Length(_) if left == 0 => State::Over,
            State::Length(_) => State::Length(left),
            State::Chunked(_) if left == 0 => State::Chunked(Chunked::DataEnd),
            State::Chunked(_) => State::Chunked(Chunked::Data(left)),
            same @ (State::UntilClose | State::Over) => same,
        };
        // The end may be here already; an error is found again by the next step.
        let _ = self.skip_framing(buffer);
        Ok(Step::Data(piece))
    }

    /// The connection was closed.
    pub(super) fn close(&mut self) -> Result<(), Broken> {
        match self.state {
            State::UntilClose | State::Over => {
                self.state = State::Over;
                Ok(())
            }
            State::Length(_) | State::Chunked(_) => Err(Broken::Closed),
        }
    }

    /// Goes over what is no data, as far as it is here.
    fn skip_framing(&mut self, buffer: &mut BytesMut) -> Result<(), Broken> {
        while let State::Chunked(at) = self.state {
            let (bytes_max, broken) = match at {
                Chunked::Data(_) => return Ok(()),
                Chunked::Size => (CHUNK_LINE_BYTES_MAX, Broken::Size),
                Chunked::DataEnd => (2, Broken::DataEnd),
                Chunked::Trailer(seen) => (TRAILER_BYTES_MAX.saturating_sub(seen), Broken::Trailer),
            };
            let Some(length) = line(buffer, bytes_max, broken)? else {
                return Ok(());
            };
            let text = buffer.get(..length.saturating_sub(2)).unwrap_or_default();
            if matches!(at, Chunked::Trailer(_)) && !text.is_empty() {
                self.trailers
                    .extend_from_slice(buffer.get(..length).unwrap_or_default());
            }
            self.state = match at {
                Chunked::Size => match chunk_size(text).ok_or(broken)? {
                    0 => State::Chunked(Chunked::Trailer(0)),
                    size => State::Chunked(Chunked::Data(size)),
                },
                Chunked::Trailer(_) if text.is_empty() => State::Over,
                Chunked::Trailer(seen) => State::Chunked(Chunked::Trailer(seen + length)),
                Chunked::DataEnd | Chunked::Data(_) => State::Chunked(Chunked::Size),
            };
            buffer.advance(length);
        }
        Ok(())
    }
}

/// Takes bytes off the buffer: small ones as a copy, large ones with the buffer.
fn take(buffer: &mut BytesMut, length: usize) -> Bytes {
    if length > COPY_BYTES_MAX {
        return buffer.split_to(length).freeze();
    }
    let piece = Bytes::copy_from_slice(buffer.get(..length).unwrap_or_default());
    buffer.advance(length);
    piece
}

/// Returns how long the first line is, its end included; nothing while it is not whole.
fn line(buffer: &[u8], bytes_max: usize, broken: Broken) -> Result<Option<usize>, Broken> {
    let within = buffer.get(..bytes_max).unwrap_or(buffer);
    let Some(end) = memchr::memchr(b'\n', within) else {
        if broken == Broken::DataEnd && !b"\r\n".starts_with(within) {
            return Err(broken);
        }
        return match buffer.len() < bytes_max {
            true => Ok(None),
            false => Err(Broken::TooLong),
        };
    };
    let text = within.get(..end).unwrap_or_default();
    // A line that ends in two ways can be read in two ways.
    let Some((b'\r', text)) = text.split_last() else {
        return Err(broken);
    };
    if memchr::memchr(b'\r', text).is_some() {
        return Err(broken);
    }
    Ok(Some(end + 1))
}

/// Reads the size of a chunk; what follows it on the line is not for us.
fn chunk_size(text: &[u8]) -> Option<u64> {
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
