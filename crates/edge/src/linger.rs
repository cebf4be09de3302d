//! Lingering close: discards the rest of a request body after an early response.
//!
//! Closing a socket with unread data resets the connection, and a reset can destroy the response
//! before a sending client reads it. Therefore the write half is shut first, and incoming bytes are
//! read and dropped until the client finishes or a limit is reached. The connection keeps its pool
//! slot or its share.

use std::io;
use std::time::Duration;

use bowline_core::rate_limiter::{RateDecision, RequestCost};
use tokio::net::TcpStream;

use super::Edge;
use super::connection_registry::ClientConnection;
use super::mcp::request_body::BODY_BYTES_MAX;

/// Maximum number of bytes discarded per request.
const LINGER_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// The same for an unauthenticated connection: the maximum size of an accepted body.
const LINGER_UNAUTHENTICATED_BYTES_MAX: u64 = BODY_BYTES_MAX as u64;

/// Maximum duration of a lingering close.
const LINGER_TIME_MAX: Duration = Duration::from_secs(30);

/// The same for an unauthenticated connection.
const LINGER_UNAUTHENTICATED_TIME_MAX: Duration = Duration::from_secs(10);

/// Maximum pause between incoming bytes.
const LINGER_IDLE_MAX: Duration = Duration::from_secs(5);

/// Bytes per read. The buffer lives only between two awaits.
const PIECE_BYTES: usize = 16 * 1024;

/// Bytes read before yielding to other tasks.
const ROUND_BYTES_MAX: u64 = 256 * 1024;

/// Discards incoming bytes until the client closes, within the limits. Discarded bytes count in the
/// byte rate of the principal.
pub(super) async fn discard_rest(edge: &Edge, connection: &ClientConnection, socket: &TcpStream) {
    let principal = connection.latest_principal();
    let (bytes_max, time_max) = match principal {
        Some(_) => (LINGER_BYTES_MAX, LINGER_TIME_MAX),
        None => (
            LINGER_UNAUTHENTICATED_BYTES_MAX,
            LINGER_UNAUTHENTICATED_TIME_MAX,
        ),
    };
    let charge = |bytes| match &principal {
        Some(principal) => {
            let cost = RequestCost { requests: 0, bytes };
            let now = || edge.host.clock().now();
            edge.host.accounts().charge_request(principal, cost, now)
        }
        None => RateDecision::Immediate,
    };
    let drained = tokio::time::timeout(time_max, drain_socket(socket, bytes_max, charge)).await;
    tracing::debug!(in_time = drained.is_ok(), "lingering connection closed");
}

/// Reads and drops bytes until the peer closes, pauses too long, or has sent `bytes_max`.
async fn drain_socket(socket: &TcpStream, bytes_max: u64, charge: impl Fn(u64) -> RateDecision) {
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
            RateDecision::Immediate => {}
            RateDecision::Wait(wait) => tokio::time::sleep(wait).await,
            RateDecision::Refused(_) => return,
        }
    }
}

/// Reads available bytes, up to `bytes_max` plus a piece; `None` at the end of the stream.
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

    /// Returns two connected sockets: the lingering side and the sending side.
    async fn connected_pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (theirs, ours) = tokio::join!(TcpStream::connect(address), listener.accept());
        (ours.unwrap().0, theirs.unwrap())
    }

    #[tokio::test]
    async fn drain_ends_at_bytes_close_and_refusal() {
        let (ours, mut theirs) = connected_pair().await;
        theirs.write_all(&[b' '; 3_000]).await.unwrap();
        drain_socket(&ours, 1_000, |_| RateDecision::Immediate).await;
        let (ours, mut theirs) = connected_pair().await;
        theirs.write_all(&[b' '; 3_000]).await.unwrap();
        drop(theirs);
        drain_socket(&ours, u64::MAX, |_| RateDecision::Immediate).await;
        let (ours, mut theirs) = connected_pair().await;
        theirs.write_all(&[b' '; 3_000]).await.unwrap();
        drain_socket(&ours, u64::MAX, |_| RateDecision::Refused(Duration::ZERO)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn drain_ends_when_nothing_arrives() {
        let (ours, _theirs) = connected_pair().await;
        let started = Instant::now();
        drain_socket(&ours, u64::MAX, |_| RateDecision::Immediate).await;
        assert_eq!(started.elapsed(), LINGER_IDLE_MAX);
    }
}
