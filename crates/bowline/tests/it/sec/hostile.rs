//! Hostile servers: bounded output, no followed references, no caller data that is not theirs.

use bowline_testkit::resident_bytes;
use serde_json::json;

use crate::sec::egress_setup::{
    EgressSetup, ForbiddenListener, HostileConnection, HostileServer, REQUEST_ORIGINS,
    RequestOrigin,
};

/// Allowed memory growth for a response, in bytes.
const GROWTH_BYTES_MAX: usize = 192 * 1024 * 1024;

/// Bytes that a server may write before the connection is closed: the response limit, the data in
/// transit at an executor, and the socket buffers.
const WRITTEN_BYTES_MAX: usize = 128 * 1024 * 1024;

/// Writes until the connection is closed.
fn write_until_closed(victim: &mut HostileConnection<'_>, head: &str, piece: &[u8]) {
    let mut poured = 0;
    let mut open = victim.write_is_read(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n").as_bytes());
    while open && poured < 1 << 31 {
        open = victim.write_is_read(piece);
        poured += piece.len();
    }
}

fn encode_chunk(piece: &[u8]) -> Vec<u8> {
    let mut chunk = format!("{:x}\r\n", piece.len()).into_bytes();
    chunk.extend_from_slice(piece);
    chunk.extend_from_slice(b"\r\n");
    chunk
}

/// Makes a server attack a call; returns the error code. All processes on the path stay small and
/// serve the next call.
fn attack_error_code(
    road: RequestOrigin,
    deed: impl Fn(&mut HostileConnection<'_>, &str) + Send + Sync + 'static,
) -> String {
    let hostile = HostileServer::start(deed);
    let scene = EgressSetup::start(road, &hostile.url, "");
    let mut session = scene.open_session();
    assert_eq!(session.call_text("good", &json!({})), "well");
    let before: Vec<usize> = scene
        .process_ids()
        .into_iter()
        .map(resident_bytes)
        .collect();
    let answer = session.call("bad", &json!({}));
    for (pid, before) in scene.process_ids().into_iter().zip(before) {
        let grown = resident_bytes(pid).saturating_sub(before);
        assert!(grown < GROWTH_BYTES_MAX, "{road:?}: {grown} bytes more");
    }
    let poured = hostile.bytes_written();
    assert!(poured < WRITTEN_BYTES_MAX, "{road:?}: {poured} bytes");
    assert_eq!(session.call_text("good", &json!({})), "well", "{road:?}");
    let code = &answer["error"]["data"]["code"];
    code.as_str()
        .unwrap_or_else(|| panic!("{answer}"))
        .to_owned()
}

#[test]
fn sec_22_endless_responses_are_bounded_and_typed() {
    const JSON: &str = "Content-Type: application/json";
    const EVENTS: &str = "Content-Type: text/event-stream";
    const CHUNKED: &str = "Transfer-Encoding: chunked";
    const TEN_GB: &str = "Content-Length: 10000000000";
    for road in REQUEST_ORIGINS {
        for (what, heads, is_chunked) in [
            ("ten gigabytes", [JSON, TEN_GB], false),
            ("endless chunks", [JSON, CHUNKED], true),
            ("a line of an event without end", [EVENTS, CHUNKED], true),
        ] {
            let code = attack_error_code(road, move |victim, _| {
                let piece = vec![b'x'; 64 * 1024];
                let piece = if is_chunked {
                    encode_chunk(&piece)
                } else {
                    piece
                };
                write_until_closed(victim, &heads.join("\r\n"), &piece);
            });
            assert_eq!(code, "answer_too_large", "{road:?}: {what}");
        }
        let code = attack_error_code(road, |victim, _| {
            let long = format!("X-A: {}", "b".repeat(1024 * 1024));
            victim.write_is_read(format!("HTTP/1.1 200 OK\r\n{long}\r\n\r\n").as_bytes());
        });
        assert_eq!(code, "no_message", "{road:?}: a header of a megabyte");
    }
}

#[test]
fn sec_22_wrong_response_types_are_typed() {
    for road in REQUEST_ORIGINS {
        let code = attack_error_code(road, |victim, id| {
            let page = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#);
            let length = page.len();
            let head =
                format!("Content-Type: text/html\r\nConnection: close\r\nContent-Length: {length}");
            victim.write_is_read(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{page}").as_bytes());
        });
        assert_eq!(code, "no_message", "{road:?}: a page");
        let code = attack_error_code(road, |victim, _| {
            // The first bytes of a compressed body; it is never decompressed.
            let packed = [&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 2, 3, 0xed][..], &[0; 1_000]].concat();
            let length = packed.len();
            let head =
                "Connection: close\r\nContent-Type: application/json\r\nContent-Encoding: gzip";
            let head = format!("HTTP/1.1 200 OK\r\n{head}\r\nContent-Length: {length}\r\n\r\n");
            victim.write_is_read(&[head.as_bytes(), &packed].concat());
        });
        assert_eq!(code, "bad_answer", "{road:?}: what is packed");
    }
}

#[test]
fn sec_21_nothing_is_sent_to_another_origin() {
    for road in REQUEST_ORIGINS {
        let other = ForbiddenListener::new();
        let port = other.port;
        let targets = [
            format!("http://127.0.0.1:{port}/mcp"),
            format!("http://localhost:{port}/mcp"),
            format!("//127.0.0.1:{port}/mcp"),
        ];
        for status in [302, 307, 308] {
            for target in targets.clone() {
                let hostile = HostileServer::start(move |victim, _| {
                    let head =
                        format!("Location: {target}\r\nConnection: close\r\nContent-Length: 0");
                    victim
                        .write_is_read(format!("HTTP/1.1 {status} M\r\n{head}\r\n\r\n").as_bytes());
                });
                let secret = "[servers.s.headers]\nAuthorization = \"Bearer s3cret-s3cret\"\n";
                let address = crate::sec::egress_setup::url_address(&hostile.url);
                // The executor may contact the address; the redirect itself must not be followed.
                let allow = [address.to_string(), format!("127.0.0.0/8:{port}")];
                let scene = EgressSetup::start_with_allow(road, &hostile.url, secret, &allow);
                let mut session = scene.open_session();
                let answer = session.call("bad", &json!({}));
                assert_eq!(answer["error"]["data"]["code"], "no_message", "{answer}");
                assert!(!answer.to_string().contains("s3cret"), "{answer}");
                let sent = "authorization: bearer s3cret-s3cret";
                let heads = hostile.request_heads();
                assert!(heads.iter().all(|head| head.to_lowercase().contains(sent)));
            }
        }
        other.assert_untouched();
    }
}

#[test]
fn sec_20_advertised_auth_metadata_is_not_fetched() {
    for road in REQUEST_ORIGINS {
        let other = ForbiddenListener::new();
        let port = other.port;
        let hostile = HostileServer::start(move |victim, _| {
            let metadata = format!("http://127.0.0.1:{port}/.well-known/oauth-protected-resource");
            let head = format!(
                "WWW-Authenticate: Bearer resource_metadata=\"{metadata}\", \
                 authorization_uri=\"http://127.0.0.1:{port}/authorize\"\r\n\
                 Link: <http://127.0.0.1:{port}/next>; rel=\"next\"\r\n\
                 Connection: close\r\nContent-Length: 0"
            );
            victim.write_is_read(format!("HTTP/1.1 401 U\r\n{head}\r\n\r\n").as_bytes());
        });
        let address = crate::sec::egress_setup::url_address(&hostile.url);
        let allow = [address.to_string(), format!("127.0.0.0/8:{port}")];
        let scene = EgressSetup::start_with_allow(road, &hostile.url, "", &allow);
        let answer = scene.open_session().call("bad", &json!({}));
        assert_eq!(answer["error"]["data"]["code"], "auth_required", "{answer}");
        other.assert_untouched();
    }
}

/// Headers that a gateway sends to a server; each value is the gateway's own.
const GATEWAY_HEADERS: [&str; 12] = [
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
fn sec_23_caller_headers_are_not_forwarded() {
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
    for road in REQUEST_ORIGINS {
        let hostile = HostileServer::start(|victim, id| {
            let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[]}}}}"#);
            let length = body.len();
            let head = format!("Content-Type: application/json\r\nContent-Length: {length}");
            victim.write_is_read(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{body}").as_bytes());
        });
        let scene = EgressSetup::start(road, &hostile.url, "");
        let mut session = scene.open_session();
        let own = session.request_headers();
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
        for head in hostile.request_heads() {
            assert!(!head.contains("caller-"), "{road:?}: {head}");
            assert!(!head.contains(&scene.gateway.token), "{road:?}");
            assert!(!head.contains(&session.id), "{road:?}");
            for line in head.lines().skip(1).filter(|line| !line.is_empty()) {
                let name = line.split(':').next().unwrap().to_lowercase();
                assert!(GATEWAY_HEADERS.contains(&&*name), "{road:?}: {line}");
            }
        }
    }
}
