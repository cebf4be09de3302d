//! Memory bound of an exec-server connection, measured in a separate process without further tests.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]
#![cfg(target_os = "linux")]

use bowline_executor::connection::{
    ExecServerConnection, ExecutorConnection as _, ExecutorRequest, exec_server_limits,
};
use bowline_executor::execserver::{
    ExecHttpRequest, ExecHttpResponse, ExecMessage, ExecRequestId, write_delta, write_session,
};
use bowline_link::http::endpoint::HttpEndpoint;
use bowline_link::http::http_client::{HttpBody, HttpError, HttpRequest as Request, SendOptions};
use bowline_link::websocket::{
    WebSocketConnection, WebSocketLimits, WebSocketRole, open_websocket,
};
use bowline_testkit::{DetachedSpawner, resident_bytes};
use bytes::Bytes;
use http::Method;

const MIB: usize = 1024 * 1024;

/// Buffered bytes of all streams of a connection.
const CONNECTION_BYTES_MAX: usize = 16 * MIB;

/// Further growth: a message waiting for room, the next message, and the allocator, in bytes.
const SLACK_BYTES: usize = 8 * MIB;

/// Overhead of a buffered chunk.
const PIECE_COST_BYTES: usize = 128;

/// An exec-server that sends without limit.
struct FloodingExecServer {
    socket: WebSocketConnection,
}

impl FloodingExecServer {
    async fn connect() -> (ExecServerConnection, Self) {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let limits = exec_server_limits();
        let near = open_websocket(
            near,
            WebSocketRole::Client,
            Bytes::new(),
            limits,
            &DetachedSpawner,
        );
        // The sender's own queue is kept small.
        let theirs = WebSocketLimits {
            queue_bytes_max: 64 * 1024,
            ..limits
        };
        let socket = open_websocket(
            far,
            WebSocketRole::Server,
            Bytes::new(),
            theirs,
            &DetachedSpawner,
        );
        let mut peer = Self { socket };
        let opening = ExecServerConnection::open(near, "bowline", None, &DetachedSpawner);
        let scripting = async {
            peer.socket.receiver.next().await.unwrap();
            peer.send_message(write_session(&ExecRequestId::Number(1), "s"))
                .await;
            peer.socket.receiver.next().await.unwrap();
        };
        let (client, ()) = tokio::join!(opening, scripting);
        (client.unwrap(), peer)
    }

    async fn send_message(&self, message: Bytes) {
        self.socket.sender.send(message).await.unwrap();
    }

    /// Opens a stream; returns the body and the stream name.
    async fn open_stream(&mut self, client: &ExecServerConnection) -> (HttpBody, String) {
        let to = HttpEndpoint::parse("http://a.example/").unwrap();
        let errand = ExecutorRequest {
            server: "far",
            request: Request::new(Method::GET, &to),
            secret_headers: &[],
        };
        let wait = SendOptions {
            connect_by: None,
            first_byte_by: None,
            on_send: &|| (),
        };
        let scripting = async {
            let message = self.socket.receiver.next().await.unwrap();
            let ExecMessage::Request { id, params, .. } = ExecMessage::parse(&message).unwrap()
            else {
                panic!("no request");
            };
            self.send_message(ExecHttpResponse::encode(&id, 200, &[], b""))
                .await;
            ExecHttpRequest::parse(&params)
                .unwrap()
                .request_id
                .to_string()
        };
        let (response, name) = tokio::join!(client.send_request(errand, wait), scripting);
        (response.unwrap().body, name)
    }
}

async fn read_body(body: &mut HttpBody) -> (usize, Option<HttpError>) {
    let mut bytes = 0;
    loop {
        match body.next_chunk().await {
            Some(Ok(piece)) => bytes += piece.len(),
            Some(Err(error)) => return (bytes, Some(error)),
            None => return (bytes, None),
        }
    }
}

#[tokio::test]
async fn endless_exec_server_output_is_bounded() {
    let (client, mut peer) = FloodingExecServer::connect().await;
    // Warm up, as the allocator keeps used memory.
    let (warm, name) = peer.open_stream(&client).await;
    let large = vec![b'x'; MIB];
    peer.send_message(write_delta(&name, 1, &large, None)).await;
    drop(warm);
    let mut streams = Vec::new();
    for _ in 0..32 {
        streams.push(peer.open_stream(&client).await);
    }
    let before = resident_bytes(std::process::id());
    // Eight times the buffer limit.
    for seq in 1..=4 {
        for (_, name) in &streams {
            peer.send_message(write_delta(name, seq, &large, None))
                .await;
        }
    }
    let (last, _) = peer.open_stream(&client).await;
    let grown = resident_bytes(std::process::id()).saturating_sub(before);
    assert!(grown < CONNECTION_BYTES_MAX + SLACK_BYTES, "{grown}");
    for (_, name) in &streams {
        peer.send_message(write_delta(name, 5, b"", Some(Ok(()))))
            .await;
    }
    let (mut all, mut overflows) = (0, 0);
    for (body, _) in &mut streams {
        let (bytes, error) = read_body(body).await;
        all += bytes;
        match error {
            None => {}
            Some(HttpError::Overflow(_)) => overflows += 1,
            Some(other) => panic!("{other:?}"),
        }
    }
    assert!(all <= CONNECTION_BYTES_MAX && overflows > 0, "{all}");
    drop((streams, last));

    // Two hundred streams, each with the maximum of tiny chunks.
    let mut streams = Vec::new();
    for _ in 0..200 {
        streams.push(peer.open_stream(&client).await);
    }
    let before = resident_bytes(std::process::id());
    for seq in 1..=300 {
        for (_, name) in &streams {
            peer.send_message(write_delta(name, seq, b"x", None)).await;
        }
    }
    let (last, _) = peer.open_stream(&client).await;
    let grown = resident_bytes(std::process::id()).saturating_sub(before);
    assert!(grown < 51_200 * PIECE_COST_BYTES, "{grown}");
    drop(last);
    let (mut body, name) = streams.pop().unwrap();
    peer.send_message(write_delta(&name, 301, b"", Some(Ok(()))))
        .await;
    assert_eq!(read_body(&mut body).await, (300, None));
}
