//! One connection: a request goes out, its answer is read, and then the next.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{BufMut as _, Bytes, BytesMut};
use http::{Method, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWrite};
use tokio::time::{Instant, timeout_at};

use super::super::client::{Headers, HttpError, Outgoing, Upload, causes};
use super::ClientLimits;

mod body;
mod head;
mod stream;
#[cfg(test)]
mod tests;
mod upload;

use body::{Decoder, Step};
use head::Head;
pub(super) use stream::Dialed;
use stream::Stream;
use upload::Broken;
pub(super) use upload::Uploading;

/// What a connection holds to read and to write, each, while it waits for its next request.
const BUFFER_BYTES: usize = 4 * 1024;

/// What is read at once of a body that is known to be long.
const READ_BYTES_MAX: usize = 64 * 1024;

/// A body up to here is written with its head as one piece of memory.
const COPY_BYTES_MAX: usize = 16 * 1024;

/// Heads that may come before the one of the answer.
const INTERIM_HEADS_MAX: usize = 8;

/// A connection. Nothing happens on it unless it is polled: by the request that it carries, or
/// when it is taken out of the pool.
#[derive(Debug)]
pub(super) struct Wire {
    stream: Stream,
    /// What was read and is not used yet.
    read: BytesMut,
    /// What is written first: the head, and a short body.
    write: Vec<u8>,
}

/// Why a request has no answer.
#[derive(Debug)]
pub(super) enum Refused {
    /// No byte of it was written.
    Unsent(Arc<str>),
    Failed(HttpError),
}

/// How far a request has gone out.
#[derive(Debug)]
struct Sending<'a> {
    method: &'a Method,
    /// What is written after the wire's own buffer.
    body: &'a [u8],
    /// Of both together.
    written: usize,
    state: Out,
    /// Heads that were not the answer.
    interim: usize,
    /// A body that is still arriving, with the head; nothing else is written then.
    upload: Option<&'a mut Uploading>,
}

#[derive(Debug, PartialEq, Eq)]
enum Out {
    /// No byte has left.
    Unsent,
    Open,
    Done,
    /// It cannot be written to its end, but may have been answered.
    Broken(Arc<str>),
}

/// A body on its connection.
#[derive(Debug)]
pub(super) struct Reading {
    wire: Box<Wire>,
    body: Decoder,
    /// Whether the connection can be used again.
    keeps: bool,
    /// The rest of the request, which goes out while the answer is read.
    upload: Option<Box<Uploading>>,
    /// How much may be read at once.
    want: usize,
}

/// What is known of an answer when its head is here.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) status: StatusCode,
    pub(super) headers: Headers,
    pub(super) reading: Reading,
}

impl From<Dialed> for Wire {
    fn from(dialed: Dialed) -> Self {
        Self {
            stream: dialed.into(),
            read: BytesMut::with_capacity(BUFFER_BYTES),
            write: Vec::new(),
        }
    }
}

impl Wire {
    /// Whether another request can be sent: the peer has not closed it, nor said anything.
    pub(super) fn is_usable(&mut self, cx: &mut Context<'_>) -> bool {
        self.read.is_empty() && self.stream.is_quiet(cx)
    }

    /// Sends a request and waits for the head of the answer.
    pub(super) async fn send(
        mut self: Box<Self>,
        request: &Outgoing<'_>,
        upload: &mut Option<Box<Uploading>>,
        limits: &ClientLimits,
        first_byte: Option<Instant>,
    ) -> Result<Answered, Refused> {
        self.write.clear();
        let mut body = match request.body {
            Upload::Whole(body) => body,
            Upload::Open { .. } => &[],
        };
        if upload.is_none() {
            head::write(&mut self.write, request);
            if body.len() <= COPY_BYTES_MAX {
                self.write.extend_from_slice(body);
                body = &[];
            }
        }
        let mut sending = Sending {
            method: &request.method,
            body,
            written: 0,
            state: Out::Unsent,
            interim: 0,
            upload: upload.as_deref_mut(),
        };
        let answered = poll_fn(|cx| self.poll_exchange(cx, &mut sending, limits));
        let head = match first_byte {
            None => answered.await?,
            Some(deadline) => match timeout_at(deadline, answered).await {
                Ok(answered) => answered?,
                Err(_) => return Err(Refused::Failed(HttpError::FirstByteTimeout)),
            },
        };
        // What was not asked to its end cannot be followed by another request.
        let state = sending.state;
        let is_open = state == Out::Open && upload.is_some();
        let keeps = head.keeps && (state == Out::Done || is_open);
        Ok(Answered {
            status: head.status,
            headers: head.headers,
            reading: Reading {
                wire: self,
                body: head.body,
                keeps,
                upload: upload.take().filter(|_| is_open),
                want: READ_BYTES_MAX,
            },
        })
    }

