//! Who dials us is read strictly and within bounds, and is let in or told why not.

use bowline_link::websocket::{AcceptError, Caller, Fault, accept as take_in};
use http::StatusCode;

use super::*;

const GOOD: &str = "GET /executor?x=1 HTTP/1.1\r\nHost: here\r\nConnection: keep-alive, Upgrade\r\n\
     Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
     Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nAuthorization: Bearer a\r\n\r\n";

/// Says these bytes to whoever accepts; returns what it makes of them, and the other end.
async fn said(bytes: &[u8]) -> (Result<Caller<TcpStream>, AcceptError>, TcpStream) {
    let (listener, _) = listen().await;
    let address = listener.local_addr().unwrap();
    let (dialled, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
    let (mut stream, (accepted, _)) = (dialled.unwrap(), accepted.unwrap());
    let speak = async {
        // Whoever had enough closes, and need not hear the rest.
        let _ = stream.write_all(bytes).await;
        let _ = stream.shutdown().await;
    };
    let (caller, ()) = tokio::join!(take_in(accepted, soon()), speak);
    (caller, stream)
}

async fn rest(mut stream: TcpStream) -> String {
    let mut heard = Vec::new();
    let _ = stream.read_to_end(&mut heard).await;
    String::from_utf8_lossy(&heard).into_owned()
}

#[tokio::test]
async fn a_caller_is_let_in_with_all_that_it_said() {
    let spawner = Tokio::default();
    let (listener, endpoint) = listen().await;
    let serve = async {
        let (stream, _) = listener.accept().await.unwrap();
        let caller = take_in(stream, soon()).await.unwrap();
        assert_eq!(caller.parts.uri.path(), "/broker");
        let bearer = caller.parts.headers.get("authorization").unwrap();
        assert_eq!(bearer, "Bearer secret");
        let limits = SocketLimits::default();
        caller.upgrade(limits, &spawner).await.unwrap()
    };
    let limits = SocketLimits::default();
    let dialling = dial(&endpoint, Some("secret"), soon(), limits, &spawner);
    let (dialled, (server, mut from_client)) = tokio::join!(dialling, serve);
    let (client, mut from_server) = dialled.unwrap();
    client.send("there?".into()).await.unwrap();
    assert_eq!(from_client.next().await.unwrap(), "there?");
    server.send("here".into()).await.unwrap();
    assert_eq!(from_server.next().await.unwrap(), "here");
}

#[tokio::test]
async fn what_came_early_behind_the_request_is_the_first_message() {
    let spawner = Tokio::default();
    let mut bytes = GOOD.as_bytes().to_vec();
    bytes.extend(frame(TEXT, Some([1, 2, 3, 4]), b"early"));
    let (caller, _stream) = said(&bytes).await;
    let limits = SocketLimits::default();
    let (_outgoing, mut incoming) = caller.unwrap().upgrade(limits, &spawner).await.unwrap();
    assert_eq!(incoming.next().await.unwrap(), "early");
}

#[tokio::test]
async fn who_asks_for_something_else_is_told_and_does_not_come_in() {
    let spawner = Tokio::default();
    for (from, to, fault, status) in [
        ("GET", "POST", Fault::Method, "405"),
        ("HTTP/1.1", "HTTP/1.0", Fault::Plain, "426"),
        ("Upgrade: websocket", "Upgrade: h2c", Fault::Plain, "426"),
        ("Version: 13", "Version: 8", Fault::Version, "426"),
        ("Key: dG", "Key: d", Fault::Malformed, "400"),
        ("Host: here", "Content-Length: 3", Fault::Malformed, "400"),
        (
            "Host: here",
            "Transfer-Encoding: chunked",
            Fault::Malformed,
            "400",
        ),
    ] {
        let (caller, stream) = said(GOOD.replacen(from, to, 1).as_bytes()).await;
        let upgraded = caller
            .unwrap()
            .upgrade(SocketLimits::default(), &spawner)
            .await;
        assert_eq!(upgraded.unwrap_err(), AcceptError::Refused(fault), "{to}");
        let heard = rest(stream).await;
        assert!(heard.starts_with(&format!("HTTP/1.1 {status} ")), "{heard}");
    }
}

#[tokio::test]
async fn a_caller_may_be_answered_without_being_let_in() {
    let (caller, stream) = said(b"GET /readyz HTTP/1.1\r\nHost: here\r\n\r\n").await;
    let caller = caller.unwrap();
    assert_eq!(caller.parts.uri.path(), "/readyz");
    caller.answer(StatusCode::OK, "ready\n").await.unwrap();
    let heard = rest(stream).await;
    assert!(heard.starts_with("HTTP/1.1 200 OK\r\n"), "{heard}");
    assert!(heard.contains("content-length: 6\r\n"), "{heard}");
    assert!(heard.ends_with("\r\n\r\nready\n"), "{heard}");
}

#[tokio::test]
async fn a_head_that_is_none_or_does_not_end_is_refused_within_bounds() {
    let many: String = (0..65).map(|at| format!("h{at}: x\r\n")).collect();
    for (bytes, status) in [
        ("no http at all\r\n\r\n".to_owned(), "400"),
        ("GET / HTTP/1.1\r\nbad header\r\n\r\n".to_owned(), "400"),
        ("GET / HTTP/1.1\r\nA : b\r\n\r\n".to_owned(), "400"),
        ("GET \x01 HTTP/1.1\r\n\r\n".to_owned(), "400"),
        (format!("GET / HTTP/1.1\r\n{many}\r\n"), "431"),
        (
            format!("GET / HTTP/1.1\r\na: {}", "x".repeat(200_000)),
            "431",
        ),
        (
            format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(70_000)),
            "431",
        ),
    ] {
        let (caller, stream) = said(bytes.as_bytes()).await;
        assert_eq!(caller.unwrap_err(), AcceptError::NoRequest, "{status}");
        let heard = rest(stream).await;
        // Where too much came, the connection may be gone before the answer is read.
        let told = heard.starts_with(&format!("HTTP/1.1 {status} "));
        assert!(told || bytes.len() > 60_000, "{heard}");
    }
}

#[tokio::test]
async fn who_says_half_a_request_is_let_go() {
    let (caller, _stream) = said(&GOOD.as_bytes()[..100]).await;
    assert!(matches!(caller.unwrap_err(), AcceptError::Broken(_)));
    let (listener, _) = listen().await;
    let address = listener.local_addr().unwrap();
    let (dialled, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
    let (mut stream, (accepted, _)) = (dialled.unwrap(), accepted.unwrap());
    stream.write_all(b"GET / HT").await.unwrap();
    let hasty = soon() - LONG + Duration::from_millis(50);
    let caller = take_in(accepted, hasty).await;
    assert_eq!(caller.unwrap_err(), AcceptError::Timeout);
}
