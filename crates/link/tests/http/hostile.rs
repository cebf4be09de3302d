//! Hostile servers: bounded input, and refused instructions.

use bowline_core::error::ExecutionStatus;
use bowline_link::http::RedirectError;
use bowline_testkit::wait_bounded;
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// Smaller than usual, so few small chunks exceed the limit.
const BYTES_MAX: usize = 1024 * 1024;

/// Socket buffers of both sides.
const SOCKETS_BYTES_MAX: usize = 16 * 1024 * 1024;

const SECRETS: [&str; 4] = ["s3cret", "one", "tools/call", "last-event-id"];

/// A server that must not be reached.
struct ForeignServer(TcpListener);

impl ForeignServer {
    async fn new() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    fn port(&self) -> u16 {
        self.0.local_addr().unwrap().port()
    }

    /// Asserts no earlier connection: the first in the queue is our own probe.
    async fn assert_untouched(&self) {
        let own = TcpStream::connect(("127.0.0.1", self.port()))
            .await
            .unwrap();
        let (_, first) = wait_bounded(self.0.accept()).await.unwrap();
        assert_eq!(first, own.local_addr().unwrap());
    }
}

#[tokio::test]
async fn sec_21_redirect_leaks_nothing_to_foreign_origin() {
    let secret = Arc::new(MutableSecret(Mutex::new(Some("Bearer s3cret"))));
    let mut scene = HttpScene::with_spec(|spec| spec.credentials = secret).await;
    let other = ForeignServer::new().await;
    let port = other.port();
    let here = scene.server.origin.trim_start_matches("http://").to_owned();
    for status in [301, 302, 303, 307, 308] {
        for target in [
            format!("http://127.0.0.1:{port}/mcp"),
            format!("http://127.0.0.2:{port}/mcp"),
            format!("http://localhost:{port}/mcp"),
            format!("http://[::ffff:7f00:1]:{port}/mcp"),
            format!("//127.0.0.1:{port}/mcp"),
            format!("https://{here}/mcp"),
            format!("HTTP://{}", here.replace("127.0.0.1", "localhost")),
            format!("http://{here}@127.0.0.1:{port}/mcp"),
            format!("http://127.0.0.1:{port}#@{here}/mcp"),
            format!("gopher://127.0.0.1:{port}/_mcp"),
            "file:///etc/passwd".to_owned(),
        ] {
            let call = scene.start_call();
            let seen = scene.server.next_post().await;
            assert_eq!(seen.header("authorization"), Some("Bearer s3cret"));
            seen.respond(status, &format!("Location: {target}\r\n"), "")
                .await;
            let error = call.await.unwrap().unwrap_err();
            let refused = matches!(
                error,
                LinkError::Redirect(RedirectError::Origin | RedirectError::Nowhere(_))
            );
            assert!(refused, "{status} {target}: {error:?}");
            let told = format!("{error} {error:?}");
            assert!(
                !SECRETS.iter().any(|secret| told.contains(secret)),
                "{told}"
            );
        }
    }
    other.assert_untouched().await;
    // The message was not repeated here either.
    assert!(scene.server.has_no_post() && scene.server.has_no_get());
}

/// Writes until the client closes; returns the bytes written.
async fn pour_until_closed(
    mut seen: scripted_server::SeenRequest,
    head: String,
    piece: Vec<u8>,
) -> usize {
    seen.write_open(&head).await;
    let mut poured = 0;
    while seen.try_write_bytes(&piece).await {
        poured += piece.len();
        assert!(poured < 1 << 30, "nobody stops reading");
    }
    poured
}

#[tokio::test]
async fn sec_22_endless_responses_are_bounded() {
    let text = "Content-Type: application/json";
    let stream = "Content-Type: text/event-stream";
    let chunked = "Transfer-Encoding: chunked";
    let long = "Content-Length: 10000000000";
    let block = vec![b'x'; 64 * 1024];
    let chunk = |block: &[u8]| {
        let mut chunk = format!("{:x}\r\n", block.len()).into_bytes();
        chunk.extend_from_slice(block);
        chunk.extend_from_slice(b"\r\n");
        chunk
    };
    let lines = "data: x\n".repeat(8 * 1024).into_bytes();
    let ones = chunk(b"x").repeat(10_000);
    for (what, head, piece) in [
        ("ten gigabytes", format!("{text}\r\n{long}"), block.clone()),
        (
            "endless chunks",
            format!("{text}\r\n{chunked}"),
            chunk(&block),
        ),
        (
            "endless chunks of a byte",
            format!("{text}\r\n{chunked}"),
            ones,
        ),
        ("no length at all", text.to_owned(), block.clone()),
        (
            "a line without end",
            format!("{stream}\r\n{chunked}"),
            chunk(&block),
        ),
        (
            "an event without end",
            format!("{stream}\r\n{chunked}"),
            chunk(&lines),
        ),
        (
            "a stream of ten gigabytes",
            format!("{stream}\r\n{long}"),
            block.clone(),
        ),
    ] {
        let small = |spec: &mut HttpSpec| spec.limits.body_bytes_max = BYTES_MAX;
        let mut scene = HttpScene::with_spec(small).await;
        let call = scene.start_call();
        let seen = scene.server.next_post().await;
        let head = format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n");
        let (outcome, poured) =
            wait_bounded(async { tokio::join!(call, pour_until_closed(seen, head, piece)) }).await;
        let error = outcome.unwrap().unwrap_err();
        let want = LinkError::TooLong {
            bytes_max: BYTES_MAX,
        };
        assert_eq!(error, want, "{what}");
        assert_ne!(error.execution(), ExecutionStatus::NotStarted, "{what}");
        // A one-byte chunk takes six bytes on the wire, and a two-byte line eight.
        let bound = 6 * BYTES_MAX + SOCKETS_BYTES_MAX;
        assert!(poured < bound, "{what}: {poured} bytes");
    }
}

