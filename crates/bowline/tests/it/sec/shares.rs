//! One low principal takes all that it can get: the others go on, and nothing of theirs is ended.

use std::io::Write as _;
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::harness::{Gateway, Http, PATIENCE, Session, eventually, fixture};
use crate::sec::until_closed;

/// A gateway with little to share, and the token of a principal that may do next to nothing.
fn small(limits: &str, allow: &str) -> (Gateway, String) {
    let roles = format!("[limits]\n{limits}\n[roles.low]\nallow = [{allow}]\n");
    let gateway = Gateway::up(&format!("{roles}{}", fixture("one", &[])));
    gateway.wait_for("one", "ready");
    let (_, token) = gateway.token_of(&json!({"principal": "low", "role": "low"}));
    (gateway, token)
}

fn initialize(http: &mut Http, token: &str) -> crate::harness::Response {
    let bearer = format!("Bearer {token}");
    let body = json!({
        "jsonrpc": "2.0", "id": 7, "method": "initialize",
        "params": {"protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": {"name": "flood", "version": "1"}},
    });
    let headers = [("Authorization", bearer.as_str())];
    http.post("/mcp", &headers, body.to_string().as_bytes())
}

fn share(gateway: &Gateway, resource: &str) -> Value {
    gateway.api("/api/v1/status")["shares"][resource].clone()
}

fn is_share_exceeded(told: &Value, resource: &str, execution: &str) {
    let data = &told["error"]["data"];
    assert_eq!(data["code"], "share_exceeded", "{told}");
    assert_eq!(data["limit"], resource, "{told}");
    assert_eq!(data["execution"], execution, "{told}");
}

#[test]
fn sec_76_session_flood_ends_nothing_of_others() {
    let limits = "sessions = 64\nprincipal_sessions = 8";
    let (gateway, low) = small(limits, "");
    let mut quiet = gateway.session("/mcp");
    let mut calling = gateway.session("/mcp");
    calling.send_call(1, "one__slow", &json!({"ms": 2_000, "message": "done"}));
    let mut http = Http::connect(gateway.address);
    let mut ids = Vec::new();
    for _ in 0..300 {
        let opened = initialize(&mut http, &low);
        assert_eq!(opened.status, 200, "{}", opened.text());
        ids.push(opened.header("mcp-session-id").unwrap().to_owned());
    }
    let held = share(&gateway, "sessions");
    assert_eq!(held["by_principal"]["low"], 8, "{held}");
    // Neither the quiet session nor the call of the owner noticed anything. An id outlives its
    // session in memory, so that an answer alone does not say that the session was not ended.
    let listed = gateway.api("/api/v1/sessions");
    let listed = listed["sessions"].as_array().unwrap().iter();
    let kept = listed.filter(|one| one["principal"] == "owner");
    assert_eq!(kept.count(), 2);
    assert_eq!(quiet.text("one__echo", &json!({"message": "hi"})), "hi");
    let answered = calling.http.read();
    assert_eq!(answered.status, 200);
    assert!(!answered.text().contains("error"), "{}", answered.text());
    // A busy session of the flooder does not go for its next one either.
    let mut streams = Vec::new();
    for id in ids.iter().rev().take(8) {
        let mut stream = Http::connect(gateway.address);
        let bearer = format!("Bearer {low}");
        let headers = [
            ("Authorization", bearer.as_str()),
            ("Mcp-Session-Id", id.as_str()),
            ("Accept", "text/event-stream"),
        ];
        stream.send("GET", "/mcp", &headers, b"");
        assert_eq!(stream.read_head().status, 200);
        streams.push(stream);
    }
    let refused = initialize(&mut http, &low);
    assert_eq!(refused.status, 429, "{}", refused.text());
    assert!(refused.header("retry-after").is_some());
    assert_eq!(refused.json()["id"], 7);
    is_share_exceeded(&refused.json(), "sessions", "not_started");
    gateway.session("/mcp");
}

