//! A greedy low-privilege principal: foreign sessions, streams and calls go on.

use std::io::Write as _;
use std::net::TcpStream;

use bowline_testkit::gateway::{Gateway, HttpConnection, Response, Session, fixture_config};
use bowline_testkit::{WAIT_MAX, wait_until};
use serde_json::{Value, json};

use crate::sec::read_until_closed;

/// A gateway with small limits, and the token of a principal with few rights.
fn start_small(limits: &str, allow: &str) -> (Gateway, String) {
    let roles = format!("[limits]\n{limits}\n[roles.low]\nallow = [{allow}]\n");
    let gateway = Gateway::start(&format!("{roles}{}", fixture_config("one", &[])));
    gateway.wait_for_state("one", "ready");
    let (_, token) = gateway.create_token(&json!({"principal": "low", "role": "low"}));
    (gateway, token)
}

fn post_initialize(http: &mut HttpConnection, token: &str) -> Response {
    let bearer = format!("Bearer {token}");
    let body = json!({
        "jsonrpc": "2.0", "id": 7, "method": "initialize",
        "params": {"protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": {"name": "flood", "version": "1"}},
    });
    let headers = [("Authorization", bearer.as_str())];
    http.post("/mcp", &headers, body.to_string().as_bytes())
}

fn share_status(gateway: &Gateway, resource: &str) -> Value {
    gateway.get_api("/api/v1/status")["shares"][resource].clone()
}

fn assert_share_exceeded(told: &Value, resource: &str, execution: &str) {
    let data = &told["error"]["data"];
    assert_eq!(data["code"], "share_exceeded", "{told}");
    assert_eq!(data["limit"], resource, "{told}");
    assert_eq!(data["execution"], execution, "{told}");
}

#[test]
fn sec_76_session_flood_ends_no_foreign_session() {
    let limits = "sessions = 64\nprincipal_sessions = 8";
    let (gateway, low) = start_small(limits, "");
    let mut quiet = gateway.open_session("/mcp");
    let mut calling = gateway.open_session("/mcp");
    calling.send_call(1, "one__slow", &json!({"ms": 2_000, "message": "done"}));
    let mut http = HttpConnection::connect(gateway.address);
    let mut ids = Vec::new();
    for _ in 0..300 {
        let opened = post_initialize(&mut http, &low);
        assert_eq!(opened.status, 200, "{}", opened.text());
        ids.push(opened.header("mcp-session-id").unwrap().to_owned());
    }
    let held = share_status(&gateway, "sessions");
    assert_eq!(held["by_principal"]["low"], 8, "{held}");
    // Neither the idle session nor the owner's call was affected. An id outlives the session in
    // memory, so a response alone does not prove a kept session.
    let listed = gateway.get_api("/api/v1/sessions");
    let listed = listed["sessions"].as_array().unwrap().iter();
    let kept = listed.filter(|one| one["principal"] == "owner");
    assert_eq!(kept.count(), 2);
    assert_eq!(
        quiet.call_text("one__echo", &json!({"message": "hi"})),
        "hi"
    );
    let answered = calling.http.read_response();
    assert_eq!(answered.status, 200);
    assert!(!answered.text().contains("error"), "{}", answered.text());
    // A busy session of the flooding principal is not evicted for the next session either.
    let mut streams = Vec::new();
    for id in ids.iter().rev().take(8) {
        let mut stream = HttpConnection::connect(gateway.address);
        let bearer = format!("Bearer {low}");
        let headers = [
            ("Authorization", bearer.as_str()),
            ("Mcp-Session-Id", id.as_str()),
            ("Accept", "text/event-stream"),
        ];
        stream.send_request("GET", "/mcp", &headers, b"");
        assert_eq!(stream.read_head().status, 200);
        streams.push(stream);
    }
    let refused = post_initialize(&mut http, &low);
    assert_eq!(refused.status, 429, "{}", refused.text());
    assert!(refused.header("retry-after").is_some());
    assert_eq!(refused.json()["id"], 7);
    assert_share_exceeded(&refused.json(), "sessions", "not_started");
    gateway.open_session("/mcp");
}

