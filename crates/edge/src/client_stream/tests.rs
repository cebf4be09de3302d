//! Ambiguous and valid requests over a socket, against the edge's HTTP server.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::*;

/// Read boundaries of the server.
#[derive(Clone, Copy, Debug)]
enum ReadCut {
    Nowhere,
    After(usize),
    Everywhere,
}

/// A stream with deterministic read boundaries.
#[derive(Debug)]
struct CutStream {
    stream: TcpStream,
    cut: ReadCut,
}

impl AsyncRead for CutStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let limit = match this.cut {
            ReadCut::Nowhere | ReadCut::After(0) => buffer.remaining(),
            ReadCut::After(left) => left.min(buffer.remaining()),
            ReadCut::Everywhere => 1,
        };
        let mut bytes = vec![0; limit];
        let mut piece = ReadBuf::new(&mut bytes);
        ready!(Pin::new(&mut this.stream).poll_read(context, &mut piece))?;
        if let ReadCut::After(left) = &mut this.cut {
            *left -= piece.filled().len().min(*left);
        }
        buffer.put_slice(piece.filled());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for CutStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

/// Echoes path and body; responds 400 to an unreadable body.
async fn echo(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    let (status, text) = match request.into_body().collect().await {
        Ok(body) => {
            let body = body.to_bytes();
            (StatusCode::OK, format!("<{path} {}>", body.escape_ascii()))
        }
        Err(_) => (StatusCode::BAD_REQUEST, String::new()),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    Ok(response)
}

/// Sends bytes to a guarded server and reads until the server closes. The client keeps its side
/// open, so only the server can close.
async fn exchange(listener: &TcpListener, sent: &[u8], cut: ReadCut) -> String {
    let address = listener.local_addr().unwrap();
    let server = async {
        let (stream, _) = listener.accept().await.unwrap();
        let guarded = ClientStream::new(CutStream { stream, cut });
        // The client judges the end of the connection.
        let _ended = http1::Builder::new()
            .serve_connection(TokioIo::new(guarded), service_fn(echo))
            .await;
    };
    let caller = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(sent).await.unwrap();
        let mut answer = Vec::new();
        // The server may reset over unread bytes; earlier responses still count.
        let _reset = stream.read_to_end(&mut answer).await;
        String::from_utf8(answer).unwrap()
    };
    let both = async { tokio::join!(server, caller).1 };
    let shown = sent.escape_ascii();
    timeout(Duration::from_secs(20), both)
        .await
        .unwrap_or_else(|_| panic!("no end of {shown} cut {cut:?}"))
}

/// All splits in two, plus the whole stream and single bytes.
fn all_cuts(sent: &[u8]) -> impl Iterator<Item = ReadCut> + use<> {
    [ReadCut::Nowhere, ReadCut::Everywhere]
        .into_iter()
        .chain((1..sent.len()).map(ReadCut::After))
}

/// Asserts `answered` bodies, then 400, then a closed connection.
async fn assert_refused(listener: &TcpListener, sent: &str, answered: &[&str]) {
    for cut in all_cuts(sent.as_bytes()) {
        let answer = exchange(listener, sent.as_bytes(), cut).await;
        let context = format!("{sent:?} cut {cut:?}: {answer:?}");
        let (good, bad) = answer.split_at(answer.find("HTTP/1.1 400 ").expect(&context));
        assert_eq!(echoed_bodies(good), answered, "{context}");
        assert_eq!(bad.matches("HTTP/1.1 ").count(), 1, "{context}");
        assert!(!bad.contains('<'), "{context}");
    }
}

