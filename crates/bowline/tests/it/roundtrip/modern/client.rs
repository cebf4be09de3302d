//! A client without a session: every request says all that it needs, in its headers too.

use std::net::SocketAddr;

use bowline_wire::era::mirror;
use bowline_wire::object;
use bytes::Bytes;

use super::REVISION;
use crate::harness::{Gateway, Http};

/// One connection of a client.
pub(super) struct Client {
    http: Http,
    path: &'static str,
    token: String,
}

/// A request as it is written.
pub(super) struct Asking<'a> {
    /// Members of the message that nobody knows, with a comma at their end.
    pub(super) extra: &'a str,
    pub(super) id: &'a str,
    pub(super) method: &'a str,
    pub(super) params: &'a str,
}

impl Client {
    pub(super) fn new(gateway: &Gateway, path: &'static str) -> Self {
        let address: SocketAddr = gateway.address;
        Self {
            http: Http::connect(address),
            path,
            token: format!("Bearer {}", gateway.token),
        }
    }

    /// Sends a request; returns its answer and what came before it.
    pub(super) fn request(&mut self, asking: &Asking<'_>) -> (Bytes, Vec<Bytes>) {
        let Asking {
            extra,
            id,
            method,
            params,
        } = asking;
        let body = format!(
            r#"{{{extra}"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#
        );
        self.send(method, params, &body);
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

    /// Says something that has no answer.
    pub(super) fn say(&mut self, method: &str, params: &str) {
        let body = format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#);
        self.send(method, params, &body);
        let said = self.http.read();
        assert_eq!(said.status, 202, "{body}: {}", said.text());
    }

    fn send(&mut self, method: &str, params: &str, body: &str) {
        let mut headers = vec![
            ("Authorization", self.token.as_str()),
            ("Content-Type", "application/json"),
            ("Accept", "application/json, text/event-stream"),
            ("MCP-Protocol-Version", REVISION),
            ("Mcp-Method", method),
        ];
        let name = name(method, params).map(|name| mirror::encode(&name).into_owned());
        if let Some(name) = &name {
            headers.push(("Mcp-Name", name));
        }
        let path = self.path;
        self.http.send("POST", path, &headers, body.as_bytes());
    }
}

/// Returns what a request is about, where its headers say so.
fn name(method: &str, params: &str) -> Option<String> {
    let key = match method {
        "tools/call" | "prompts/get" => "name",
        "resources/read" => "uri",
        _ => return None,
    };
    object::text(params.as_bytes(), key).map(Into::into)
}
