//! Attacks on the front door, by their numbers; every one over a socket, against the binary.

mod address;
mod broker;
mod busy;
mod certificates;
mod claims;
mod cost;
mod credentials;
mod crossing;
mod egress;
mod flood;
mod framing;
mod hostile;
mod joining;
mod json;
mod kinds;
mod leaks;
mod limits;
mod owners_file;
mod results;
mod roads;
mod rules;
mod sandbox;
mod scopes;
mod secrecy;
mod sessions;
mod shares;
mod spelling;
mod token_bounds;
mod trust;

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};

use serde_json::{Value, json};

use crate::harness::{Gateway, Http, PATIENCE, Response};

/// Sends bytes and returns all that comes back until the gateway closes the connection.
pub(crate) fn exchange(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // The gateway may close before it took all.
    let _ = stream.write_all(bytes);
    until_closed(stream)
}

/// The same; the caller also ends its side, as one that has nothing more to say.
pub(crate) fn exchange_and_end(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    until_closed(stream)
}

/// Returns what comes until the connection ends; to be left waiting is a fault.
pub(crate) fn until_closed(mut stream: TcpStream) -> String {
    let mut reply = Vec::new();
    match stream.read_to_end(&mut reply) {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("not closed: {error}: {}", String::from_utf8_lossy(&reply)),
    }
    String::from_utf8_lossy(&reply).into_owned()
}

/// Sends a request without a body. Of a stream, which has no end, only the head is read.
pub(crate) fn ask(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> Response {
    let mut http = Http::connect(address);
    http.send(method, path, headers, b"");
    let mut response = http.read_head();
    if let Some(length) = response.header("content-length") {
        response.body = vec![0; length.parse().unwrap()];
        http.stream.read_exact(&mut response.body).unwrap();
    }
    response
}

/// The statuses of the answers in a reply.
pub(crate) fn statuses(reply: &str) -> Vec<u16> {
    reply
        .split("HTTP/1.1 ")
        .skip(1)
        .map(|answer| answer[..3].parse().unwrap())
        .collect()
}

/// The credential of a gateway's owner, as a header.
pub(crate) fn bearer(gateway: &Gateway) -> String {
    format!("Bearer {}", gateway.token)
}

/// POSTs a message without a session, with these headers besides the usual ones.
pub(crate) fn post(
    gateway: &Gateway,
    path: &str,
    headers: &[(&str, &str)],
    message: &Value,
) -> Response {
    let bearer = bearer(gateway);
    let mut all = vec![("Authorization", bearer.as_str())];
    all.retain(|(key, _)| !headers.iter().any(|(own, _)| own.eq_ignore_ascii_case(key)));
    all.extend_from_slice(headers);
    Http::connect(gateway.address).post(path, &all, message.to_string().as_bytes())
}

/// What opens a session.
pub(crate) fn initialize() -> Value {
    json!({
        "jsonrpc": "2.0", "id": 0, "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "it", "version": "1"},
        },
    })
}

/// A gateway that serves a good caller is unharmed.
pub(crate) fn is_unharmed(gateway: &Gateway) {
    let answer = post(gateway, "/mcp", &[], &initialize());
    assert_eq!(answer.status, 200, "{}", answer.text());
}