/// Asserts these bodies; a last request proves correct framing.
async fn assert_served(listener: &TcpListener, sent: &str, answered: &[&str]) {
    let sent = format!("{sent}GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let expected = [answered, &["</last >"]].concat();
    for cut in all_cuts(sent.as_bytes()) {
        let answer = exchange(listener, sent.as_bytes(), cut).await;
        let context = format!("{sent:?} cut {cut:?}: {answer:?}");
        assert_eq!(echoed_bodies(&answer), expected, "{context}");
        assert_eq!(
            answer.matches("HTTP/1.1 200 ").count(),
            expected.len(),
            "{context}"
        );
        assert_eq!(
            answer.matches("HTTP/1.1 ").count(),
            expected.len(),
            "{context}"
        );
    }
}

fn echoed_bodies(answer: &str) -> Vec<&str> {
    answer
        .split_inclusive('>')
        .filter_map(|part| part.find('<').map(|start| &part[start..]))
        .collect()
}

async fn bind_listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

/// Heads accepted by the server alone, or parsed differently by a proxy.
const HEADS: &[&str] = &[
    "GET / HTTP/1.1\nHost: a\n\n",
    "GET / HTTP/1.1\nHost: a\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a\n\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\n\n",
    "\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\nX: b\nY: c\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\n\rX: b\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\nX: b\r\n c\r\n\r\n",
    "GET / HTTP/1.1\r\n\tHost: a\r\n\r\n",
    "GET / HTTP/1.1\r\nHost : a\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length : 2\r\n\r\nhi",
    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nhi",
    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\ncontent-length: 3\r\n\r\nhi",
    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2, 2\r\n\r\nhi",
    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +2\r\n\r\nhi",
    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9007199254740993\r\n\r\n",
    "POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nTransfer-Encoding:\u{b}chunked\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nTransfer-Encoding:\r\n\r\n0\r\n\r\n",
];

#[tokio::test]
async fn ambiguous_head_gets_400_and_close() {
    let listener = bind_listener().await;
    for head in HEADS {
        assert_refused(&listener, head, &[]).await;
    }
}

/// Sends bytes to the HTTP server alone, and returns whether the server refuses the first request.
async fn is_refused_unguarded(listener: &TcpListener, sent: &[u8]) -> bool {
    let address = listener.local_addr().unwrap();
    let server = async {
        let (stream, _) = listener.accept().await.unwrap();
        let _ended = http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service_fn(echo))
            .await;
    };
    let caller = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(sent).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        let _reset = stream.read_to_end(&mut answer).await;
        answer.starts_with(b"HTTP/1.1 400 ")
    };
    tokio::join!(server, caller).1
}

/// When hyper refuses more by itself, this list shrinks, and rules of the guard can go: see
/// docs/decisions/0026-request-framing-guard.md. (A body of 2^53 bytes and more ends here early.)
#[tokio::test]
async fn hyper_alone_accepts_ambiguous_heads() {
    let listener = bind_listener().await;
    let mut accepted = Vec::new();
    for head in HEADS {
        if !is_refused_unguarded(&listener, head.as_bytes()).await {
            accepted.push(*head);
        }
    }
    let expected = [
        "GET / HTTP/1.1\nHost: a\n\n",
        "GET / HTTP/1.1\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n\n",
        "\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: b\nY: c\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nhi",
        "POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    ];
    assert_eq!(accepted, expected);
}

#[tokio::test]
async fn truncated_bad_head_is_refused_at_once() {
    let listener = bind_listener().await;
    assert_refused(&listener, "GET / HTTP/1.1\n", &[]).await;
    assert_refused(&listener, "GET / HTTP/1.1\r\nHost: a\n", &[]).await;
    assert_refused(&listener, "GET / HTTP/1.1\r\nHost: a\rX", &[]).await;
    let twice = "POST / HTTP/1.1\r\nContent-Length: 2\r\nContent-Length:";
    assert_refused(&listener, twice, &[]).await;
    let trailer = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: y\n";
    assert_refused(&listener, trailer, &[]).await;
}

#[tokio::test]
async fn malformed_chunks_never_reach_next_request() {
    let listener = bind_listener().await;
    let long = format!("2;{}\r\nhi\r\n0\r\n\r\n", "e".repeat(1025));
    let head = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
    let next = "GET /smuggled HTTP/1.1\r\n\r\n";
    for chunks in [
        "2 \r\nhi\r\n0\r\n\r\n",
        "2\nhi\r\n0\r\n\r\n",
        "2;a\nhi\r\n0\r\n\r\n",
        "2\r\nhi\n0\r\n\r\n",
        "2\r\nhiX\r\n0\r\n\r\n",
        "0x2\r\nhi\r\n0\r\n\r\n",
        "00000000000000002\r\nhi\r\n0\r\n\r\n",
        "2\r\nhi\r\n0\r\n\n",
        "2\r\nhi\r\n0\r\n\n\r\n\r\n",
        "2\r\nhi\r\n0\r\nX: y\n\r\n",
        "2\r\nhi\r\n0\r\nX: y\r\n z\r\n\r\n",
        "2\r\nhi\r\n0\r\nContent-Length: 5\r\n\r\n",
        "2\r\nhi\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n",
    ] {
        assert_refused(&listener, &format!("{head}{chunks}{next}"), &[]).await;
    }
    let sent = format!("{head}{long}{next}");
    let answer = exchange(&listener, sent.as_bytes(), ReadCut::Nowhere).await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer:?}");
    assert!(!answer.contains("smuggled"), "{answer:?}");
}

