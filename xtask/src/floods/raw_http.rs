//! Minimal HTTP/1.1 client for requests that a well-behaved client does not send.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// Timeout of connect, read and write.
const IO_TIMEOUT: Duration = Duration::from_secs(10);

/// One connection of a flooder.
#[derive(Debug)]
pub(super) struct RawConnection {
    stream: BufReader<TcpStream>,
    address: SocketAddr,
    token: Option<String>,
}

/// Status and session of a response.
#[derive(Debug)]
pub(super) struct RawResponse {
    pub(super) status: u16,
    pub(super) session: Option<String>,
}

impl RawConnection {
    pub(super) fn connect(address: SocketAddr, token: Option<&str>) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&address, IO_TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(IO_TIMEOUT))?;
        stream.set_write_timeout(Some(IO_TIMEOUT))?;
        Ok(Self {
            stream: BufReader::with_capacity(2048, stream),
            address,
            token: token.map(str::to_owned),
        })
    }

    /// Returns the underlying TCP stream.
    pub(super) fn tcp_stream(&self) -> &TcpStream {
        self.stream.get_ref()
    }

    /// Writes a request head with the given header lines.
    pub(super) fn write_head(&mut self, request: &str, lines: &str) -> Result<()> {
        let bearer = match &self.token {
            Some(token) => format!("Authorization: Bearer {token}\r\n"),
            None => String::new(),
        };
        let head = format!(
            "{request} HTTP/1.1\r\nHost: {}\r\n{bearer}{lines}\r\n",
            self.address
        );
        self.write_bytes(head.as_bytes())
    }

    pub(super) fn write_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.stream.get_mut().write_all(bytes)?)
    }

    /// Sends a POST request with a JSON body.
    pub(super) fn send_post(
        &mut self,
        path: &str,
        session: Option<&str>,
        body: &[u8],
    ) -> Result<()> {
        self.write_post_head(path, session, body.len())?;
        self.write_bytes(body)
    }

    /// Writes the head of a POST request with a body of `length` bytes.
    pub(super) fn write_post_head(
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
        self.write_head(&format!("POST {path}"), &lines)
    }

    /// Reads a response head, and the body if it has a length.
    pub(super) fn read_response(&mut self) -> Result<RawResponse> {
        let (response, length) = self.read_response_head()?;
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        Ok(response)
    }

    /// Reads a response head; returns the body length, 0 if absent.
    pub(super) fn read_response_head(&mut self) -> Result<(RawResponse, usize)> {
        let line = self.read_line()?;
        let status = line.split_whitespace().nth(1).and_then(|s| s.parse().ok());
        let status = status.with_context(|| format!("no status line: {line:?}"))?;
        let (mut length, mut session) = (0, None);
        loop {
            let line = self.read_line()?;
            let Some((key, value)) = line.trim_end().split_once(": ") else {
                break;
            };
            match key.to_ascii_lowercase().as_str() {
                "content-length" => length = value.parse()?,
                "mcp-session-id" => session = Some(value.to_owned()),
                _ => {}
            }
        }
        Ok((RawResponse { status, session }, length))
    }

    fn read_line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            anyhow::bail!("the gateway closed the connection");
        }
        Ok(line)
    }

    /// Opens a session at this endpoint.
    pub(super) fn initialize(&mut self, path: &str) -> Result<RawResponse> {
        let body = initialize_body();
        self.send_post(path, None, body.as_bytes())?;
        self.read_response()
    }
}

/// Returns the body of an `initialize` request.
pub(super) fn initialize_body() -> String {
    let params = json!({
        "protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "flood", "version": "1"},
    });
    json_rpc_request("initialize", &params).to_string()
}

/// Returns a JSON-RPC request.
pub(super) fn json_rpc_request(method: &str, params: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
}
