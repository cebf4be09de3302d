//! A client that keeps every response as raw bytes, over stdio and over HTTP.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use bowline_testkit::gateway::{Gateway, Session, bowline_binary};
use bowline_wire::canonical::to_canonical;
use bowline_wire::splice::{ByteEdit, EditedText};
use bowline_wire::{RpcMessage, object};
use bytes::Bytes;
use serde_json::{Value, json};

/// A connection over either transport.
#[derive(Debug)]
pub(crate) enum RawClient {
    Stdio(Box<StdioProgram>),
    Http(Box<Session>),
}

/// A program on stdin and stdout.
#[derive(Debug)]
pub(crate) struct StdioProgram {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

/// A response: the bytes of `result`, or of `error`.
#[derive(Debug, Clone)]
pub(crate) struct RawReply {
    pub(crate) result: Option<Bytes>,
    pub(crate) error: Option<Bytes>,
}

impl RawReply {
    fn parse(line: Bytes) -> Self {
        let message = RpcMessage::parse_from_server(line)
            .unwrap_or_else(|refusal| panic!("not a message: {refusal:?}"));
        Self {
            result: message.result().map(Bytes::copy_from_slice),
            error: message.error().map(Bytes::copy_from_slice),
        }
    }

    /// The canonical form of the response, with every number as written.
    pub(crate) fn canonical_text(&self) -> String {
        match (&self.result, &self.error) {
            (Some(result), None) => format!("result {}", canonical_json(result)),
            (None, Some(error)) => format!("error {}", canonical_json(error)),
            both => panic!("neither a result nor an error: {both:?}"),
        }
    }

    pub(crate) fn result(&self) -> &Bytes {
        self.result
            .as_ref()
            .unwrap_or_else(|| panic!("no result: {}", self.canonical_text()))
    }
}

/// The canonical form of a JSON text.
pub(crate) fn canonical_json(json: &[u8]) -> String {
    let bytes = to_canonical(json).unwrap_or_else(|fault| {
        let text = String::from_utf8_lossy(json);
        panic!("{fault:?} in {text}")
    });
    String::from_utf8(bytes).unwrap()
}

impl RawClient {
    /// Starts a server and initializes it with the gateway's capabilities.
    pub(crate) fn start_program(command: &mut Command) -> Self {
        let able = json!({
            "roots": {"listChanged": true},
            "sampling": {"tools": {}},
            "elicitation": {"form": {}, "url": {}},
        });
        Self::start_with_capabilities(command, &able)
    }

    fn start_with_capabilities(command: &mut Command, capabilities: &Value) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut stdin = Box::new(StdioProgram {
            child,
            input,
            output,
        });
        stdin.send_message(&json!({
            "jsonrpc": "2.0", "id": 0, "method": "initialize",
            "params": {
                "protocolVersion": "2025-11-25",
                "capabilities": capabilities,
                "clientInfo": {"name": "it", "version": "1"},
            },
        }));
        stdin.read_response(0);
        stdin.send_message(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        Self::Stdio(stdin)
    }

    /// The shim in front of a gateway: all servers, or one.
    pub(crate) fn start_shim(gateway: &Gateway, server: Option<&str>) -> Self {
        let mut command = Command::new(bowline_binary());
        command
            .arg("--state")
            .arg(gateway.state_dir())
            .arg("stdio")
            .args(server.into_iter().flat_map(|name| ["--server", name]));
        Self::start_with_capabilities(&mut command, &json!({}))
    }

    pub(crate) fn open_http(gateway: &Gateway, path: &str) -> Self {
        Self::Http(Box::new(gateway.open_session(path)))
    }

    /// Sends a request with this text as `params`.
    pub(crate) fn request(&mut self, id: u64, method: &str, params: &str) -> RawReply {
        let line =
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
        match self {
            Self::Stdio(stdin) => {
                stdin.write_line(&line);
                stdin.read_response(id)
            }
            Self::Http(session) => {
                let response = session.post_raw(line.as_bytes());
                assert_eq!(response.status, 200, "{}", response.text());
                RawReply::parse(Bytes::from(response.body))
            }
        }
    }

    pub(crate) fn list_tools(&mut self) -> RawReply {
        self.request(1, "tools/list", "{}")
    }

    pub(crate) fn call_tool(&mut self, tool: &str, arguments: &Value) -> RawReply {
        let params = json!({"name": tool, "arguments": arguments});
        self.request(2, "tools/call", &params.to_string())
    }
}

impl StdioProgram {
    fn send_message(&mut self, message: &Value) {
        self.write_line(&message.to_string());
    }

    fn write_line(&mut self, line: &str) {
        let input = self.input.as_mut().unwrap();
        input.write_all(format!("{line}\n").as_bytes()).unwrap();
        input.flush().unwrap();
    }

    /// Reads up to the response of this request; answers `roots/list` with an empty list.
    fn read_response(&mut self, id: u64) -> RawReply {
        loop {
            let mut line = Vec::new();
            self.output.read_until(b'\n', &mut line).unwrap();
            assert!(!line.is_empty(), "the program ended before it answered");
            let line = Bytes::from(line);
            let message = RpcMessage::parse_from_server(line.clone())
                .unwrap_or_else(|refusal| panic!("{refusal:?}: {line:?}"));
            if message.method().is_none() && message.id() == Some(id.to_string().as_bytes()) {
                return RawReply::parse(line);
            }
            if let (Some("roots/list"), Some(id)) = (message.method(), message.id()) {
                let id = String::from_utf8_lossy(id);
                self.write_line(&format!(
                    r#"{{"jsonrpc":"2.0","id":{id},"result":{{"roots":[]}}}}"#
                ));
            }
        }
    }
}

impl Drop for StdioProgram {
    fn drop(&mut self) {
        // End of input ends the program.
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

/// Returns the definitions in the result of `tools/list`: name and canonical form of each.
pub(crate) fn list_definitions(result: &[u8]) -> Vec<(String, String)> {
    let tools = object::field(result, "tools").unwrap().slice(result);
    object::items(tools)
        .map(|tool| {
            let tool = tool.slice(tools);
            (tool_name(tool), canonical_json(tool))
        })
        .collect()
}

/// Like `list_definitions`, only for names with the prefix `SERVER__`, which is removed.
pub(crate) fn definitions_of(result: &[u8], server: &str) -> Vec<(String, String)> {
    let prefix = format!("{server}__");
    let tools = object::field(result, "tools").unwrap().slice(result);
    object::items(tools)
        .filter_map(|tool| {
            let tool = tool.slice(tools);
            let name = tool_name(tool).strip_prefix(&prefix)?.to_owned();
            let own = json!(name).to_string();
            let edits = [ByteEdit {
                at: object::field(tool, "name").unwrap(),
                with: own.as_bytes().into(),
            }];
            let source = EditedText {
                source: tool,
                edits: &edits,
            };
            Some((name, canonical_json(&source.to_vec())))
        })
        .collect()
}

fn tool_name(tool: &[u8]) -> String {
    let at = object::field(tool, "name").unwrap();
    object::parse_string(at.slice(tool)).unwrap().into_owned()
}
