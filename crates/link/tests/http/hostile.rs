//! Servers that mean harm: what they send is bounded, and what they ask us to do is not done.

use bowline_core::error::Execution;
use bowline_link::http::RedirectError;
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// Smaller than usual, so that small pieces are not so many.
const BYTES_MAX: usize = 1024 * 1024;

/// What the sockets of both sides hold at most besides what was read.
const SOCKETS_BYTES_MAX: usize = 16 * 1024 * 1024;

const SECRETS: [&str; 4] = ["s3cret", "one", "tools/call", "last-event-id"];

/// Somebody who must not be reached.
struct Elsewhere(TcpListener);

impl Elsewhere {
    async fn new() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    fn port(&self) -> u16 {
        self.0.local_addr().unwrap().port()
    }

    /// The first in the queue is the connection of who asks, so nobody was before.
    async fn is_untouched(&self) {
        let own = TcpStream::connect(("127.0.0.1", self.port()))
            .await
            .unwrap();
        let (_, first) = soon(self.0.accept()).await.unwrap();
        assert_eq!(first, own.local_addr().unwrap());
    }
}

#[tokio::test]
async fn sec_21_no_redirect_takes_a_credential_a_session_or_a_message_to_another_origin() {
    let secret = Arc::new(Secret(Mutex::new(Some("Bearer s3cret"))));
    let mut scene = Scene::with(|spec| spec.credentials = secret).await;
    let other = Elsewhere::new().await;
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
            let call = scene.call();
            let seen = scene.server.post().await;
            assert_eq!(seen.header("authorization"), Some("Bearer s3cret"));
            seen.answer(status, &format!("Location: {target}\r\n"), "")
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
    other.is_untouched().await;
    // Nor was the message sent again here.
    assert!(scene.server.is_quiet() && scene.server.has_no_get());
}

/// Pours until nobody reads any more; returns how much went out.
async fn pour(mut seen: server::Seen, head: String, piece: Vec<u8>) -> usize {
    seen.writes(&head).await;
    let mut poured = 0;
    while seen.pours_bytes(&piece).await {
        poured += piece.len();
        assert!(poured < 1 << 30, "nobody stops reading");
    }
    poured
}

#[tokio::test]
async fn sec_22_answers_without_end_are_given_up_within_bounds() {
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
        let mut scene = Scene::with(small).await;
        let call = scene.call();
        let seen = scene.server.post().await;
        let head = format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n");
        let (outcome, poured) = soon(async { tokio::join!(call, pour(seen, head, piece)) }).await;
        let error = outcome.unwrap().unwrap_err();
        let want = LinkError::TooLong {
            bytes_max: BYTES_MAX,
        };
        assert_eq!(error, want, "{what}");
        assert_ne!(error.execution(), Execution::NotStarted, "{what}");
        // A chunk of one byte costs six on the wire, and a line of two bytes eight.
        let bound = 6 * BYTES_MAX + SOCKETS_BYTES_MAX;
        assert!(poured < bound, "{what}: {poured} bytes");
    }
}

#[tokio::test]
async fn sec_22_a_head_of_a_megabyte_is_given_up_within_bounds() {
    for header in [
        format!("X-A: {}\r\n", "b".repeat(1024 * 1024)),
        "X-A: b\r\n".repeat(128 * 1024),
        format!("{}: b\r\n", "x".repeat(1024 * 1024)),
    ] {
        let mut scene = Scene::new().await;
        let call = scene.call();
        let mut seen = scene.server.post().await;
        let writing = async {
            let _ = seen.pours("HTTP/1.1 200 OK\r\n").await && seen.pours(&header).await;
            drop(seen);
        };
        let (outcome, ()) = soon(async { tokio::join!(call, writing) }).await;
        let error = outcome.unwrap().unwrap_err();
        assert!(matches!(error, LinkError::BadHead(_)), "{error:?}");
        assert_ne!(error.execution(), Execution::NotStarted);
    }
}

/// A result of a mebibyte, packed into a kilobyte.
fn bomb() -> Vec<u8> {
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
async fn sec_22_what_is_packed_is_not_unpacked() {
    for encoding in ["gzip", "x-gzip", "gzip, gzip", "identity", "br"] {
        let mut scene = Scene::new().await;
        let call = scene.call();
        let mut seen = scene.server.post().await;
        assert_eq!(seen.header("accept-encoding"), None);
        let bomb = bomb();
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: {encoding}\r\n\
             Content-Length: {}\r\n\r\n",
            bomb.len()
        );
        seen.writes(&head).await;
        assert!(seen.pours_bytes(&bomb).await);
        let error = call.await.unwrap().unwrap_err();
        assert!(
            matches!(error, LinkError::BadAnswer(_)),
            "{encoding}: {error:?}"
        );
        assert_ne!(error.execution(), Execution::NotStarted);
    }
}

#[tokio::test]
async fn sec_22_an_answer_of_another_kind_is_none() {
    let mut scene = Scene::new().await;
    for kind in [
        "text/html",
        "text/plain",
        "application/octet-stream",
        "image/png",
        "application/jsonp",
        "text/event-streams",
        "multipart/mixed; boundary=application/json",
    ] {
        let call = scene.call();
        let seen = scene.server.post().await;
        let body = server::result(&seen.id(), "{\"ok\":true}");
        seen.answer(200, &format!("Content-Type: {kind}\r\n"), &body)
            .await;
        let error = call.await.unwrap().unwrap_err();
        let LinkError::ContentType { content_type, .. } = &error else {
            panic!("{kind}: {error:?}");
        };
        assert_eq!(&**content_type, kind);
        assert_ne!(error.execution(), Execution::NotStarted);
    }
}

#[tokio::test]
async fn sec_23_of_the_headers_of_an_answer_none_reaches_the_next_request() {
    let mut scene = Scene::new().await;
    let call = scene.call();
    let seen = scene.server.post().await;
    let body = server::result(&seen.id(), "1");
    let set = "Content-Type: application/json\r\nSet-Cookie: a=b\r\nProxy-Authenticate: Basic\r\n\
               Connection: keep-alive, X-Own\r\nX-Own: 1\r\nKeep-Alive: timeout=9\r\n\
               X-Forwarded-For: 1.2.3.4\r\nMcp-Session-Id: other\r\nLast-Event-ID: 7\r\n";
    seen.answer(200, set, &body).await;
    assert_eq!(text(call.await.unwrap()), answered("1"));
    let call = scene.call();
    let seen = scene.server.post().await;
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
    seen.result("2").await;
    assert_eq!(text(call.await.unwrap()), answered("2"));
}
