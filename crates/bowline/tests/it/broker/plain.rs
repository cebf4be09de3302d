//! A peer that knows nothing of us: it speaks only the first frames of the protocol, as JSON text
//! that stands here as it is, over a WebSocket library.

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::http::StatusCode;
use tokio_tungstenite::tungstenite::{self, Message, WebSocket};

use crate::harness::PATIENCE;

/// One connection.
#[derive(Debug)]
pub(crate) struct Plain {
    socket: WebSocket<TcpStream>,
    /// Frames that came while others were waited for.
    kept: VecDeque<Value>,
    /// Who it says it is.
    pub(crate) name: String,
}

/// What came, or how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Came {
    /// A frame.
    Frame(Value),
    /// The other side closed, with this code and reason.
    Closed(u16, String),
    /// The connection broke.
    Broken,
    /// Nothing came in time.
    Nothing,
}

/// Connects; where the upgrade is refused, says with which status.
pub(crate) fn dial(
    address: SocketAddr,
    path: &str,
    headers: &[(&'static str, &str)],
) -> Result<WebSocket<TcpStream>, StatusCode> {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let mut request = format!("ws://{address}{path}")
        .into_client_request()
        .unwrap();
    for (name, value) in headers {
        request.headers_mut().insert(*name, value.parse().unwrap());
    }
    match tungstenite::client(request, stream) {
        Ok((socket, _)) => Ok(socket),
        Err(tungstenite::HandshakeError::Failure(tungstenite::Error::Http(response))) => {
            Err(response.status())
        }
        Err(error) => panic!("{error}"),
    }
}

impl Plain {
    /// Connects, and says nothing.
    pub(crate) fn connect(address: SocketAddr) -> Self {
        Self::over(dial(address, "/broker", &[]).unwrap())
    }

    /// Speaks over a connection that was made already.
    pub(crate) fn over(socket: WebSocket<TcpStream>) -> Self {
        Self {
            socket,
            kept: VecDeque::new(),
            name: String::new(),
        }
    }

    /// Connects and says who it is.
    pub(crate) fn join(address: SocketAddr, name: &str, token: &str) -> Self {
        let mut plain = Self::connect(address);
        plain.name = name.to_owned();
        plain.say(&json!({"kind": "hello", "agent": {"session_id": name}, "token": token}));
        let welcome = plain.frame();
        assert_eq!(welcome["kind"], "welcome", "{welcome}");
        plain
    }

    /// The same, and takes its messages.
    pub(crate) fn subscribed(address: SocketAddr, name: &str, token: &str) -> Self {
        let mut plain = Self::join(address, name, token);
        plain.say(&json!({"kind": "subscribe"}));
        plain
    }

    pub(crate) fn say(&mut self, frame: &Value) {
        self.text(&frame.to_string());
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.send(Message::text(text));
    }

    /// Sends a text that may be cut off in the middle.
    pub(crate) fn try_text(&mut self, text: &str) {
        let _cut_off = self.socket.send(Message::text(text));
    }

    pub(crate) fn send(&mut self, message: Message) {
        self.socket.send(message).unwrap();
    }

    /// Waits only so long for what comes.
    pub(crate) fn patience(&mut self, patience: Duration) {
        let stream = self.socket.get_ref();
        stream.set_read_timeout(Some(patience)).unwrap();
    }

    /// Returns what comes next.
    pub(crate) fn next(&mut self) -> Came {
        match self.kept.pop_front() {
            Some(frame) => Came::Frame(frame),
            None => self.read(),
        }
    }

    fn read(&mut self) -> Came {
        loop {
            return match self.socket.read() {
                Ok(Message::Text(text)) => Came::Frame(serde_json::from_str(&text).unwrap()),
                Ok(Message::Close(Some(close))) => {
                    Came::Closed(close.code.into(), close.reason.to_string())
                }
                Ok(Message::Close(None)) => Came::Closed(1005, String::new()),
                Ok(_) => continue,
                Err(tungstenite::Error::Io(error))
                    if matches!(
                        error.kind(),
                        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                    ) =>
                {
                    Came::Nothing
                }
                Err(_) => Came::Broken,
            };
        }
    }

    /// Returns the next frame; what it does not know it skips.
    pub(crate) fn frame(&mut self) -> Value {
        loop {
            match self.next() {
                Came::Frame(frame) => {
                    let known = ["welcome", "error", "message", "delivered"];
                    if known.iter().any(|kind| frame["kind"] == **kind) {
                        return frame;
                    }
                }
                other => panic!("no frame: {other:?}"),
            }
        }
    }

    /// Returns the next frame of a kind; others wait until they are asked for.
    pub(crate) fn wait_for(&mut self, kind: &str) -> Value {
        let at = self.kept.iter().position(|frame| frame["kind"] == kind);
        if let Some(frame) = at.and_then(|at| self.kept.remove(at)) {
            return frame;
        }
        loop {
            match self.read() {
                Came::Frame(frame) if frame["kind"] == kind => return frame,
                Came::Frame(frame) if frame["kind"] == "error" => panic!("refused: {frame}"),
                Came::Frame(frame) => {
                    let is_kept = frame["kind"] == "message" || frame["kind"] == "delivered";
                    self.kept.extend(is_kept.then_some(frame));
                }
                other => panic!("no {kind}: {other:?}"),
            }
        }
    }

    /// Waits for the receipt of a message; others are of no more use.
    pub(crate) fn receipt(&mut self, id: &str) {
        while self.wait_for("delivered")["id"] != id {}
    }

    /// Whether nothing is said for so long that it would be news.
    pub(crate) fn is_silent(&mut self, time: Duration) -> bool {
        self.patience(time);
        self.kept.clear();
        let silent = loop {
            match self.read() {
                Came::Nothing => break true,
                Came::Frame(frame) if frame["kind"] == "message" => break false,
                Came::Frame(_) => {}
                Came::Closed(..) | Came::Broken => break false,
            }
        };
        self.patience(PATIENCE);
        silent
    }

    /// Waits for the end of the connection, however it comes.
    pub(crate) fn is_over(&mut self) -> bool {
        loop {
            match self.next() {
                Came::Frame(_) => {}
                Came::Nothing => return false,
                Came::Closed(..) | Came::Broken => return true,
            }
        }
    }

    /// Returns the error that ends the connection, and how it is closed.
    pub(crate) fn ended(&mut self) -> (Value, u16) {
        let mut error = Value::Null;
        loop {
            match self.next() {
                Came::Frame(frame) if frame["kind"] == "error" => error = frame,
                Came::Frame(_) => {}
                Came::Closed(code, _) => return (error, code),
                other => panic!("not closed: {other:?} after {error}"),
            }
        }
    }

    /// A message as this peer writes it.
    pub(crate) fn letter(&self, id: &str, body: &Value) -> Value {
        json!({
            "id": id,
            "from": {"session_id": self.name},
            "kind": "mcp_request",
            "body": body,
            "created_at": "2026-01-02T03:04:05Z",
        })
    }

    /// Sends a request to the hub and waits for its receipt.
    pub(crate) fn deliver(&mut self, id: &str, body: &Value) {
        let message = self.letter(id, body);
        self.say(&json!({"kind": "deliver", "to": "hub", "message": message}));
        self.receipt(id);
    }

    /// Waits for the reply to a request, acknowledges it, and returns its body.
    pub(crate) fn reply(&mut self, id: &str) -> Value {
        loop {
            let frame = self.wait_for("message");
            let message = &frame["message"];
            self.say(&json!({"kind": "ack", "id": message["id"]}));
            if message["correlation_id"] == id {
                assert_eq!(message["kind"], "mcp_reply");
                assert_eq!(message["from"]["session_id"], "hub");
                return message["body"].clone();
            }
        }
    }

    /// Asks what tools there are, and returns their names.
    pub(crate) fn tools(&mut self, id: &str) -> Vec<String> {
        let message = self.letter(id, &json!({"op": "manifest"}));
        self.say(&json!({"kind": "deliver", "to": "hub", "message": message}));
        let body = self.reply(id);
        let items = body["manifest"]
            .as_array()
            .unwrap_or_else(|| panic!("{body}"));
        let names = items.iter().map(|item| {
            assert_eq!(item["type"], "function");
            assert!(item["function"]["parameters"].is_object(), "{item}");
            item["function"]["name"].as_str().unwrap().to_owned()
        });
        names.collect()
    }

    /// Calls a tool, its arguments being JSON text, and returns the body of the reply.
    pub(crate) fn call(&mut self, id: &str, tool: &str, arguments: &Value) -> Value {
        let body = call_of(tool, arguments);
        let message = self.letter(id, &body);
        self.say(&json!({"kind": "deliver", "to": "hub", "message": message}));
        self.reply(id)
    }
}

/// The body of a request that runs a tool.
pub(crate) fn call_of(tool: &str, arguments: &Value) -> Value {
    json!({"op": "call", "tool": tool, "arguments": arguments.to_string()})
}