    /// Writes and reads at once: an answer may come before the request has gone out.
    fn poll_exchange(
        &mut self,
        cx: &mut Context<'_>,
        sending: &mut Sending<'_>,
        limits: &ClientLimits,
    ) -> Poll<Result<Head, Refused>> {
        if matches!(sending.state, Out::Unsent | Out::Open)
            && let Poll::Ready(written) = self.poll_write(cx, sending)
        {
            sending.state = match written {
                Ok(()) => Out::Done,
                Err(Broken::Write(error)) => Out::Broken(sending.fail(&error)?),
                Err(Broken::Source(error)) => return Poll::Ready(Err(Refused::Failed(error))),
            };
        }
        loop {
            let head = head::read(&mut self.read, limits, sending.method);
            match head.map_err(Refused::Failed)? {
                Some(_) if sending.state == Out::Unsent => {
                    return Poll::Ready(Err(Refused::Unsent("it spoke first".into())));
                }
                Some(head) if head.status == StatusCode::SWITCHING_PROTOCOLS => {
                    return Poll::Ready(Err(sending.bad("it speaks another protocol")));
                }
                Some(head) if head.status.is_informational() => {
                    sending.interim += 1;
                    if sending.interim > INTERIM_HEADS_MAX {
                        return Poll::Ready(Err(sending.bad("the answer does not begin")));
                    }
                    continue;
                }
                Some(head) => return Poll::Ready(Ok(head)),
                None => {}
            }
            match ready!(self.poll_read(cx, READ_BYTES_MAX)) {
                Ok(0) => return Poll::Ready(Err(sending.lost("it was closed".into()))),
                Ok(_) => {}
                Err(error) => return Poll::Ready(Err(sending.lost(causes(&error)))),
            }
        }
    }

    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        sending: &mut Sending<'_>,
    ) -> Poll<Result<(), Broken>> {
        if let Some(upload) = &mut sending.upload {
            let written = upload.poll(&mut self.stream, cx);
            if upload.has_left() {
                sending.state = Out::Open;
            }
            return written;
        }
        self.poll_write_whole(cx, sending).map_err(Broken::Write)
    }

    fn poll_write_whole(
        &mut self,
        cx: &mut Context<'_>,
        sending: &mut Sending<'_>,
    ) -> Poll<io::Result<()>> {
        let mut stream = Pin::new(&mut self.stream);
        loop {
            let first = self.write.get(sending.written..).unwrap_or_default();
            let of_body = sending.written.saturating_sub(self.write.len());
            let second = sending.body.get(of_body..).unwrap_or_default();
            if !stream.tells_what_left() {
                sending.state = Out::Open;
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
            sending.state = Out::Open;
        }
    }

    /// Reads once into the buffer; nothing was read at the end.
    fn poll_read(&mut self, cx: &mut Context<'_>, bytes_max: usize) -> Poll<io::Result<usize>> {
        if self.read.spare_capacity_mut().is_empty() {
            // Grows by doubling, or takes the room of what was used.
            self.read.reserve(self.read.len().max(BUFFER_BYTES));
        }
        let mut room = (&mut self.read).limit(bytes_max);
        pin!(self.stream.read_buf(&mut room)).poll(cx)
    }

    /// Lets go of memory that a quiet connection should not hold.
    fn rest(&mut self) {
        self.read.clear();
        // A large piece of a body may still hold the memory that it was read into.
        let is_free = self.read.try_reclaim(BUFFER_BYTES);
        if !is_free || self.read.capacity() > 2 * BUFFER_BYTES {
            self.read = BytesMut::with_capacity(BUFFER_BYTES);
        }
        if self.write.capacity() > BUFFER_BYTES {
            self.write = Vec::new();
        }
    }
}

