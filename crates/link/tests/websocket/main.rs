//! WebSockets over real sockets: what is said arrives, and every way to end is told.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::sync::Mutex;
use std::time::Duration;

use bowline_link::http::endpoint::Endpoint;
use bowline_link::websocket::{
    DialError, Ended, Form, Incoming, Outgoing, Side, SocketLimits, accept_key, dial, join,
};
use bowline_link::{BoxFuture, Spawner};
use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::Instant;

mod accepting;
mod certificate;
mod dialling;
mod ends;
mod invalid;
mod limits;
mod talk;
mod tls;

/// No wait of a test takes longer; a test that does has failed.
const LONG: Duration = Duration::from_secs(20);

/// Runs tasks, and knows when all have ended.
#[derive(Debug, Default)]
struct Tokio(Mutex<Vec<JoinHandle<()>>>);

impl Spawner for Tokio {
    fn spawn(&self, _: &'static str, task: BoxFuture<'static, ()>) {
        #[expect(clippy::disallowed_methods, reason = "the tests' own spawner")]
        self.0.lock().unwrap().push(tokio::spawn(task));
    }
}

impl Tokio {
    /// Waits until every task has ended by itself.
    async fn idle(&self) {
        let tasks = std::mem::take(&mut *self.0.lock().unwrap());
        for task in tasks {
            tokio::time::timeout(LONG, task).await.unwrap().unwrap();
        }
    }
}

fn soon() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "the tests' own deadline")]
    let now = Instant::now();
    now + LONG
}

/// Listens, and gives out where.
async fn listen() -> (TcpListener, Endpoint) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let endpoint = Endpoint::parse(&format!("http://{address}/broker")).unwrap();
    (listener, endpoint)
}

/// Reads the head of a request.
async fn head(stream: &mut (impl AsyncReadExt + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

/// What lets a caller in.
fn answer_to(head: &str) -> String {
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

/// Takes one caller in; returns what it asked for, and the stream behind the handshake.
async fn accept(listener: &TcpListener) -> (String, TcpStream) {
    let (mut stream, _) = listener.accept().await.unwrap();
    let head = head(&mut stream).await;
    let answer = answer_to(&head);
    stream.write_all(answer.as_bytes()).await.unwrap();
    (head, stream)
}

/// A client of ours, and the raw stream of the server that it speaks to.
async fn raw_server(limits: SocketLimits, spawner: &Tokio) -> (Outgoing, Incoming, TcpStream) {
    let (listener, endpoint) = listen().await;
    let (dialled, (_, stream)) = tokio::join!(
        dial(&endpoint, None, soon(), limits, spawner),
        accept(&listener)
    );
    let (outgoing, incoming) = dialled.unwrap();
    (outgoing, incoming, stream)
}

/// Both sides are ours.
async fn pair(
    client: SocketLimits,
    server: SocketLimits,
    spawner: &Tokio,
) -> ((Outgoing, Incoming), (Outgoing, Incoming)) {
    let (outgoing, incoming, stream) = raw_server(client, spawner).await;
    let served = join(stream, Side::Server, Bytes::new(), server, spawner);
    ((outgoing, incoming), served)
}

/// The end of a connection, which must come.
async fn end(incoming: &mut Incoming) -> Ended {
    loop {
        let next = tokio::time::timeout(LONG, incoming.next()).await;
        if let Err(ended) = next.unwrap() {
            return ended;
        }
    }
}

/// One frame as the other side of the wire writes it.
fn frame(first: u8, mask: Option<[u8; 4]>, payload: &[u8]) -> Vec<u8> {
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

/// Reads one frame of a client: its first byte and what it says.
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

/// The next frame of a client that is no ping.
async fn read_said(stream: &mut TcpStream) -> (u8, Vec<u8>) {
    loop {
        let read = tokio::time::timeout(LONG, read_frame(stream)).await;
        let (first, said) = read.unwrap().unwrap();
        if first != PING {
            return (first, said);
        }
    }
}
