//! The end of a request: two interpretations, or none.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;

use bowline_testkit::gateway::{Gateway, HttpConnection, fixture_config};
use bowline_testkit::{WAIT_MAX, resident_bytes};
use serde_json::json;

use crate::sec::{
    assert_unharmed, bearer_header, exchange_and_shutdown, exchange_bytes, initialize_message,
    post_message, read_until_closed, response_statuses,
};

const MIB: usize = 1024 * 1024;

/// Body limit of the gateway, in bytes.
const BODY_BYTES_MAX: usize = 8 * MIB;

/// Discarded bytes of a refused body that is still being sent.
const LINGER_BYTES_MAX: usize = 64 * MIB;

/// Connections with another protocol.
const HTTP2_CONNECTIONS: usize = 200;

/// A request with a side effect, if ever parsed.
fn smuggled_request(gateway: &Gateway) -> String {
    format!(
        "POST /api/v1/servers/one/stop HTTP/1.1\r\nHost: {}\r\nAuthorization: {}\r\n\
         Content-Type: application/json\r\nContent-Length: 0\r\n\r\n",
        gateway.address,
        bearer_header(gateway)
    )
}

fn request_head(gateway: &Gateway, fields: &str) -> String {
    format!(
        "POST /mcp HTTP/1.1\r\nHost: {}\r\nAuthorization: {}\r\n\
         Content-Type: application/json\r\n{fields}\r\n",
        gateway.address,
        bearer_header(gateway)
    )
}

#[test]
fn sec_06_smuggled_request_is_400_and_closed() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    gateway.wait_for_state("one", "ready");
    let behind = smuggled_request(&gateway);
    let chunked = "Transfer-Encoding: chunked\r\n";
    let heads = [
        format!("Content-Length: 4\r\n{chunked}"),
        format!("{chunked}Content-Length: 4\r\n"),
        "Content-Length: 0\r\nContent-Length: 4\r\n".to_owned(),
        "Content-Length: 4\r\nContent-Length: 4\r\n".to_owned(),
        "Content-Length: 0, 4\r\n".to_owned(),
        "Content-Length: +4\r\n".to_owned(),
        "Content-Length: -1\r\n".to_owned(),
        "Content-Length: 0x4\r\n".to_owned(),
        "Content-Length: 4 4\r\n".to_owned(),
        "Content-Length: 18446744073709551620\r\n".to_owned(),
        "Content-Length : 4\r\n".to_owned(),
        "Content-Length: 4\n".to_owned(),
        "X: y\r\n Content-Length: 4\r\n".to_owned(),
        "X: y\r\n\tfolded\r\n".to_owned(),
        "Transfer-Encoding: identity, chunked\r\n".to_owned(),
        "Transfer-Encoding: xchunked\r\n".to_owned(),
        "Transfer-Encoding: chunked, chunked\r\n".to_owned(),
        format!("{chunked}{chunked}"),
        "Transfer-Encoding:\x0bchunked\r\n".to_owned(),
        "X: a\rb\r\n".to_owned(),
        "X: a\0b\r\n".to_owned(),
        "X\r\n".to_owned(),
    ];
    for fields in heads {
        let request = request_head(&gateway, &fields) + "0\r\n\r\n" + &behind;
        let reply = exchange_bytes(gateway.address, request.as_bytes());
        assert_eq!(response_statuses(&reply), [400], "{fields:?}: {reply}");
    }
    // Bad chunks after a valid head get the same response.
    for body in [
        "g\r\n".to_owned(),
        "-1\r\n\r\n".to_owned(),
        "0x1\r\n1\r\n0\r\n\r\n".to_owned(),
        "1\n1\r\n0\r\n\r\n".to_owned(),
        "2\r\n12345\r\n0\r\n\r\n".to_owned(),
        "1\r\n1\n0\r\n\r\n".to_owned(),
        "1 \r\n1\r\n0\r\n\r\n".to_owned(),
        "ffffffffffffffff1\r\n".to_owned(),
        "10000000000000000\r\n".to_owned(),
        "1;x=\n1\r\n0\r\n\r\n".to_owned(),
        format!("1;{}\r\n1\r\n0\r\n\r\n", "x".repeat(2_000)),
        "0\r\nContent-Length: 4\r\n\r\n".to_owned(),
        "0\r\n X: y\r\n\r\n".to_owned(),
        "0\nX: y\r\n\r\n".to_owned(),
    ] {
        let request = request_head(&gateway, chunked) + &body + &behind;
        let reply = exchange_bytes(gateway.address, request.as_bytes());
        assert_eq!(response_statuses(&reply), [400], "{body:?}: {reply}");
    }
    // A truncated body is refused.
    for fields in [chunked, "Content-Length: 400\r\n"] {
        let request = request_head(&gateway, fields) + "1\r\n";
        let reply = exchange_and_shutdown(gateway.address, request.as_bytes());
        let status = response_statuses(&reply);
        assert!(status == [400] || status.is_empty(), "{fields:?}: {reply}");
    }
    assert_eq!(gateway.wait_for_state("one", "ready")["generation"], 1);
    assert_http2_refused(&gateway);
    assert_unharmed(&gateway);
}

