//! The HTTP fixture as a process: start, end, and leftovers.

use std::net::{SocketAddr, TcpStream};

use bowline_testkit::gateway::{FixtureServer, Session};
use bowline_testkit::{is_alive, send_signal};
use serde_json::json;

fn server_address(served: &FixtureServer) -> SocketAddr {
    let rest = served.url.strip_prefix("http://").unwrap();
    rest.strip_suffix("/mcp").unwrap().parse().unwrap()
}

#[test]
fn signal_ends_fixture_with_open_calls() {
    for name in ["INT", "TERM"] {
        // Stdin is closed from the start; end of input stops only a stdio fixture.
        let mut served = FixtureServer::start(&[]);
        let mut session = Session::open(server_address(&served), "/mcp", None);
        assert_eq!(session.call_text("echo", &json!({"message": "hi"})), "hi");
        let _stream = session.open_stream();
        session.send_call(9, "slow", &json!({"ms": 3_600_000, "message": "late"}));
        send_signal(served.pid(), name);
        assert!(served.wait_for_success(), "{name}");
        assert!(
            TcpStream::connect(server_address(&served)).is_err(),
            "{name}"
        );
    }
}

#[test]
fn fixture_ignoring_term_keeps_serving() {
    let served = FixtureServer::start(&["--fault", "ignores-term"]);
    let mut session = Session::open(server_address(&served), "/mcp", None);
    send_signal(served.pid(), "TERM");
    for _ in 0..20 {
        assert_eq!(
            session.call_text("echo", &json!({"message": "still"})),
            "still"
        );
    }
    assert!(is_alive(served.pid()));
}

#[test]
fn fixture_serves_many_sessions_concurrently() {
    let served = FixtureServer::start(&["--toolset", "many=10"]);
    let mut sessions: Vec<_> = (0..64)
        .map(|_| Session::open(server_address(&served), "/mcp", None))
        .collect();
    for (number, session) in (0..).zip(&mut sessions) {
        session.send_call(
            number,
            "slow",
            &json!({"ms": 5, "message": number.to_string()}),
        );
    }
    for (number, session) in sessions.iter_mut().enumerate() {
        let answer = session.http.read_response().json();
        assert_eq!(answer["result"]["content"][0]["text"], number.to_string());
    }
}
