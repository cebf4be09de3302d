//! The handshake at `/broker`: who may try, what a try must look like, and how long it may last.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::json;

use super::plain::{Came, Plain, dial};
use super::{token, up};
use crate::harness::{Gateway, Http, PATIENCE, eventually};

/// Connections that may be there without a hello.
const LOBBY: usize = 256;

const HANDSHAKE: [(&str, &str); 4] = [
    ("Connection", "Upgrade"),
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
];

fn status(gateway: &Gateway, method: &str, path: &str, headers: &[(&str, &str)]) -> u16 {
    let mut http = Http::connect(gateway.address);
    http.send(method, path, headers, b"");
    http.read_head().status
}

#[test]
fn only_a_whole_handshake_is_answered_with_a_connection() {
    let gateway = up("");
    assert_eq!(status(&gateway, "GET", "/broker", &HANDSHAKE), 101);
    assert_eq!(status(&gateway, "GET", "/broker", &[]), 426);
    assert_eq!(status(&gateway, "POST", "/broker", &HANDSHAKE), 405);
    assert_eq!(status(&gateway, "DELETE", "/broker", &[]), 405);
    for (at, value, expected) in [
        (0, "close", 426),
        (1, "h2c", 426),
        (2, "12", 426),
        (3, "short", 400),
    ] {
        let mut other = HANDSHAKE;
        other[at].1 = value;
        assert_eq!(
            status(&gateway, "GET", "/broker", &other),
            expected,
            "{value}"
        );
    }
    for path in ["/broker/", "/Broker", "/broker/x", "//broker"] {
        assert_eq!(status(&gateway, "GET", path, &HANDSHAKE), 404, "{path}");
    }
    // A connection that was refused is one of HTTP still.
    let mut http = Http::connect(gateway.address);
    assert_eq!(http.get("/broker", &[]).status, 426);
    assert_eq!(http.get("/livez", &[]).status, 200);
}

