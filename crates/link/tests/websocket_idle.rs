//! Memory of an idle connection, also after a burst, measured in a separate process without further
//! tests.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::time::Duration;

use bowline_link::websocket::{
    DisconnectReason, WebSocketConnection, WebSocketLimits, WebSocketRole, WebSocketSender,
    open_websocket,
};
use bowline_testkit::{DetachedSpawner, resident_bytes, spawn_task};
use bytes::Bytes;
use tokio::io::DuplexStream;
use tokio::sync::mpsc;

/// Connection pairs: a gateway side and a worker side each.
const PAIRS: usize = 1_000;

/// Memory bound of a quiet side in bytes, including the reader task.
const IDLE_BYTES_MAX: usize = 10 * 1024;

/// Bytes of the burst.
const LARGE_BYTES: usize = 256 * 1024;

/// Warm-up bursts before the measurement, at least one per side.
const WARM: usize = 4;

/// Measured bursts.
const LOUD: usize = 40;

/// Opens a side and reads until the end.
fn open_side(
    stream: DuplexStream,
    side: WebSocketRole,
    heard: mpsc::Sender<usize>,
) -> WebSocketSender {
    let limits = WebSocketLimits {
        ping_interval: Duration::from_secs(3_600),
        silence_max: Duration::from_secs(7_200),
        ..WebSocketLimits::default()
    };
    let WebSocketConnection {
        sender: outgoing,
        receiver: mut incoming,
    } = open_websocket(stream, side, Bytes::new(), limits, &DetachedSpawner);
    let reading = async move {
        loop {
            match incoming.next().await {
                Ok(message) => heard.send(message.len()).await.unwrap(),
                Err(ended) => return assert_eq!(ended, DisconnectReason::Local),
            }
        }
    };
    spawn_task(reading);
    outgoing
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn idle_connection_stays_small_after_burst() {
    let (heard, mut hears) = mpsc::channel(16);
    let mut sides = Vec::with_capacity(2 * PAIRS);
    let before = resident_bytes(std::process::id());
    for _ in 0..PAIRS {
        // The stream's own buffer is kept small.
        let (near, far) = tokio::io::duplex(64);
        sides.push(open_side(near, WebSocketRole::Server, heard.clone()));
        sides.push(open_side(far, WebSocketRole::Client, heard.clone()));
    }
    for outgoing in &sides {
        outgoing.send("hello".into()).await.unwrap();
    }
    for _ in &sides {
        assert_eq!(hears.recv().await, Some(5));
    }
    let quiet = (resident_bytes(std::process::id()) - before) / sides.len();
    assert!(quiet <= IDLE_BYTES_MAX, "{quiet} bytes a side");
    let large = Bytes::from("x".repeat(LARGE_BYTES));
    let mut before = 0;
    for (place, outgoing) in sides.iter().take(LOUD + WARM).enumerate() {
        outgoing.send(large.clone()).await.unwrap();
        assert_eq!(hears.recv().await, Some(LARGE_BYTES));
        // Warm-up: memory shared by all connections is not counted.
        if place + 1 == WARM {
            before = resident_bytes(std::process::id());
        }
    }
    let kept = resident_bytes(std::process::id()).saturating_sub(before) / LOUD;
    assert!(kept <= IDLE_BYTES_MAX, "{kept} bytes more a side");
}
