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
    DialError, Ended, Incoming, Outgoing, Side, SocketLimits, accept_key, dial, join,
};
use bowline_link::{BoxFuture, Spawner};
use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::Instant;

mod talk;

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
async fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

/// Takes one caller in; returns what it asked for, and the stream behind the handshake.
async fn accept(listener: &TcpListener) -> (String, TcpStream) {
    let (mut stream, _) = listener.accept().await.unwrap();
    let head = head(&mut stream).await;
    let key = head
        .lines()
        .find_map(|line| line.strip_prefix("Sec-WebSocket-Key: "))
        .unwrap();
    let accept = accept_key(key.as_bytes());
    let answer = format!(
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: WebSocket\r\nConnection: keep-alive, \
         Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n\r\n"
    );
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

#[tokio::test]
async fn the_upgrade_is_asked_for_with_the_token_and_a_refusal_says_its_status() {
    let (listener, endpoint) = listen().await;
    let spawner = Tokio::default();
    let limits = SocketLimits::default();
    let (dialled, (head, _stream)) = tokio::join!(
        dial(&endpoint, Some("s3cret\n"), soon(), limits, &spawner),
        accept(&listener)
    );
    drop(dialled.unwrap());
    assert!(head.starts_with("GET /broker HTTP/1.1\r\n"), "{head}");
    assert!(
        head.contains("\r\nAuthorization: Bearer s3cret\r\n"),
        "{head}"
    );
    for status in [401, 404, 200, 101] {
        let refuse = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            self::head(&mut stream).await;
            let answer = format!("HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n");
            stream.write_all(answer.as_bytes()).await.unwrap();
        };
        let dialling = dial(&endpoint, None, soon(), limits, &spawner);
        let (dialled, ()) = tokio::join!(dialling, refuse);
        assert_eq!(dialled.err(), Some(DialError::Refused { status }));
    }
}
