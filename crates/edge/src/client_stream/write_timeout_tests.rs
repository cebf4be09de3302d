//! Slow readers of a client stream, on a paused clock.
#![expect(clippy::disallowed_methods, reason = "tests turn this clock")]

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
