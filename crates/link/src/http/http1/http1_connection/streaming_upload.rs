//! Streaming upload of a request: its head, then the body as it arrives.

use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::AsyncWrite as _;

use super::super::super::http_client::{BodyChunks, HttpError, HttpRequest, RequestBody};
use super::transport_stream::TransportStream;
use super::{COPY_BYTES_MAX, http1_head};

/// A request with a streaming body.
pub(in super::super) struct StreamingUpload {
    source: Box<dyn BodyChunks>,
    framing: UploadFraming,
    /// Next bytes to write: head, framing and small chunks.
    out: Vec<u8>,
    /// A large chunk, written after `out`.
    piece: Bytes,
    /// Bytes written of both.
    written: usize,
    /// Whether the chunk in `piece` still needs its line end.
    owes_line_end: bool,
    /// Whether any byte was sent.
    has_sent_bytes: bool,
    /// Whether the body has ended.
    is_last: bool,
}

/// Body framing.
#[derive(Debug)]
enum UploadFraming {
    /// Remaining bytes.
    Length(u64),
    Chunked,
}

/// Why an upload failed.
#[derive(Debug)]
pub(super) enum UploadError {
    /// Writing failed.
    Write(io::Error),
    /// The source failed or has the wrong length.
    Source(HttpError),
}

const WRONG_LENGTH: UploadError =
    UploadError::Source(HttpError::Invalid("the body is not as long as said"));

impl fmt::Debug for StreamingUpload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamingUpload")
            .field("framing", &self.framing)
            .field("is_last", &self.is_last)
            .finish_non_exhaustive()
    }
}

impl StreamingUpload {
    /// Takes a streaming body out of a request.
    pub(in super::super) fn from_request(request: &mut HttpRequest<'_>) -> Option<Box<Self>> {
        let RequestBody::Streaming { length, .. } = &request.body else {
            return None;
        };
        let framing = length.map_or(UploadFraming::Chunked, UploadFraming::Length);
        let mut out = Vec::new();
        http1_head::write_request_head(&mut out, request);
        let RequestBody::Streaming { chunks, .. } = std::mem::take(&mut request.body) else {
            return None;
        };
        Some(Box::new(Self {
            source: chunks,
            framing,
            out,
            piece: Bytes::new(),
            written: 0,
            owes_line_end: false,
            has_sent_bytes: false,
            is_last: false,
        }))
    }

    /// Whether a byte may have been sent.
    pub(super) const fn has_sent_bytes(&self) -> bool {
        self.has_sent_bytes
    }

    /// Writes available bytes; ready at the end of the upload.
    pub(super) fn poll(
        &mut self,
        stream: &mut TransportStream,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), UploadError>> {
        loop {
            let filled = self.fill_buffer(cx)?;
            ready!(self.poll_write(stream, cx)).map_err(UploadError::Write)?;
            self.out.clear();
            self.piece = Bytes::new();
            self.written = 0;
            if std::mem::take(&mut self.owes_line_end) {
                self.out.extend_from_slice(b"\r\n");
                continue;
            }
            if self.is_last || filled.is_pending() {
                ready!(Pin::new(&mut *stream).poll_flush(cx)).map_err(UploadError::Write)?;
            }
            if self.is_last {
                return Poll::Ready(Ok(()));
            }
            ready!(filled);
        }
    }

    /// Buffers available small chunks; pending without more input.
    fn fill_buffer(&mut self, cx: &mut Context<'_>) -> Result<Poll<()>, UploadError> {
        while !self.is_last && self.piece.is_empty() && self.out.len() < COPY_BYTES_MAX {
            let Poll::Ready(next) = self.source.poll_chunk(cx) else {
                return Ok(Poll::Pending);
            };
            match next.transpose().map_err(UploadError::Source)? {
                Some(piece) if piece.is_empty() => {}
                Some(piece) => self.push_piece(piece)?,
                None => self.push_end()?,
            }
        }
        Ok(Poll::Ready(()))
    }

    fn push_piece(&mut self, piece: Bytes) -> Result<(), UploadError> {
        match &mut self.framing {
            UploadFraming::Length(left) => {
                let length = piece.len() as u64;
                *left = left.checked_sub(length).ok_or(WRONG_LENGTH)?;
            }
            UploadFraming::Chunked => {
                self.out
                    .extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
            }
        }
        let is_chunked = matches!(self.framing, UploadFraming::Chunked);
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

    fn push_end(&mut self) -> Result<(), UploadError> {
        match self.framing {
            UploadFraming::Length(0) => {}
            UploadFraming::Length(_) => return Err(WRONG_LENGTH),
            UploadFraming::Chunked => {
                self.out.extend_from_slice(b"0\r\n");
                self.out.extend_from_slice(&self.source.take_trailers());
                self.out.extend_from_slice(b"\r\n");
            }
        }
        self.is_last = true;
        Ok(())
    }

    fn poll_write(
        &mut self,
        stream: &mut TransportStream,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if !stream.has_exact_writes() {
            self.has_sent_bytes = true;
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
            self.has_sent_bytes = true;
        }
    }
}
