//! A stream whose reader refuses request heads that two HTTP parsers could read in two ways.
//!
//! The HTTP server behind it is lenient where request smuggling begins: it takes a bare line
//! feed as a line end and forgives two framing fields in one head. [`Guarded`] spoils one byte
//! of such a message, so that the server's own parser refuses it in its turn, answers 400 after
//! the answers still owed to earlier requests, and closes.

mod framing;
#[cfg(test)]
mod tests;

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::debug;

pub use framing::{
    BODY_BYTES_MAX, EXTENSION_BYTES_MAX, Framing, Position, Refusal, SIZE_DIGITS_MAX,
};

/// What the reader sees after a refused message: the server looks at a head or at trailers only
/// when they are complete, and a caller that stops at the spoiled byte must not keep it waiting.
const TERMINATOR: &[u8] = b"\r\n\r\n";

/// Bytes of a head that any connection may have.
const SMALL_HEAD_BYTES_MAX: usize = 8 * 1024;

/// Larger heads that connections which proved nothing may have at once.
pub const LARGE_HEADS_MAX: usize = 256;

/// A caller's stream, read through [`Framing`] and written to unchanged.
#[derive(Debug)]
pub struct Guarded<S> {
    /// The stream as accepted.
    stream: S,
    /// Where the stream is in the requests it carries.
    framing: Framing,
    /// What is still to be read of [`TERMINATOR`] once a message was refused.
    terminator: &'static [u8],
    /// Tells the keeper of the connection how its stream stands.
    pulse: Arc<Pulse>,
    /// Room for large heads of connections that have not proved who they are.
    heads: Option<Arc<Semaphore>>,
    /// Bytes of the head that is being read.
    head_bytes: usize,
    /// Its part of that room.
    large: Option<OwnedSemaphorePermit>,
}

/// How a stream stands, told by the stream to the keeper of its connection.
///
/// Both live in one task, so the order of these writes and reads is that of the program.
#[derive(Debug, Default)]
pub struct Pulse {
    /// Heads that were whole, counted round and round.
    heads: AtomicU32,
    /// Reads that brought bytes, counted round and round.
    reads: AtomicU32,
    /// Whether the stream stands between two requests.
    between: AtomicBool,
    /// Whether it stands in a head.
    in_head: AtomicBool,
    /// Whether the last write had to wait for the caller.
    waits: AtomicBool,
    /// Whether the connection has proved who it is.
    proven: AtomicBool,
}

impl Pulse {
    /// How many requests began, counted round and round.
    pub fn heads(&self) -> u32 {
        self.heads.load(Relaxed)
    }

    /// How many reads brought bytes, counted round and round.
    pub fn reads(&self) -> u32 {
        self.reads.load(Relaxed)
    }

    /// Whether no request is half read and no answer half written.
    pub fn is_between(&self) -> bool {
        self.between.load(Relaxed) && !self.waits.load(Relaxed)
    }

    /// Whether a head is half read.
    pub fn is_in_head(&self) -> bool {
        self.in_head.load(Relaxed)
    }

    /// Whether a body is half read.
    pub fn is_in_body(&self) -> bool {
        !self.between.load(Relaxed) && !self.is_in_head()
    }

    /// Notes that the connection has proved who it is.
    pub fn prove(&self) {
        self.proven.store(true, Relaxed);
    }

    fn read(&self, framing: &Framing) {
        let position = framing.position();
        self.heads.store(framing.heads(), Relaxed);
        self.reads.fetch_add(1, Relaxed);
        self.between.store(position == Position::Between, Relaxed);
        self.in_head.store(position == Position::Head, Relaxed);
    }

    fn wrote<T>(&self, written: Poll<T>) -> Poll<T> {
        self.waits.store(written.is_pending(), Relaxed);
        written
    }
}

impl<S> Guarded<S> {
    /// Guards a stream that stands before its first request.
    pub fn new(stream: S) -> Self {
        Self {
            stream,
            framing: Framing::new(),
            terminator: TERMINATOR,
            pulse: Arc::new(Pulse {
                between: AtomicBool::new(true),
                ..Pulse::default()
            }),
            heads: None,
            head_bytes: 0,
            large: None,
        }
    }

    /// Has large heads take one of these permits each, until the connection has proved who it is.
    #[must_use]
    pub fn counting_heads(mut self, heads: Arc<Semaphore>) -> Self {
        self.heads = Some(heads);
        self
    }

    /// Counts what was read of a head; fails where there is no room for a large one.
    fn count_head(&mut self, bytes: usize) -> io::Result<()> {
        if self.framing.position() != Position::Head {
            self.head_bytes = 0;
            self.large = None;
            return Ok(());
        }
        self.head_bytes = self.head_bytes.saturating_add(bytes);
        let is_small = self.head_bytes <= SMALL_HEAD_BYTES_MAX;
        if is_small || self.large.is_some() || self.pulse.proven.load(Relaxed) {
            return Ok(());
        }
        if let Some(heads) = &self.heads {
            let permit = Arc::clone(heads).try_acquire_owned();
            self.large = Some(permit.map_err(io::Error::other)?);
        }
        Ok(())
    }

    /// How the stream stands, now and later.
    pub fn pulse(&self) -> Arc<Pulse> {
        Arc::clone(&self.pulse)
    }

    /// Gives the stream back; nothing where what was read of it was refused, and so spoiled.
    pub fn into_inner(self) -> Option<S> {
        self.framing.refusal().is_none().then_some(self.stream)
    }

    /// The stream behind the guard, to be waited on but not read.
    pub const fn get_ref(&self) -> &S {
        &self.stream
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.framing.refusal().is_some() {
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
            this.framing.filter(fresh);
            this.pulse.read(&this.framing);
            this.count_head(bytes)?;
        }
        if let Some(refusal) = this.framing.refusal() {
            debug!(%refusal, "request refused");
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(context, bytes);
        this.pulse.wrote(written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(context, slices);
        this.pulse.wrote(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}