#[tokio::test]
async fn sec_22_megabyte_head_is_bounded() {
    for header in [
        format!("X-A: {}\r\n", "b".repeat(1024 * 1024)),
        "X-A: b\r\n".repeat(128 * 1024),
        format!("{}: b\r\n", "x".repeat(1024 * 1024)),
    ] {
        let mut scene = HttpScene::new().await;
        let call = scene.start_call();
        let mut seen = scene.server.next_post().await;
        let writing = async {
            let _ = seen.try_write("HTTP/1.1 200 OK\r\n").await && seen.try_write(&header).await;
            drop(seen);
        };
        let (outcome, ()) = wait_bounded(async { tokio::join!(call, writing) }).await;
        let error = outcome.unwrap().unwrap_err();
        assert!(matches!(error, LinkError::BadHead(_)), "{error:?}");
        assert_ne!(error.execution(), ExecutionStatus::NotStarted);
    }
}

/// A result of a mebibyte, compressed to a kilobyte.
fn compressed_bomb() -> Vec<u8> {
    let first = "1f8b0800000000000203edc8410a40401400d0bbfcf5242c5d070b129aa194dc9d3bd8be\
                 b77c77cc655bf3de47176d55478a6988ae4991c7722ec7b717";
    let last = "c04ff1bc8b82cce624001000";
    let hex = |text: &str| {
        let pairs = text.as_bytes().chunks(2);
        let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        pairs.map(byte).collect::<Vec<u8>>()
    };
    [hex(first), vec![0; 1_015], hex(last)].concat()
}

#[tokio::test]
async fn sec_22_compressed_body_is_not_decompressed() {
    for encoding in ["gzip", "x-gzip", "gzip, gzip", "identity", "br"] {
        let mut scene = HttpScene::new().await;
        let call = scene.start_call();
        let mut seen = scene.server.next_post().await;
        assert_eq!(seen.header("accept-encoding"), None);
        let bomb = compressed_bomb();
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: {encoding}\r\n\
             Content-Length: {}\r\n\r\n",
            bomb.len()
        );
        seen.write_open(&head).await;
        assert!(seen.try_write_bytes(&bomb).await);
        let error = call.await.unwrap().unwrap_err();
        assert!(
            matches!(error, LinkError::BadResponse(_)),
            "{encoding}: {error:?}"
        );
        assert_ne!(error.execution(), ExecutionStatus::NotStarted);
    }
}

#[tokio::test]
async fn sec_22_wrong_content_type_is_refused() {
    let mut scene = HttpScene::new().await;
    for kind in [
        "text/html",
        "text/plain",
        "application/octet-stream",
        "image/png",
        "application/jsonp",
        "text/event-streams",
        "multipart/mixed; boundary=application/json",
    ] {
        let call = scene.start_call();
        let seen = scene.server.next_post().await;
        let body = scripted_server::result_body(&seen.id(), "{\"ok\":true}");
        seen.respond(200, &format!("Content-Type: {kind}\r\n"), &body)
            .await;
        let error = call.await.unwrap().unwrap_err();
        let LinkError::ContentType { content_type, .. } = &error else {
            panic!("{kind}: {error:?}");
        };
        assert_eq!(&**content_type, kind);
        assert_ne!(error.execution(), ExecutionStatus::NotStarted);
    }
}

#[tokio::test]
async fn sec_23_response_headers_do_not_reach_requests() {
    let mut scene = HttpScene::new().await;
    let call = scene.start_call();
    let seen = scene.server.next_post().await;
    let body = scripted_server::result_body(&seen.id(), "1");
    let set = "Content-Type: application/json\r\nSet-Cookie: a=b\r\nProxy-Authenticate: Basic\r\n\
               Connection: keep-alive, X-Own\r\nX-Own: 1\r\nKeep-Alive: timeout=9\r\n\
               X-Forwarded-For: 1.2.3.4\r\nMcp-Session-Id: other\r\nLast-Event-ID: 7\r\n";
    seen.respond(200, set, &body).await;
    assert_eq!(response_text(call.await.unwrap()), result_text("1"));
    let call = scene.start_call();
    let seen = scene.server.next_post().await;
    for name in [
        "cookie",
        "proxy-authorization",
        "x-own",
        "x-forwarded-for",
        "last-event-id",
        "te",
    ] {
        assert_eq!(seen.header(name), None, "{name}");
    }
    assert_eq!(seen.header("mcp-session-id"), Some("one"));
    seen.respond_result("2").await;
    assert_eq!(response_text(call.await.unwrap()), result_text("2"));
}
