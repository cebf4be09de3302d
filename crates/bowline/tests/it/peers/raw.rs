//! A client that keeps every answer as the bytes that came, over stdio and over HTTP.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use bowline_wire::canonical::canonical;
use bowline_wire::splice::{Edit, Edited};
use bowline_wire::{Message, object};
use bytes::Bytes;
use serde_json::{Value, json};

use crate::harness::{Gateway, Session, bowline};

/// Something that answers requests.
#[derive(Debug)]
pub(crate) enum Peer {
    Stdio(Box<Stdin>),
    Http(Box<Session>),
}

/// A program that speaks on its stdin and stdout.
#[derive(Debug)]
pub(crate) struct Stdin {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

/// What a request ended in: the bytes of `result`, or those of `error`.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) result: Option<Bytes>,
    pub(crate) error: Option<Bytes>,
}

impl Answer {
    fn read(line: Bytes) -> Self {
        let message = Message::parse_peer(line)
            .unwrap_or_else(|refusal| panic!("not a message: {refusal:?}"));
        Self {
            result: message.result().map(Bytes::copy_from_slice),
            error: message.error().map(Bytes::copy_from_slice),
        }
    }

    /// The meaning of the answer, with every number as it was written.
    pub(crate) fn meaning(&self) -> String {
        match (&self.result, &self.error) {
            (Some(result), None) => format!("result {}", meaning(result)),
            (None, Some(error)) => format!("error {}", meaning(error)),
            both => panic!("neither a result nor an error: {both:?}"),
        }
    }

    pub(crate) fn result(&self) -> &Bytes {
        self.result
            .as_ref()
            .unwrap_or_else(|| panic!("no result: {}", self.meaning()))
    }
}

/// The canonical form of a JSON text.
pub(crate) fn meaning(json: &[u8]) -> String {
    let bytes = canonical(json).unwrap_or_else(|fault| {
        let text = String::from_utf8_lossy(json);
        panic!("{fault:?} in {text}")
    });
    String::from_utf8(bytes).unwrap()
}

impl Peer {
    /// Starts a server and shakes hands with it as the gateway does, which can be asked.
    pub(crate) fn program(command: &mut Command) -> Self {
        let able = json!({
            "roots": {"listChanged": true},
            "sampling": {"tools": {}},
            "elicitation": {"form": {}, "url": {}},
        });
        Self::start(command, &able)
    }

    fn start(command: &mut Command, capabilities: &Value) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut stdin = Box::new(Stdin {
            child,
            input,
            output,
        });
        stdin.say(&json!({
            "jsonrpc": "2.0", "id": 0, "method": "initialize",
            "params": {
                "protocolVersion": "2025-11-25",
                "capabilities": capabilities,
                "clientInfo": {"name": "it", "version": "1"},
            },
        }));
        stdin.answer(0);
        stdin.say(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        Self::Stdio(stdin)
    }

    /// The shim in front of a gateway: all servers, or one.
    pub(crate) fn shim(gateway: &Gateway, server: Option<&str>) -> Self {
        let mut command = Command::new(bowline());
        command
            .arg("--state")
            .arg(gateway.state())
            .arg("stdio")
            .args(server.into_iter().flat_map(|name| ["--server", name]));
        Self::start(&mut command, &json!({}))
    }

    pub(crate) fn http(gateway: &Gateway, path: &str) -> Self {
        Self::Http(Box::new(gateway.session(path)))
    }

    /// Sends a request whose `params` are this text.
    pub(crate) fn request(&mut self, id: u64, method: &str, params: &str) -> Answer {
        let line =
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
        match self {
            Self::Stdio(stdin) => {
                stdin.write(&line);
                stdin.answer(id)
            }
            Self::Http(session) => {
                let response = session.post_raw(line.as_bytes());
                assert_eq!(response.status, 200, "{}", response.text());
                Answer::read(Bytes::from(response.body))
            }
        }
    }

    pub(crate) fn list(&mut self) -> Answer {
        self.request(1, "tools/list", "{}")
    }

    pub(crate) fn call(&mut self, tool: &str, arguments: &Value) -> Answer {
        let params = json!({"name": tool, "arguments": arguments});
        self.request(2, "tools/call", &params.to_string())
    }
}

impl Stdin {
    fn say(&mut self, message: &Value) {
        self.write(&message.to_string());
    }

    fn write(&mut self, line: &str) {
        let input = self.input.as_mut().unwrap();
        input.write_all(format!("{line}\n").as_bytes()).unwrap();
        input.flush().unwrap();
    }

    /// Reads on to the answer of this request; has no roots, when asked.
    fn answer(&mut self, id: u64) -> Answer {
        loop {
            let mut line = Vec::new();
            self.output.read_until(b'\n', &mut line).unwrap();
            assert!(!line.is_empty(), "the program ended before it answered");
            let line = Bytes::from(line);
            let message = Message::parse_peer(line.clone())
                .unwrap_or_else(|refusal| panic!("{refusal:?}: {line:?}"));
            if message.method().is_none() && message.id() == Some(id.to_string().as_bytes()) {
                return Answer::read(line);
            }
            if let (Some("roots/list"), Some(id)) = (message.method(), message.id()) {
                let id = String::from_utf8_lossy(id);
                self.write(&format!(
                    r#"{{"jsonrpc":"2.0","id":{id},"result":{{"roots":[]}}}}"#
                ));
            }
        }
    }
}

impl Drop for Stdin {
    fn drop(&mut self) {
        // The end of its input ends the program.
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

/// Returns the definitions in the result of `tools/list`: name and canonical form of each.
pub(crate) fn definitions(result: &[u8]) -> Vec<(String, String)> {
    let tools = object::field(result, "tools").unwrap().of(result);
    object::items(tools)
        .map(|tool| {
            let tool = tool.of(tools);
            (name(tool), meaning(tool))
        })
        .collect()
}

/// The same, of those whose names begin with `SERVER__`, and without that.
pub(crate) fn definitions_of(result: &[u8], server: &str) -> Vec<(String, String)> {
    let prefix = format!("{server}__");
    let tools = object::field(result, "tools").unwrap().of(result);
    object::items(tools)
        .filter_map(|tool| {
            let tool = tool.of(tools);
            let name = name(tool).strip_prefix(&prefix)?.to_owned();
            let own = json!(name).to_string();
            let edits = [Edit {
                at: object::field(tool, "name").unwrap(),
                with: own.as_bytes(),
            }];
            let source = Edited {
                source: tool,
                edits: &edits,
            };
            Some((name, meaning(&source.to_vec())))
        })
        .collect()
}

fn name(tool: &[u8]) -> String {
    let at = object::field(tool, "name").unwrap();
    object::string(at.of(tool)).unwrap().into_owned()
}
