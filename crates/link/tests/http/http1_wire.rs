//! HTTP/1.1 connections: framing and reuse.

use ::http::{Method, StatusCode};
use bowline_link::http::http_client::{
    HttpError, HttpRequest, HttpResponse, RequestBody, SendOptions,
};
use bowline_testkit::wait_bounded;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

const WAIT: SendOptions<'static> = SendOptions {
    connect_by: None,
    first_byte_by: None,
    on_send: &|| {},
};

/// A client and the scripted server.
struct ClientAndServer {
    server: ScriptedServer,
    client: Arc<dyn HttpClient>,
    to: HttpEndpoint,
}

impl ClientAndServer {
    async fn new() -> Self {
        let server = ScriptedServer::start().await;
        Self {
            to: HttpEndpoint::parse(&server.origin).unwrap(),
            client: http_client(),
            server,
        }
    }

    /// Sends a request and responds with these bytes; returns the response and the connection
    /// number.
    async fn exchange(&mut self, bytes: &str) -> (Result<HttpResponse, HttpError>, u64) {
        let mut request = HttpRequest::new(Method::POST, &self.to);
        request.body = RequestBody::Whole(b"{}");
        let sending = self.client.send(request, WAIT);
        let answering = async {
            let seen = self.server.next_post().await;
            let connection = seen.connection;
            seen.respond_raw(bytes).await;
            connection
        };
        wait_bounded(async { tokio::join!(sending, answering) }).await
    }

    /// Sends a request and reads the whole response.
    async fn exchange_whole(&mut self, bytes: &str) -> (String, u64) {
        let (response, connection) = self.exchange(bytes).await;
        (read_whole(response.unwrap()).await.unwrap(), connection)
    }
}

async fn read_whole(mut response: HttpResponse) -> Result<String, HttpError> {
    let body = wait_bounded(response.body.read_whole(usize::MAX)).await?;
    Ok(String::from_utf8(body.to_vec()).unwrap())
}

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

#[tokio::test]
async fn informational_heads_are_skipped() {
    let mut pair = ClientAndServer::new().await;
    let early = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n";
    let first = pair.exchange_whole(&format!("{early}{OK}")).await;
    let second = pair.exchange_whole(OK).await;
    assert_eq!(first, ("ok".to_owned(), second.1));
}

#[tokio::test]
async fn endless_heads_and_protocol_switch_are_refused() {
    let mut pair = ClientAndServer::new().await;
    let endless = "HTTP/1.1 100 Continue\r\n\r\n".repeat(9);
    for bytes in [
        &*endless,
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n",
        "HTTP/2.0 200 OK\r\n\r\n",
        "SSH-2.0-x\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    ] {
        let (response, _) = pair.exchange(bytes).await;
        let error = response.unwrap_err();
        assert!(
            matches!(error, HttpError::BadHead(_)),
            "{bytes:?}: {error:?}"
        );
    }
}

#[tokio::test]
async fn framed_body_keeps_connection() {
    let mut pair = ClientAndServer::new().await;
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
        let (body, connection) = pair.exchange_whole(bytes).await;
        assert!(body == want, "{} bytes", body.len());
        connections.push(connection);
    }
    assert_eq!(connections, [1; 7]);
}

#[tokio::test]
async fn stray_bytes_or_close_end_connection() {
    let mut pair = ClientAndServer::new().await;
    let mut connections = Vec::new();
    for bytes in [
        &*format!("{OK}HTTP/1.1 200 OK\r\n"),
        "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
        "HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nok",
        OK,
    ] {
        let (body, connection) = pair.exchange_whole(bytes).await;
        assert_eq!(body, "ok", "{bytes:?}");
        connections.push(connection);
    }
    assert_eq!(connections, [1, 2, 3, 4]);
}

