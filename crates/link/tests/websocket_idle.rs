//! What a connection costs while nothing is said, and after much was: memory of a process of its
//! own, so that no other test is counted.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::time::Duration;

use bowline_link::websocket::{Ended, Outgoing, Side, SocketLimits, join};
use bowline_link::{BoxFuture, Spawner};
use bytes::Bytes;
use tokio::io::DuplexStream;
use tokio::sync::mpsc;

/// Pairs of connections: one side each as a gateway has it, one as a worker.
const PAIRS: usize = 1_000;

/// What one side of a quiet connection may cost, in bytes, its reader's task included.
const IDLE_BYTES_MAX: usize = 10 * 1024;

/// What some then say once, in bytes.
const LARGE_BYTES: usize = 256 * 1024;

/// How many say it before memory is counted, one of each side at least.
const WARM: usize = 4;

/// How many then say it.
const LOUD: usize = 40;

struct Tokio;

impl Spawner for Tokio {
    #[expect(clippy::disallowed_methods, reason = "tests have no task keeper")]
    fn spawn(&self, _: &'static str, task: BoxFuture<'static, ()>) {
        tokio::spawn(task);
    }
}

/// Joins one side, and reads it to its end as its owner would.
fn side(stream: DuplexStream, side: Side, heard: mpsc::Sender<usize>) -> Outgoing {
    let limits = SocketLimits {
        ping_every: Duration::from_secs(3_600),
        silence_max: Duration::from_secs(7_200),
        ..SocketLimits::default()
    };
    let (outgoing, mut incoming) = join(stream, side, Bytes::new(), limits, &Tokio);
    let reading = async move {
        loop {
            match incoming.next().await {
                Ok(message) => heard.send(message.len()).await.unwrap(),
                Err(ended) => return assert_eq!(ended, Ended::Local),
            }
        }
    };
    Tokio.spawn("reader", Box::pin(reading));
    outgoing
}

/// Resident memory of this process, in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4_096
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_quiet_connection_is_small_also_after_much_was_said() {
    let (heard, mut hears) = mpsc::channel(16);
    let mut sides = Vec::with_capacity(2 * PAIRS);
    let before = resident();
    for _ in 0..PAIRS {
        // What the stream itself holds is not ours, and is kept small.
        let (near, far) = tokio::io::duplex(64);
        sides.push(side(near, Side::Server, heard.clone()));
        sides.push(side(far, Side::Client, heard.clone()));
    }
    for outgoing in &sides {
        outgoing.send("hello".into()).await.unwrap();
    }
    for _ in &sides {
        assert_eq!(hears.recv().await, Some(5));
    }
    let quiet = (resident() - before) / sides.len();
    assert!(quiet <= IDLE_BYTES_MAX, "{quiet} bytes a side");
    let large = Bytes::from("x".repeat(LARGE_BYTES));
    let mut before = 0;
    for (place, outgoing) in sides.iter().take(LOUD + WARM).enumerate() {
        outgoing.send(large.clone()).await.unwrap();
        assert_eq!(hears.recv().await, Some(LARGE_BYTES));
        // What all of them need in turn is not counted.
        if place + 1 == WARM {
            before = resident();
        }
    }
    let kept = resident().saturating_sub(before) / LOUD;
    assert!(kept <= IDLE_BYTES_MAX, "{kept} bytes more a side");
}