impl Sending<'_> {
    /// Returns why it is broken, or that it never began.
    fn fail(&self, error: &io::Error) -> Result<Arc<str>, Refused> {
        match self.state {
            Out::Unsent => Err(Refused::Unsent(causes(error))),
            Out::Open | Out::Done | Out::Broken(_) => Ok(causes(error)),
        }
    }

    /// There will be no answer.
    fn lost(&self, reason: Arc<str>) -> Refused {
        match &self.state {
            Out::Unsent => Refused::Unsent(reason),
            Out::Open | Out::Done => Refused::Failed(HttpError::Lost(reason)),
            Out::Broken(first) => Refused::Failed(HttpError::Lost(Arc::clone(first))),
        }
    }

    fn bad(&self, reason: &'static str) -> Refused {
        debug_assert_ne!(self.state, Out::Unsent);
        Refused::Failed(HttpError::Head(reason.into()))
    }
}

impl Reading {
    /// Whether nothing is left to be read.
    pub(super) fn is_over(&self) -> bool {
        self.body.is_over()
    }

    /// Returns the connection if it can be used again.
    pub(super) fn into_wire(mut self) -> Option<Box<Wire>> {
        // What nobody asked for would be taken for the next answer.
        if !self.keeps || self.upload.is_some() || !self.is_over() || !self.wire.read.is_empty() {
            return None;
        }
        self.wire.rest();
        Some(self.wire)
    }

    /// Returns what is here already, without waiting; an error is found again by who waits.
    pub(super) fn here(&mut self) -> Option<Bytes> {
        match self.body.step(&mut self.wire.read) {
            Ok(Step::Data(piece)) => Some(piece),
            Ok(Step::More | Step::End) | Err(_) => None,
        }
    }

    pub(super) fn poll_chunk(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, HttpError>>> {
        let lost = |reason| Poll::Ready(Some(Err(HttpError::Lost(reason))));
        if let Err(error) = self.send_on(cx) {
            return Poll::Ready(Some(Err(error)));
        }
        loop {
            match self.body.step(&mut self.wire.read) {
                Ok(Step::Data(piece)) => return Poll::Ready(Some(Ok(piece))),
                Ok(Step::End) => return Poll::Ready(None),
                Ok(Step::More) => {}
                Err(broken) => return lost(causes(&broken)),
            }
            self.make_room();
            match ready!(self.wire.poll_read(cx, self.want)) {
                Ok(0) => {
                    if let Err(broken) = self.body.close() {
                        return lost(causes(&broken));
                    }
                }
                Ok(_) => {}
                Err(error) => return lost(causes(&error)),
            }
        }
    }

    /// Goes on with a request that has not gone out to its end.
    pub(super) fn send_on(&mut self, cx: &mut Context<'_>) -> Result<(), HttpError> {
        let Some(upload) = &mut self.upload else {
            return Ok(());
        };
        match upload.poll(&mut self.wire.stream, cx) {
            Poll::Pending => {}
            Poll::Ready(Ok(())) => self.upload = None,
            Poll::Ready(Err(Broken::Source(error))) => return Err(error),
            // Who does not read on may still answer to the end.
            Poll::Ready(Err(Broken::Write(_))) => {
                self.upload = None;
                self.keeps = false;
            }
        }
        Ok(())
    }

    /// Says how much may be read at once.
    pub(super) fn want(&mut self, bytes_max: usize) {
        self.want = bytes_max.clamp(1, READ_BYTES_MAX);
    }

    /// Whether lines followed the body.
    pub(super) const fn has_trailers(&self) -> bool {
        self.body.has_trailers()
    }

    /// Returns the lines that followed the body.
    pub(super) fn trailers(&mut self) -> Bytes {
        self.body.trailers()
    }

    /// Makes room for as much as will come, within bounds.
    fn make_room(&mut self) {
        let expected = usize::try_from(self.body.expects()).unwrap_or(READ_BYTES_MAX);
        let expected = expected.min(self.want);
        if expected > BUFFER_BYTES {
            self.wire.read.reserve(expected);
        }
    }
}
