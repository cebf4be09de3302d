//! A small blocking MCP client: one session, one connection, one call at a time.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// Longest wait for a response of the gateway.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);

/// Longer bodies are rejected.
const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// One keep-alive connection, with a session after [`BlockingClient::open_session`].
#[derive(Debug)]
pub(crate) struct BlockingClient {
    stream: BufReader<TcpStream>,
    address: SocketAddr,
    token: String,
    session: Option<String>,
    next_id: u64,
}

#[derive(Debug)]
struct BufferedResponse {
    status: u16,
    session: Option<String>,
    body: Vec<u8>,
}

impl BlockingClient {
    pub(crate) fn connect(address: SocketAddr, token: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).context("connect to the gateway")?;
        stream.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream: BufReader::new(stream),
            address,
            token: token.to_owned(),
            session: None,
            next_id: 0,
        })
    }

    /// Sets the response timeout.
    pub(crate) fn with_timeout(self, patience: Duration) -> Result<Self> {
        self.stream.get_ref().set_read_timeout(Some(patience))?;
        Ok(self)
    }

    /// Connects and opens a session.
    pub(crate) fn open_session(address: SocketAddr, token: &str) -> Result<Self> {
        let mut client = Self::connect(address, token)?;
        let response = client.send_request(
            "POST",
            "/mcp",
            &json!({
                "jsonrpc": "2.0", "id": 0, "method": "initialize",
                "params": {
                    "protocolVersion": "2025-11-25",
                    "capabilities": {},
                    "clientInfo": {"name": "chaos", "version": "1"},
                },
            }),
        )?;
        client.session = response.session;
        let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        client.send_request("POST", "/mcp", &ready)?;
        Ok(client)
    }

    /// Calls a tool and returns the whole JSON-RPC response.
    pub(crate) fn call_tool(&mut self, tool: &str, arguments: &Value) -> Result<Value> {
        self.next_id += 1;
        let request = json!({
            "jsonrpc": "2.0", "id": self.next_id, "method": "tools/call",
            "params": {"name": tool, "arguments": arguments},
        });
        let response = self.send_request("POST", "/mcp", &request)?;
        let text = String::from_utf8_lossy(&response.body);
        // An event stream ends with the response; a plain body is the response.
        let mut data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        let last = data.rfind(|data| !data.is_empty());
        let last = last.map_or_else(|| text.to_string(), str::to_owned);
        let status = response.status;
        serde_json::from_str(&last).with_context(|| format!("status {status}: {text}"))
    }

    /// Ends the session.
    pub(crate) fn close_session(mut self) -> Result<()> {
        self.send_request("DELETE", "/mcp", &Value::Null).map(drop)
    }

    /// Sends a request without a body to the API.
    pub(crate) fn call_api(&mut self, method: &str, path: &str) -> Result<Value> {
        self.call_api_with_body(method, path, &Value::Null)
    }

    /// Sends a request with a body to the API.
    pub(crate) fn call_api_with_body(
        &mut self,
        method: &str,
        path: &str,
        body: &Value,
    ) -> Result<Value> {
        let response = self.send_request(method, path, body)?;
        let status = response.status;
        serde_json::from_slice(&response.body).with_context(|| format!("{path}: status {status}"))
    }

    fn send_request(&mut self, method: &str, path: &str, body: &Value) -> Result<BufferedResponse> {
        let body = match (method, body) {
            ("GET" | "DELETE", _) => String::new(),
            (_, Value::Null) => "{}".to_owned(),
            (_, body) => body.to_string(),
        };
        let mut head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\n\
             Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n\
             Content-Length: {}\r\n",
            self.address,
            self.token,
            body.len()
        );
        if let Some(session) = &self.session {
            head.push_str(&format!(
                "Mcp-Session-Id: {session}\r\nMCP-Protocol-Version: 2025-11-25\r\n"
            ));
        }
        let message = format!("{head}\r\n{body}");
        self.stream.get_mut().write_all(message.as_bytes())?;
        self.read_response()
    }

    fn read_line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            bail!("the gateway closed the connection");
        }
        Ok(line)
    }

    fn read_response(&mut self) -> Result<BufferedResponse> {
        let line = self.read_line()?;
        let status = line.split_whitespace().nth(1);
        let status = status.and_then(|status| status.parse().ok());
        let status = status.with_context(|| format!("no status line: {line:?}"))?;
        let (mut length, mut chunked, mut session) = (0, false, None);
        loop {
            let line = self.read_line()?;
            let Some((key, value)) = line.trim_end().split_once(": ") else {
                break;
            };
            match key.to_ascii_lowercase().as_str() {
                "content-length" => length = value.parse().context("content-length")?,
                "transfer-encoding" => chunked = true,
                "mcp-session-id" => session = Some(value.to_owned()),
                _ => {}
            }
        }
        let mut body = Vec::new();
        if chunked {
            loop {
                let size = self.read_line()?;
                let size = usize::from_str_radix(size.trim(), 16).context("chunk size")?;
                self.read_body_part(size, &mut body)?;
                self.read_line()?;
                if size == 0 {
                    break;
                }
            }
        } else {
            self.read_body_part(length, &mut body)?;
        }
        Ok(BufferedResponse {
            status,
            session,
            body,
        })
    }

    fn read_body_part(&mut self, size: usize, body: &mut Vec<u8>) -> Result<()> {
        if size + body.len() > BODY_BYTES_MAX {
            bail!("the answer is too long");
        }
        let mut part = vec![0; size];
        self.stream.read_exact(&mut part)?;
        body.append(&mut part);
        Ok(())
    }
}
