//! Bodies that go out while they arrive, and what follows a body.

use std::task::{Context, Poll};

use ::http::Method;
use bowline_link::http::client::{Chunks, HttpError, Outgoing, Response, Upload, Wait};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;

const WAIT: Wait<'static> = Wait {
    connect: None,
    first_byte: None,
    leaving: &|| {},
};

/// A body whose pieces come from a channel.
#[derive(Debug)]
struct Fed {
    pieces: mpsc::Receiver<Result<Bytes, HttpError>>,
    trailers: &'static [u8],
}

impl Chunks for Fed {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, HttpError>>> {
        self.pieces.poll_recv(cx)
    }

    fn trailers(&mut self) -> Bytes {
        Bytes::from_static(self.trailers)
    }
}

type Feed = mpsc::Sender<Result<Bytes, HttpError>>;

fn fed(length: Option<u64>, trailers: &'static [u8]) -> (Feed, Upload<'static>) {
    let (feed, pieces) = mpsc::channel(4);
    let chunks = Box::new(Fed { pieces, trailers });
    (feed, Upload::Open { chunks, length })
}

async fn door() -> (TcpListener, Endpoint) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = format!("http://{}/up", listener.local_addr().unwrap());
    (listener, Endpoint::parse(&to).unwrap())
}

/// Sends a request from a task of its own.
fn send(to: &Endpoint, body: Upload<'static>) -> JoinHandle<Result<Response, HttpError>> {
    let (to, client) = (to.clone(), client());
    spawn(async move {
        let mut request = Outgoing::new(Method::POST, &to);
        request.body = body;
        client.send(request, WAIT).await
    })
}

/// Reads until what was read ends so.
async fn until(stream: &mut TcpStream, end: &[u8]) -> Vec<u8> {
    let mut read = Vec::new();
    soon(async {
        while !read.ends_with(end) {
            read.push(stream.read_u8().await.unwrap());
        }
    })
    .await;
    read
}

#[tokio::test]
async fn a_body_goes_out_while_it_arrives_and_its_trailers_follow_it() {
    let (listener, to) = door().await;
    let (feed, body) = fed(None, b"x-sum: 9\r\n");
    let sending = send(&to, body);
    let (mut stream, _) = listener.accept().await.unwrap();
    let head = until(&mut stream, b"\r\n\r\n").await;
    let head = String::from_utf8(head).unwrap();
    assert!(head.contains("transfer-encoding: chunked\r\n"), "{head}");
    // Each piece is on the network before the next one exists.
    feed.send(Ok("one".into())).await.unwrap();
    assert_eq!(until(&mut stream, b"one\r\n").await, b"3\r\none\r\n");
    let large = vec![b'y'; 40_000];
    feed.send(Ok(large.clone().into())).await.unwrap();
    let want = [b"9c40\r\n", &large[..], b"\r\n"].concat();
    assert_eq!(until(&mut stream, b"y\r\n").await, want);
    drop(feed);
    let end = until(&mut stream, b"\r\n\r\n").await;
    assert_eq!(end, b"0\r\nx-sum: 9\r\n\r\n");
    stream.write_all(b"HTTP/1.1 204 No\r\n\r\n").await.unwrap();
    assert_eq!(soon(sending).await.unwrap().unwrap().status, 204);
}

#[tokio::test]
async fn a_body_of_known_length_says_it_and_keeps_to_it() {
    for (pieces, is_good) in [
        (["ab", "c"], true),
        (["ab", ""], false),
        (["ab", "cd"], false),
    ] {
        let (listener, to) = door().await;
        let (feed, body) = fed(Some(3), b"");
        let sending = send(&to, body);
        let (mut stream, _) = listener.accept().await.unwrap();
        let head = until(&mut stream, b"\r\n\r\n").await;
        let head = String::from_utf8(head).unwrap();
        assert!(head.contains("content-length: 3\r\n"), "{head}");
        for piece in pieces {
            feed.send(Ok(piece.into())).await.unwrap();
        }
        drop(feed);
        if is_good {
            assert_eq!(until(&mut stream, b"c").await, b"abc");
            stream.write_all(b"HTTP/1.1 204 No\r\n\r\n").await.unwrap();
            assert_eq!(soon(sending).await.unwrap().unwrap().status, 204);
        } else {
            let error = soon(sending).await.unwrap().unwrap_err();
            assert!(matches!(error, HttpError::Invalid(_)), "{error:?}");
            let mut rest = Vec::new();
            let _closed = soon(stream.read_to_end(&mut rest)).await;
            assert!(rest.len() < 3);
        }
    }
}

