//! Both ends of TCP connections on loopback, and an upstream that a test scripts byte by byte.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::waits::wait_bounded;

/// Listens on a free port of loopback.
pub async fn listen_on_loopback() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

/// Returns the two ends of a connection.
pub async fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = listen_on_loopback().await;
    let dialling = TcpStream::connect(listener.local_addr().unwrap());
    let (dialled, accepted) = tokio::join!(dialling, listener.accept());
    let (dialled, accepted) = (dialled.unwrap(), accepted.unwrap().0);
    dialled.set_nodelay(true).unwrap();
    accepted.set_nodelay(true).unwrap();
    (dialled, accepted)
}

/// Reads the head of an HTTP message, to the empty line.
pub async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    wait_bounded(async {
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
    })
    .await;
    String::from_utf8(head).unwrap()
}

/// Reads this many bytes.
pub async fn read_bytes(stream: &mut TcpStream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    wait_bounded(stream.read_exact(&mut bytes)).await.unwrap();
    bytes
}

/// Writes all bytes.
pub async fn write_bytes(stream: &mut TcpStream, bytes: impl AsRef<[u8]>) {
    wait_bounded(stream.write_all(bytes.as_ref()))
        .await
        .unwrap();
}

/// Reads until the far end closes or resets the connection.
pub async fn wait_closed(stream: &mut TcpStream) {
    wait_bounded(async {
        let mut discarded = vec![0; 64 * 1024];
        while let Ok(1..) = stream.read(&mut discarded).await {}
    })
    .await;
}

/// A listener that the test accepts from.
#[derive(Debug)]
pub struct RawUpstream {
    /// The listener.
    pub listener: TcpListener,
    /// Its address as a URL with the path `/`.
    pub url: String,
}

impl RawUpstream {
    /// Listens on a free port.
    pub async fn start() -> Self {
        let listener = listen_on_loopback().await;
        let url = format!("http://{}/", listener.local_addr().unwrap());
        Self { listener, url }
    }

    /// Returns the address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }

    /// Accepts a connection and reads the head of a request.
    pub async fn accept_request(&self) -> (TcpStream, String) {
        let (mut stream, _) = wait_bounded(self.listener.accept()).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let head = read_head(&mut stream).await;
        (stream, head)
    }

    /// Accepts a request, writes the response and closes; returns the head of the request.
    pub async fn serve_response(&self, response: impl AsRef<[u8]>) -> String {
        let (mut stream, head) = self.accept_request().await;
        write_bytes(&mut stream, response).await;
        head
    }

    /// Fails if a connection waits to be accepted.
    pub async fn assert_unused(&self) {
        // The time is for the reactor, which reports a connection that waits.
        let accepting = timeout(Duration::from_millis(1), self.listener.accept());
        assert!(accepting.await.is_err(), "a connection arrived");
    }
}
