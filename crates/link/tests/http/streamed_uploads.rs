//! Streaming uploads and trailers.

use std::task::{Context, Poll};

use ::http::Method;
use bowline_link::http::http_client::{
    BodyChunks, HttpError, HttpRequest, HttpResponse, RequestBody, SendOptions,
};
use bowline_testkit::wait_bounded;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;

const WAIT: SendOptions<'static> = SendOptions {
    connect_by: None,
    first_byte_by: None,
    on_send: &|| {},
};

/// A body fed from a channel.
#[derive(Debug)]
struct ChannelUpload {
    pieces: mpsc::Receiver<Result<Bytes, HttpError>>,
    trailers: &'static [u8],
}

impl BodyChunks for ChannelUpload {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, HttpError>>> {
        self.pieces.poll_recv(cx)
    }

    fn take_trailers(&mut self) -> Bytes {
        Bytes::from_static(self.trailers)
    }
}

type UploadFeed = mpsc::Sender<Result<Bytes, HttpError>>;

fn channel_upload(
    length: Option<u64>,
    trailers: &'static [u8],
) -> (UploadFeed, RequestBody<'static>) {
    let (feed, pieces) = mpsc::channel(4);
    let chunks = Box::new(ChannelUpload { pieces, trailers });
    (feed, RequestBody::Streaming { chunks, length })
}

async fn listen_on_free_port() -> (TcpListener, HttpEndpoint) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = format!("http://{}/up", listener.local_addr().unwrap());
    (listener, HttpEndpoint::parse(&to).unwrap())
}

/// Sends a request in the background.
fn start_send(
    to: &HttpEndpoint,
    body: RequestBody<'static>,
) -> JoinHandle<Result<HttpResponse, HttpError>> {
    let (to, client) = (to.clone(), http_client());
    spawn_task(async move {
        let mut request = HttpRequest::new(Method::POST, &to);
        request.body = body;
        client.send(request, WAIT).await
    })
}

/// Reads until the input ends with `end`.
async fn read_until(stream: &mut TcpStream, end: &[u8]) -> Vec<u8> {
    let mut read = Vec::new();
    wait_bounded(async {
        while !read.ends_with(end) {
            read.push(stream.read_u8().await.unwrap());
        }
    })
    .await;
    read
}

#[tokio::test]
async fn streaming_body_is_sent_with_trailers() {
    let (listener, to) = listen_on_free_port().await;
    let (feed, body) = channel_upload(None, b"x-sum: 9\r\n");
    let sending = start_send(&to, body);
    let (mut stream, _) = listener.accept().await.unwrap();
    let head = read_until(&mut stream, b"\r\n\r\n").await;
    let head = String::from_utf8(head).unwrap();
    assert!(head.contains("transfer-encoding: chunked\r\n"), "{head}");
    // Each chunk is sent before the next chunk exists.
    feed.send(Ok("one".into())).await.unwrap();
    assert_eq!(read_until(&mut stream, b"one\r\n").await, b"3\r\none\r\n");
    let large = vec![b'y'; 40_000];
    feed.send(Ok(large.clone().into())).await.unwrap();
    let want = [b"9c40\r\n", &large[..], b"\r\n"].concat();
    assert_eq!(read_until(&mut stream, b"y\r\n").await, want);
    drop(feed);
    let end = read_until(&mut stream, b"\r\n\r\n").await;
    assert_eq!(end, b"0\r\nx-sum: 9\r\n\r\n");
    stream.write_all(b"HTTP/1.1 204 No\r\n\r\n").await.unwrap();
    assert_eq!(wait_bounded(sending).await.unwrap().unwrap().status, 204);
}

#[tokio::test]
async fn known_length_is_declared_and_enforced() {
    for (pieces, is_good) in [
        (["ab", "c"], true),
        (["ab", ""], false),
        (["ab", "cd"], false),
    ] {
        let (listener, to) = listen_on_free_port().await;
        let (feed, body) = channel_upload(Some(3), b"");
        let sending = start_send(&to, body);
        let (mut stream, _) = listener.accept().await.unwrap();
        let head = read_until(&mut stream, b"\r\n\r\n").await;
        let head = String::from_utf8(head).unwrap();
        assert!(head.contains("content-length: 3\r\n"), "{head}");
        for piece in pieces {
            feed.send(Ok(piece.into())).await.unwrap();
        }
        drop(feed);
        if is_good {
            assert_eq!(read_until(&mut stream, b"c").await, b"abc");
            stream.write_all(b"HTTP/1.1 204 No\r\n\r\n").await.unwrap();
            assert_eq!(wait_bounded(sending).await.unwrap().unwrap().status, 204);
        } else {
            let error = wait_bounded(sending).await.unwrap().unwrap_err();
            assert!(matches!(error, HttpError::Invalid(_)), "{error:?}");
            let mut rest = Vec::new();
            let _closed = wait_bounded(stream.read_to_end(&mut rest)).await;
            assert!(rest.len() < 3);
        }
    }
}

