//! Timeout of writes to a client that does not read.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::Sleep;

/// Time until the progress of a slow reader is checked.
const STALL_MAX: Duration = Duration::from_secs(30);

/// Minimum read rate of a slow reader over [`STALL_MAX`]. Without a minimum, a client that reads a
/// little now and then would keep its connection and all queued data.
const DRAIN_BYTES_PER_S_MIN: u64 = 8 * 1024;

/// Minimum number of bytes between checks.
const DRAIN_BYTES_MIN: u64 = DRAIN_BYTES_PER_S_MIN * STALL_MAX.as_secs();

/// Watches the progress of a client that is behind; `None` while the client keeps up.
#[derive(Debug, Default)]
pub(super) struct WriteTimeout(Option<SlowReader>);

/// A client that has not accepted all written bytes.
#[derive(Debug)]
struct SlowReader {
    /// Time of the next check.
    deadline: Pin<Box<Sleep>>,
    /// Bytes accepted since the last check.
    read_bytes: u64,
}

impl WriteTimeout {
    /// Returns the result of writing `requested_bytes`, or a timeout.
    pub(super) fn check(
        &mut self,
        context: &mut Context<'_>,
        requested_bytes: usize,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Ok(bytes)) if bytes < requested_bytes => {
                if let Some(behind) = &mut self.0 {
                    behind.read_bytes = behind.read_bytes.saturating_add(bytes as u64);
                }
                return written;
            }
            Poll::Ready(_) => {
                self.0 = None;
                return written;
            }
            Poll::Pending => {}
        }
        let behind = self.0.get_or_insert_with(|| SlowReader {
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

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests turn this clock")]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::time::Instant;

    use super::super::ClientStream;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn never_reading_client_times_out() {
        let (ours, _theirs) = tokio::io::duplex(64);
        let mut ours = ClientStream::new(ours);
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
        let mut ours = ClientStream::new(ours);
        let reading = async {
            let mut buffer = vec![0; bytes];
            let mut second = tokio::time::interval(Duration::from_secs(1));
            loop {
                second.tick().await;
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