#[test]
fn sec_77_stream_flood_leaves_streams_to_others() {
    let (gateway, low) = start_small("streams = 64\nprincipal_streams = 8", "");
    let bearer = format!("Bearer {low}");
    let headers = [
        ("Authorization", bearer.as_str()),
        ("Accept", "text/event-stream"),
    ];
    let mut streams = Vec::new();
    let mut refused = 0;
    for _ in 0..40 {
        let mut stream = HttpConnection::connect(gateway.address);
        stream.send_request("GET", "/sse", &headers, b"");
        let head = stream.read_head();
        match head.status {
            200 => streams.push(stream),
            429 => {
                assert!(head.header("retry-after").is_some());
                refused += 1;
            }
            status => panic!("{status}"),
        }
    }
    assert_eq!((streams.len(), refused), (8, 32));
    let owner = gateway.open_session("/mcp");
    let _stream = owner.open_stream();
    let modern = gateway.modern_client("/mcp");
    let asked = json!({"notifications": {"toolsListChanged": true}});
    let message = modern.build_request(&json!(1), "subscriptions/listen", &asked);
    let listen = modern.request_headers(&message);
    let mut listen: Vec<_> = listen
        .iter()
        .map(|(key, value)| (&**key, &**value))
        .collect();
    listen.push(("Content-Type", "application/json"));
    listen.push(("Accept", "application/json, text/event-stream"));
    let mut http = HttpConnection::connect(gateway.address);
    http.send_request("POST", "/mcp", &listen, message.to_string().as_bytes());
    assert_eq!(http.read_head().status, 200);
    assert_eq!(share_status(&gateway, "streams")["refused"], 32);
    drop(streams);
    wait_until("the streams are given back", || {
        share_status(&gateway, "streams")["by_principal"]
            .get("low")
            .is_none()
    });
}

#[test]
fn sec_78_subscriptions_are_short_and_shared() {
    let limits = "subscriptions = 64\nprincipal_subscriptions = 4";
    let (gateway, low) = start_small(limits, "\"resource:one.*\"");
    let mut sessions: Vec<_> = (0..3)
        .map(|_| gateway.open_session_as(&low, "/mcp"))
        .collect();
    let subscribe = |session: &mut Session, uri: &str| {
        session.request("resources/subscribe", &json!({"uri": uri}))
    };
    let long = format!("test://{}", "x".repeat(8 * 1024));
    let mut single = gateway.open_session_as(&low, "/servers/one/mcp");
    let told = subscribe(&mut single, &long);
    assert_eq!(told["error"]["code"], -32_602, "{told}");
    // All sessions of the principal have a common share.
    let uris = ["test://watched-resource", "test://static-text"];
    let mut told = Vec::new();
    for session in &mut sessions {
        for uri in uris {
            told.push(subscribe(session, uri));
        }
    }
    let taken = told.iter().filter(|told| told["result"].is_object());
    assert_eq!(taken.count(), 4, "{told:?}");
    assert_share_exceeded(&told[5], "subscriptions", "not_started");
    let mut owner = gateway.open_session("/mcp");
    let taken = subscribe(&mut owner, uris[0]);
    assert!(taken["result"].is_object(), "{taken}");
    sessions[0].end_session();
    let taken = subscribe(&mut sessions[2], uris[0]);
    assert!(taken["result"].is_object(), "{taken}");
}

