//! A stream that gives up on a caller who does not read what is written to it.

use std::future::Future as _;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// How long a caller may be behind before it is looked at how much it read meanwhile.
pub const UNREAD_MAX: Duration = Duration::from_secs(30);

/// Bytes a second that a caller who is behind reads at least, over [`UNREAD_MAX`]. Without it a
/// caller that reads a little now and then would keep its connection, and all that waits for it.
pub const DRAIN_BYTES_PER_S_MIN: u64 = 8 * 1024;

/// Bytes that a caller who is behind reads at least between two looks.
const DRAIN_BYTES_MIN: u64 = DRAIN_BYTES_PER_S_MIN * UNREAD_MAX.as_secs();

/// A caller's stream, read unchanged and written to with limited patience.
#[derive(Debug)]
pub struct Unread<S> {
    /// The stream as accepted.
    stream: S,
    /// Set while the caller is behind.
    behind: Option<Behind>,
}

/// A caller that did not take all that was written to it.
#[derive(Debug)]
struct Behind {
    /// Runs until the next look.
    look: Pin<Box<Sleep>>,
    /// What it read since the last look.
    read_bytes: u64,
}

impl<S> Unread<S> {
    /// Limits the patience with a stream.
    pub const fn new(stream: S) -> Self {
        Self {
            stream,
            behind: None,
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

    /// Passes on what a write of `wanted` bytes came to, or gives up.
    fn judge(
        &mut self,
        context: &mut Context<'_>,
        wanted: usize,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Ok(bytes)) if bytes < wanted => {
                if let Some(behind) = &mut self.behind {
                    behind.read_bytes = behind.read_bytes.saturating_add(bytes as u64);
                }
                return written;
            }
            Poll::Ready(_) => {
                self.behind = None;
                return written;
            }
            Poll::Pending => {}
        }
        let behind = self.behind.get_or_insert_with(|| Behind {
            look: Box::pin(tokio::time::sleep(UNREAD_MAX)),
            read_bytes: 0,
        });
        loop {
            ready!(behind.look.as_mut().poll(context));
            if behind.read_bytes < DRAIN_BYTES_MIN {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            behind.read_bytes = 0;
            behind.look = Box::pin(tokio::time::sleep(UNREAD_MAX));
        }
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
        this.judge(context, bytes.len(), written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(context, slices);
        let wanted = slices.iter().map(|slice| slice.len()).sum();
        this.judge(context, wanted, written)
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

    /// Reads `bytes` each second; returns how long a write of a mebibyte went on.
    async fn drained_by(bytes: usize) -> (io::Result<()>, Duration) {
        let (ours, mut theirs) = tokio::io::duplex(64);
        let mut ours = Unread::new(ours);
        let reading = async {
            let mut buffer = vec![0; bytes];
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                if theirs.read_exact(&mut buffer).await.is_err() {
                    return std::future::pending().await;
                }
            }
        };
        let text = vec![7; 1024 * 1024];
        let started = Instant::now();
        let written = tokio::select! {
            written = ours.write_all(&text) => written,
            () = reading => Ok(()),
        };
        (written, started.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_reads_steadily_is_kept() {
        let rate = usize::try_from(DRAIN_BYTES_PER_S_MIN).unwrap() * 5 / 4;
        let (written, took) = drained_by(rate).await;
        written.unwrap();
        assert!(took > 2 * UNREAD_MAX, "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_reads_a_little_is_given_up() {
        let (written, took) = drained_by(2 * 1024).await;
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(took < 2 * UNREAD_MAX, "{took:?}");
    }
}
