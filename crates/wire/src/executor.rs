//! What a gateway and an executor say to each other: one frame a message, bodies as they are.
//!
//! A frame is one byte for its kind, eight for its stream, and what the kind says. Numbers are
//! big-endian. Stream 0 is the connection itself. What is small and rare is JSON; heads are the
//! text of HTTP/1.1, so that no header is lost or changed; bodies are bytes with their place in
//! the stream, so that one that is lost, doubled or late is noticed.

mod head;
mod said;
#[cfg(test)]
mod tests;

use bytes::{BufMut as _, Bytes, BytesMut};

pub use crate::frame::FrameError;
pub use head::{Answered, Asked, Fill};
pub use said::{Exited, Fault, FaultCode, Hello, Mark, Open, Opened, Start};

/// Largest frame, in bytes.
pub const FRAME_BYTES_MAX: usize = 1024 * 1024;

/// Bytes of a body that travel in one frame, at most.
pub const DATA_BYTES_MAX: usize = 64 * 1024;

/// Bytes of each stream of a server that may wait to be read or be on their way. It is the first
/// credit in both directions and does not grow: whoever sends can tell from it how much surely
/// came, and keeps the rest for a connection that goes on where this one is cut.
pub const SERVER_WINDOW_BYTES: u64 = 256 * 1024;

/// Bytes before what a kind says.
pub const HEAD_BYTES: usize = 9;

/// Bytes before the body in a frame of one.
pub const DATA_HEAD_BYTES: usize = HEAD_BYTES + 8;

/// The revision of this protocol.
pub const VERSION: u64 = 1;

/// What is said in one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The executor says who it is; the first frame of a connection.
    Hello(Hello),
    /// The gateway opens a session, or goes on with one.
    Open(Open),
    /// The executor says how far that session is.
    Opened(Opened),
    /// The gateway asks for an HTTP request.
    Request {
        /// Its stream: made by the gateway, growing, never used again.
        stream: u64,
        /// What is asked.
        asked: Asked,
    },
    /// The head of the answer.
    Answer {
        /// The stream.
        stream: u64,
        /// What came.
        answered: Answered,
    },
    /// A piece of a body or of a stream of a server: request and stdin towards the executor,
    /// answer and stdout towards the gateway.
    Data {
        /// The stream.
        stream: u64,
        /// How many bytes came before in this direction.
        offset: u64,
        /// The piece.
        bytes: Bytes,
    },
    /// Nothing more comes in this direction.
    End {
        /// The stream.
        stream: u64,
        /// How many bytes came.
        offset: u64,
        /// Lines of headers that follow the body; mostly none.
        trailers: Bytes,
    },
    /// The reader takes so many bytes more.
    Credit {
        /// The stream.
        stream: u64,
        /// How many.
        bytes: u64,
    },
    /// Nobody wants the rest: the executor takes the request off the wire.
    Cancel {
        /// The stream.
        stream: u64,
    },
    /// The stream is over, and this is why.
    Failed {
        /// The stream.
        stream: u64,
        /// Why.
        fault: Fault,
    },
    /// The gateway asks for a server that the executor knows by name.
    Start {
        /// Its stream.
        stream: u64,
        /// Which.
        start: Start,
    },
    /// It runs.
    Started {
        /// The stream.
        stream: u64,
        /// Its process over there.
        pid: u32,
    },
    /// Something of its stderr; pieces may be missing where too much came.
    Stderr {
        /// The stream.
        stream: u64,
        /// The piece.
        bytes: Bytes,
    },
    /// It is to go: in order, or at once.
    Stop {
        /// The stream.
        stream: u64,
        /// At once.
        at_once: bool,
    },
    /// It is gone; nothing follows.
    Exited {
        /// The stream.
        stream: u64,
        /// How.
        exited: Exited,
    },
}

/// The byte that says a kind.
mod kind {
    pub(super) const HELLO: u8 = 1;
    pub(super) const OPEN: u8 = 2;
    pub(super) const OPENED: u8 = 3;
    pub(super) const REQUEST: u8 = 16;
    pub(super) const ANSWER: u8 = 17;
    pub(super) const DATA: u8 = 18;
    pub(super) const END: u8 = 19;
    pub(super) const CREDIT: u8 = 20;
    pub(super) const CANCEL: u8 = 21;
    pub(super) const FAILED: u8 = 22;
    pub(super) const START: u8 = 32;
    pub(super) const STARTED: u8 = 33;
    pub(super) const STDERR: u8 = 34;
    pub(super) const STOP: u8 = 35;
    pub(super) const EXITED: u8 = 36;
}