#[test]
fn sec_79_unfinished_bodies_stay_within_share() {
    let limits = "body_bytes = \"8MiB\"\nprincipal_body_bytes = \"2MiB\"";
    let (gateway, low) = start_small(limits, "");
    let piece = vec![b' '; 768 * 1024];
    let mut open = Vec::new();
    for _ in 0..12 {
        let mut stream = TcpStream::connect(gateway.address).unwrap();
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        let head = format!(
            "POST /mcp HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {low}\r\n\
             Content-Type: application/json\r\nContent-Length: 8000000\r\n\r\n",
            gateway.address
        );
        stream.write_all(head.as_bytes()).unwrap();
        // A refused connection closes before everything is sent.
        let _ = stream.write_all(&piece);
        open.push(stream);
    }
    wait_until("most of them are refused", || {
        share_status(&gateway, "body_bytes")["refused"].as_u64() >= Some(8)
    });
    let held = share_status(&gateway, "body_bytes");
    let own = held["by_principal"]["low"].as_u64().unwrap();
    assert!(own <= 2 << 20, "{held}");
    let mut owner = gateway.open_session("/mcp");
    let message = "y".repeat(3 << 20);
    let said = owner.call_text("one__echo", &json!({"message": message}));
    assert_eq!(said.len(), message.len());
    let last = read_until_closed(open.pop().unwrap());
    assert!(
        last.is_empty() || last.starts_with("HTTP/1.1 429"),
        "{last}"
    );
    // Accepted bodies are dropped for the low rate.
    wait_until("the bytes are given back", || {
        share_status(&gateway, "body_bytes")["used"] == 0
    });
}

#[test]
fn sec_80_unread_responses_stay_within_share() {
    let limits = "response_bytes = \"64MiB\"\nprincipal_response_bytes = \"8MiB\"";
    let (gateway, low) = start_small(limits, "\"one.*\"");
    let mut sessions: Vec<_> = (0..4)
        .map(|_| gateway.open_session_as(&low, "/mcp"))
        .collect();
    let big = json!({"bytes": 7_000_000});
    // The response is requested and not read: far more than the kernel buffers.
    sessions[0].send_call(1, "one__big", &big);
    wait_until("the response waits", || {
        share_status(&gateway, "response_bytes")["used"].as_u64() > Some(6_000_000)
    });
    for session in sessions.iter_mut().skip(1) {
        let told = session.call("one__big", &big);
        assert_share_exceeded(&told, "response_bytes", "completed");
        assert_eq!(
            session.call_text("one__echo", &json!({"message": "hi"})),
            "hi"
        );
    }
    let mut owner = gateway.open_session("/mcp");
    assert!(owner.call_text("one__big", &big).len() >= 7_000_000);
    // After reading, the principal has room again.
    assert_eq!(sessions[0].http.read_response().status, 200);
    assert!(sessions[1].call_text("one__big", &big).len() >= 7_000_000);
}

/// Requests `/livez`, which needs no token; `false` if the connection was closed.
fn responds_livez(stream: &mut TcpStream, ask: &str) -> bool {
    if stream.write_all(ask.as_bytes()).is_err() {
        return false;
    }
    let mut told = Vec::new();
    let mut byte = [0];
    while !told.ends_with(b"\r\n\r\nok\n") {
        match std::io::Read::read(stream, &mut byte) {
            Ok(1) => told.push(byte[0]),
            Ok(_) => return false,
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return false,
            Err(error) => panic!("neither answered nor closed: {error}"),
        }
    }
    true
}

#[test]
fn sec_81_idle_connections_yield_to_authenticated_ones() {
    let (gateway, _) = start_small("unproven_connections = 32", "");
    let mut owner = gateway.open_session("/mcp");
    let ask = format!("GET /livez HTTP/1.1\r\nHost: {}\r\n\r\n", gateway.address);
    let mut silent: Vec<_> = (0..200)
        .map(|number| {
            let mut stream = TcpStream::connect(gateway.address).unwrap();
            stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
            if number % 2 == 0 {
                // The connection may be closed already.
                let _ = stream.write_all(ask.as_bytes());
            }
            stream
        })
        .collect();
    // Neither an authenticated connection nor a newly authenticating one is closed.
    let mut fresh = gateway.open_session("/mcp");
    for session in [&mut owner, &mut fresh] {
        assert_eq!(
            session.call_text("one__echo", &json!({"message": "hi"})),
            "hi"
        );
    }
    // They send requests repeatedly, so none is closed as idle.
    wait_until("the oldest gave way", || {
        let mut oldest = silent[..100].iter_mut();
        !oldest.any(|stream| responds_livez(stream, &ask))
    });
    assert_eq!(
        fresh.call_text("one__echo", &json!({"message": "hi"})),
        "hi"
    );
}

