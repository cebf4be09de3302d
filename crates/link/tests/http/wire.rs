//! What goes over one connection, and what becomes of it.

use ::http::{Method, StatusCode};
use bowline_link::http::client::{HttpError, Outgoing, Response, Upload, Wait};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

const WAIT: Wait<'static> = Wait {
    connect: None,
    first_byte: None,
    leaving: &|| {},
};

/// A client and the server that it talks to.
struct Pair {
    server: Server,
    client: Arc<dyn HttpClient>,
    to: Endpoint,
}

impl Pair {
    async fn new() -> Self {
        let server = Server::start().await;
        Self {
            to: Endpoint::parse(&server.origin).unwrap(),
            client: client(),
            server,
        }
    }

    /// Sends a request and answers it with these bytes; returns the answer and its connection.
    async fn answers(&mut self, bytes: &str) -> (Result<Response, HttpError>, u64) {
        let mut request = Outgoing::new(Method::POST, &self.to);
        request.body = Upload::Whole(b"{}");
        let sending = self.client.send(request, WAIT);
        let answering = async {
            let seen = self.server.post().await;
            let connection = seen.connection;
            seen.raw(bytes).await;
            connection
        };
        soon(async { tokio::join!(sending, answering) }).await
    }

    /// Sends a request and reads its answer whole.
    async fn reads(&mut self, bytes: &str) -> (String, u64) {
        let (response, connection) = self.answers(bytes).await;
        (whole(response.unwrap()).await.unwrap(), connection)
    }
}

async fn whole(mut response: Response) -> Result<String, HttpError> {
    let body = soon(response.body.whole(usize::MAX)).await?;
    Ok(String::from_utf8(body.to_vec()).unwrap())
}

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

#[tokio::test]
async fn heads_before_the_answer_are_skipped() {
    let mut pair = Pair::new().await;
    let early = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n";
    let first = pair.reads(&format!("{early}{OK}")).await;
    let second = pair.reads(OK).await;
    assert_eq!(first, ("ok".to_owned(), second.1));
}

#[tokio::test]
async fn heads_without_an_answer_and_other_protocols_are_refused() {
    let mut pair = Pair::new().await;
    let endless = "HTTP/1.1 100 Continue\r\n\r\n".repeat(9);
    for bytes in [
        &*endless,
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n",
        "HTTP/2.0 200 OK\r\n\r\n",
        "SSH-2.0-x\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    ] {
        let (response, _) = pair.answers(bytes).await;
        let error = response.unwrap_err();
        assert!(matches!(error, HttpError::Head(_)), "{bytes:?}: {error:?}");
    }
}

#[tokio::test]
async fn a_connection_is_used_again_after_every_body_with_an_end() {
    let mut pair = Pair::new().await;
    let long = "y".repeat(1 << 20);
    let mut connections = Vec::new();
    for (bytes, want) in [
        (OK, "ok"),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2;a=b\r\nok\r\n1\r\n!\r\n0\r\nsum: 3\r\n\r\n",
            "ok!",
        ),
        ("HTTP/1.1 204 No Content\r\n\r\n", ""),
        ("HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n", ""),
        (
            &*format!("HTTP/1.1 200 OK\r\ncontent-length: 1048576\r\n\r\n{long}"),
            &*long,
        ),
        (
            &*format!(
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n100000\r\n{long}\r\n0\r\n\r\n"
            ),
            &*long,
        ),
        (OK, "ok"),
    ] {
        let (body, connection) = pair.reads(bytes).await;
        assert!(body == want, "{} bytes", body.len());
        connections.push(connection);
    }
    assert_eq!(connections, [1; 7]);
}

#[tokio::test]
async fn a_connection_is_not_used_again_after_stray_bytes_or_a_word_to_close_it() {
    let mut pair = Pair::new().await;
    let mut connections = Vec::new();
    for bytes in [
        &*format!("{OK}HTTP/1.1 200 OK\r\n"),
        "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
        "HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nok",
        OK,
    ] {
        let (body, connection) = pair.reads(bytes).await;
        assert_eq!(body, "ok", "{bytes:?}");
        connections.push(connection);
    }
    assert_eq!(connections, [1, 2, 3, 4]);
}

