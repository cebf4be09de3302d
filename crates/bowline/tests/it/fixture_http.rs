//! The fixture over HTTP as a process: how it starts, how it ends, what it leaves behind.

use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Output, Stdio};

use serde_json::json;

use crate::harness::served::Served;
use crate::harness::{Session, bowline, lives, signal};

fn address(served: &Served) -> SocketAddr {
    let rest = served.url.strip_prefix("http://").unwrap();
    rest.strip_suffix("/mcp").unwrap().parse().unwrap()
}

fn refused(args: &[&str]) -> Output {
    let output = Command::new(bowline())
        .arg("fixture")
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "{args:?}");
    output
}

#[test]
fn a_signal_ends_it_with_calls_and_streams_open() {
    for name in ["INT", "TERM"] {
        // Its stdin is closed from the start, which ends it only where it reads there.
        let mut served = Served::start(&[]);
        let mut session = Session::open(address(&served), "/mcp", None);
        assert_eq!(session.text("echo", &json!({"message": "hi"})), "hi");
        let _stream = session.listen();
        session.send_call(9, "slow", &json!({"ms": 3_600_000, "message": "late"}));
        signal(served.pid(), name);
        assert!(served.ended_well(), "{name}");
        assert!(TcpStream::connect(address(&served)).is_err(), "{name}");
    }
}

#[test]
fn a_fixture_that_ignores_term_goes_on_serving() {
    let served = Served::start(&["--fault", "ignores-term"]);
    let mut session = Session::open(address(&served), "/mcp", None);
    signal(served.pid(), "TERM");
    for _ in 0..20 {
        assert_eq!(session.text("echo", &json!({"message": "still"})), "still");
    }
    assert!(lives(served.pid()));
}

#[test]
fn many_sessions_are_served_at_once() {
    let served = Served::start(&["--toolset", "many=10"]);
    let mut sessions: Vec<_> = (0..64)
        .map(|_| Session::open(address(&served), "/mcp", None))
        .collect();
    for (number, session) in (0..).zip(&mut sessions) {
        session.send_call(
            number,
            "slow",
            &json!({"ms": 5, "message": number.to_string()}),
        );
    }
    for (number, session) in sessions.iter_mut().enumerate() {
        let answer = session.http.read().json();
        assert_eq!(answer["result"]["content"][0]["text"], number.to_string());
    }
}

#[test]
fn arguments_that_make_no_sense_are_refused() {
    let said = refused(&["--era", "bronze"]);
    let said = String::from_utf8(said.stderr).unwrap();
    assert!(
        said.contains("no era is called `bronze`; known: legacy, modern, both"),
        "{said}"
    );
    refused(&["--http", "127.0.0.1:0", "--http-sse", "127.0.0.1:0"]);
    refused(&["--http", "nowhere"]);
}
