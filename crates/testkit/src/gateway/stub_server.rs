//! A small HTTP server inside a test: it records every request and responds as the test says.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};

use serde_json::{Value, json};

use crate::WAIT_MAX;

/// A received request.
#[derive(Clone, Debug)]
pub struct ReceivedRequest {
    pub method: String,
    pub path: String,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl ReceivedRequest {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// A status, and a body of JSON or of stream events.
pub type StubResponse = (u16, String);

/// Serves until the test ends.
#[derive(Debug)]
pub struct StubServer {
    pub url: String,
    log: Arc<RequestLog>,
}

/// The requests so far.
#[derive(Debug, Default)]
struct RequestLog {
    requests: Mutex<Vec<ReceivedRequest>>,
    /// Notified after each request.
    added: Condvar,
}

impl StubServer {
    /// Responds to every request with the result of `answer`.
    pub fn start(
        answer: impl Fn(&ReceivedRequest) -> StubResponse + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let log = Arc::<RequestLog>::default();
        let (kept, answer) = (Arc::clone(&log), Arc::new(answer));
        // The thread lives as long as the test process; no join.
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (kept, answer) = (Arc::clone(&kept), Arc::clone(&answer));
                std::thread::spawn(move || {
                    let _ended = serve_connection(stream, &kept, &*answer);
                });
            }
        });
        Self { url, log }
    }

    /// Accepts everything with 200.
    pub fn start_collector() -> Self {
        Self::start(|_| (200, "{}".to_owned()))
    }

    /// Speaks MCP: a handshake, one tool `look`, and `call` for tool calls and resource reads.
    pub fn start_mcp(
        call: impl Fn(&ReceivedRequest) -> StubResponse + Send + Sync + 'static,
    ) -> Self {
        Self::start_mcp_with_tool(
            json!({"name": "look", "inputSchema": {"type": "object"}}),
            call,
        )
    }

    /// Like `start_mcp`, with a tool of this definition.
    pub fn start_mcp_with_tool(
        tool: Value,
        call: impl Fn(&ReceivedRequest) -> StubResponse + Send + Sync + 'static,
    ) -> Self {
        Self::start(move |asked| {
            let message = asked.json();
            let id = &message["id"];
            let result = match message["method"].as_str() {
                Some("initialize") => json!({
                    "protocolVersion": "2025-06-18",
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "listener", "version": "1"},
                }),
                Some("tools/list") => json!({"tools": [tool]}),
                Some("tools/call" | "resources/read") => return call(asked),
                Some(_) if id.is_null() => return (202, String::new()),
                Some("ping") => json!({}),
                Some(_) => {
                    let error = json!({"code": -32601, "message": "no such method"});
                    let refused = json!({"jsonrpc": "2.0", "id": id, "error": error});
                    return (200, refused.to_string());
                }
                // GET and DELETE.
                None => return (405, String::new()),
            };
            let answer = json!({"jsonrpc": "2.0", "id": id, "result": result});
            (200, answer.to_string())
        })
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<ReceivedRequest> {
        self.log.requests.lock().unwrap().clone()
    }

    /// Waits until the requests so far satisfy the condition, and fails with its name after
    /// `WAIT_MAX`.
    pub fn wait_for_requests(&self, what: &str, mut holds: impl FnMut(&[ReceivedRequest]) -> bool) {
        let requests = self.log.requests.lock().unwrap();
        let waited = self
            .log
            .added
            .wait_timeout_while(requests, WAIT_MAX, |requests| !holds(requests));
        assert!(!waited.unwrap().1.timed_out(), "never: {what}");
    }

    /// The tool calls among the requests.
    pub fn calls(&self) -> Vec<ReceivedRequest> {
        let mut calls = self.requests();
        calls.retain(|asked| asked.json()["method"] == "tools/call");
        calls
    }

    /// Every span exported to this collector.
    pub fn spans(&self) -> Vec<Value> {
        let exports = self.requests();
        let exports = exports.iter().filter(|asked| asked.path == "/v1/traces");
        let mut spans = Vec::new();
        for export in exports {
            let body = export.json();
            let resources = body["resourceSpans"].as_array().unwrap();
            for scope in resources
                .iter()
                .flat_map(|one| one["scopeSpans"].as_array().unwrap())
            {
                spans.extend(scope["spans"].as_array().unwrap().iter().cloned());
            }
        }
        spans
    }
}

fn serve_connection(
    stream: TcpStream,
    kept: &RequestLog,
    answer: &(dyn Fn(&ReceivedRequest) -> StubResponse + Send + Sync),
) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let mut first = String::new();
        if stream.read_line(&mut first)? == 0 {
            return Ok(());
        }
        let mut words = first.split_whitespace().map(str::to_owned);
        let (method, path) = (words.next().unwrap(), words.next().unwrap());
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            stream.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(':') else {
                break;
            };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let mut asked = ReceivedRequest {
            method,
            path,
            headers,
            body: Vec::new(),
        };
        let length = asked.header("content-length");
        let length = length.map_or(0, |length| length.parse().unwrap());
        asked.body = vec![0; length];
        stream.read_exact(&mut asked.body)?;
        kept.requests.lock().unwrap().push(asked.clone());
        kept.added.notify_all();
        let (status, body) = answer(&asked);
        let kind = match body.starts_with("data: ") {
            true => "text/event-stream",
            false => "application/json",
        };
        let head = format!(
            "HTTP/1.1 {status} Said\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream
            .get_mut()
            .write_all(format!("{head}{body}").as_bytes())?;
    }
}