#[tokio::test]
async fn bytes_that_come_while_a_connection_waits_close_it() {
    let mut pair = Pair::new().await;
    let request = Outgoing::new(Method::POST, &pair.to);
    let sending = pair.client.send(request, WAIT);
    let (response, mut seen) = soon(async {
        tokio::join!(sending, async {
            let mut seen = pair.server.post().await;
            seen.writes(OK).await;
            seen
        })
    })
    .await;
    assert_eq!(whole(response.unwrap()).await.unwrap(), "ok");
    // It is taken for no answer, though it is one.
    seen.writes("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nwrong")
        .await;
    let (body, connection) = pair.reads(OK).await;
    assert_eq!((&*body, connection), ("ok", 2));
    seen.is_left().await;
}

/// A listener that reads the start of one request, writes, and does what is asked of it.
async fn once(answer: &'static str) -> (Endpoint, JoinHandle<tokio::net::TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = Endpoint::parse(&format!("http://{}/", listener.local_addr().unwrap())).unwrap();
    let serving = spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut start = [0; 16];
        stream.read_exact(&mut start).await.unwrap();
        stream.write_all(answer.as_bytes()).await.unwrap();
        stream
    });
    (to, serving)
}

#[tokio::test]
async fn an_answer_before_the_end_of_a_long_request_is_taken() {
    let early = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 413 No\r\ncontent-length: 3\r\n\r\nbig";
    let (to, serving) = once(early).await;
    let client = client();
    let mut request = Outgoing::new(Method::POST, &to);
    // More than the kernel takes from a writer whose reader does not read.
    let body = vec![b'x'; 32 << 20];
    request.body = Upload::Whole(&body);
    let response = soon(client.send(request, WAIT)).await.unwrap();
    assert_eq!(response.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(whole(response).await.unwrap(), "big");
    // What was asked in part cannot be followed by anything: the connection is closed.
    let mut stream = serving.await.unwrap();
    let mut rest = Vec::new();
    let _ = soon(stream.read_to_end(&mut rest)).await;
    assert!(rest.len() < 32 << 20);
}

#[tokio::test]
async fn a_long_request_arrives_whole() {
    let mut pair = Pair::new().await;
    let mut request = Outgoing::new(Method::POST, &pair.to);
    let body: String = ('a'..='z').cycle().take(5 << 20).collect();
    request.body = Upload::Whole(body.as_bytes());
    let sending = pair.client.send(request, WAIT);
    let answering = async {
        let seen = pair.server.post().await;
        assert!(seen.body == body);
        seen.raw(OK).await;
    };
    let (response, ()) = soon(async { tokio::join!(sending, answering) }).await;
    assert_eq!(whole(response.unwrap()).await.unwrap(), "ok");
    assert_eq!(pair.reads(OK).await.1, 1);
}

#[tokio::test]
async fn a_body_without_an_end_ends_with_its_connection() {
    for answer in [
        "HTTP/1.1 200 OK\r\n\r\nall of it",
        "HTTP/1.0 200 OK\r\n\r\nall of it",
    ] {
        let (to, serving) = once(answer).await;
        let client = client();
        let sent = soon(client.send(Outgoing::new(Method::POST, &to), WAIT)).await;
        let mut stream = serving.await.unwrap();
        stream.shutdown().await.unwrap();
        assert_eq!(whole(sent.unwrap()).await.unwrap(), "all of it");
    }
}

#[tokio::test]
async fn a_body_that_is_cut_short_is_lost() {
    for answer in [
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhell",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhell",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
    ] {
        let (to, serving) = once(answer).await;
        let client = client();
        let sent = soon(client.send(Outgoing::new(Method::POST, &to), WAIT)).await;
        let mut stream = serving.await.unwrap();
        stream.shutdown().await.unwrap();
        let error = whole(sent.unwrap()).await.unwrap_err();
        assert!(matches!(error, HttpError::Lost(_)), "{answer:?}: {error:?}");
    }
}

#[tokio::test]
async fn the_answer_to_head_has_no_body() {
    let (to, serving) = once("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n").await;
    let client = client();
    let response = soon(client.send(Outgoing::new(Method::HEAD, &to), WAIT)).await;
    assert_eq!(whole(response.unwrap()).await.unwrap(), "");
    drop(serving);
}