#[test]
fn sec_77_stream_flood_leaves_streams_to_others() {
    let (gateway, low) = small("streams = 64\nprincipal_streams = 8", "");
    let bearer = format!("Bearer {low}");
    let headers = [
        ("Authorization", bearer.as_str()),
        ("Accept", "text/event-stream"),
    ];
    let mut streams = Vec::new();
    let mut refused = 0;
    for _ in 0..40 {
        let mut stream = Http::connect(gateway.address);
        stream.send("GET", "/sse", &headers, b"");
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
    let owner = gateway.session("/mcp");
    let _stream = owner.listen();
    let modern = gateway.modern("/mcp");
    let asked = json!({"notifications": {"toolsListChanged": true}});
    let message = modern.message(&json!(1), "subscriptions/listen", &asked);
    let listen = modern.headers(&message);
    let mut listen: Vec<_> = listen
        .iter()
        .map(|(key, value)| (&**key, &**value))
        .collect();
    listen.push(("Content-Type", "application/json"));
    listen.push(("Accept", "application/json, text/event-stream"));
    let mut http = Http::connect(gateway.address);
    http.send("POST", "/mcp", &listen, message.to_string().as_bytes());
    assert_eq!(http.read_head().status, 200);
    assert_eq!(share(&gateway, "streams")["refused"], 32);
    drop(streams);
    eventually("the streams are given back", || {
        share(&gateway, "streams")["by_principal"]
            .get("low")
            .is_none()
    });
}

#[test]
fn sec_78_subscriptions_are_short_and_shared() {
    let limits = "subscriptions = 64\nprincipal_subscriptions = 4";
    let (gateway, low) = small(limits, "\"resource:one.*\"");
    let mut sessions: Vec<_> = (0..3).map(|_| gateway.session_as(&low, "/mcp")).collect();
    let subscribe = |session: &mut Session, uri: &str| {
        session.request("resources/subscribe", &json!({"uri": uri}))
    };
    let long = format!("test://{}", "x".repeat(8 * 1024));
    let mut single = gateway.session_as(&low, "/servers/one/mcp");
    let told = subscribe(&mut single, &long);
    assert_eq!(told["error"]["code"], -32_602, "{told}");
    // One share for all sessions of the principal.
    let uris = ["test://watched-resource", "test://static-text"];
    let mut told = Vec::new();
    for session in &mut sessions {
        for uri in uris {
            told.push(subscribe(session, uri));
        }
    }
    let taken = told.iter().filter(|told| told["result"].is_object());
    assert_eq!(taken.count(), 4, "{told:?}");
    is_share_exceeded(&told[5], "subscriptions", "not_started");
    let mut owner = gateway.session("/mcp");
    let taken = subscribe(&mut owner, uris[0]);
    assert!(taken["result"].is_object(), "{taken}");
    sessions[0].delete();
    let taken = subscribe(&mut sessions[2], uris[0]);
    assert!(taken["result"].is_object(), "{taken}");
}

#[test]
fn sec_79_unfinished_bodies_stay_within_the_share() {
    let limits = "body_bytes = \"8MiB\"\nprincipal_body_bytes = \"2MiB\"";
    let (gateway, low) = small(limits, "");
    let piece = vec![b' '; 768 * 1024];
    let mut open = Vec::new();
    for _ in 0..12 {
        let mut stream = TcpStream::connect(gateway.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let head = format!(
            "POST /mcp HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {low}\r\n\
             Content-Type: application/json\r\nContent-Length: 8000000\r\n\r\n",
            gateway.address
        );
        stream.write_all(head.as_bytes()).unwrap();
        // A connection that is refused is closed before it was sent all.
        let _ = stream.write_all(&piece);
        open.push(stream);
    }
    eventually("most of them are refused", || {
        share(&gateway, "body_bytes")["refused"].as_u64() >= Some(8)
    });
    let held = share(&gateway, "body_bytes");
    let own = held["by_principal"]["low"].as_u64().unwrap();
    assert!(own <= 2 << 20, "{held}");
    let mut owner = gateway.session("/mcp");
    let message = "y".repeat(3 << 20);
    let said = owner.text("one__echo", &json!({"message": message}));
    assert_eq!(said.len(), message.len());
    let last = until_closed(open.pop().unwrap());
    assert!(
        last.is_empty() || last.starts_with("HTTP/1.1 429"),
        "{last}"
    );
    // Those that were let begin are given up for their rate.
    eventually("the bytes are given back", || {
        share(&gateway, "body_bytes")["used"] == 0
    });
}

#[test]
fn sec_80_unread_responses_stay_within_the_share() {
    let limits = "response_bytes = \"64MiB\"\nprincipal_response_bytes = \"8MiB\"";
    let (gateway, low) = small(limits, "\"one.*\"");
    let mut sessions: Vec<_> = (0..4).map(|_| gateway.session_as(&low, "/mcp")).collect();
    let big = json!({"bytes": 7_000_000});
    // It is asked for and not read: far more than the kernel takes.
    sessions[0].send_call(1, "one__big", &big);
    eventually("the response waits", || {
        share(&gateway, "response_bytes")["used"].as_u64() > Some(6_000_000)
    });
    for session in sessions.iter_mut().skip(1) {
        let told = session.call("one__big", &big);
        is_share_exceeded(&told, "response_bytes", "completed");
        assert_eq!(session.text("one__echo", &json!({"message": "hi"})), "hi");
    }
    let mut owner = gateway.session("/mcp");
    assert!(owner.text("one__big", &big).len() >= 7_000_000);
    // Whoever reads has room again.
    assert_eq!(sessions[0].http.read().status, 200);
    assert!(sessions[1].text("one__big", &big).len() >= 7_000_000);
}

/// Asks whether the gateway lives, which proves nothing; `false` when the connection was let go.
fn is_answered(stream: &mut TcpStream, ask: &str) -> bool {
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
fn sec_81_idle_connections_give_way_to_proven_ones() {
    let (gateway, _) = small("unproven_connections = 32", "");
    let mut owner = gateway.session("/mcp");
    let ask = format!("GET /livez HTTP/1.1\r\nHost: {}\r\n\r\n", gateway.address);
    let mut silent: Vec<_> = (0..200)
        .map(|number| {
            let mut stream = TcpStream::connect(gateway.address).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            if number % 2 == 0 {
                // It may have given way already.
                let _ = stream.write_all(ask.as_bytes());
            }
            stream
        })
        .collect();
    // Neither a proven connection nor one that proves itself now gives way.
    let mut fresh = gateway.session("/mcp");
    for session in [&mut owner, &mut fresh] {
        assert_eq!(session.text("one__echo", &json!({"message": "hi"})), "hi");
    }
    // They ask again and again, so that none is let go for being idle.
    eventually("the oldest gave way", || {
        let mut oldest = silent[..100].iter_mut();
        !oldest.any(|stream| is_answered(stream, &ask))
    });
    assert_eq!(fresh.text("one__echo", &json!({"message": "hi"})), "hi");
}

/// Upgrades a connection to the broker and returns the status.
fn upgrade(gateway: &Gateway, token: Option<&str>) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(gateway.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
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

/// The head of a masked text frame of so many bytes.
fn frame_head(bytes: u64) -> Vec<u8> {
    let mut head = vec![0x81, 0x80 | 127];
    head.extend_from_slice(&bytes.to_be_bytes());
    head.extend_from_slice(&[0; 4]);
    head
}

#[test]
fn sec_82_prehello_peers_are_small_and_give_way() {
    let (gateway, _) = small("", "");
    // A message of more than 64 KiB is refused by its head alone.
    let (mut large, told) = upgrade(&gateway, None);
    assert!(told.starts_with("HTTP/1.1 101"), "{told}");
    large.write_all(&frame_head(70_000)).unwrap();
    let mut rest = Vec::new();
    let _ = std::io::Read::read_to_end(&mut large, &mut rest);
    assert!(
        rest.windows(2).any(|two| two == 1009_u16.to_be_bytes()),
        "{rest:?}"
    );
    // Silent peers fill the lobby and more: nobody is refused, and the oldest give way.
    let mut silent = Vec::new();
    eventually("the oldest gave way, and not for being late", || {
        let fill = (0..300).map(|_| {
            let (mut stream, told) = upgrade(&gateway, None);
            assert!(told.starts_with("HTTP/1.1 101"), "{told}");
            let _ = stream.write_all(&frame_head(60_000));
            stream
        });
        silent = fill.collect();
        // One that says no hello in time is told so; one that gives way is not.
        let mut oldest = silent.drain(..44);
        oldest.all(|stream| !until_closed(stream).contains("hello in time"))
    });
    let (_, told) = upgrade(&gateway, Some(&gateway.token));
    assert!(told.starts_with("HTTP/1.1 101"), "{told}");
}

#[test]
fn sec_83_proven_connections_stay_within_the_share() {
    let (gateway, low) = small("connections = 64\nprincipal_connections = 8", "");
    let bearer = format!("Bearer {low}");
    let headers = [("Authorization", bearer.as_str())];
    let mut kept = Vec::new();
    let mut refused = 0;
    for _ in 0..40 {
        let mut http = Http::connect(gateway.address);
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
    let mut owner = gateway.session("/mcp");
    assert_eq!(owner.text("one__echo", &json!({"message": "hi"})), "hi");
}