/// Upgrades a connection to the broker and returns the status.
fn upgrade_to_broker(gateway: &Gateway, token: Option<&str>) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(gateway.address).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let bearer = token.map(|token| format!("Authorization: Bearer {token}\r\n"));
    let head = format!(
        "GET /broker HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{}\r\n",
        gateway.address,
        bearer.unwrap_or_default(),
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut told = Vec::new();
    let mut byte = [0];
    while !told.ends_with(b"\r\n\r\n") {
        std::io::Read::read_exact(&mut stream, &mut byte).unwrap();
        told.push(byte[0]);
    }
    (stream, String::from_utf8_lossy(&told).into_owned())
}

/// The head of a masked text frame of `bytes` bytes.
fn frame_head(bytes: u64) -> Vec<u8> {
    let mut head = vec![0x81, 0x80 | 127];
    head.extend_from_slice(&bytes.to_be_bytes());
    head.extend_from_slice(&[0; 4]);
    head
}

#[test]
fn sec_82_prehello_peers_are_bounded_and_yield() {
    let (gateway, _) = start_small("", "");
    // A message above 64 KiB is refused by its head alone.
    let (mut large, told) = upgrade_to_broker(&gateway, None);
    assert!(told.starts_with("HTTP/1.1 101"), "{told}");
    large.write_all(&frame_head(70_000)).unwrap();
    let mut rest = Vec::new();
    let _ = std::io::Read::read_to_end(&mut large, &mut rest);
    assert!(
        rest.windows(2).any(|two| two == 1009_u16.to_be_bytes()),
        "{rest:?}"
    );
    // Silent peers exceed the limit: none is refused, and the oldest are closed.
    let mut silent = Vec::new();
    wait_until("the oldest gave way, and not for being late", || {
        let fill = (0..300).map(|_| {
            let (mut stream, told) = upgrade_to_broker(&gateway, None);
            assert!(told.starts_with("HTTP/1.1 101"), "{told}");
            let _ = stream.write_all(&frame_head(60_000));
            stream
        });
        silent = fill.collect();
        // A peer without a timely `hello` gets an error; an evicted one does not.
        let mut oldest = silent.drain(..44);
        oldest.all(|stream| !read_until_closed(stream).contains("hello in time"))
    });
    let (_, told) = upgrade_to_broker(&gateway, Some(&gateway.token));
    assert!(told.starts_with("HTTP/1.1 101"), "{told}");
}

#[test]
fn sec_83_authenticated_connections_stay_within_share() {
    let (gateway, low) = start_small("connections = 64\nprincipal_connections = 8", "");
    let bearer = format!("Bearer {low}");
    let headers = [("Authorization", bearer.as_str())];
    let mut kept = Vec::new();
    let mut refused = 0;
    for _ in 0..40 {
        let mut http = HttpConnection::connect(gateway.address);
        let answer = http.get("/livez", &headers);
        match answer.status {
            200 => kept.push(http),
            429 => {
                assert_eq!(answer.json()["error"]["data"]["limit"], "connections");
                refused += 1;
            }
            status => panic!("{status}"),
        }
    }
    assert_eq!((kept.len(), refused), (8, 32));
    assert_eq!(kept[0].get("/livez", &headers).status, 200);
    let mut owner = gateway.open_session("/mcp");
    assert_eq!(
        owner.call_text("one__echo", &json!({"message": "hi"})),
        "hi"
    );
}