impl Frame {
    /// Reads a message; a body is a slice of it, never a copy.
    ///
    /// # Errors
    /// It is no frame. Its stream, where it has one, is told by [`Frame::stream_of`].
    pub fn read(message: &Bytes) -> Result<Self, FrameError> {
        let (kind, rest) = message.split_first().ok_or(FrameError::Binary)?;
        let (stream, _) = number(rest)?;
        let said = message.slice(HEAD_BYTES..);
        Ok(match *kind {
            kind::HELLO => Self::Hello(Hello::read(&said)?),
            kind::OPEN => Self::Open(Open::read(&said)?),
            kind::OPENED => Self::Opened(Opened::read(&said)?),
            kind::REQUEST => Self::Request {
                stream,
                asked: Asked::read(&said)?,
            },
            kind::ANSWER => Self::Answer {
                stream,
                answered: Answered::read(&said)?,
            },
            kind::DATA => {
                let (offset, _) = number(&said)?;
                let bytes = said.slice(8..);
                Self::Data {
                    stream,
                    offset,
                    bytes,
                }
            }
            kind::END => {
                let (offset, _) = number(&said)?;
                let trailers = said.slice(8..);
                Self::End {
                    stream,
                    offset,
                    trailers,
                }
            }
            kind::CREDIT => {
                let (bytes, _) = number(&said)?;
                Self::Credit { stream, bytes }
            }
            kind::CANCEL => Self::Cancel { stream },
            kind::FAILED => Self::Failed {
                stream,
                fault: Fault::read(&said)?,
            },
            kind::START => Self::Start {
                stream,
                start: Start::read(&said)?,
            },
            kind::STARTED => {
                let (pid, _) = number(&said)?;
                let pid = u32::try_from(pid).map_err(|_wide| FrameError::Binary)?;
                Self::Started { stream, pid }
            }
            kind::STDERR => Self::Stderr {
                stream,
                bytes: said,
            },
            kind::STOP => Self::Stop {
                stream,
                at_once: said.first() == Some(&1),
            },
            kind::EXITED => Self::Exited {
                stream,
                exited: Exited::read(&said)?,
            },
            _ => return Err(FrameError::Binary),
        })
    }

    /// Returns the stream that a message is about, also of one that is no valid frame.
    #[must_use]
    pub fn stream_of(message: &[u8]) -> Option<u64> {
        let (_, rest) = message.split_first()?;
        number(rest).ok().map(|(stream, _)| stream)
    }

    /// Returns the message.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(HEAD_BYTES + 64);
        match self {
            Self::Hello(hello) => {
                begin(&mut out, kind::HELLO, 0);
                out.extend_from_slice(&hello.to_vec());
            }
            Self::Open(open) => {
                begin(&mut out, kind::OPEN, 0);
                out.extend_from_slice(&open.to_vec());
            }
            Self::Opened(opened) => {
                begin(&mut out, kind::OPENED, 0);
                out.extend_from_slice(&opened.to_vec());
            }
            Self::Request { stream, asked } => {
                begin(&mut out, kind::REQUEST, *stream);
                asked.write(&mut out);
            }
            Self::Answer { stream, answered } => {
                begin(&mut out, kind::ANSWER, *stream);
                answered.write(&mut out);
            }
            Self::Data {
                stream,
                offset,
                bytes,
            } => return data(*stream, *offset, bytes),
            Self::End {
                stream,
                offset,
                trailers,
            } => {
                begin(&mut out, kind::END, *stream);
                out.put_u64(*offset);
                out.extend_from_slice(trailers);
            }
            Self::Credit { stream, bytes } => {
                begin(&mut out, kind::CREDIT, *stream);
                out.put_u64(*bytes);
            }
            Self::Cancel { stream } => begin(&mut out, kind::CANCEL, *stream),
            Self::Failed { stream, fault } => {
                begin(&mut out, kind::FAILED, *stream);
                out.extend_from_slice(&fault.to_vec());
            }
            Self::Start { stream, start } => {
                begin(&mut out, kind::START, *stream);
                out.extend_from_slice(&start.to_vec());
            }
            Self::Started { stream, pid } => {
                begin(&mut out, kind::STARTED, *stream);
                out.put_u64(u64::from(*pid));
            }
            Self::Stderr { stream, bytes } => {
                begin(&mut out, kind::STDERR, *stream);
                out.extend_from_slice(bytes);
            }
            Self::Stop { stream, at_once } => {
                begin(&mut out, kind::STOP, *stream);
                out.put_u8(u8::from(*at_once));
            }
            Self::Exited { stream, exited } => {
                begin(&mut out, kind::EXITED, *stream);
                out.extend_from_slice(&exited.to_vec());
            }
        }
        out.freeze()
    }
}

/// Returns the message of a piece of a body.
#[must_use]
pub fn data(stream: u64, offset: u64, bytes: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(DATA_HEAD_BYTES + bytes.len());
    begin(&mut out, kind::DATA, stream);
    out.put_u64(offset);
    out.extend_from_slice(bytes);
    out.freeze()
}

fn begin(out: &mut BytesMut, kind: u8, stream: u64) {
    out.put_u8(kind);
    out.put_u64(stream);
}

fn number(bytes: &[u8]) -> Result<(u64, &[u8]), FrameError> {
    let (number, rest) = bytes.split_first_chunk().ok_or(FrameError::Binary)?;
    Ok((u64::from_be_bytes(*number), rest))
}
