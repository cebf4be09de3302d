//! WebSockets over real sockets: delivery and disconnects.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::time::Duration;

use bowline_link::http::endpoint::HttpEndpoint;
use bowline_link::websocket::{
    DialError, DisconnectReason, MessageFormat, WebSocketLimits, WebSocketReceiver, WebSocketRole,
    WebSocketSender, accept_key, dial, open_websocket,
};
use bowline_testkit::{JoiningSpawner, listen_on_loopback, read_head, test_deadline, wait_bounded};
use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

mod accepting;
mod certificate;
mod invalid;
mod message_exchange;
mod tls;
mod websocket_dialing;
mod websocket_end;
mod websocket_limits;

/// Listens on a free port.
async fn listen_on_free_port() -> (TcpListener, HttpEndpoint) {
    let listener = listen_on_loopback().await;
    let address = listener.local_addr().unwrap();
    let endpoint = HttpEndpoint::parse(&format!("http://{address}/broker")).unwrap();
    (listener, endpoint)
}

/// Returns the 101 response for a request head.
fn upgrade_response(head: &str) -> String {
    let key = head
        .lines()
        .find_map(|line| line.strip_prefix("Sec-WebSocket-Key: "))
        .unwrap();
    let accept = accept_key(key.as_bytes());
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: WebSocket\r\nConnection: keep-alive, \
         Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n\r\n"
    )
}

/// Accepts a client; returns the request head and the upgraded stream.
async fn accept_client(listener: &TcpListener) -> (String, TcpStream) {
    let (mut stream, _) = listener.accept().await.unwrap();
    let head = read_head(&mut stream).await;
    let answer = upgrade_response(&head);
    stream.write_all(answer.as_bytes()).await.unwrap();
    (head, stream)
}

/// Returns our client, and the raw stream of the server.
async fn connect_raw_server(
    limits: WebSocketLimits,
    spawner: &JoiningSpawner,
) -> (WebSocketSender, WebSocketReceiver, TcpStream) {
    let (listener, endpoint) = listen_on_free_port().await;
    let (dialled, (_, stream)) = tokio::join!(
        dial(&endpoint, None, test_deadline(), limits, spawner),
        accept_client(&listener)
    );
    let socket = dialled.unwrap();
    (socket.sender, socket.receiver, stream)
}

/// Returns both sides of a connection.
async fn websocket_pair(
    client: WebSocketLimits,
    server: WebSocketLimits,
    spawner: &JoiningSpawner,
) -> (
    (WebSocketSender, WebSocketReceiver),
    (WebSocketSender, WebSocketReceiver),
) {
    let (outgoing, incoming, stream) = connect_raw_server(client, spawner).await;
    let served = open_websocket(stream, WebSocketRole::Server, Bytes::new(), server, spawner);
    ((outgoing, incoming), (served.sender, served.receiver))
}

/// Waits for the disconnect.
async fn wait_end(incoming: &mut WebSocketReceiver) -> DisconnectReason {
    loop {
        if let Err(ended) = wait_bounded(incoming.next()).await {
            return ended;
        }
    }
}

/// Encodes a frame of the peer.
fn encode_frame(first: u8, mask: Option<[u8; 4]>, payload: &[u8]) -> Vec<u8> {
    let masked = if mask.is_some() { 0x80 } else { 0 };
    let mut out = vec![first];
    match payload.len() {
        len @ 0..=125 => out.push(masked | u8::try_from(len).unwrap()),
        len @ 126..=0xffff => {
            out.push(masked | 126);
            out.extend_from_slice(&u16::try_from(len).unwrap().to_be_bytes());
        }
        len => {
            out.push(masked | 127);
            out.extend_from_slice(&u64::try_from(len).unwrap().to_be_bytes());
        }
    }
    let mask = mask.inspect(|mask| out.extend_from_slice(mask));
    let key = mask.unwrap_or_default();
    let masked = payload.iter().zip(key.iter().cycle());
    out.extend(masked.map(|(byte, key)| byte ^ key));
    out
}

const TEXT: u8 = 0x81;
const BINARY: u8 = 0x82;
const CLOSE: u8 = 0x88;
const PING: u8 = 0x89;
const PONG: u8 = 0x8a;

/// Reads a client frame: first byte and payload.
async fn read_frame(stream: &mut TcpStream) -> std::io::Result<(u8, Vec<u8>)> {
    let first = stream.read_u8().await?;
    let second = stream.read_u8().await?;
    assert_eq!(second & 0x80, 0x80, "a client masks");
    let len = match second & 0x7f {
        126 => u64::from(stream.read_u16().await?),
        127 => stream.read_u64().await?,
        len => u64::from(len),
    };
    let mut mask = [0; 4];
    stream.read_exact(&mut mask).await?;
    let mut payload = vec![0; usize::try_from(len).unwrap()];
    stream.read_exact(&mut payload).await?;
    for (byte, key) in payload.iter_mut().zip(mask.iter().cycle()) {
        *byte ^= key;
    }
    Ok((first, payload))
}

/// Reads the next client frame besides pings.
async fn read_non_ping(stream: &mut TcpStream) -> (u8, Vec<u8>) {
    loop {
        let (first, said) = wait_bounded(read_frame(stream)).await.unwrap();
        if first != PING {
            return (first, said);
        }
    }
}
