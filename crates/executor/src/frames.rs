//! The executor protocol: one binary frame per message, with raw bodies.
//!
//! A frame is one byte of kind, eight bytes of stream id, and the payload. Numbers are big-endian.
//! Stream 0 is the connection. Small, rare payloads are JSON. Heads are HTTP/1.1 text and pass
//! headers unchanged. Body bytes carry an offset in the stream to detect lost, duplicate or late
//! bytes.

mod control;
mod http_head;
#[cfg(test)]
mod tests;

use bytes::{BufMut as _, Bytes, BytesMut};

pub use bowline_core::secret_header::SecretHeader;
pub use bowline_wire::FrameError;
pub use control::{
    ExecutorHello, OpenSession, OpenSessionReply, ServerExit, StartServer, StreamFault,
    StreamFaultCode, StreamMark,
};
pub use http_head::{RequestHead, ResponseHead};

/// Largest frame, in bytes.
pub const FRAME_BYTES_MAX: usize = 1024 * 1024;

/// Body bytes per frame.
pub const DATA_BYTES_MAX: usize = 64 * 1024;

/// Window of each stream of a server: unread and in-flight bytes. Equal to the initial credit in
/// both directions, and constant: the sender derives from the credit how much was received, and
/// buffers the rest for resumption on a new connection.
pub const SERVER_WINDOW_BYTES: u64 = 256 * 1024;

/// Bytes before the payload.
pub const FRAME_HEAD_BYTES: usize = 9;

/// Bytes before the body in a data frame.
pub const DATA_HEAD_BYTES: usize = FRAME_HEAD_BYTES + 8;

/// The protocol revision.
pub const VERSION: u64 = 1;

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecutorFrame {
    /// The executor introduces itself; the first frame of a connection.
    Hello(ExecutorHello),
    /// The gateway opens or resumes a session.
    OpenSession(OpenSession),
    /// The executor reports the state of the session.
    OpenSessionReply(OpenSessionReply),
    /// The gateway requests an HTTP request.
    Request {
        /// The stream: allocated by the gateway, increasing, never reused.
        stream: u64,
        /// The request head.
        head: RequestHead,
    },
    /// The head of the response.
    Response {
        /// The stream.
        stream: u64,
        /// The response head.
        head: ResponseHead,
    },
    /// A chunk of a body or of a server's stream: request body and stdin towards the executor,
    /// response body and stdout towards the gateway.
    Data {
        /// The stream.
        stream: u64,
        /// The offset in this direction.
        offset: u64,
        /// The chunk.
        bytes: Bytes,
    },
    /// End of this direction.
    End {
        /// The stream.
        stream: u64,
        /// The total number of bytes.
        offset: u64,
        /// Trailer lines; mostly empty.
        trailers: Bytes,
    },
    /// The reader grants more credit.
    Credit {
        /// The stream.
        stream: u64,
        /// The number of bytes.
        bytes: u64,
    },
    /// The gateway cancels: the executor aborts the request.
    Cancel {
        /// The stream.
        stream: u64,
    },
    /// The stream failed.
    Fault {
        /// The stream.
        stream: u64,
        /// The fault.
        fault: StreamFault,
    },
    /// The gateway starts a server configured at the executor.
    StartServer {
        /// The stream.
        stream: u64,
        /// The server.
        start: StartServer,
    },
    /// The server runs.
    ServerStarted {
        /// The stream.
        stream: u64,
        /// The process id at the executor.
        pid: u32,
    },
    /// Stderr output; chunks may be dropped under load.
    Stderr {
        /// The stream.
        stream: u64,
        /// The chunk.
        bytes: Bytes,
    },
    /// Stop the server: gracefully, or at once.
    StopServer {
        /// The stream.
        stream: u64,
        /// Kill at once.
        at_once: bool,
    },
    /// The server exited; the last frame of the stream.
    ServerExit {
        /// The stream.
        stream: u64,
        /// The exit.
        exit: ServerExit,
    },
}

/// The kind bytes.
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

