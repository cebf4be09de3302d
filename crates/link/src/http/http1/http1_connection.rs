//! One HTTP/1.1 connection: sends a request, reads its response, then the next.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{BufMut as _, Bytes, BytesMut};
use http::{Method, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWrite};
use tokio::time::{Instant, timeout_at};

use super::super::http_client::{
    HttpError, HttpRequest, RequestBody, ResponseHeaders, error_chain,
};
use super::HttpClientLimits;

mod body_decoder;
mod http1_head;
mod streaming_upload;
#[cfg(test)]
mod tests;
mod transport_stream;

use body_decoder::{BodyDecoder, DecodeStep};
use http1_head::Http1Head;
pub(super) use streaming_upload::StreamingUpload;
use streaming_upload::UploadError;
pub(super) use transport_stream::DialedStream;
use transport_stream::TransportStream;

/// Size of the read and the write buffer of an idle connection.
const BUFFER_BYTES: usize = 4 * 1024;

/// Largest read for a long body.
const READ_BYTES_MAX: usize = 64 * 1024;

/// Bodies up to this size are copied behind the head into a single buffer.
const COPY_BYTES_MAX: usize = 16 * 1024;

/// Informational responses before the final response.
const INTERIM_HEADS_MAX: usize = 8;

/// A connection, driven only by polling: by its request, or by the pool's usability check.
#[derive(Debug)]
pub(super) struct Http1Connection {
    stream: TransportStream,
    /// Unprocessed input.
    read_buffer: BytesMut,
    /// Head and short body of the request.
    write_buffer: Vec<u8>,
}

/// Why a request has no response.
#[derive(Debug)]
pub(super) enum Http1SendError {
    /// No byte was written.
    Unsent(Arc<str>),
    Failed(HttpError),
}

/// Progress of sending a request.
#[derive(Debug)]
struct RequestProgress<'a> {
    method: &'a Method,
    /// Body after the write buffer.
    body: &'a [u8],
    /// Bytes written of head and body.
    written: usize,
    state: WriteState,
    /// Informational heads received.
    interim: usize,
    /// Streaming upload including the head; the buffers are empty then.
    upload: Option<&'a mut StreamingUpload>,
}

#[derive(Debug, PartialEq, Eq)]
enum WriteState {
    /// No byte was sent.
    Unsent,
    Writing,
    Done,
    /// The rest cannot be written, but a response may have arrived.
    Broken(Arc<str>),
}

/// Reader of a response body on its connection.
#[derive(Debug)]
pub(super) struct BodyReader {
    connection: Box<Http1Connection>,
    body: BodyDecoder,
    /// Whether the connection is reusable.
    is_reusable: bool,
    /// Unfinished upload, sent while the response is read.
    upload: Option<Box<StreamingUpload>>,
    /// Largest read.
    read_max: usize,
}

/// Response head and body reader.
#[derive(Debug)]
pub(super) struct Http1Response {
    pub(super) status: StatusCode,
    pub(super) headers: ResponseHeaders,
    pub(super) reading: BodyReader,
}

impl From<DialedStream> for Http1Connection {
    fn from(dialed: DialedStream) -> Self {
        Self {
            stream: dialed.into(),
            read_buffer: BytesMut::with_capacity(BUFFER_BYTES),
            write_buffer: Vec::new(),
        }
    }
}

impl Http1Connection {
    /// Whether the connection is reusable: open, without unexpected input.
    pub(super) fn is_usable(&mut self, cx: &mut Context<'_>) -> bool {
        self.read_buffer.is_empty() && self.stream.is_quiet(cx)
    }

    /// Sends a request and waits for the response head.
    pub(super) async fn send(
        mut self: Box<Self>,
        request: &HttpRequest<'_>,
        upload: &mut Option<Box<StreamingUpload>>,
        limits: &HttpClientLimits,
        first_byte: Option<Instant>,
    ) -> Result<Http1Response, Http1SendError> {
        self.write_buffer.clear();
        let mut body = match request.body {
            RequestBody::Whole(body) => body,
            RequestBody::Streaming { .. } => &[],
        };
        if upload.is_none() {
            http1_head::write_request_head(&mut self.write_buffer, request);
            if body.len() <= COPY_BYTES_MAX {
                self.write_buffer.extend_from_slice(body);
                body = &[];
            }
        }
        let mut sending = RequestProgress {
            method: &request.method,
            body,
            written: 0,
            state: WriteState::Unsent,
            interim: 0,
            upload: upload.as_deref_mut(),
        };
        let received = poll_fn(|cx| self.poll_exchange(cx, &mut sending, limits));
        let head = match first_byte {
            None => received.await?,
            Some(deadline) => match timeout_at(deadline, received).await {
                Ok(received) => received?,
                Err(_) => return Err(Http1SendError::Failed(HttpError::FirstByteTimeout)),
            },
        };
        // After an incomplete request, the connection is not reusable.
        let state = sending.state;
        let is_open = state == WriteState::Writing && upload.is_some();
        let keeps = head.is_reusable && (state == WriteState::Done || is_open);
        Ok(Http1Response {
            status: head.status,
            headers: head.headers,
            reading: BodyReader {
                connection: self,
                body: head.body,
                is_reusable: keeps,
                upload: upload.take().filter(|_| is_open),
                read_max: READ_BYTES_MAX,
            },
        })
    }

