//! Attacks on the HTTP edge, by number; each over a socket, against the binary.

mod address;
mod broker;
mod caller_identity;
mod certificates;
mod cost;
mod credentials;
mod egress;
mod egress_setup;
mod flood;
mod framing;
mod hostile;
mod id_collisions;
mod join_tokens;
mod json;
mod leaks;
mod limits;
mod noisy_principal;
mod owners_file;
mod results;
mod rules;
mod sandbox;
mod scopes;
mod secrecy;
mod sessions;
mod shares;
mod spelling;
mod token_bounds;
mod token_kinds;
mod trust;

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};

use bowline_testkit::WAIT_MAX;
use bowline_testkit::gateway::{Gateway, HttpConnection, Response};
use serde_json::{Value, json};

/// Sends bytes and returns the reply until the gateway closes the connection.
pub(crate) fn exchange_bytes(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    // The gateway may close before reading everything.
    let _ = stream.write_all(bytes);
    read_until_closed(stream)
}

/// Like `exchange_bytes`; the caller also shuts down its write side.
pub(crate) fn exchange_and_shutdown(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    read_until_closed(stream)
}

/// Reads until the connection ends; a timeout is an error.
pub(crate) fn read_until_closed(mut stream: TcpStream) -> String {
    let mut reply = Vec::new();
    match stream.read_to_end(&mut reply) {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("not closed: {error}: {}", String::from_utf8_lossy(&reply)),
    }
    String::from_utf8_lossy(&reply).into_owned()
}

/// Sends a request without a body. Of an endless stream only the head is read.
pub(crate) fn request_head(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> Response {
    let mut http = HttpConnection::connect(address);
    http.send_request(method, path, headers, b"");
    let mut response = http.read_head();
    if let Some(length) = response.header("content-length") {
        response.body = vec![0; length.parse().unwrap()];
        http.stream.read_exact(&mut response.body).unwrap();
    }
    response
}

/// The statuses of the responses in a reply.
pub(crate) fn response_statuses(reply: &str) -> Vec<u16> {
    reply
        .split("HTTP/1.1 ")
        .skip(1)
        .map(|answer| answer[..3].parse().unwrap())
        .collect()
}

/// The owner's credential as a header.
pub(crate) fn bearer_header(gateway: &Gateway) -> String {
    format!("Bearer {}", gateway.token)
}

/// POSTs a message without a session, with the given extra headers.
pub(crate) fn post_message(
    gateway: &Gateway,
    path: &str,
    headers: &[(&str, &str)],
    message: &Value,
) -> Response {
    let bearer = bearer_header(gateway);
    let mut all = vec![("Authorization", bearer.as_str())];
    all.retain(|(key, _)| !headers.iter().any(|(own, _)| own.eq_ignore_ascii_case(key)));
    all.extend_from_slice(headers);
    HttpConnection::connect(gateway.address).post(path, &all, message.to_string().as_bytes())
}

/// The `initialize` message.
pub(crate) fn initialize_message() -> Value {
    json!({
        "jsonrpc": "2.0", "id": 0, "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "it", "version": "1"},
        },
    })
}

/// Checks that the gateway still serves a normal caller.
pub(crate) fn assert_unharmed(gateway: &Gateway) {
    let answer = post_message(gateway, "/mcp", &[], &initialize_message());
    assert_eq!(answer.status, 200, "{}", answer.text());
}