#[tokio::test]
async fn an_answer_can_be_read_while_the_request_still_goes_out() {
    let (listener, to) = door().await;
    let (feed, body) = fed(None, b"");
    let sending = send(&to, body);
    let (mut stream, _) = listener.accept().await.unwrap();
    until(&mut stream, b"\r\n\r\n").await;
    let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head).await.unwrap();
    let mut response = soon(sending).await.unwrap().unwrap();
    for word in ["ping", "pong"] {
        feed.send(Ok(word.into())).await.unwrap();
        let echo = async {
            let piece = until(&mut stream, format!("4\r\n{word}\r\n").as_bytes()).await;
            stream.write_all(&piece).await.unwrap();
        };
        let (piece, ()) = soon(async { tokio::join!(response.body.chunk(), echo) }).await;
        assert_eq!(piece.unwrap().unwrap(), word);
    }
    drop(feed);
    let end = async {
        until(&mut stream, b"0\r\n\r\n").await;
        stream.write_all(b"0\r\nx-end: 1\r\n\r\n").await.unwrap();
    };
    let (piece, ()) = soon(async { tokio::join!(response.body.chunk(), end) }).await;
    assert_eq!(piece, None);
    assert_eq!(response.body.trailers(), "x-end: 1\r\n");
}

#[tokio::test]
async fn a_body_that_breaks_takes_the_request_off_the_wire() {
    let (listener, to) = door().await;
    let (feed, body) = fed(None, b"");
    let sending = send(&to, body);
    let (mut stream, _) = listener.accept().await.unwrap();
    until(&mut stream, b"\r\n\r\n").await;
    feed.send(Ok("half".into())).await.unwrap();
    until(&mut stream, b"half\r\n").await;
    let gone = HttpError::Lost("the sender is gone".into());
    feed.send(Err(gone.clone())).await.unwrap();
    assert_eq!(soon(sending).await.unwrap().unwrap_err(), gone);
    let mut rest = Vec::new();
    let _closed = soon(stream.read_to_end(&mut rest)).await;
    // Without the last chunk, nobody takes it for whole.
    assert_eq!(rest, b"");
}

#[tokio::test]
async fn headers_and_trailers_come_as_they_are_also_when_all_is_here_at_once() {
    let (listener, to) = door().await;
    let sending = send(&to, Upload::default());
    let (mut stream, _) = listener.accept().await.unwrap();
    until(&mut stream, b"\r\n\r\n").await;
    let head = b"HTTP/1.1 200 OK\r\nSet-Cookie: a\r\nset-cookie: b\xff\r\n\
                 transfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Sum: \xfe\r\n\r\n";
    stream.write_all(head).await.unwrap();
    let mut response = soon(sending).await.unwrap().unwrap();
    let lines = b"Set-Cookie: a\r\nset-cookie: b\xff\r\ntransfer-encoding: chunked\r\n";
    assert_eq!(response.headers.lines(), lines);
    assert_eq!(response.body.whole(10).await.unwrap(), "ok");
    assert_eq!(response.body.trailers(), &b"X-Sum: \xfe\r\n"[..]);
}

#[tokio::test]
async fn no_more_is_read_than_the_reader_takes() {
    let (listener, to) = door().await;
    let sending = send(&to, Upload::default());
    let (mut stream, _) = listener.accept().await.unwrap();
    until(&mut stream, b"\r\n\r\n").await;
    let head = b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n";
    stream.write_all(head).await.unwrap();
    let mut response = soon(sending).await.unwrap().unwrap();
    let all = vec![b'z'; 100_000];
    let writing = spawn(async move { stream.write_all(&all).await.map(|()| stream) });
    let mut left = 100_000;
    while left > 0 {
        response.body.want(1_000);
        let piece = soon(response.body.chunk()).await.unwrap().unwrap();
        assert!(piece.len() <= 1_000, "{}", piece.len());
        left -= piece.len();
    }
    assert_eq!(response.body.chunk().await, None);
    drop(writing);
}