impl ExecutorFrame {
    /// Parses a message; bodies are slices of the message, not copies.
    ///
    /// # Errors
    /// The frame is invalid; [`ExecutorFrame::stream_id`] returns the stream, if any.
    pub fn parse(message: &Bytes) -> Result<Self, FrameError> {
        let (kind, rest) = message.split_first().ok_or(FrameError::Binary)?;
        let (stream, _) = split_u64(rest)?;
        let payload = message.slice(FRAME_HEAD_BYTES..);
        Ok(match *kind {
            kind::HELLO => Self::Hello(ExecutorHello::parse(&payload)?),
            kind::OPEN => Self::OpenSession(OpenSession::parse(&payload)?),
            kind::OPENED => Self::OpenSessionReply(OpenSessionReply::parse(&payload)?),
            kind::REQUEST => Self::Request {
                stream,
                head: RequestHead::parse(&payload)?,
            },
            kind::ANSWER => Self::Response {
                stream,
                head: ResponseHead::parse(&payload)?,
            },
            kind::DATA => {
                let (offset, _) = split_u64(&payload)?;
                let bytes = payload.slice(8..);
                Self::Data {
                    stream,
                    offset,
                    bytes,
                }
            }
            kind::END => {
                let (offset, _) = split_u64(&payload)?;
                let trailers = payload.slice(8..);
                Self::End {
                    stream,
                    offset,
                    trailers,
                }
            }
            kind::CREDIT => {
                let (bytes, _) = split_u64(&payload)?;
                Self::Credit { stream, bytes }
            }
            kind::CANCEL => Self::Cancel { stream },
            kind::FAILED => Self::Fault {
                stream,
                fault: StreamFault::parse(&payload)?,
            },
            kind::START => Self::StartServer {
                stream,
                start: StartServer::parse(&payload)?,
            },
            kind::STARTED => {
                let (pid, _) = split_u64(&payload)?;
                let pid = u32::try_from(pid).map_err(|_wide| FrameError::Binary)?;
                Self::ServerStarted { stream, pid }
            }
            kind::STDERR => Self::Stderr {
                stream,
                bytes: payload,
            },
            kind::STOP => Self::StopServer {
                stream,
                at_once: payload.first() == Some(&1),
            },
            kind::EXITED => Self::ServerExit {
                stream,
                exit: ServerExit::parse(&payload)?,
            },
            _ => return Err(FrameError::Binary),
        })
    }

    /// Returns the stream of a message, even of an invalid frame.
    #[must_use]
    pub fn stream_id(message: &[u8]) -> Option<u64> {
        let (_, rest) = message.split_first()?;
        split_u64(rest).ok().map(|(stream, _)| stream)
    }

    /// Returns the message.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(FRAME_HEAD_BYTES + 64);
        match self {
            Self::Hello(hello) => {
                write_frame_head(&mut out, kind::HELLO, 0);
                out.extend_from_slice(&hello.to_vec());
            }
            Self::OpenSession(open) => {
                write_frame_head(&mut out, kind::OPEN, 0);
                out.extend_from_slice(&open.to_vec());
            }
            Self::OpenSessionReply(opened) => {
                write_frame_head(&mut out, kind::OPENED, 0);
                out.extend_from_slice(&opened.to_vec());
            }
            Self::Request { stream, head } => {
                write_frame_head(&mut out, kind::REQUEST, *stream);
                head.write(&mut out);
            }
            Self::Response { stream, head } => {
                write_frame_head(&mut out, kind::ANSWER, *stream);
                head.write(&mut out);
            }
            Self::Data {
                stream,
                offset,
                bytes,
            } => return data_frame(*stream, *offset, bytes),
            Self::End {
                stream,
                offset,
                trailers,
            } => {
                write_frame_head(&mut out, kind::END, *stream);
                out.put_u64(*offset);
                out.extend_from_slice(trailers);
            }
            Self::Credit { stream, bytes } => {
                write_frame_head(&mut out, kind::CREDIT, *stream);
                out.put_u64(*bytes);
            }
            Self::Cancel { stream } => write_frame_head(&mut out, kind::CANCEL, *stream),
            Self::Fault { stream, fault } => {
                write_frame_head(&mut out, kind::FAILED, *stream);
                out.extend_from_slice(&fault.to_vec());
            }
            Self::StartServer { stream, start } => {
                write_frame_head(&mut out, kind::START, *stream);
                out.extend_from_slice(&start.to_vec());
            }
            Self::ServerStarted { stream, pid } => {
                write_frame_head(&mut out, kind::STARTED, *stream);
                out.put_u64(u64::from(*pid));
            }
            Self::Stderr { stream, bytes } => {
                write_frame_head(&mut out, kind::STDERR, *stream);
                out.extend_from_slice(bytes);
            }
            Self::StopServer { stream, at_once } => {
                write_frame_head(&mut out, kind::STOP, *stream);
                out.put_u8(u8::from(*at_once));
            }
            Self::ServerExit { stream, exit } => {
                write_frame_head(&mut out, kind::EXITED, *stream);
                out.extend_from_slice(&exit.to_vec());
            }
        }
        out.freeze()
    }
}

/// Returns a data frame.
#[must_use]
pub fn data_frame(stream: u64, offset: u64, bytes: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(DATA_HEAD_BYTES + bytes.len());
    write_frame_head(&mut out, kind::DATA, stream);
    out.put_u64(offset);
    out.extend_from_slice(bytes);
    out.freeze()
}

fn write_frame_head(out: &mut BytesMut, kind: u8, stream: u64) {
    out.put_u8(kind);
    out.put_u64(stream);
}

fn split_u64(bytes: &[u8]) -> Result<(u64, &[u8]), FrameError> {
    let (number, rest) = bytes.split_first_chunk().ok_or(FrameError::Binary)?;
    Ok((u64::from_be_bytes(*number), rest))
}