#[test]
fn sec_05_web_pages_and_other_names_of_the_gateway_get_no_connection() {
    let gateway = up("");
    let with = |name: &'static str, value: &str| {
        let mut headers = HANDSHAKE.to_vec();
        headers.push((name, value));
        status(&gateway, "GET", "/broker", &headers)
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

#[test]
fn a_credential_comes_in_a_header_or_in_hello_and_never_in_the_query() {
    let gateway = up("");
    let ann = token(&gateway, "ann", "writer");
    for path in [
        "/broker?token=x",
        "/broker?a=1&access_token=y",
        "/broker?Api_Key=",
    ] {
        let refused = dial(gateway.address, path, &[]).unwrap_err();
        assert_eq!(refused, 400, "{path}");
    }
    let wrong = dial(
        gateway.address,
        "/broker",
        &[("authorization", "Bearer no")],
    );
    assert_eq!(wrong.unwrap_err(), 401);
    let bearer = format!("Bearer {ann}");
    let joined = |headers: &[(&'static str, &str)], hello: serde_json::Value| {
        let mut peer = Plain::over(dial(gateway.address, "/broker", headers).unwrap());
        peer.say(&hello);
        match peer.next() {
            Came::Frame(frame) => frame["kind"].as_str().unwrap().to_owned(),
            other => panic!("{other:?}"),
        }
    };
    let with = [("authorization", &bearer[..])];
    let agent = json!({"session_id": "ann"});
    let plain = json!({"kind": "hello", "agent": agent});
    assert_eq!(joined(&with, plain.clone()), "welcome");
    let both = json!({"kind": "hello", "agent": agent, "token": ann});
    assert_eq!(joined(&with, both), "welcome");
    // Whoever says two things is none of both.
    let other = token(&gateway, "bob", "writer");
    let both = json!({"kind": "hello", "agent": agent, "token": other});
    assert_eq!(joined(&with, both), "error");
    let both = json!({"kind": "hello", "agent": agent, "token": "wrong"});
    assert_eq!(joined(&with, both), "error");
    assert_eq!(joined(&[], plain), "error");
    let owner = format!("Bearer {}", gateway.token);
    let plain = json!({"kind": "hello", "agent": {"session_id": "owner"}});
    assert_eq!(joined(&[("authorization", &owner)], plain), "welcome");
}

#[test]
fn without_authentication_the_broker_stays_closed_to_whoever_has_no_token() {
    let gateway = Gateway::up_with(&super::config(), &["--insecure-no-auth"]);
    for hello in [
        json!({"kind": "hello", "agent": {"session_id": "anonymous-local"}}),
        json!({"kind": "hello", "agent": {"session_id": "owner"}, "token": ""}),
        json!({"kind": "hello", "agent": {"session_id": "ann"}, "token": "x"}),
    ] {
        let mut peer = Plain::connect(gateway.address);
        peer.say(&hello);
        let (error, closed) = peer.ended();
        assert_eq!((&error["code"], closed), (&json!("auth"), 4003), "{hello}");
    }
    let ann = token(&gateway, "ann", "writer");
    Plain::join(gateway.address, "ann", &ann);
}

#[test]
fn connections_that_say_nothing_are_few_and_end_soon() {
    let gateway = up("");
    let ann = token(&gateway, "ann", "writer");
    let began = Instant::now();
    let mut silent: Vec<_> = (0..LOBBY)
        .map(|_| Plain::connect(gateway.address))
        .collect();
    // One more is let in, and the oldest gives way to it.
    silent.push(Plain::connect(gateway.address));
    drop(silent.remove(0));
    for mut peer in silent {
        let (error, closed) = peer.ended();
        assert_eq!((&error["code"], closed), (&json!("auth"), 4003));
    }
    let waited = began.elapsed();
    assert!(waited >= Duration::from_secs(4), "{waited:?}");
    assert!(waited < Duration::from_secs(30), "{waited:?}");
    // Their places are free again, and those who said who they are take none.
    let peers: Vec<_> = (0..LOBBY + 1)
        .map(|_| Plain::join(gateway.address, "ann", &ann))
        .collect();
    drop(peers);
}

#[test]
fn handshakes_that_are_never_finished_disturb_nobody() {
    let gateway = up("");
    let ann = token(&gateway, "ann", "writer");
    let mut half = Vec::new();
    for at in 0..64 {
        let mut stream = TcpStream::connect(gateway.address).unwrap();
        let head = format!("GET /broker HTTP/1.1\r\nHost: {}\r\nUpgr", gateway.address);
        stream.write_all(head.as_bytes()).unwrap();
        if at % 2 == 0 {
            half.push(stream);
        }
    }
    let mut peer = Plain::subscribed(gateway.address, "ann", &ann);
    assert!(!peer.tools("m").is_empty());
    // One that upgrades and then sends rubbish instead of frames is closed.
    let mut rubbish = Http::connect(gateway.address);
    rubbish.send("GET", "/broker", &HANDSHAKE, b"");
    assert_eq!(rubbish.read_head().status, 101);
    rubbish.raw(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(rubbish.is_closed());
    // So is one that talks before it was answered.
    let mut early = TcpStream::connect(gateway.address).unwrap();
    early.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut bytes = format!("GET /broker HTTP/1.1\r\nHost: {}\r\n", gateway.address);
    for (name, value) in HANDSHAKE {
        bytes.push_str(&format!("{name}: {value}\r\n"));
    }
    bytes.push_str("\r\nnot a frame");
    early.write_all(bytes.as_bytes()).unwrap();
    let mut rest = Vec::new();
    let _ = early.read_to_end(&mut rest);
    assert!(!peer.tools("m-2").is_empty());
}

#[test]
fn a_frame_larger_than_the_limit_ends_its_connection_and_no_other() {
    let gateway = up("");
    let ann = token(&gateway, "ann", "writer");
    let mut kept = Plain::subscribed(gateway.address, "ann#kept", &ann);
    let mut peer = Plain::join(gateway.address, "ann", &ann);
    let big = "x".repeat(9 * 1024 * 1024 + 1);
    peer.try_text(&big);
    assert!(peer.is_over());
    assert!(!kept.tools("m").is_empty());
    // What fits goes through, as long as the journal can hold it.
    let fits = json!({"message": "y".repeat(4 * 1024 * 1024)});
    let body = kept.call("c", "one__echo", &fits);
    assert_eq!(body["result"]["success"], true);
    eventually("the other is gone", || {
        let broker = gateway.api("/api/v1/broker");
        broker["peers"].as_array().unwrap().len() == 1
    });
}
