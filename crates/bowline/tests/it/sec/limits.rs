//! Callers that neither send nor read lose the connection, and no normal caller waits.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use bowline_testkit::gateway::{Gateway, fixture_config};
use bowline_testkit::{WAIT_MAX, wait_until};
use serde_json::json;

use crate::sec::{assert_unharmed, bearer_header, read_until_closed, response_statuses};

/// The gateway's head timeout, plus slack for a busy machine.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
const HEAD_TIMEOUT_AT_MOST: Duration = Duration::from_secs(30);

/// Concurrent slow connections.
const SLOW_CONNECTIONS: usize = 100;

/// The pauses of a body and of a reader are tested with a simulated clock beside the code:
/// `stalled_body_times_out`, `never_reading_client_times_out` and
/// `slow_stream_is_dropped_at_bound`.
#[test]
fn sec_10_slow_and_unread_connections_are_closed() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    let mut good = gateway.open_session("/mcp");
    let started = Instant::now();
    let heads = [
        String::new(),
        "\r\n".to_owned(),
        "POST /mcp HT".to_owned(),
        format!("POST /mcp HTTP/1.1\r\nHost: {}\r\nX: ", gateway.address),
    ];
    let slow: Vec<_> = (0..SLOW_CONNECTIONS)
        .map(|number| {
            let mut stream = TcpStream::connect(gateway.address).unwrap();
            stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
            stream
                .write_all(heads[number % heads.len()].as_bytes())
                .unwrap();
            stream
        })
        .collect();
    // Sending a byte now and then buys no time.
    let drip = TcpStream::connect(gateway.address).unwrap();
    drip.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let mut writer = drip.try_clone().unwrap();
    let dripping = std::thread::spawn(move || {
        let mut sent = 0;
        wait_until("the dripping connection is closed", || {
            sent += 1;
            writer.write_all(b"X").is_err() || started.elapsed() > HEAD_TIMEOUT_AT_MOST
        });
        sent
    });
    // Callers that never read: the responses are larger and more than all buffers on the path.
    let unread: Vec<_> = (0..4)
        .map(|_| send_without_reading(&gateway, &good.id))
        .collect();
    let said = good.call_text("one__echo", &json!({"message": "served meanwhile"}));
    assert_eq!(said, "served meanwhile");
    for stream in slow.into_iter().chain([drip]) {
        let status = response_statuses(&read_until_closed(stream));
        assert!(
            status.is_empty() || status == [408] || status == [400],
            "{status:?}"
        );
    }
    let waited = started.elapsed();
    assert!(waited >= HEAD_TIMEOUT, "cut off after {waited:?}");
    assert!(waited < HEAD_TIMEOUT_AT_MOST, "cut off after {waited:?}");
    assert!(dripping.join().unwrap() > 1);
    let mut good = gateway.open_session("/mcp");
    let said = good.call_text("one__echo", &json!({"message": "still"}));
    assert_eq!(said, "still");
    drop(unread);
    assert_unharmed(&gateway);
}

fn send_without_reading(gateway: &Gateway, session: &str) -> TcpStream {
    let mut stream = TcpStream::connect(gateway.address).unwrap();
    let body = r#"{"jsonrpc":"2.0","id":"ID","method":"tools/call","params":{"name":"one__big","arguments":{"bytes":4000000}}}"#;
    for number in 0..4 {
        let id = format!("{:?}-{number}", stream.local_addr().unwrap());
        let body = body.replace("ID", &id);
        let request = format!(
            "POST /mcp HTTP/1.1\r\nHost: {}\r\nAuthorization: {}\r\nMcp-Session-Id: {session}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            gateway.address,
            bearer_header(gateway),
            body.len()
        );
        stream.write_all(request.as_bytes()).unwrap();
    }
    stream
}
