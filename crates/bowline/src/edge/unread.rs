//! A stream that gives up on a caller who does not read what is written to it.

use std::future::Future as _;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// How long a caller may take nothing of what is written to it. Without an end a caller that
/// never reads would keep its connection, and all that waits for it, for ever.
pub const UNREAD_MAX: Duration = Duration::from_secs(30);

/// A caller's stream, read unchanged and written to with limited patience.
#[derive(Debug)]
pub struct Unread<S> {
    /// The stream as accepted.
    stream: S,
    /// Runs while a write waits for the caller.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> Unread<S> {
    /// Limits the patience with a stream.
    pub const fn new(stream: S) -> Self {
        Self {
            stream,
            stalled: None,
        }
    }

    /// The stream itself, to be waited on but not read.
    pub const fn get_ref(&self) -> &S {
        &self.stream
    }

    /// Gives the stream back.
    pub fn into_inner(self) -> S {
        self.stream
    }

    /// Passes on what a write came to, or gives up.
    fn judge(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let stalled = self
            .stalled
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(UNREAD_MAX)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Unread<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Unread<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(context, bytes);
        this.judge(context, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(context, slices);
        this.judge(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    // A socket neither waits to flush nor to shut down.
    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests turn this clock")]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_never_reads_is_given_up() {
        let (ours, _theirs) = tokio::io::duplex(64);
        let mut ours = Unread::new(ours);
        let started = Instant::now();
        let error = ours.write_all(&[7; 65]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let waited = started.elapsed();
        assert!(waited >= UNREAD_MAX, "{waited:?}");
        assert!(waited < 2 * UNREAD_MAX, "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_reads_slowly_but_steadily_is_not() {
        let (ours, mut theirs) = tokio::io::duplex(64);
        let mut ours = Unread::new(ours);
        let reading = async {
            let mut byte = [0];
            for _ in 0..200 {
                tokio::time::sleep(UNREAD_MAX / 2).await;
                theirs.read_exact(&mut byte).await.unwrap();
            }
        };
        let (written, ()) = tokio::join!(ours.write_all(&[7; 200]), reading);
        written.unwrap();
    }
}