    /// Writes and reads concurrently: the response may precede the end of the request.
    fn poll_exchange(
        &mut self,
        cx: &mut Context<'_>,
        sending: &mut RequestProgress<'_>,
        limits: &HttpClientLimits,
    ) -> Poll<Result<Http1Head, Http1SendError>> {
        if matches!(sending.state, WriteState::Unsent | WriteState::Writing)
            && let Poll::Ready(written) = self.poll_write(cx, sending)
        {
            sending.state = match written {
                Ok(()) => WriteState::Done,
                Err(UploadError::Write(error)) => WriteState::Broken(sending.write_error(&error)?),
                Err(UploadError::Source(error)) => {
                    return Poll::Ready(Err(Http1SendError::Failed(error)));
                }
            };
        }
        loop {
            let head =
                http1_head::parse_response_head(&mut self.read_buffer, limits, sending.method);
            match head.map_err(Http1SendError::Failed)? {
                Some(_) if sending.state == WriteState::Unsent => {
                    return Poll::Ready(Err(Http1SendError::Unsent("it spoke first".into())));
                }
                Some(head) if head.status == StatusCode::SWITCHING_PROTOCOLS => {
                    return Poll::Ready(Err(sending.head_error("it speaks another protocol")));
                }
                Some(head) if head.status.is_informational() => {
                    sending.interim += 1;
                    if sending.interim > INTERIM_HEADS_MAX {
                        return Poll::Ready(Err(sending.head_error("the answer does not begin")));
                    }
                    continue;
                }
                Some(head) => return Poll::Ready(Ok(head)),
                None => {}
            }
            match ready!(self.poll_read(cx, READ_BYTES_MAX)) {
                Ok(0) => return Poll::Ready(Err(sending.lost_error("it was closed".into()))),
                Ok(_) => {}
                Err(error) => return Poll::Ready(Err(sending.lost_error(error_chain(&error)))),
            }
        }
    }

    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        sending: &mut RequestProgress<'_>,
    ) -> Poll<Result<(), UploadError>> {
        if let Some(upload) = &mut sending.upload {
            let written = upload.poll(&mut self.stream, cx);
            if upload.has_sent_bytes() {
                sending.state = WriteState::Writing;
            }
            return written;
        }
        self.poll_write_whole(cx, sending)
            .map_err(UploadError::Write)
    }

    fn poll_write_whole(
        &mut self,
        cx: &mut Context<'_>,
        sending: &mut RequestProgress<'_>,
    ) -> Poll<io::Result<()>> {
        let mut stream = Pin::new(&mut self.stream);
        loop {
            let first = self.write_buffer.get(sending.written..).unwrap_or_default();
            let of_body = sending.written.saturating_sub(self.write_buffer.len());
            let second = sending.body.get(of_body..).unwrap_or_default();
            if !stream.has_exact_writes() {
                sending.state = WriteState::Writing;
            }
            let written = match (first.is_empty(), second.is_empty()) {
                (true, true) => return stream.poll_flush(cx),
                (false, true) => stream.as_mut().poll_write(cx, first),
                (true, false) => stream.as_mut().poll_write(cx, second),
                (false, false) => {
                    let both = [IoSlice::new(first), IoSlice::new(second)];
                    stream.as_mut().poll_write_vectored(cx, &both)
                }
            };
            match ready!(written)? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => sending.written += count,
            }
            sending.state = WriteState::Writing;
        }
    }

    /// Reads once into the buffer; 0 at the end.
    fn poll_read(&mut self, cx: &mut Context<'_>, bytes_max: usize) -> Poll<io::Result<usize>> {
        if self.read_buffer.spare_capacity_mut().is_empty() {
            // Doubles the buffer, or reclaims consumed space.
            self.read_buffer
                .reserve(self.read_buffer.len().max(BUFFER_BYTES));
        }
        let mut room = (&mut self.read_buffer).limit(bytes_max);
        pin!(self.stream.read_buf(&mut room)).poll(cx)
    }

    /// Releases memory before the connection becomes idle.
    fn shrink_buffers(&mut self) {
        self.read_buffer.clear();
        // A body chunk may still share the read buffer.
        let is_free = self.read_buffer.try_reclaim(BUFFER_BYTES);
        if !is_free || self.read_buffer.capacity() > 2 * BUFFER_BYTES {
            self.read_buffer = BytesMut::with_capacity(BUFFER_BYTES);
        }
        if self.write_buffer.capacity() > BUFFER_BYTES {
            self.write_buffer = Vec::new();
        }
    }
}