#[tokio::test]
async fn response_is_readable_during_upload() {
    let (listener, to) = listen_on_free_port().await;
    let (feed, body) = channel_upload(None, b"");
    let sending = start_send(&to, body);
    let (mut stream, _) = listener.accept().await.unwrap();
    read_until(&mut stream, b"\r\n\r\n").await;
    let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head).await.unwrap();
    let mut response = wait_bounded(sending).await.unwrap().unwrap();
    for word in ["ping", "pong"] {
        feed.send(Ok(word.into())).await.unwrap();
        let echo = async {
            let piece = read_until(&mut stream, format!("4\r\n{word}\r\n").as_bytes()).await;
            stream.write_all(&piece).await.unwrap();
        };
        let (piece, ()) =
            wait_bounded(async { tokio::join!(response.body.next_chunk(), echo) }).await;
        assert_eq!(piece.unwrap().unwrap(), word);
    }
    drop(feed);
    let end = async {
        read_until(&mut stream, b"0\r\n\r\n").await;
        stream.write_all(b"0\r\nx-end: 1\r\n\r\n").await.unwrap();
    };
    let (piece, ()) = wait_bounded(async { tokio::join!(response.body.next_chunk(), end) }).await;
    assert_eq!(piece, None);
    assert_eq!(response.body.take_trailers(), "x-end: 1\r\n");
}

#[tokio::test]
async fn broken_upload_cancels_request() {
    let (listener, to) = listen_on_free_port().await;
    let (feed, body) = channel_upload(None, b"");
    let sending = start_send(&to, body);
    let (mut stream, _) = listener.accept().await.unwrap();
    read_until(&mut stream, b"\r\n\r\n").await;
    feed.send(Ok("half".into())).await.unwrap();
    read_until(&mut stream, b"half\r\n").await;
    let gone = HttpError::Lost("the sender is gone".into());
    feed.send(Err(gone.clone())).await.unwrap();
    assert_eq!(wait_bounded(sending).await.unwrap().unwrap_err(), gone);
    let mut rest = Vec::new();
    let _closed = wait_bounded(stream.read_to_end(&mut rest)).await;
    // Without the last chunk, the body is incomplete.
    assert_eq!(rest, b"");
}

#[tokio::test]
async fn headers_and_trailers_are_unchanged() {
    let (listener, to) = listen_on_free_port().await;
    let sending = start_send(&to, RequestBody::default());
    let (mut stream, _) = listener.accept().await.unwrap();
    read_until(&mut stream, b"\r\n\r\n").await;
    let head = b"HTTP/1.1 200 OK\r\nSet-Cookie: a\r\nset-cookie: b\xff\r\n\
                 transfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Sum: \xfe\r\n\r\n";
    stream.write_all(head).await.unwrap();
    let mut response = wait_bounded(sending).await.unwrap().unwrap();
    let lines = b"Set-Cookie: a\r\nset-cookie: b\xff\r\ntransfer-encoding: chunked\r\n";
    assert_eq!(response.headers.lines(), lines);
    assert_eq!(response.body.read_whole(10).await.unwrap(), "ok");
    assert_eq!(response.body.take_trailers(), &b"X-Sum: \xfe\r\n"[..]);
}

#[tokio::test]
async fn reads_respect_reader_limit() {
    let (listener, to) = listen_on_free_port().await;
    let sending = start_send(&to, RequestBody::default());
    let (mut stream, _) = listener.accept().await.unwrap();
    read_until(&mut stream, b"\r\n\r\n").await;
    let head = b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n";
    stream.write_all(head).await.unwrap();
    let mut response = wait_bounded(sending).await.unwrap().unwrap();
    let all = vec![b'z'; 100_000];
    let writing = spawn_task(async move { stream.write_all(&all).await.map(|()| stream) });
    let mut left = 100_000;
    while left > 0 {
        response.body.set_read_max(1_000);
        let piece = wait_bounded(response.body.next_chunk())
            .await
            .unwrap()
            .unwrap();
        assert!(piece.len() <= 1_000, "{}", piece.len());
        left -= piece.len();
    }
    assert_eq!(response.body.next_chunk().await, None);
    drop(writing);
}