#[tokio::test]
async fn pipelined_fault_follows_earlier_responses() {
    let listener = bind_listener().await;
    let first = "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi";
    let second = "POST /b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n";
    let third = "GET /c HTTP/1.1\r\nHost: a\n\r\n";
    let sent = format!("{first}{second}{third}");
    assert_refused(&listener, &sent, &["</a hi>", "</b x>"]).await;
}

#[tokio::test]
async fn valid_requests_served_at_any_cut() {
    let listener = bind_listener().await;
    let cases: &[(&str, &[&str])] = &[
        ("GET /a HTTP/1.1\r\nHost: a\r\n\r\n", &["</a >"]),
        ("\r\n\r\nGET /a HTTP/1.1\r\nHost: a\r\n\r\n\r\n", &["</a >"]),
        ("GET /a HTTP/1.1\r\nHost:\r\nX:\t y \t\r\n\r\n", &["</a >"]),
        (
            "POST /a HTTP/1.1\r\ncontent-length:2 \r\n\r\nhi",
            &["</a hi>"],
        ),
        ("POST /a HTTP/1.1\r\nContent-Length: 0\r\n\r\n", &["</a >"]),
        (
            "POST /a HTTP/1.1\r\nTRANSFER-ENCODING: Chunked\r\n\r\n\
             2\r\nhi\r\nB;x=y\r\n hello ther\r\n1\r\ne\r\n0\r\nDigest: z\r\n\r\n",
            &["</a hi hello there>"],
        ),
        (
            "POST /a HTTP/1.1\r\nContent-Length: 23\r\n\r\nGET / HTTP/1.1\nHost: a\n",
            &["</a GET / HTTP/1.1\\nHost: a\\n>"],
        ),
        (
            "POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n\
             12\r\nContent-Length: 5\n\r\n0\r\n\r\n",
            &["</a Content-Length: 5\\n>"],
        ),
        (
            "GET /a HTTP/1.1\r\n\r\nPOST /b HTTP/1.1\r\nContent-Length: 1\r\n\r\nx\
             PUT /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\ny\r\n0\r\n\r\n",
            &["</a >", "</b x>", "</c y>"],
        ),
    ];
    for (sent, answered) in cases {
        assert_served(&listener, sent, answered).await;
    }
}

#[tokio::test]
async fn large_body_passes_unchanged() {
    let listener = bind_listener().await;
    let body = "line\n\r".repeat(100_000);
    let sent = format!(
        "POST /a HTTP/1.1\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let answer = exchange(&listener, sent.as_bytes(), ReadCut::Nowhere).await;
    let expected = format!("</a {}>", body.as_bytes().escape_ascii());
    assert!(answer.starts_with("HTTP/1.1 200 "));
    assert_eq!(echoed_bodies(&answer), [expected]);
}
