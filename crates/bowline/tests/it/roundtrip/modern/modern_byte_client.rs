//! A sessionless client: every request is self-contained, headers included.

use std::net::SocketAddr;

use bowline_testkit::gateway::{Gateway, HttpConnection};
use bowline_wire::era::header_params;
use bowline_wire::object;
use bytes::Bytes;

use super::REVISION;

/// A connection of a client.
pub(super) struct ModernByteClient {
    http: HttpConnection,
    path: &'static str,
    token: String,
}

/// The text of a request.
pub(super) struct RequestText<'a> {
    /// Unknown members of the message, with a trailing comma.
    pub(super) extra: &'a str,
    pub(super) id: &'a str,
    pub(super) method: &'a str,
    pub(super) params: &'a str,
}

impl ModernByteClient {
    pub(super) fn new(gateway: &Gateway, path: &'static str) -> Self {
        let address: SocketAddr = gateway.address;
        Self {
            http: HttpConnection::connect(address),
            path,
            token: format!("Bearer {}", gateway.token),
        }
    }

    /// Sends a request; returns the response and the preceding messages.
    pub(super) fn send_request(&mut self, asking: &RequestText<'_>) -> (Bytes, Vec<Bytes>) {
        let RequestText {
            extra,
            id,
            method,
            params,
        } = asking;
        let body = format!(
            r#"{{{extra}"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#
        );
        self.write_post(method, params, &body);
        let mut head = self.http.read_head();
        if let Some(length) = head.header("content-length") {
            head.body = vec![0; length.parse().unwrap()];
            std::io::Read::read_exact(&mut self.http.stream, &mut head.body).unwrap();
            assert!(!head.body.is_empty(), "{} for {body}", head.status);
            return (head.body.into(), Vec::new());
        }
        let (mut buffer, mut came) = (Vec::new(), Vec::new());
        while let Some(chunk) = self.http.read_chunk() {
            buffer.extend(chunk);
            while let Some(end) = buffer.windows(2).position(|pair| pair == b"\n\n") {
                let event: Vec<u8> = buffer.drain(..end + 2).collect();
                let mut lines = event.split(|byte| *byte == b'\n');
                let data = lines.find_map(|line| line.strip_prefix(b"data: "));
                came.extend(data.map(Bytes::copy_from_slice));
            }
        }
        (came.pop().expect("an answer"), came)
    }

    /// Sends a notification.
    pub(super) fn send_notification(&mut self, method: &str, params: &str) {
        let body = format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#);
        self.write_post(method, params, &body);
        let said = self.http.read_response();
        assert_eq!(said.status, 202, "{body}: {}", said.text());
    }

    fn write_post(&mut self, method: &str, params: &str, body: &str) {
        let mut headers = vec![
            ("Authorization", self.token.as_str()),
            ("Content-Type", "application/json"),
            ("Accept", "application/json, text/event-stream"),
            ("MCP-Protocol-Version", REVISION),
            ("Mcp-Method", method),
        ];
        let name = routing_name(method, params)
            .map(|name| header_params::encode_value(&name).into_owned());
        if let Some(name) = &name {
            headers.push(("Mcp-Name", name));
        }
        let path = self.path;
        self.http
            .send_request("POST", path, &headers, body.as_bytes());
    }
}

/// Returns the value of the `Mcp-Name` header of a request, if any.
fn routing_name(method: &str, params: &str) -> Option<String> {
    let key = match method {
        "tools/call" | "prompts/get" => "name",
        "resources/read" => "uri",
        _ => return None,
    };
    object::text_field(params.as_bytes(), key).map(Into::into)
}