/// HTTP/2 is not served: its preface closes the connection, every time.
fn assert_http2_refused(gateway: &Gateway) {
    let mut good = gateway.open_session("/mcp");
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let resets = b"\0\0\x04\x03\0\0\0\0\x01\0\0\0\x08".repeat(64);
    let mut open = Vec::new();
    for _ in 0..HTTP2_CONNECTIONS {
        let mut stream = TcpStream::connect(gateway.address).unwrap();
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        let _ = stream.write_all(preface);
        let _ = stream.write_all(&resets);
        open.push(stream);
    }
    let said = good.call_text("one__echo", &json!({"message": "served meanwhile"}));
    assert_eq!(said, "served meanwhile");
    for stream in open {
        let status = response_statuses(&read_until_closed(stream));
        assert!(status.is_empty() || status == [400], "{status:?}");
    }
    let upgrade = request_head(
        gateway,
        "Connection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\n",
    );
    let reply = exchange_bytes(gateway.address, upgrade.as_bytes());
    assert_eq!(
        response_statuses(&reply),
        [200],
        "answered as if it had not asked: {reply}"
    );
}

#[test]
fn sec_07_oversized_or_compressed_body_is_refused() {
    let gateway = Gateway::start("");
    let before = resident_bytes(gateway.pid());
    for (fields, status) in [
        (format!("Content-Length: {}\r\n", BODY_BYTES_MAX + 1), 413),
        ("Content-Length: 9007199254740992\r\n".to_owned(), 413),
        (
            format!(
                "Expect: 100-continue\r\nContent-Length: {}\r\n",
                BODY_BYTES_MAX + 1
            ),
            413,
        ),
        (
            "Content-Encoding: gzip\r\nContent-Length: 1000\r\n".to_owned(),
            415,
        ),
        (
            "Content-Encoding: br\r\nContent-Length: 1000\r\n".to_owned(),
            415,
        ),
        (
            "Content-Encoding: zstd\r\nContent-Length: 1000\r\n".to_owned(),
            415,
        ),
        (
            "Content-Encoding: deflate\r\nTransfer-Encoding: chunked\r\n".to_owned(),
            415,
        ),
    ] {
        for path in ["/mcp", "/api/v1/call"] {
            // No body byte is sent: the response cannot have waited for it.
            let head = request_head(&gateway, &fields).replace("/mcp", path);
            let reply = exchange_bytes(gateway.address, head.as_bytes());
            assert_eq!(
                response_statuses(&reply),
                [status],
                "{path} {fields:?}: {reply}"
            );
        }
    }
    let sent = send_endless_body(&gateway);
    assert!(sent >= BODY_BYTES_MAX, "stopped too early: {sent}");
    // The limit, plus the socket buffers of both ends.
    assert!(
        sent < BODY_BYTES_MAX + LINGER_BYTES_MAX + 16 * MIB,
        "taken far beyond the limit: {sent}"
    );
    let grown = resident_bytes(gateway.pid()).saturating_sub(before);
    assert!(grown < BODY_BYTES_MAX + 16 * MIB, "grew by {grown}");
    // A body of exactly the limit is accepted.
    let filler = BODY_BYTES_MAX - initialize_message().to_string().len();
    let body = initialize_message().to_string() + &" ".repeat(filler);
    let answer = HttpConnection::connect(gateway.address).post(
        "/mcp",
        &[("Authorization", &bearer_header(&gateway))],
        body.as_bytes(),
    );
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_unharmed(&gateway);
}

/// Sends chunks until the gateway stops, and returns the number of accepted bytes.
fn send_endless_body(gateway: &Gateway) -> usize {
    let stream = TcpStream::connect(gateway.address).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    stream.set_write_timeout(Some(WAIT_MAX)).unwrap();
    let mut writer = stream.try_clone().unwrap();
    let mut chunk = format!("{:x}\r\n", 64 * 1024).into_bytes();
    chunk.extend(std::iter::repeat_n(b' ', 64 * 1024));
    chunk.extend_from_slice(b"\r\n");
    writer
        .write_all(request_head(gateway, "Transfer-Encoding: chunked\r\n").as_bytes())
        .unwrap();
    let mut sent = 0;
    // A gateway without a limit would accept this forever; twice the limits is enough to tell.
    while sent < 2 * (BODY_BYTES_MAX + LINGER_BYTES_MAX) && writer.write_all(&chunk).is_ok() {
        sent += 64 * 1024;
    }
    let mut status = String::new();
    // The response may be lost when the connection is closed during a write.
    if BufReader::new(stream).read_line(&mut status).is_ok() && !status.is_empty() {
        assert!(status.contains(" 413 "), "{status}");
    }
    sent
}

#[test]
fn oversized_body_is_413() {
    let gateway = Gateway::start("");
    let mut stream = TcpStream::connect(gateway.address).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let size = BODY_BYTES_MAX + 1;
    let fields = format!("Transfer-Encoding: chunked\r\n\r\n{size:x}\r\n");
    let head = request_head(&gateway, &fields);
    stream
        .write_all(head.trim_end_matches("\r\n").as_bytes())
        .unwrap();
    stream.write_all(b"\r\n").unwrap();
    stream.write_all(&vec![b' '; size]).unwrap();
    // All sent bytes were read, so the response cannot be lost.
    let mut reply = [0; 12];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"HTTP/1.1 413");
    assert_eq!(
        post_message(&gateway, "/mcp", &[], &initialize_message()).status,
        200
    );
}
