//! A small HTTP server inside a test: it keeps every request, and answers as the test says.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

/// One request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) method: String,
    pub(crate) path: String,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Asked {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// What is answered: a status, and JSON, or the events of a stream.
pub(crate) type Answer = (u16, String);

/// Listens until the test ends.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Listener {
    /// Answers every request with what `answer` says.
    pub(crate) fn start(answer: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::<Mutex<Vec<Asked>>>::default();
        let (kept, answer) = (Arc::clone(&asked), Arc::new(answer));
        // Lives as long as the test's process; nobody waits for it.
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (kept, answer) = (Arc::clone(&kept), Arc::clone(&answer));
                std::thread::spawn(move || {
                    let _ended = serve(stream, &kept, &*answer);
                });
            }
        });
        Self { url, asked }
    }

    /// Takes everything and says that it is well.
    pub(crate) fn collector() -> Self {
        Self::start(|_| (200, "{}".to_owned()))
    }

    /// Speaks MCP: a handshake, one tool `look`, and `call` for what is called or read.
    pub(crate) fn mcp(call: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Self {
        Self::mcp_with(
            json!({"name": "look", "inputSchema": {"type": "object"}}),
            call,
        )
    }

    /// The same with one tool of this definition.
    pub(crate) fn mcp_with(
        tool: Value,
        call: impl Fn(&Asked) -> Answer + Send + Sync + 'static,
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

    /// Every request so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    /// The requests that call a tool.
    pub(crate) fn calls(&self) -> Vec<Asked> {
        let mut calls = self.asked();
        calls.retain(|asked| asked.json()["method"] == "tools/call");
        calls
    }

    /// Every span that was exported to this collector.
    pub(crate) fn spans(&self) -> Vec<Value> {
        let exports = self.asked();
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

fn serve(
    stream: TcpStream,
    kept: &Mutex<Vec<Asked>>,
    answer: &(dyn Fn(&Asked) -> Answer + Send + Sync),
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
        let mut asked = Asked {
            method,
            path,
            headers,
            body: Vec::new(),
        };
        let length = asked.header("content-length");
        let length = length.map_or(0, |length| length.parse().unwrap());
        asked.body = vec![0; length];
        stream.read_exact(&mut asked.body)?;
        kept.lock().unwrap().push(asked.clone());
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
