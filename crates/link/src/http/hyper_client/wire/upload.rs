//! A body that goes out while it arrives, with its head before it.

use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::AsyncWrite as _;

use super::super::super::client::{Chunks, HttpError, Outgoing, Upload};
use super::stream::Stream;
use super::{COPY_BYTES_MAX, head};

/// A request whose body is not here yet.
pub(in super::super) struct Uploading {
    source: Box<dyn Chunks>,
    framing: Framing,
    /// What is written next: the head, framing and small pieces.
    out: Vec<u8>,
    /// A large piece, written after `out`.
    piece: Bytes,
    /// Of both together.
    written: usize,
    /// Whether the chunk in `piece` is still to be closed.
    owes_line_end: bool,
    /// Whether anything has left.
    has_left: bool,
    /// Whether nothing more comes.
    is_last: bool,
}

/// How the other side learns where the body ends.
#[derive(Debug)]
enum Framing {
    /// So many bytes are still to come.
    Length(u64),
    Chunked,
}

/// Why a body does not go out to its end.
#[derive(Debug)]
pub(super) enum Broken {
    /// It cannot be written.
    Write(io::Error),
    /// It does not arrive, or is not as long as was said.
    Source(HttpError),
}

const WRONG_LENGTH: Broken = Broken::Source(HttpError::Invalid("the body is not as long as said"));

impl fmt::Debug for Uploading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Uploading")
            .field("framing", &self.framing)
            .field("is_last", &self.is_last)
            .finish_non_exhaustive()
    }
}

impl Uploading {
    /// Takes the body out of a request, if it is still arriving.
    pub(in super::super) fn of(request: &mut Outgoing<'_>) -> Option<Box<Self>> {
        let Upload::Open { length, .. } = &request.body else {
            return None;
        };
        let framing = length.map_or(Framing::Chunked, Framing::Length);
        let mut out = Vec::new();
        head::write(&mut out, request);
        let Upload::Open { chunks, .. } = std::mem::take(&mut request.body) else {
            return None;
        };
        Some(Box::new(Self {
            source: chunks,
            framing,
            out,
            piece: Bytes::new(),
            written: 0,
            owes_line_end: false,
            has_left: false,
            is_last: false,
        }))
    }

    /// Whether a byte of it may be on the network.
    pub(super) const fn has_left(&self) -> bool {
        self.has_left
    }

    /// Writes what is here; ready once all of it has gone out.
    pub(super) fn poll(
        &mut self,
        stream: &mut Stream,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Broken>> {
        loop {
            let filled = self.fill(cx)?;
            ready!(self.poll_write(stream, cx)).map_err(Broken::Write)?;
            self.out.clear();
            self.piece = Bytes::new();
            self.written = 0;
            if std::mem::take(&mut self.owes_line_end) {
                self.out.extend_from_slice(b"\r\n");
                continue;
            }
            if self.is_last || filled.is_pending() {
                ready!(Pin::new(&mut *stream).poll_flush(cx)).map_err(Broken::Write)?;
            }
            if self.is_last {
                return Poll::Ready(Ok(()));
            }
            ready!(filled);
        }
    }

    /// Takes what has arrived, as long as it is small; pending where nothing more is here.
    fn fill(&mut self, cx: &mut Context<'_>) -> Result<Poll<()>, Broken> {
        while !self.is_last && self.piece.is_empty() && self.out.len() < COPY_BYTES_MAX {
            let Poll::Ready(next) = self.source.poll_chunk(cx) else {
                return Ok(Poll::Pending);
            };
            match next.transpose().map_err(Broken::Source)? {
                Some(piece) if piece.is_empty() => {}
                Some(piece) => self.take(piece)?,
                None => self.end()?,
            }
        }
        Ok(Poll::Ready(()))
    }

    fn take(&mut self, piece: Bytes) -> Result<(), Broken> {
        match &mut self.framing {
            Framing::Length(left) => {
                let length = piece.len() as u64;
                *left = left.checked_sub(length).ok_or(WRONG_LENGTH)?;
            }
            Framing::Chunked => {
                self.out
                    .extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
            }
        }
        let is_chunked = matches!(self.framing, Framing::Chunked);
        if piece.len() > COPY_BYTES_MAX {
            self.piece = piece;
            self.owes_line_end = is_chunked;
            return Ok(());
        }
        self.out.extend_from_slice(&piece);
        if is_chunked {
            self.out.extend_from_slice(b"\r\n");
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), Broken> {
        match self.framing {
            Framing::Length(0) => {}
            Framing::Length(_) => return Err(WRONG_LENGTH),
            Framing::Chunked => {
                self.out.extend_from_slice(b"0\r\n");
                self.out.extend_from_slice(&self.source.trailers());
                self.out.extend_from_slice(b"\r\n");
            }
        }
        self.is_last = true;
        Ok(())
    }

    fn poll_write(&mut self, stream: &mut Stream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !stream.tells_what_left() {
            self.has_left = true;
        }
        let mut stream = Pin::new(stream);
        loop {
            let first = self.out.get(self.written..).unwrap_or_default();
            let of_piece = self.written.saturating_sub(self.out.len());
            let second = self.piece.get(of_piece..).unwrap_or_default();
            let written = match (first.is_empty(), second.is_empty()) {
                (true, true) => return Poll::Ready(Ok(())),
                (false, true) => stream.as_mut().poll_write(cx, first),
                (true, false) => stream.as_mut().poll_write(cx, second),
                (false, false) => {
                    let both = [IoSlice::new(first), IoSlice::new(second)];
                    stream.as_mut().poll_write_vectored(cx, &both)
                }
            };
            match ready!(written)? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.written += count,
            }
            self.has_left = true;
        }
    }
}
