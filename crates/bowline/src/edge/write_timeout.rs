//! A stream wrapper that times out writes to clients that do not read.

use std::future::Future as _;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// Time until the progress of a slow reader is checked.
pub const STALL_MAX: Duration = Duration::from_secs(30);

/// Minimum read rate of a slow reader over [`STALL_MAX`]. Without a minimum, a client that reads a
/// little now and then would keep its connection and all queued data.
pub const DRAIN_BYTES_PER_S_MIN: u64 = 8 * 1024;

/// Minimum number of bytes between checks.
const DRAIN_BYTES_MIN: u64 = DRAIN_BYTES_PER_S_MIN * STALL_MAX.as_secs();

/// A client stream, read unchanged and written with a timeout.
#[derive(Debug)]
pub struct WriteTimeout<S> {
    /// The accepted stream.
    stream: S,
    /// Set while the client is behind.
    slow_reader: Option<SlowReader>,
}

/// A client that has not accepted all written bytes.
#[derive(Debug)]
struct SlowReader {
    /// Time of the next check.
    deadline: Pin<Box<Sleep>>,
    /// Bytes accepted since the last check.
    read_bytes: u64,
}

impl<S> WriteTimeout<S> {
    /// Wraps a stream.
    pub const fn new(stream: S) -> Self {
        Self {
            stream,
            slow_reader: None,
        }
    }

    /// Returns the inner stream for readiness checks; do not read from the result.
    pub const fn get_ref(&self) -> &S {
        &self.stream
    }

    /// Returns the inner stream.
    pub fn into_inner(self) -> S {
        self.stream
    }

    /// Returns the result of writing `wanted` bytes, or a timeout.
    fn check_progress(
        &mut self,
        context: &mut Context<'_>,
        requested_bytes: usize,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Ok(bytes)) if bytes < requested_bytes => {
                if let Some(behind) = &mut self.slow_reader {
                    behind.read_bytes = behind.read_bytes.saturating_add(bytes as u64);
                }
                return written;
            }
            Poll::Ready(_) => {
                self.slow_reader = None;
                return written;
            }
            Poll::Pending => {}
        }
        let behind = self.slow_reader.get_or_insert_with(|| SlowReader {
            deadline: Box::pin(tokio::time::sleep(STALL_MAX)),
            read_bytes: 0,
        });
        loop {
            ready!(behind.deadline.as_mut().poll(context));
            if behind.read_bytes < DRAIN_BYTES_MIN {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            behind.read_bytes = 0;
            behind.deadline = Box::pin(tokio::time::sleep(STALL_MAX));
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeout<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(context, bytes);
        this.check_progress(context, bytes.len(), written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(context, slices);
        let requested_bytes = slices.iter().map(|slice| slice.len()).sum();
        this.check_progress(context, requested_bytes, written)
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

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests turn this clock")]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn never_reading_client_times_out() {
        let (ours, _theirs) = tokio::io::duplex(64);
        let mut ours = WriteTimeout::new(ours);
        let started = Instant::now();
        let error = ours.write_all(&[7; 65]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let waited = started.elapsed();
        assert!(waited >= STALL_MAX, "{waited:?}");
        assert!(waited < 2 * STALL_MAX, "{waited:?}");
    }

    /// Reads `bytes` per second; returns the result and duration of writing a mebibyte.
    async fn write_while_reading(bytes: usize) -> (io::Result<()>, Duration) {
        let (ours, mut theirs) = tokio::io::duplex(64);
        let mut ours = WriteTimeout::new(ours);
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
    async fn steady_reader_is_kept() {
        let rate = usize::try_from(DRAIN_BYTES_PER_S_MIN).unwrap() * 5 / 4;
        let (written, took) = write_while_reading(rate).await;
        written.unwrap();
        assert!(took > 2 * STALL_MAX, "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn trickling_reader_times_out() {
        let (written, took) = write_while_reading(2 * 1024).await;
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(took < 2 * STALL_MAX, "{took:?}");
    }
}
