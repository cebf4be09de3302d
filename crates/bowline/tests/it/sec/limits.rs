//! Callers that neither speak nor listen: they are cut off, and nobody waits for them.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::{Gateway, PATIENCE, eventually, fixture};
use crate::sec::{bearer, is_unharmed, statuses, until_closed};

/// How long the gateway waits for a head, with what a busy machine adds.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
const HEAD_TIMEOUT_AT_MOST: Duration = Duration::from_secs(30);

/// Connections that are slow at once.
const SLOW: usize = 100;

/// The pauses of a body and of a reader are shown with a clock that a test can turn:
/// `a_body_that_pauses_too_long_is_given_up`, `a_caller_that_never_reads_is_given_up` and
/// `a_slow_stream_is_dropped_at_its_bound` stand beside the code.
#[test]
fn sec_10_slow_and_unread_connections_are_cut_off() {
    let gateway = Gateway::up(&fixture("one", &[]));
    let mut good = gateway.session("/mcp");
    let started = Instant::now();
    let heads = [
        String::new(),
        "\r\n".to_owned(),
        "POST /mcp HT".to_owned(),
        format!("POST /mcp HTTP/1.1\r\nHost: {}\r\nX: ", gateway.address),
    ];
    let slow: Vec<_> = (0..SLOW)
        .map(|number| {
            let mut stream = TcpStream::connect(gateway.address).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream
                .write_all(heads[number % heads.len()].as_bytes())
                .unwrap();
            stream
        })
        .collect();
    // A byte now and then does not buy more time.
    let drip = TcpStream::connect(gateway.address).unwrap();
    drip.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut writer = drip.try_clone().unwrap();
    let dripping = std::thread::spawn(move || {
        let mut sent = 0;
        eventually("the dripping connection is closed", || {
            sent += 1;
            writer.write_all(b"X").is_err() || started.elapsed() > HEAD_TIMEOUT_AT_MOST
        });
        sent
    });
    // Callers that never read what they asked for: the answers are large, and so many that no
    // buffer on the way holds them.
    let unread: Vec<_> = (0..4)
        .map(|_| ask_and_never_read(&gateway, &good.id))
        .collect();
    let said = good.text("one__echo", &json!({"message": "served meanwhile"}));
    assert_eq!(said, "served meanwhile");
    for stream in slow.into_iter().chain([drip]) {
        let status = statuses(&until_closed(stream));
        assert!(
            status.is_empty() || status == [408] || status == [400],
            "{status:?}"
        );
    }
    let waited = started.elapsed();
    assert!(waited >= HEAD_TIMEOUT, "cut off after {waited:?}");
    assert!(waited < HEAD_TIMEOUT_AT_MOST, "cut off after {waited:?}");
    assert!(dripping.join().unwrap() > 1);
    let mut good = gateway.session("/mcp");
    let said = good.text("one__echo", &json!({"message": "still"}));
    assert_eq!(said, "still");
    drop(unread);
    is_unharmed(&gateway);
}

fn ask_and_never_read(gateway: &Gateway, session: &str) -> TcpStream {
    let mut stream = TcpStream::connect(gateway.address).unwrap();
    let body = r#"{"jsonrpc":"2.0","id":"ID","method":"tools/call","params":{"name":"one__big","arguments":{"bytes":4000000}}}"#;
    for number in 0..4 {
        let id = format!("{:?}-{number}", stream.local_addr().unwrap());
        let body = body.replace("ID", &id);
        let request = format!(
            "POST /mcp HTTP/1.1\r\nHost: {}\r\nAuthorization: {}\r\nMcp-Session-Id: {session}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            gateway.address,
            bearer(gateway),
            body.len()
        );
        stream.write_all(request.as_bytes()).unwrap();
    }
    stream
}
