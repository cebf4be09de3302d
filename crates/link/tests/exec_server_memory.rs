//! What an exec-server can make a gateway hold: memory of a process of its own, so that no other
//! test is counted.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]
#![cfg(target_os = "linux")]

use bowline_link::executor::{Carrier as _, Errand, ExecServer, exec_server_limits};
use bowline_link::http::client::{Body, HttpError, Outgoing as Request, Wait};
use bowline_link::http::endpoint::Endpoint;
use bowline_link::websocket::{Incoming, Outgoing, Side, SocketLimits, join};
use bowline_link::{BoxFuture, Spawner};
use bowline_wire::execserver::{Answered, Asked, Id, Said, opened, write_delta};
use bytes::Bytes;
use http::Method;

const MIB: usize = 1024 * 1024;

/// What may wait of all streams of a connection, in bytes.
const CONNECTION_BYTES_MAX: usize = 16 * MIB;

/// What else may grow: a message that waits for room, the next one, and the allocator's
/// own, in bytes.
const SLACK_BYTES: usize = 8 * MIB;

/// What one piece that waits may cost besides its bytes.
const PIECE_COST_BYTES: usize = 128;

struct Tokio;

impl Spawner for Tokio {
    #[expect(clippy::disallowed_methods, reason = "tests have no task keeper")]
    fn spawn(&self, _: &'static str, task: BoxFuture<'static, ()>) {
        tokio::spawn(task);
    }
}

/// Resident memory of this process, in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4_096
}

/// The side that sends as much as it likes.
struct Peer {
    outgoing: Outgoing,
    incoming: Incoming,
}

impl Peer {
    async fn connected() -> (ExecServer, Self) {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let limits = exec_server_limits();
        let io = join(near, Side::Client, Bytes::new(), limits, &Tokio);
        // What the sender holds is not ours, and is kept small.
        let theirs = SocketLimits {
            queue_bytes_max: 64 * 1024,
            ..limits
        };
        let (outgoing, incoming) = join(far, Side::Server, Bytes::new(), theirs, &Tokio);
        let mut peer = Self { outgoing, incoming };
        let opening = ExecServer::open(io, "bowline", None, &Tokio);
        let scripting = async {
            peer.incoming.next().await.unwrap();
            peer.send(opened(&Id::Number(1), "s")).await;
            peer.incoming.next().await.unwrap();
        };
        let (client, ()) = tokio::join!(opening, scripting);
        (client.unwrap(), peer)
    }

    async fn send(&self, message: Bytes) {
        self.outgoing.send(message).await.unwrap();
    }

    /// Opens one more stream; returns its body and its name.
    async fn stream(&mut self, client: &ExecServer) -> (Body, String) {
        let to = Endpoint::parse("http://a.example/").unwrap();
        let errand = Errand {
            server: "far",
            request: Request::new(Method::GET, &to),
            fills: &[],
        };
        let wait = Wait {
            connect: None,
            first_byte: None,
            leaving: &|| (),
        };
        let scripting = async {
            let message = self.incoming.next().await.unwrap();
            let Said::Request { id, params, .. } = Said::read(&message).unwrap() else {
                panic!("no request");
            };
            self.send(Answered::write(&id, 200, &[], b"")).await;
            Asked::read(&params).unwrap().request_id.to_string()
        };
        let (response, name) = tokio::join!(client.carry(errand, wait), scripting);
        (response.unwrap().body, name)
    }
}

async fn read(body: &mut Body) -> (usize, Option<HttpError>) {
    let mut bytes = 0;
    loop {
        match body.chunk().await {
            Some(Ok(piece)) => bytes += piece.len(),
            Some(Err(error)) => return (bytes, Some(error)),
            None => return (bytes, None),
        }
    }
}

#[tokio::test]
async fn an_exec_server_that_sends_without_end_costs_what_may_wait_and_no_more() {
    let (client, mut peer) = Peer::connected().await;
    // The allocator keeps what was used once.
    let (warm, name) = peer.stream(&client).await;
    let large = vec![b'x'; MIB];
    peer.send(write_delta(&name, 1, &large, None)).await;
    drop(warm);
    let mut streams = Vec::new();
    for _ in 0..32 {
        streams.push(peer.stream(&client).await);
    }
    let before = resident();
    // Eight times of what may wait.
    for seq in 1..=4 {
        for (_, name) in &streams {
            peer.send(write_delta(name, seq, &large, None)).await;
        }
    }
    let (last, _) = peer.stream(&client).await;
    let grown = resident().saturating_sub(before);
    assert!(grown < CONNECTION_BYTES_MAX + SLACK_BYTES, "{grown}");
    for (_, name) in &streams {
        peer.send(write_delta(name, 5, b"", Some(Ok(())))).await;
    }
    let (mut all, mut overflows) = (0, 0);
    for (body, _) in &mut streams {
        let (bytes, error) = read(body).await;
        all += bytes;
        match error {
            None => {}
            Some(HttpError::Overflow(_)) => overflows += 1,
            Some(other) => panic!("{other:?}"),
        }
    }
    assert!(all <= CONNECTION_BYTES_MAX && overflows > 0, "{all}");
    drop((streams, last));

    // Two hundred streams with as many tiny pieces as may wait.
    let mut streams = Vec::new();
    for _ in 0..200 {
        streams.push(peer.stream(&client).await);
    }
    let before = resident();
    for seq in 1..=300 {
        for (_, name) in &streams {
            peer.send(write_delta(name, seq, b"x", None)).await;
        }
    }
    let (last, _) = peer.stream(&client).await;
    let grown = resident().saturating_sub(before);
    assert!(grown < 51_200 * PIECE_COST_BYTES, "{grown}");
    drop(last);
    let (mut body, name) = streams.pop().unwrap();
    peer.send(write_delta(&name, 301, b"", Some(Ok(())))).await;
    assert_eq!(read(&mut body).await, (300, None));
}
