//! A client's stream with strict request framing and a timeout of writes.
//!
//! hyper is lenient: a bare line feed ends a line, and two framing fields in a head are accepted, a
//! source of request smuggling. [`ClientStream`] spoils a byte of such a message, so that hyper's
//! parser rejects the message in turn, responds 400 after the responses still owed to earlier
//! requests, and closes. The stream of a client that does not read ends.

mod request_framing;
#[cfg(test)]
mod tests;
mod write_timeout;

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::debug;

use request_framing::{RequestFraming, StreamPosition};
use write_timeout::WriteTimeout;

/// Bytes delivered after a rejected message: hyper parses heads and trailers only when complete,
/// and a client that stops at the spoiled byte must not keep hyper waiting.
const TERMINATOR: &[u8] = b"\r\n\r\n";

/// Maximum head size without a permit.
const SMALL_HEAD_BYTES_MAX: usize = 8 * 1024;

/// Maximum number of concurrent larger heads of unauthenticated connections.
pub(crate) const LARGE_HEADS_MAX: usize = 256;

/// A client stream, read through [`RequestFraming`] and written with a [`WriteTimeout`].
#[derive(Debug)]
pub(crate) struct ClientStream<S> {
    /// The accepted stream.
    stream: S,
    /// Framing state of the request stream.
    framing: RequestFraming,
    /// Unread rest of [`TERMINATOR`] after a rejection.
    terminator: &'static [u8],
    /// Reports stream activity to the connection task.
    activity: Arc<StreamActivity>,
    /// Permits for large heads of unauthenticated connections.
    large_heads: Option<Arc<Semaphore>>,
    /// Bytes read of the current head.
    head_bytes: usize,
    /// Permit held by the current large head.
    large_head_permit: Option<OwnedSemaphorePermit>,
    /// Ends the stream of a client that does not read.
    write_timeout: WriteTimeout,
}

/// Stream state shared by the stream with its connection task.
///
/// Both run in the same task, so relaxed ordering is sufficient.
#[derive(Debug, Default)]
pub(crate) struct StreamActivity {
    /// Number of complete heads; wraps around.
    heads: AtomicU32,
    /// Number of reads with data; wraps around.
    reads: AtomicU32,
    /// Whether the stream is between two requests.
    between_requests: AtomicBool,
    /// Whether the stream is inside a head.
    in_head: AtomicBool,
    /// Whether the last write was blocked by the client.
    write_blocked: AtomicBool,
    /// Whether the connection is authenticated.
    authenticated: AtomicBool,
}

impl StreamActivity {
    /// Returns the number of complete heads; wraps around.
    pub(crate) fn head_count(&self) -> u32 {
        self.heads.load(Relaxed)
    }

    /// Returns the number of reads with data; wraps around.
    pub(crate) fn read_count(&self) -> u32 {
        self.reads.load(Relaxed)
    }

    /// Returns whether no request is partly read and no response partly written.
    pub(crate) fn is_between_requests(&self) -> bool {
        self.between_requests.load(Relaxed) && !self.write_blocked.load(Relaxed)
    }

    /// Returns whether a head is partly read.
    pub(crate) fn is_in_head(&self) -> bool {
        self.in_head.load(Relaxed)
    }

    /// Returns whether a body is partly read.
    pub(crate) fn is_in_body(&self) -> bool {
        !self.between_requests.load(Relaxed) && !self.is_in_head()
    }

    /// Marks the connection as authenticated.
    pub(crate) fn mark_authenticated(&self) {
        self.authenticated.store(true, Relaxed);
    }

    fn note_read(&self, framing: &RequestFraming) {
        let position = framing.position();
        self.heads.store(framing.head_count(), Relaxed);
        self.reads.fetch_add(1, Relaxed);
        self.between_requests
            .store(position == StreamPosition::Between, Relaxed);
        self.in_head
            .store(position == StreamPosition::Head, Relaxed);
    }

    fn note_write<T>(&self, written: Poll<T>) -> Poll<T> {
        self.write_blocked.store(written.is_pending(), Relaxed);
        written
    }
}

impl<S> ClientStream<S> {
    /// Wraps a stream positioned before its first request.
    pub(crate) fn new(stream: S) -> Self {
        Self {
            stream,
            framing: RequestFraming::new(),
            terminator: TERMINATOR,
            activity: Arc::new(StreamActivity {
                between_requests: AtomicBool::new(true),
                ..StreamActivity::default()
            }),
            large_heads: None,
            head_bytes: 0,
            large_head_permit: None,
            write_timeout: WriteTimeout::default(),
        }
    }

    /// Requires a permit per large head until the connection is authenticated.
    #[must_use]
    pub(crate) fn with_head_limit(mut self, heads: Arc<Semaphore>) -> Self {
        self.large_heads = Some(heads);
        self
    }

    /// Counts the bytes of the current head; fails if a large head gets no permit.
    fn count_head_bytes(&mut self, bytes: usize) -> io::Result<()> {
        if self.framing.position() != StreamPosition::Head {
            self.head_bytes = 0;
            self.large_head_permit = None;
            return Ok(());
        }
        self.head_bytes = self.head_bytes.saturating_add(bytes);
        let is_small = self.head_bytes <= SMALL_HEAD_BYTES_MAX;
        if is_small || self.large_head_permit.is_some() || self.activity.authenticated.load(Relaxed)
        {
            return Ok(());
        }
        if let Some(heads) = &self.large_heads {
            let permit = Arc::clone(heads).try_acquire_owned();
            self.large_head_permit = Some(permit.map_err(io::Error::other)?);
        }
        Ok(())
    }

    /// Returns the shared stream state.
    pub(crate) fn activity(&self) -> Arc<StreamActivity> {
        Arc::clone(&self.activity)
    }

    /// Returns the inner stream; `None` after a rejection, because the data is spoiled.
    pub(crate) fn into_inner(self) -> Option<S> {
        self.framing.error().is_none().then_some(self.stream)
    }

    /// Returns the inner stream for readiness checks; do not read from the result.
    pub(crate) const fn get_ref(&self) -> &S {
        &self.stream
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ClientStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.framing.error().is_some() {
            let room = this.terminator.len().min(buffer.remaining());
            if let Some((now, later)) = this.terminator.split_at_checked(room)
                && !now.is_empty()
            {
                buffer.put_slice(now);
                this.terminator = later;
                return Poll::Ready(Ok(()));
            }
            return Pin::new(&mut this.stream).poll_read(context, buffer);
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(context, buffer))?;
        if let Some(fresh) = buffer.filled_mut().get_mut(before..) {
            let bytes = fresh.len();
            this.framing.filter_bytes(fresh);
            this.activity.note_read(&this.framing);
            this.count_head_bytes(bytes)?;
        }
        if let Some(refusal) = this.framing.error() {
            debug!(%refusal, "ambiguous request framing rejected");
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ClientStream<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(context, bytes);
        let written = this.write_timeout.check(context, bytes.len(), written);
        this.activity.note_write(written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(context, slices);
        let requested_bytes = slices.iter().map(|slice| slice.len()).sum();
        let written = this.write_timeout.check(context, requested_bytes, written);
        this.activity.note_write(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    // Flush and shutdown never wait on a socket.
    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}
