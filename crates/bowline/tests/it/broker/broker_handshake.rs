//! The handshake at `/broker`: authentication, form, and time limit.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use bowline_testkit::gateway::{Gateway, HttpConnection};
use bowline_testkit::{WAIT_MAX, wait_until};
use serde_json::json;

use super::plain_peer::{PlainPeer, SocketEvent, dial_websocket};
use super::{create_token, start_broker};

/// Limit of connections without a `hello`.
const PREHELLO_CONNECTIONS_MAX: usize = 256;

const HANDSHAKE: [(&str, &str); 4] = [
    ("Connection", "Upgrade"),
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
];

fn upgrade_status(gateway: &Gateway, method: &str, path: &str, headers: &[(&str, &str)]) -> u16 {
    let mut http = HttpConnection::connect(gateway.address);
    http.send_request(method, path, headers, b"");
    http.read_head().status
}

#[test]
fn incomplete_websocket_handshake_is_refused() {
    let gateway = start_broker("");
    assert_eq!(upgrade_status(&gateway, "GET", "/broker", &HANDSHAKE), 101);
    assert_eq!(upgrade_status(&gateway, "GET", "/broker", &[]), 426);
    assert_eq!(upgrade_status(&gateway, "POST", "/broker", &HANDSHAKE), 405);
    assert_eq!(upgrade_status(&gateway, "DELETE", "/broker", &[]), 405);
    for (at, value, expected) in [
        (0, "close", 426),
        (1, "h2c", 426),
        (2, "12", 426),
        (3, "short", 400),
    ] {
        let mut other = HANDSHAKE;
        other[at].1 = value;
        assert_eq!(
            upgrade_status(&gateway, "GET", "/broker", &other),
            expected,
            "{value}"
        );
    }
    for path in ["/broker/", "/Broker", "/broker/x", "//broker"] {
        assert_eq!(
            upgrade_status(&gateway, "GET", path, &HANDSHAKE),
            404,
            "{path}"
        );
    }
    // A refused upgrade leaves a usable HTTP connection.
    let mut http = HttpConnection::connect(gateway.address);
    assert_eq!(http.get("/broker", &[]).status, 426);
    assert_eq!(http.get("/livez", &[]).status, 200);
}

#[test]
fn sec_05_foreign_origin_and_host_get_no_websocket() {
    let gateway = start_broker("");
    let with = |name: &'static str, value: &str| {
        let mut headers = HANDSHAKE.to_vec();
        headers.push((name, value));
        upgrade_status(&gateway, "GET", "/broker", &headers)
    };
    for origin in [
        "http://evil.example",
        "https://localhost",
        "null",
        "file://",
    ] {
        assert_eq!(with("Origin", origin), 403, "{origin}");
    }
    assert_eq!(with("Host", "evil.example"), 403);
    let own = format!("http://{}", gateway.address);
    assert_eq!(with("Origin", &own), 101);
}

