//! Upgrade requests are read strictly within limits, then accepted or refused.

use bowline_link::websocket::{
    UpgradeError, UpgradeRequest, WebSocketAcceptError, accept_upgrade as take_in,
};
use bowline_testkit::deadline_after;
use http::StatusCode;

use super::*;

const GOOD: &str = "GET /executor?x=1 HTTP/1.1\r\nHost: here\r\nConnection: keep-alive, Upgrade\r\n\
     Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
     Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nAuthorization: Bearer a\r\n\r\n";

/// Sends these bytes to `accept_upgrade`; returns the outcome and the client stream.
async fn accept_bytes(
    bytes: &[u8],
) -> (
    Result<UpgradeRequest<TcpStream>, WebSocketAcceptError>,
    TcpStream,
) {
    let (listener, _) = listen_on_free_port().await;
    let address = listener.local_addr().unwrap();
    let (dialled, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
    let (mut stream, (accepted, _)) = (dialled.unwrap(), accepted.unwrap());
    let speak = async {
        // The server may close early and ignore the rest.
        let _ = stream.write_all(bytes).await;
        let _ = stream.shutdown().await;
    };
    let (caller, ()) = tokio::join!(take_in(accepted, test_deadline()), speak);
    (caller, stream)
}

async fn read_rest(mut stream: TcpStream) -> String {
    let mut heard = Vec::new();
    let _ = stream.read_to_end(&mut heard).await;
    String::from_utf8_lossy(&heard).into_owned()
}

#[tokio::test]
async fn valid_upgrade_keeps_request_parts() {
    let spawner = JoiningSpawner::default();
    let (listener, endpoint) = listen_on_free_port().await;
    let serve = async {
        let (stream, _) = listener.accept().await.unwrap();
        let caller = take_in(stream, test_deadline()).await.unwrap();
        assert_eq!(caller.parts.uri.path(), "/broker");
        let bearer = caller.parts.headers.get("authorization").unwrap();
        assert_eq!(bearer, "Bearer secret");
        let limits = WebSocketLimits::default();
        caller.upgrade(limits, &spawner).await.unwrap()
    };
    let limits = WebSocketLimits::default();
    let dialling = dial(&endpoint, Some("secret"), test_deadline(), limits, &spawner);
    let (dialled, mut server) = tokio::join!(dialling, serve);
    let mut client = dialled.unwrap();
    client.sender.send("there?".into()).await.unwrap();
    assert_eq!(server.receiver.next().await.unwrap(), "there?");
    server.sender.send("here".into()).await.unwrap();
    assert_eq!(client.receiver.next().await.unwrap(), "here");
}

#[tokio::test]
async fn early_bytes_become_first_message() {
    let spawner = JoiningSpawner::default();
    let mut bytes = GOOD.as_bytes().to_vec();
    bytes.extend(encode_frame(TEXT, Some([1, 2, 3, 4]), b"early"));
    let (caller, _stream) = accept_bytes(&bytes).await;
    let limits = WebSocketLimits::default();
    let mut socket = caller.unwrap().upgrade(limits, &spawner).await.unwrap();
    assert_eq!(socket.receiver.next().await.unwrap(), "early");
}

#[tokio::test]
async fn non_upgrade_request_is_refused() {
    let spawner = JoiningSpawner::default();
    for (from, to, fault, status) in [
        ("GET", "POST", UpgradeError::Method, "405"),
        ("HTTP/1.1", "HTTP/1.0", UpgradeError::NotWebSocket, "426"),
        (
            "Upgrade: websocket",
            "Upgrade: h2c",
            UpgradeError::NotWebSocket,
            "426",
        ),
        ("Version: 13", "Version: 8", UpgradeError::Version, "426"),
        ("Key: dG", "Key: d", UpgradeError::Malformed, "400"),
        (
            "Host: here",
            "Content-Length: 3",
            UpgradeError::Malformed,
            "400",
        ),
        (
            "Host: here",
            "Transfer-Encoding: chunked",
            UpgradeError::Malformed,
            "400",
        ),
    ] {
        let (caller, stream) = accept_bytes(GOOD.replacen(from, to, 1).as_bytes()).await;
        let upgraded = caller
            .unwrap()
            .upgrade(WebSocketLimits::default(), &spawner)
            .await;
        assert_eq!(
            upgraded.unwrap_err(),
            WebSocketAcceptError::Refused(fault),
            "{to}"
        );
        let heard = read_rest(stream).await;
        assert!(heard.starts_with(&format!("HTTP/1.1 {status} ")), "{heard}");
    }
}

#[tokio::test]
async fn request_can_be_answered_without_upgrade() {
    let (caller, stream) = accept_bytes(b"GET /readyz HTTP/1.1\r\nHost: here\r\n\r\n").await;
    let caller = caller.unwrap();
    assert_eq!(caller.parts.uri.path(), "/readyz");
    caller.respond(StatusCode::OK, "ready\n").await.unwrap();
    let heard = read_rest(stream).await;
    assert!(heard.starts_with("HTTP/1.1 200 OK\r\n"), "{heard}");
    assert!(heard.contains("content-length: 6\r\n"), "{heard}");
    assert!(heard.ends_with("\r\n\r\nready\n"), "{heard}");
}

#[tokio::test]
async fn invalid_or_endless_head_is_refused() {
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
        let (caller, stream) = accept_bytes(bytes.as_bytes()).await;
        assert_eq!(
            caller.unwrap_err(),
            WebSocketAcceptError::NoRequest,
            "{status}"
        );
        let heard = read_rest(stream).await;
        // After too much input, the connection may be reset before the response is read.
        let told = heard.starts_with(&format!("HTTP/1.1 {status} "));
        assert!(told || bytes.len() > 60_000, "{heard}");
    }
}

#[tokio::test]
async fn partial_request_times_out() {
    let (caller, _stream) = accept_bytes(&GOOD.as_bytes()[..100]).await;
    assert!(matches!(
        caller.unwrap_err(),
        WebSocketAcceptError::Broken(_)
    ));
    let (listener, _) = listen_on_free_port().await;
    let address = listener.local_addr().unwrap();
    let (dialled, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
    let (mut stream, (accepted, _)) = (dialled.unwrap(), accepted.unwrap());
    stream.write_all(b"GET / HT").await.unwrap();
    let hasty = deadline_after(Duration::from_millis(50));
    let caller = take_in(accepted, hasty).await;
    assert_eq!(caller.unwrap_err(), WebSocketAcceptError::Timeout);
}
