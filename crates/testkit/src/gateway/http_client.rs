//! A blocking HTTP client over a single connection, with access to every byte.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;

use crate::WAIT_MAX;

/// A keep-alive connection.
#[derive(Debug)]
pub struct HttpConnection {
    pub stream: BufReader<TcpStream>,
    host: String,
}

/// A response.
#[derive(Debug, Clone)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The JSON of the body, or of the last event of a stream.
    pub fn json(&self) -> Value {
        if self.header("content-type") == Some("text/event-stream") {
            return self.events().pop().unwrap();
        }
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|_| panic!("not JSON: {} {}", self.status, self.text()))
    }

    /// The JSON-RPC messages of an event stream.
    pub fn events(&self) -> Vec<Value> {
        self.text()
            .lines()
            .filter_map(|line| line.strip_prefix("data: "))
            // The priming event of a stream carries only an event id.
            .filter(|data| !data.is_empty())
            .map(|data| serde_json::from_str(data).unwrap())
            .collect()
    }
}

impl HttpConnection {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        stream.set_write_timeout(Some(WAIT_MAX)).unwrap();
        Self {
            stream: BufReader::new(stream),
            host: address.to_string(),
        }
    }

    /// Sends the given bytes unchanged.
    pub fn send_raw(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).unwrap();
    }

    pub fn send_request(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) {
        let mut head = format!("{method} {path} HTTP/1.1\r\n");
        if !headers
            .iter()
            .any(|(key, _)| key.eq_ignore_ascii_case("host"))
        {
            head.push_str(&format!("Host: {}\r\n", self.host));
        }
        for (key, value) in headers {
            head.push_str(&format!("{key}: {value}\r\n"));
        }
        if !body.is_empty() || method == "POST" {
            head.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(body);
        self.send_raw(&bytes);
    }

    pub fn get(&mut self, path: &str, headers: &[(&str, &str)]) -> Response {
        self.send_request("GET", path, headers, b"");
        self.read_response()
    }

    /// POSTs JSON as an MCP client does.
    pub fn post(&mut self, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Response {
        let mut all = vec![
            ("Content-Type", "application/json"),
            ("Accept", "application/json, text/event-stream"),
        ];
        all.retain(|(key, _)| !headers.iter().any(|(own, _)| own.eq_ignore_ascii_case(key)));
        all.extend_from_slice(headers);
        self.send_request("POST", path, &all, body);
        self.read_response()
    }

    /// Reads the head of a response; its body is left on the stream.
    pub fn read_head(&mut self) -> Response {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        let status = line
            .split_whitespace()
            .nth(1)
            .and_then(|status| status.parse().ok())
            .unwrap_or_else(|| panic!("no status line: {line:?}"));
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            self.stream.read_line(&mut line).unwrap();
            let Some((key, value)) = line.trim_end().split_once(": ") else {
                break;
            };
            headers.push((key.to_owned(), value.to_owned()));
        }
        Response {
            status,
            headers,
            body: Vec::new(),
        }
    }

    pub fn read_response(&mut self) -> Response {
        let mut response = self.read_head();
        if let Some(length) = response.header("content-length") {
            let mut body = vec![0; length.parse().unwrap()];
            self.stream.read_exact(&mut body).unwrap();
            response.body = body;
        } else if response.header("transfer-encoding").is_some() {
            while let Some(chunk) = self.read_chunk() {
                response.body.extend(chunk);
            }
        }
        response
    }

    /// Reads one chunk of a streamed body; `None` at the end.
    pub fn read_chunk(&mut self) -> Option<Vec<u8>> {
        let mut size = String::new();
        self.stream.read_line(&mut size).unwrap();
        let size = usize::from_str_radix(size.trim(), 16).ok()?;
        let mut chunk = vec![0; size + 2];
        self.stream.read_exact(&mut chunk).unwrap();
        chunk.truncate(size);
        (size > 0).then_some(chunk)
    }

    /// Whether the peer has closed the connection.
    pub fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}
