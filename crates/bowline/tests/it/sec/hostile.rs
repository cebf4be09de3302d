//! Servers that mean harm: what they send is bounded, what they point at is not followed, and
//! nothing of the caller reaches them that is not theirs.

use serde_json::json;

use crate::harness::memory;
use crate::sec::roads::{Forbidden, Hostile, ROADS, Road, Scene, Victim};

/// What a process may need more because of one answer, in bytes.
const GROWTH_BYTES_MAX: usize = 192 * 1024 * 1024;

/// What a server may get rid of before nobody reads it any more, in bytes: what an answer may
/// have, what is under way at an executor, and the sockets between.
const POURED_BYTES_MAX: usize = 128 * 1024 * 1024;

/// Pours until nobody reads.
fn pour(victim: &mut Victim<'_>, head: &str, piece: &[u8]) {
    let mut poured = 0;
    let mut open = victim.hears(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n").as_bytes());
    while open && poured < 1 << 31 {
        open = victim.hears(piece);
        poured += piece.len();
    }
}

fn chunk(piece: &[u8]) -> Vec<u8> {
    let mut chunk = format!("{:x}\r\n", piece.len()).into_bytes();
    chunk.extend_from_slice(piece);
    chunk.extend_from_slice(b"\r\n");
    chunk
}

/// Has a server do this to a call; returns the code of the answer. All that the answer goes
/// through stays small and serves the next call.
fn suffers(road: Road, deed: impl Fn(&mut Victim<'_>, &str) + Send + Sync + 'static) -> String {
    let hostile = Hostile::start(deed);
    let scene = Scene::new(road, &hostile.url, "");
    let mut session = scene.session();
    assert_eq!(session.text("good", &json!({})), "well");
    let before: Vec<usize> = scene.pids().into_iter().map(memory).collect();
    let answer = session.call("bad", &json!({}));
    for (pid, before) in scene.pids().into_iter().zip(before) {
        let grown = memory(pid).saturating_sub(before);
        assert!(grown < GROWTH_BYTES_MAX, "{road:?}: {grown} bytes more");
    }
    let poured = hostile.poured();
    assert!(poured < POURED_BYTES_MAX, "{road:?}: {poured} bytes");
    assert_eq!(session.text("good", &json!({})), "well", "{road:?}");
    let code = &answer["error"]["data"]["code"];
    code.as_str()
        .unwrap_or_else(|| panic!("{answer}"))
        .to_owned()
}

#[test]
fn sec_22_answers_without_end_are_bounded_and_typed_by_either_road() {
    const JSON: &str = "Content-Type: application/json";
    const EVENTS: &str = "Content-Type: text/event-stream";
    const CHUNKED: &str = "Transfer-Encoding: chunked";
    const TEN_GB: &str = "Content-Length: 10000000000";
    for road in ROADS {
        for (what, heads, is_chunked) in [
            ("ten gigabytes", [JSON, TEN_GB], false),
            ("endless chunks", [JSON, CHUNKED], true),
            ("a line of an event without end", [EVENTS, CHUNKED], true),
        ] {
            let code = suffers(road, move |victim, _| {
                let piece = vec![b'x'; 64 * 1024];
                let piece = if is_chunked { chunk(&piece) } else { piece };
                pour(victim, &heads.join("\r\n"), &piece);
            });
            assert_eq!(code, "answer_too_large", "{road:?}: {what}");
        }
        let code = suffers(road, |victim, _| {
            let long = format!("X-A: {}", "b".repeat(1024 * 1024));
            victim.hears(format!("HTTP/1.1 200 OK\r\n{long}\r\n\r\n").as_bytes());
        });
        assert_eq!(code, "no_message", "{road:?}: a header of a megabyte");
    }
}

#[test]
fn sec_22_answers_of_another_kind_are_typed_by_either_road() {
    for road in ROADS {
        let code = suffers(road, |victim, id| {
            let page = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#);
            let length = page.len();
            let head =
                format!("Content-Type: text/html\r\nConnection: close\r\nContent-Length: {length}");
            victim.hears(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{page}").as_bytes());
        });
        assert_eq!(code, "no_message", "{road:?}: a page");
        let code = suffers(road, |victim, _| {
            // The first bytes of what is packed; nobody unpacks it.
            let packed = [&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 2, 3, 0xed][..], &[0; 1_000]].concat();
            let length = packed.len();
            let head =
                "Connection: close\r\nContent-Type: application/json\r\nContent-Encoding: gzip";
            let head = format!("HTTP/1.1 200 OK\r\n{head}\r\nContent-Length: {length}\r\n\r\n");
            victim.hears(&[head.as_bytes(), &packed].concat());
        });
        assert_eq!(code, "bad_answer", "{road:?}: what is packed");
    }
}

#[test]
fn sec_21_no_road_takes_a_credential_or_a_message_to_another_origin() {
    for road in ROADS {
        let other = Forbidden::new();
        let port = other.port;
        let targets = [
            format!("http://127.0.0.1:{port}/mcp"),
            format!("http://localhost:{port}/mcp"),
            format!("//127.0.0.1:{port}/mcp"),
        ];
        for status in [302, 307, 308] {
            for target in targets.clone() {
                let hostile = Hostile::start(move |victim, _| {
                    let head =
                        format!("Location: {target}\r\nConnection: close\r\nContent-Length: 0");
                    victim.hears(format!("HTTP/1.1 {status} M\r\n{head}\r\n\r\n").as_bytes());
                });
                let secret = "[servers.s.headers]\nAuthorization = \"Bearer s3cret-s3cret\"\n";
                let address = crate::sec::roads::address_of(&hostile.url);
                // The executor may go there; it is the redirect that must not be followed.
                let allow = [address.to_string(), format!("127.0.0.0/8:{port}")];
                let scene = Scene::allowing(road, &hostile.url, secret, &allow);
                let mut session = scene.session();
                let answer = session.call("bad", &json!({}));
                assert_eq!(answer["error"]["data"]["code"], "no_message", "{answer}");
                assert!(!answer.to_string().contains("s3cret"), "{answer}");
                let sent = "authorization: bearer s3cret-s3cret";
                let heads = hostile.heads();
                assert!(heads.iter().all(|head| head.to_lowercase().contains(sent)));
            }
        }
        other.is_untouched();
    }
}

#[test]
fn sec_20_what_a_server_points_at_for_credentials_is_not_fetched() {
    for road in ROADS {
        let other = Forbidden::new();
        let port = other.port;
        let hostile = Hostile::start(move |victim, _| {
            let metadata = format!("http://127.0.0.1:{port}/.well-known/oauth-protected-resource");
            let head = format!(
                "WWW-Authenticate: Bearer resource_metadata=\"{metadata}\", \
                 authorization_uri=\"http://127.0.0.1:{port}/authorize\"\r\n\
                 Link: <http://127.0.0.1:{port}/next>; rel=\"next\"\r\n\
                 Connection: close\r\nContent-Length: 0"
            );
            victim.hears(format!("HTTP/1.1 401 U\r\n{head}\r\n\r\n").as_bytes());
        });
        let address = crate::sec::roads::address_of(&hostile.url);
        let allow = [address.to_string(), format!("127.0.0.0/8:{port}")];
        let scene = Scene::allowing(road, &hostile.url, "", &allow);
        let answer = scene.session().call("bad", &json!({}));
        assert_eq!(answer["error"]["data"]["code"], "auth_required", "{answer}");
        other.is_untouched();
    }
}

/// What a gateway says to a server; each of these is its own word.
const OWN: [&str; 12] = [
    "host",
    "content-length",
    "transfer-encoding",
    "content-type",
    "accept",
    "user-agent",
    "mcp-session-id",
    "mcp-protocol-version",
    "mcp-method",
    "mcp-name",
    "traceparent",
    "tracestate",
];

#[test]
fn sec_23_headers_of_the_caller_are_rebuilt_and_not_forwarded() {
    let theirs = [
        ("Connection", "keep-alive, X-Hop"),
        ("X-Hop", "caller-1"),
        ("Keep-Alive", "timeout=caller-2"),
        ("Proxy-Authorization", "Basic caller-3"),
        ("Proxy-Connection", "caller-4"),
        ("TE", "trailers;caller-5"),
        ("X-Forwarded-For", "caller-6"),
        ("X-Forwarded-Host", "caller-7"),
        ("X-Forwarded-Proto", "caller-8"),
        ("Forwarded", "for=caller-9"),
        ("Via", "1.1 caller-10"),
        ("X-Real-IP", "caller-11"),
        ("Cookie", "a=caller-12"),
        ("Mcp-Param-City", "caller-13"),
        ("X-Api-Key", "caller-14"),
        ("User-Agent", "caller-15"),
        ("Last-Event-ID", "caller-16"),
        ("Referer", "http://caller-17/"),
        ("Max-Forwards", "18"),
    ];
    for road in ROADS {
        let hostile = Hostile::start(|victim, id| {
            let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[]}}}}"#);
            let length = body.len();
            let head = format!("Content-Type: application/json\r\nContent-Length: {length}");
            victim.hears(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{body}").as_bytes());
        });
        let scene = Scene::new(road, &hostile.url, "");
        let mut session = scene.session();
        let own = session.headers();
        let mut headers: Vec<_> = own
            .iter()
            .map(|(name, value)| (&**name, &**value))
            .collect();
        headers.extend(theirs);
        let call = json!({
            "jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "bad"},
        });
        let answer = session
            .http
            .post("/servers/s/mcp", &headers, call.to_string().as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert!(!answer.text().contains("\"error\""), "{}", answer.text());
        for head in hostile.heads() {
            assert!(!head.contains("caller-"), "{road:?}: {head}");
            assert!(!head.contains(&scene.gateway.token), "{road:?}");
            assert!(!head.contains(&session.id), "{road:?}");
            for line in head.lines().skip(1).filter(|line| !line.is_empty()) {
                let name = line.split(':').next().unwrap().to_lowercase();
                assert!(OWN.contains(&&*name), "{road:?}: {line}");
            }
        }
    }
}
