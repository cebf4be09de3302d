//! HTTP/1.1 by hand, for requests that no polite client sends.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// How long a flooder waits for a response.
const PATIENCE: Duration = Duration::from_secs(10);

/// One connection of a flooder.
#[derive(Debug)]
pub(super) struct Wire {
    stream: BufReader<TcpStream>,
    address: SocketAddr,
    token: Option<String>,
}

/// The head of a response, and its body where it has a length.
#[derive(Debug)]
pub(super) struct Response {
    pub(super) status: u16,
    pub(super) session: Option<String>,
}

impl Wire {
    pub(super) fn connect(address: SocketAddr, token: Option<&str>) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self {
            stream: BufReader::with_capacity(2048, stream),
            address,
            token: token.map(str::to_owned),
        })
    }

    /// Returns the socket under it.
    pub(super) fn socket(&self) -> &TcpStream {
        self.stream.get_ref()
    }

    /// Writes the head of a request, with these lines in it.
    pub(super) fn head(&mut self, request: &str, lines: &str) -> Result<()> {
        let bearer = match &self.token {
            Some(token) => format!("Authorization: Bearer {token}\r\n"),
            None => String::new(),
        };
        let head = format!(
            "{request} HTTP/1.1\r\nHost: {}\r\n{bearer}{lines}\r\n",
            self.address
        );
        self.write(head.as_bytes())
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.stream.get_mut().write_all(bytes)?)
    }

    /// Sends a POST of JSON with a body of this length, and the body.
    pub(super) fn post(&mut self, path: &str, session: Option<&str>, body: &[u8]) -> Result<()> {
        self.post_head(path, session, body.len())?;
        self.write(body)
    }

    /// Sends the head of such a POST.
    pub(super) fn post_head(
        &mut self,
        path: &str,
        session: Option<&str>,
        length: usize,
    ) -> Result<()> {
        let session = match session {
            Some(id) => {
                format!("Mcp-Session-Id: {id}\r\nMCP-Protocol-Version: 2025-11-25\r\n")
            }
            None => String::new(),
        };
        let lines = format!(
            "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n\
             Content-Length: {length}\r\n{session}"
        );
        self.head(&format!("POST {path}"), &lines)
    }

    /// Reads a head, and a body that has a length.
    pub(super) fn response(&mut self) -> Result<Response> {
        let (response, length) = self.response_head()?;
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        Ok(response)
    }

    /// Reads a head, and returns the length of the body where it has one.
    pub(super) fn response_head(&mut self) -> Result<(Response, usize)> {
        let line = self.line()?;
        let status = line.split_whitespace().nth(1).and_then(|s| s.parse().ok());
        let status = status.with_context(|| format!("no status line: {line:?}"))?;
        let (mut length, mut session) = (0, None);
        loop {
            let line = self.line()?;
            let Some((key, value)) = line.trim_end().split_once(": ") else {
                break;
            };
            match key.to_ascii_lowercase().as_str() {
                "content-length" => length = value.parse()?,
                "mcp-session-id" => session = Some(value.to_owned()),
                _ => {}
            }
        }
        Ok((Response { status, session }, length))
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            anyhow::bail!("the gateway closed the connection");
        }
        Ok(line)
    }

    /// Opens a session at this endpoint.
    pub(super) fn initialize(&mut self, path: &str) -> Result<Response> {
        let body = initialize();
        self.post(path, None, body.as_bytes())?;
        self.response()
    }
}

/// Returns the request that opens a session.
pub(super) fn initialize() -> String {
    let params = json!({
        "protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "flood", "version": "1"},
    });
    request("initialize", &params).to_string()
}

/// Returns a request.
pub(super) fn request(method: &str, params: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
}
