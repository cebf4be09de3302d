//! Lingering close: discards the rest of a body that was answered before all of it arrived.
//!
//! A socket that is closed while bytes arrive resets the connection, and a reset can take the
//! answer from a caller that is still sending. So the writing half is shut first, and what
//! arrives is read and dropped until the caller is done or a limit is reached. The connection
//! keeps its place in the pool or the share that it counts in.

use std::io;
use std::time::Duration;

use bowline_core::rates::{Pace, RequestCost};
use tokio::net::TcpStream;

use super::Edge;
use super::hold::Hold;
use super::mcp::read::BODY_BYTES_MAX;

/// Bytes that are discarded of one request.
const LINGER_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// The same for a connection that has not proved who it is: a body that would have been taken.
const LINGER_UNPROVEN_BYTES_MAX: u64 = BODY_BYTES_MAX as u64;

/// How long a connection lingers.
const LINGER_TIME_MAX: Duration = Duration::from_secs(30);

/// The same for a connection that has not proved who it is.
const LINGER_UNPROVEN_TIME_MAX: Duration = Duration::from_secs(10);

/// How long a connection lingers while nothing arrives.
const LINGER_IDLE_MAX: Duration = Duration::from_secs(5);

/// Bytes that are read at once. The buffer lives between two awaits only.
const PIECE_BYTES: usize = 16 * 1024;

/// Bytes that are read before another task may run.
const ROUND_BYTES_MAX: u64 = 256 * 1024;

/// Discards what arrives until the caller closes, within the limits. What is discarded counts
/// in the byte rate of the principal.
pub(super) async fn discard(edge: &Edge, hold: &Hold, socket: &TcpStream) {
    let principal = hold.latest_principal();
    let (bytes_max, time_max) = match principal {
        Some(_) => (LINGER_BYTES_MAX, LINGER_TIME_MAX),
        None => (LINGER_UNPROVEN_BYTES_MAX, LINGER_UNPROVEN_TIME_MAX),
    };
    let charge = |bytes| match &principal {
        Some(principal) => {
            let cost = RequestCost { requests: 0, bytes };
            edge.host.charge_request(principal, cost)
        }
        None => Pace::Now,
    };
    let drained = tokio::time::timeout(time_max, drain(socket, bytes_max, charge)).await;
    tracing::debug!(in_time = drained.is_ok(), "lingering connection closed");
}

/// Reads and drops bytes until the other end closes, pauses too long, or sent `bytes_max`.
async fn drain(socket: &TcpStream, bytes_max: u64, charge: impl Fn(u64) -> Pace) {
    let mut left = bytes_max;
    while left > 0 {
        let readable = tokio::time::timeout(LINGER_IDLE_MAX, socket.readable()).await;
        if !matches!(readable, Ok(Ok(()))) {
            return;
        }
        let Some(bytes) = read_round(socket, left.min(ROUND_BYTES_MAX)) else {
            return;
        };
        left = left.saturating_sub(bytes);
        match charge(bytes) {
            Pace::Now => {}
            Pace::Wait(wait) => tokio::time::sleep(wait).await,
            Pace::Refused(_) => return,
        }
    }
}

/// Reads what is there, up to `bytes_max` and a piece; `None` at the end of the stream.
fn read_round(socket: &TcpStream, bytes_max: u64) -> Option<u64> {
    let mut piece = [0; PIECE_BYTES];
    let mut bytes = 0;
    while bytes < bytes_max {
        match socket.try_read(&mut piece) {
            Ok(0) => return None,
            Ok(read) => bytes += read as u64,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(_) => return None,
        }
    }
    Some(bytes)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests turn this clock")]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;
    use tokio::time::Instant;

    use super::*;

    /// Two ends of a connection: the one that lingers and the one that sends.
    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (theirs, ours) = tokio::join!(TcpStream::connect(address), listener.accept());
        (ours.unwrap().0, theirs.unwrap())
    }

    #[tokio::test]
    async fn drain_ends_at_bytes_close_and_refusal() {
        let (ours, mut theirs) = pair().await;
        theirs.write_all(&[b' '; 3_000]).await.unwrap();
        drain(&ours, 1_000, |_| Pace::Now).await;
        let (ours, mut theirs) = pair().await;
        theirs.write_all(&[b' '; 3_000]).await.unwrap();
        drop(theirs);
        drain(&ours, u64::MAX, |_| Pace::Now).await;
        let (ours, mut theirs) = pair().await;
        theirs.write_all(&[b' '; 3_000]).await.unwrap();
        drain(&ours, u64::MAX, |_| Pace::Refused(Duration::ZERO)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn drain_ends_when_nothing_arrives() {
        let (ours, _theirs) = pair().await;
        let started = Instant::now();
        drain(&ours, u64::MAX, |_| Pace::Now).await;
        assert_eq!(started.elapsed(), LINGER_IDLE_MAX);
    }
}