/// A peer sends its credential in a header or in `hello`; a credential in the query is refused.
#[test]
fn credential_in_query_is_refused() {
    let gateway = start_broker("");
    let ann = create_token(&gateway, "ann", "writer");
    for path in [
        "/broker?token=x",
        "/broker?a=1&access_token=y",
        "/broker?Api_Key=",
    ] {
        let refused = dial_websocket(gateway.address, path, &[]).unwrap_err();
        assert_eq!(refused, 400, "{path}");
    }
    let wrong = dial_websocket(
        gateway.address,
        "/broker",
        &[("authorization", "Bearer no")],
    );
    assert_eq!(wrong.unwrap_err(), 401);
    let bearer = format!("Bearer {ann}");
    let joined = |headers: &[(&'static str, &str)], hello: serde_json::Value| {
        let mut peer =
            PlainPeer::from_socket(dial_websocket(gateway.address, "/broker", headers).unwrap());
        peer.send_frame(&hello);
        match peer.next_event() {
            SocketEvent::Frame(frame) => frame["kind"].as_str().unwrap().to_owned(),
            other => panic!("{other:?}"),
        }
    };
    let with = [("authorization", &bearer[..])];
    let agent = json!({"session_id": "ann"});
    let plain = json!({"kind": "hello", "agent": agent});
    assert_eq!(joined(&with, plain.clone()), "welcome");
    let both = json!({"kind": "hello", "agent": agent, "token": ann});
    assert_eq!(joined(&with, both), "welcome");
    // A peer with two contradicting credentials is refused.
    let other = create_token(&gateway, "bob", "writer");
    let both = json!({"kind": "hello", "agent": agent, "token": other});
    assert_eq!(joined(&with, both), "error");
    let both = json!({"kind": "hello", "agent": agent, "token": "wrong"});
    assert_eq!(joined(&with, both), "error");
    assert_eq!(joined(&[], plain), "error");
    let owner = format!("Bearer {}", gateway.token);
    let plain = json!({"kind": "hello", "agent": {"session_id": "owner"}});
    assert_eq!(joined(&[("authorization", &owner)], plain), "welcome");
}

/// With authentication off, the broker still refuses a peer without a token.
#[test]
fn broker_needs_token_even_without_authentication() {
    let gateway = Gateway::start_with_args(&super::broker_config(), &["--insecure-no-auth"]);
    for hello in [
        json!({"kind": "hello", "agent": {"session_id": "anonymous-local"}}),
        json!({"kind": "hello", "agent": {"session_id": "owner"}, "token": ""}),
        json!({"kind": "hello", "agent": {"session_id": "ann"}, "token": "x"}),
    ] {
        let mut peer = PlainPeer::connect(gateway.address);
        peer.send_frame(&hello);
        let (error, closed) = peer.read_closing_error();
        assert_eq!((&error["code"], closed), (&json!("auth"), 4003), "{hello}");
    }
    let ann = create_token(&gateway, "ann", "writer");
    PlainPeer::join(gateway.address, "ann", &ann);
}

#[test]
fn silent_connections_are_capped_and_closed() {
    let gateway = start_broker("");
    let ann = create_token(&gateway, "ann", "writer");
    let began = Instant::now();
    let mut silent: Vec<_> = (0..PREHELLO_CONNECTIONS_MAX)
        .map(|_| PlainPeer::connect(gateway.address))
        .collect();
    // A further connection is accepted, and the oldest is closed.
    silent.push(PlainPeer::connect(gateway.address));
    drop(silent.remove(0));
    for mut peer in silent {
        let (error, closed) = peer.read_closing_error();
        assert_eq!((&error["code"], closed), (&json!("auth"), 4003));
    }
    let waited = began.elapsed();
    assert!(waited >= Duration::from_secs(4), "{waited:?}");
    assert!(waited < Duration::from_secs(30), "{waited:?}");
    // Their places are free again, and authenticated peers take none.
    let peers: Vec<_> = (0..PREHELLO_CONNECTIONS_MAX + 1)
        .map(|_| PlainPeer::join(gateway.address, "ann", &ann))
        .collect();
    drop(peers);
}

#[test]
fn unfinished_handshakes_disturb_no_peer() {
    let gateway = start_broker("");
    let ann = create_token(&gateway, "ann", "writer");
    let mut half = Vec::new();
    for at in 0..64 {
        let mut stream = TcpStream::connect(gateway.address).unwrap();
        let head = format!("GET /broker HTTP/1.1\r\nHost: {}\r\nUpgr", gateway.address);
        stream.write_all(head.as_bytes()).unwrap();
        if at % 2 == 0 {
            half.push(stream);
        }
    }
    let mut peer = PlainPeer::join_and_subscribe(gateway.address, "ann", &ann);
    assert!(!peer.list_tools("m").is_empty());
    // An upgraded connection that sends garbage instead of frames is closed.
    let mut rubbish = HttpConnection::connect(gateway.address);
    rubbish.send_request("GET", "/broker", &HANDSHAKE, b"");
    assert_eq!(rubbish.read_head().status, 101);
    rubbish.send_raw(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(rubbish.is_closed());
    // So is a connection that sends frames before the upgrade response.
    let mut early = TcpStream::connect(gateway.address).unwrap();
    early.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let mut bytes = format!("GET /broker HTTP/1.1\r\nHost: {}\r\n", gateway.address);
    for (name, value) in HANDSHAKE {
        bytes.push_str(&format!("{name}: {value}\r\n"));
    }
    bytes.push_str("\r\nnot a frame");
    early.write_all(bytes.as_bytes()).unwrap();
    let mut rest = Vec::new();
    let _ = early.read_to_end(&mut rest);
    assert!(!peer.list_tools("m-2").is_empty());
}

#[test]
fn oversized_frame_closes_only_its_connection() {
    let gateway = start_broker("");
    let ann = create_token(&gateway, "ann", "writer");
    let mut kept = PlainPeer::join_and_subscribe(gateway.address, "ann#kept", &ann);
    let mut peer = PlainPeer::join(gateway.address, "ann", &ann);
    let big = "x".repeat(9 * 1024 * 1024 + 1);
    peer.try_send_text(&big);
    assert!(peer.wait_for_close());
    assert!(!kept.list_tools("m").is_empty());
    // A frame within the limit is accepted, as long as the journal can hold it.
    let fits = json!({"message": "y".repeat(4 * 1024 * 1024)});
    let body = kept.call_tool("c", "one__echo", &fits);
    assert_eq!(body["result"]["success"], true);
    wait_until("the other is gone", || {
        let broker = gateway.get_api("/api/v1/broker");
        broker["peers"].as_array().unwrap().len() == 1
    });
}