impl RequestProgress<'_> {
    /// Returns the write error, or `Unsent` if no byte was sent.
    fn write_error(&self, error: &io::Error) -> Result<Arc<str>, Http1SendError> {
        match self.state {
            WriteState::Unsent => Err(Http1SendError::Unsent(error_chain(error))),
            WriteState::Writing | WriteState::Done | WriteState::Broken(_) => {
                Ok(error_chain(error))
            }
        }
    }

    /// Returns the error for a lost connection.
    fn lost_error(&self, reason: Arc<str>) -> Http1SendError {
        match &self.state {
            WriteState::Unsent => Http1SendError::Unsent(reason),
            WriteState::Writing | WriteState::Done => {
                Http1SendError::Failed(HttpError::Lost(reason))
            }
            WriteState::Broken(first) => Http1SendError::Failed(HttpError::Lost(Arc::clone(first))),
        }
    }

    fn head_error(&self, reason: &'static str) -> Http1SendError {
        debug_assert_ne!(self.state, WriteState::Unsent);
        Http1SendError::Failed(HttpError::BadHead(reason.into()))
    }
}

impl BodyReader {
    /// Whether the body has ended.
    pub(super) fn is_finished(&self) -> bool {
        self.body.is_finished()
    }

    /// Returns the connection if reusable.
    pub(super) fn into_connection(mut self) -> Option<Box<Http1Connection>> {
        // Leftover bytes would be read as the next response.
        if !self.is_reusable
            || self.upload.is_some()
            || !self.is_finished()
            || !self.connection.read_buffer.is_empty()
        {
            return None;
        }
        self.connection.shrink_buffers();
        Some(self.connection)
    }

    /// Returns buffered bytes without waiting; errors reappear in `poll_chunk`.
    pub(super) fn take_buffered(&mut self) -> Option<Bytes> {
        match self.body.next_step(&mut self.connection.read_buffer) {
            Ok(DecodeStep::Data(piece)) => Some(piece),
            Ok(DecodeStep::More | DecodeStep::End) | Err(_) => None,
        }
    }

    pub(super) fn poll_chunk(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, HttpError>>> {
        let lost = |reason| Poll::Ready(Some(Err(HttpError::Lost(reason))));
        if let Err(error) = self.poll_upload(cx) {
            return Poll::Ready(Some(Err(error)));
        }
        loop {
            match self.body.next_step(&mut self.connection.read_buffer) {
                Ok(DecodeStep::Data(piece)) => return Poll::Ready(Some(Ok(piece))),
                Ok(DecodeStep::End) => return Poll::Ready(None),
                Ok(DecodeStep::More) => {}
                Err(broken) => return lost(error_chain(&broken)),
            }
            self.reserve_room();
            match ready!(self.connection.poll_read(cx, self.read_max)) {
                Ok(0) => {
                    if let Err(broken) = self.body.on_close() {
                        return lost(error_chain(&broken));
                    }
                }
                Ok(_) => {}
                Err(error) => return lost(error_chain(&error)),
            }
        }
    }

    /// Continues an unfinished upload.
    pub(super) fn poll_upload(&mut self, cx: &mut Context<'_>) -> Result<(), HttpError> {
        let Some(upload) = &mut self.upload else {
            return Ok(());
        };
        match upload.poll(&mut self.connection.stream, cx) {
            Poll::Pending => {}
            Poll::Ready(Ok(())) => self.upload = None,
            Poll::Ready(Err(UploadError::Source(error))) => return Err(error),
            // A server that stops reading may still complete its response.
            Poll::Ready(Err(UploadError::Write(_))) => {
                self.upload = None;
                self.is_reusable = false;
            }
        }
        Ok(())
    }

    /// Limits the size of a read.
    pub(super) fn set_read_max(&mut self, bytes_max: usize) {
        self.read_max = bytes_max.clamp(1, READ_BYTES_MAX);
    }

    /// Whether the body had trailers.
    pub(super) const fn has_trailers(&self) -> bool {
        self.body.has_trailers()
    }

    /// Returns the trailer lines.
    pub(super) fn take_trailers(&mut self) -> Bytes {
        self.body.take_trailers()
    }

    /// Reserves room for the expected bytes, within limits.
    fn reserve_room(&mut self) {
        let expected = usize::try_from(self.body.expected_bytes()).unwrap_or(READ_BYTES_MAX);
        let expected = expected.min(self.read_max);
        if expected > BUFFER_BYTES {
            self.connection.read_buffer.reserve(expected);
        }
    }
}