#[tokio::test]
async fn bytes_on_idle_connection_close_it() {
    let mut pair = ClientAndServer::new().await;
    let request = HttpRequest::new(Method::POST, &pair.to);
    let sending = pair.client.send(request, WAIT);
    let (response, mut seen) = wait_bounded(async {
        tokio::join!(sending, async {
            let mut seen = pair.server.next_post().await;
            seen.write_open(OK).await;
            seen
        })
    })
    .await;
    assert_eq!(read_whole(response.unwrap()).await.unwrap(), "ok");
    // Unsolicited input is never used as a response.
    seen.write_open("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nwrong")
        .await;
    let (body, connection) = pair.exchange_whole(OK).await;
    assert_eq!((&*body, connection), ("ok", 2));
    seen.wait_closed().await;
}

/// Listens for a single request, writes `answer`, and returns the stream.
async fn serve_once(answer: &'static str) -> (HttpEndpoint, JoinHandle<tokio::net::TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = HttpEndpoint::parse(&format!("http://{}/", listener.local_addr().unwrap())).unwrap();
    let serving = spawn_task(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut start = [0; 16];
        stream.read_exact(&mut start).await.unwrap();
        stream.write_all(answer.as_bytes()).await.unwrap();
        stream
    });
    (to, serving)
}

#[tokio::test]
async fn early_response_to_long_request_is_accepted() {
    let early = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 413 No\r\ncontent-length: 3\r\n\r\nbig";
    let (to, serving) = serve_once(early).await;
    let client = http_client();
    let mut request = HttpRequest::new(Method::POST, &to);
    // Beyond the kernel buffers of a writer without a reader.
    let body = vec![b'x'; 32 << 20];
    request.body = RequestBody::Whole(&body);
    let response = wait_bounded(client.send(request, WAIT)).await.unwrap();
    assert_eq!(response.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(read_whole(response).await.unwrap(), "big");
    // After a partial request, the connection is closed.
    let mut stream = serving.await.unwrap();
    let mut rest = Vec::new();
    let _ = wait_bounded(stream.read_to_end(&mut rest)).await;
    assert!(rest.len() < 32 << 20);
}

#[tokio::test]
async fn long_request_arrives_whole() {
    let mut pair = ClientAndServer::new().await;
    let mut request = HttpRequest::new(Method::POST, &pair.to);
    let body: String = ('a'..='z').cycle().take(5 << 20).collect();
    request.body = RequestBody::Whole(body.as_bytes());
    let sending = pair.client.send(request, WAIT);
    let answering = async {
        let seen = pair.server.next_post().await;
        assert!(seen.body == body);
        seen.respond_raw(OK).await;
    };
    let (response, ()) = wait_bounded(async { tokio::join!(sending, answering) }).await;
    assert_eq!(read_whole(response.unwrap()).await.unwrap(), "ok");
    assert_eq!(pair.exchange_whole(OK).await.1, 1);
}

#[tokio::test]
async fn unframed_body_ends_with_connection() {
    for answer in [
        "HTTP/1.1 200 OK\r\n\r\nall of it",
        "HTTP/1.0 200 OK\r\n\r\nall of it",
    ] {
        let (to, serving) = serve_once(answer).await;
        let client = http_client();
        let sent = wait_bounded(client.send(HttpRequest::new(Method::POST, &to), WAIT)).await;
        let mut stream = serving.await.unwrap();
        stream.shutdown().await.unwrap();
        assert_eq!(read_whole(sent.unwrap()).await.unwrap(), "all of it");
    }
}

#[tokio::test]
async fn truncated_body_is_lost() {
    for answer in [
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhell",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhell",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
    ] {
        let (to, serving) = serve_once(answer).await;
        let client = http_client();
        let sent = wait_bounded(client.send(HttpRequest::new(Method::POST, &to), WAIT)).await;
        let mut stream = serving.await.unwrap();
        stream.shutdown().await.unwrap();
        let error = read_whole(sent.unwrap()).await.unwrap_err();
        assert!(matches!(error, HttpError::Lost(_)), "{answer:?}: {error:?}");
    }
}

#[tokio::test]
async fn head_response_has_no_body() {
    let (to, serving) = serve_once("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n").await;
    let client = http_client();
    let response = wait_bounded(client.send(HttpRequest::new(Method::HEAD, &to), WAIT)).await;
    assert_eq!(read_whole(response.unwrap()).await.unwrap(), "");
    drop(serving);
}
