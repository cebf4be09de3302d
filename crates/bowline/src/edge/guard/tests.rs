//! Attacks and honest requests over a socket, against the HTTP server that the edge uses.

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

/// How the server's reads cut what the caller sent.
#[derive(Clone, Copy, Debug)]
enum Cut {
    Nowhere,
    After(usize),
    Everywhere,
}

/// A stream whose reads are cut as told, deterministically.
#[derive(Debug)]
struct Pieces {
    stream: TcpStream,
    cut: Cut,
}

impl AsyncRead for Pieces {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let limit = match this.cut {
            Cut::Nowhere | Cut::After(0) => buffer.remaining(),
            Cut::After(left) => left.min(buffer.remaining()),
            Cut::Everywhere => 1,
        };
        let mut bytes = vec![0; limit];
        let mut piece = ReadBuf::new(&mut bytes);
        ready!(Pin::new(&mut this.stream).poll_read(context, &mut piece))?;
        if let Cut::After(left) = &mut this.cut {
            *left -= piece.filled().len().min(*left);
        }
        buffer.put_slice(piece.filled());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pieces {
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

/// Says back the path and the body; a body that cannot be read is the caller's fault.
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

/// Sends the bytes to a guarded server and reads until the server closes the connection. The
/// caller keeps its own side open, so that the closing is the server's.
async fn exchange(listener: &TcpListener, sent: &[u8], cut: Cut) -> String {
    let address = listener.local_addr().unwrap();
    let server = async {
        let (stream, _) = listener.accept().await.unwrap();
        let guarded = Guarded::new(Pieces { stream, cut });
        // How the connection ended is the caller's to judge.
        let _ended = http1::Builder::new()
            .serve_connection(TokioIo::new(guarded), service_fn(echo))
            .await;
    };
    let caller = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(sent).await.unwrap();
        let mut answer = Vec::new();
        // The server may close over bytes it has not read; what it said before still counts.
        let _reset = stream.read_to_end(&mut answer).await;
        String::from_utf8(answer).unwrap()
    };
    let both = async { tokio::join!(server, caller).1 };
    let shown = sent.escape_ascii();
    timeout(Duration::from_secs(20), both)
        .await
        .unwrap_or_else(|_| panic!("no end of {shown} cut {cut:?}"))
}

/// Every way to cut a stream in two, and the whole and the crumbled stream.
fn cuts(sent: &[u8]) -> impl Iterator<Item = Cut> + use<> {
    [Cut::Nowhere, Cut::Everywhere]
        .into_iter()
        .chain((1..sent.len()).map(Cut::After))
}

/// The stream is answered with `answered` bodies, then with 400, then closed.
async fn check_refused(listener: &TcpListener, sent: &str, answered: &[&str]) {
    for cut in cuts(sent.as_bytes()) {
        let answer = exchange(listener, sent.as_bytes(), cut).await;
        let context = format!("{sent:?} cut {cut:?}: {answer:?}");
        let (good, bad) = answer.split_at(answer.find("HTTP/1.1 400 ").expect(&context));
        assert_eq!(bodies(good), answered, "{context}");
        assert_eq!(bad.matches("HTTP/1.1 ").count(), 1, "{context}");
        assert!(!bad.contains('<'), "{context}");
    }
}

/// The stream is answered with these bodies; a last request proves that nothing went out of step.
async fn check_served(listener: &TcpListener, sent: &str, answered: &[&str]) {
    let sent = format!("{sent}GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let expected = [answered, &["</last >"]].concat();
    for cut in cuts(sent.as_bytes()) {
        let answer = exchange(listener, sent.as_bytes(), cut).await;
        let context = format!("{sent:?} cut {cut:?}: {answer:?}");
        assert_eq!(bodies(&answer), expected, "{context}");
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

fn bodies(answer: &str) -> Vec<&str> {
    answer
        .split_inclusive('>')
        .filter_map(|part| part.find('<').map(|start| &part[start..]))
        .collect()
}

async fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

/// Heads that the server alone would take, or take apart in another way than a proxy before it.
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
async fn an_ambiguous_head_is_answered_400_and_the_connection_closed() {
    let listener = listener().await;
    for head in HEADS {
        check_refused(&listener, head, &[]).await;
    }
}

#[tokio::test]
async fn a_head_that_stops_at_the_fault_is_refused_without_waiting() {
    let listener = listener().await;
    check_refused(&listener, "GET / HTTP/1.1\n", &[]).await;
    check_refused(&listener, "GET / HTTP/1.1\r\nHost: a\n", &[]).await;
    check_refused(&listener, "GET / HTTP/1.1\r\nHost: a\rX", &[]).await;
    let twice = "POST / HTTP/1.1\r\nContent-Length: 2\r\nContent-Length:";
    check_refused(&listener, twice, &[]).await;
    let trailer = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: y\n";
    check_refused(&listener, trailer, &[]).await;
}

#[tokio::test]
async fn malformed_chunks_never_reach_the_next_request() {
    let listener = listener().await;
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
        check_refused(&listener, &format!("{head}{chunks}{next}"), &[]).await;
    }
    let sent = format!("{head}{long}{next}");
    let answer = exchange(&listener, sent.as_bytes(), Cut::Nowhere).await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer:?}");
    assert!(!answer.contains("smuggled"), "{answer:?}");
}

#[tokio::test]
async fn a_fault_in_a_later_request_is_answered_after_the_earlier_ones() {
    let listener = listener().await;
    let first = "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi";
    let second = "POST /b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n";
    let third = "GET /c HTTP/1.1\r\nHost: a\n\r\n";
    let sent = format!("{first}{second}{third}");
    check_refused(&listener, &sent, &["</a hi>", "</b x>"]).await;
}

#[tokio::test]
async fn honest_requests_are_served_however_they_are_cut() {
    let listener = listener().await;
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
        check_served(&listener, sent, answered).await;
    }
}

#[tokio::test]
async fn a_large_body_passes_unchanged() {
    let listener = listener().await;
    let body = "line\n\r".repeat(100_000);
    let sent = format!(
        "POST /a HTTP/1.1\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let answer = exchange(&listener, sent.as_bytes(), Cut::Nowhere).await;
    let expected = format!("</a {}>", body.as_bytes().escape_ascii());
    assert!(answer.starts_with("HTTP/1.1 200 "));
    assert_eq!(bodies(&answer), [expected]);
}
