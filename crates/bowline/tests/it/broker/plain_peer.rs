//! An independent peer: it speaks only the first frames of the protocol, as literal JSON text over
//! a WebSocket library.

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use bowline_testkit::WAIT_MAX;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::http::StatusCode;
use tokio_tungstenite::tungstenite::{self, Message, WebSocket};

/// A connection.
#[derive(Debug)]
pub(crate) struct PlainPeer {
    socket: WebSocket<TcpStream>,
    /// Frames received while waiting for another.
    pending_frames: VecDeque<Value>,
    /// The claimed name.
    pub(crate) name: String,
}

/// A received frame, or the end of the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SocketEvent {
    /// A frame.
    Frame(Value),
    /// Closed by the gateway with this code and reason.
    Closed(u16, String),
    /// The connection broke.
    Broken,
    /// The read timed out.
    TimedOut,
}

/// Opens a WebSocket; an error is the status of the refused upgrade.
pub(crate) fn dial_websocket(
    address: SocketAddr,
    path: &str,
    headers: &[(&'static str, &str)],
) -> Result<WebSocket<TcpStream>, StatusCode> {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    stream.set_write_timeout(Some(WAIT_MAX)).unwrap();
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

impl PlainPeer {
    /// Connects without a `hello`.
    pub(crate) fn connect(address: SocketAddr) -> Self {
        Self::from_socket(dial_websocket(address, "/broker", &[]).unwrap())
    }

    /// Wraps an existing connection.
    pub(crate) fn from_socket(socket: WebSocket<TcpStream>) -> Self {
        Self {
            socket,
            pending_frames: VecDeque::new(),
            name: String::new(),
        }
    }

    /// Connects and sends `hello`.
    pub(crate) fn join(address: SocketAddr, name: &str, token: &str) -> Self {
        let mut plain = Self::connect(address);
        plain.name = name.to_owned();
        plain.send_frame(&json!({"kind": "hello", "agent": {"session_id": name}, "token": token}));
        let welcome = plain.next_frame();
        assert_eq!(welcome["kind"], "welcome", "{welcome}");
        plain
    }

    /// Like `join`, followed by a subscription to the mailbox.
    pub(crate) fn join_and_subscribe(address: SocketAddr, name: &str, token: &str) -> Self {
        let mut plain = Self::join(address, name, token);
        plain.send_frame(&json!({"kind": "subscribe"}));
        plain
    }

    pub(crate) fn send_frame(&mut self, frame: &Value) {
        self.send_text(&frame.to_string());
    }

    pub(crate) fn send_text(&mut self, text: &str) {
        self.send_message(Message::text(text));
    }

    /// Sends a text that may be cut off in the middle.
    pub(crate) fn try_send_text(&mut self, text: &str) {
        let _cut_off = self.socket.send(Message::text(text));
    }

    pub(crate) fn send_message(&mut self, message: Message) {
        self.socket.send(message).unwrap();
    }

    /// Sets the read timeout.
    pub(crate) fn set_read_timeout(&mut self, patience: Duration) {
        let stream = self.socket.get_ref();
        stream.set_read_timeout(Some(patience)).unwrap();
    }

    /// Returns the next event.
    pub(crate) fn next_event(&mut self) -> SocketEvent {
        match self.pending_frames.pop_front() {
            Some(frame) => SocketEvent::Frame(frame),
            None => self.read_event(),
        }
    }

    fn read_event(&mut self) -> SocketEvent {
        loop {
            return match self.socket.read() {
                Ok(Message::Text(text)) => SocketEvent::Frame(serde_json::from_str(&text).unwrap()),
                Ok(Message::Close(Some(close))) => {
                    SocketEvent::Closed(close.code.into(), close.reason.to_string())
                }
                Ok(Message::Close(None)) => SocketEvent::Closed(1005, String::new()),
                Ok(_) => continue,
                Err(tungstenite::Error::Io(error))
                    if matches!(
                        error.kind(),
                        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                    ) =>
                {
                    SocketEvent::TimedOut
                }
                Err(_) => SocketEvent::Broken,
            };
        }
    }

    /// Returns the next frame; unknown frames are skipped.
    pub(crate) fn next_frame(&mut self) -> Value {
        loop {
            match self.next_event() {
                SocketEvent::Frame(frame) => {
                    let known = ["welcome", "error", "message", "delivered"];
                    if known.iter().any(|kind| frame["kind"] == **kind) {
                        return frame;
                    }
                }
                other => panic!("no frame: {other:?}"),
            }
        }
    }

    /// Returns the next frame of a kind; others are kept.
    pub(crate) fn wait_for_frame(&mut self, kind: &str) -> Value {
        let at = self
            .pending_frames
            .iter()
            .position(|frame| frame["kind"] == kind);
        if let Some(frame) = at.and_then(|at| self.pending_frames.remove(at)) {
            return frame;
        }
        loop {
            match self.read_event() {
                SocketEvent::Frame(frame) if frame["kind"] == kind => return frame,
                SocketEvent::Frame(frame) if frame["kind"] == "error" => panic!("refused: {frame}"),
                SocketEvent::Frame(frame) => {
                    let is_kept = frame["kind"] == "message" || frame["kind"] == "delivered";
                    self.pending_frames.extend(is_kept.then_some(frame));
                }
                other => panic!("no {kind}: {other:?}"),
            }
        }
    }

    /// Waits for the receipt of a message; other receipts are dropped.
    pub(crate) fn wait_for_receipt(&mut self, id: &str) {
        while self.wait_for_frame("delivered")["id"] != id {}
    }

    /// Whether no frame arrives within `time`.
    pub(crate) fn stays_silent_for(&mut self, time: Duration) -> bool {
        self.set_read_timeout(time);
        self.pending_frames.clear();
        let silent = loop {
            match self.read_event() {
                SocketEvent::TimedOut => break true,
                SocketEvent::Frame(frame) if frame["kind"] == "message" => break false,
                SocketEvent::Frame(_) => {}
                SocketEvent::Closed(..) | SocketEvent::Broken => break false,
            }
        };
        self.set_read_timeout(WAIT_MAX);
        silent
    }

    /// Waits for the end of the connection, in any form.
    pub(crate) fn wait_for_close(&mut self) -> bool {
        loop {
            match self.next_event() {
                SocketEvent::Frame(_) => {}
                SocketEvent::TimedOut => return false,
                SocketEvent::Closed(..) | SocketEvent::Broken => return true,
            }
        }
    }

    /// Returns the error that ends the connection, and the close code.
    pub(crate) fn read_closing_error(&mut self) -> (Value, u16) {
        let mut error = Value::Null;
        loop {
            match self.next_event() {
                SocketEvent::Frame(frame) if frame["kind"] == "error" => error = frame,
                SocketEvent::Frame(_) => {}
                SocketEvent::Closed(code, _) => return (error, code),
                other => panic!("not closed: {other:?} after {error}"),
            }
        }
    }

    /// A message of this peer.
    pub(crate) fn to_message(&self, id: &str, body: &Value) -> Value {
        json!({
            "id": id,
            "from": {"session_id": self.name},
            "kind": "mcp_request",
            "body": body,
            "created_at": "2026-01-02T03:04:05Z",
        })
    }

    /// Sends a request to the hub and waits for the receipt.
    pub(crate) fn send_request(&mut self, id: &str, body: &Value) {
        let message = self.to_message(id, body);
        self.send_frame(&json!({"kind": "deliver", "to": "hub", "message": message}));
        self.wait_for_receipt(id);
    }

    /// Waits for the reply to a request, sends the ack, and returns the body.
    pub(crate) fn wait_for_reply(&mut self, id: &str) -> Value {
        loop {
            let frame = self.wait_for_frame("message");
            let message = &frame["message"];
            self.send_frame(&json!({"kind": "ack", "id": message["id"]}));
            if message["correlation_id"] == id {
                assert_eq!(message["kind"], "mcp_reply");
                assert_eq!(message["from"]["session_id"], "hub");
                return message["body"].clone();
            }
        }
    }

    /// Requests the manifest and returns the tool names.
    pub(crate) fn list_tools(&mut self, id: &str) -> Vec<String> {
        let message = self.to_message(id, &json!({"op": "manifest"}));
        self.send_frame(&json!({"kind": "deliver", "to": "hub", "message": message}));
        let body = self.wait_for_reply(id);
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

    /// Calls a tool with arguments as JSON text and returns the body of the reply.
    pub(crate) fn call_tool(&mut self, id: &str, tool: &str, arguments: &Value) -> Value {
        let body = call_body(tool, arguments);
        let message = self.to_message(id, &body);
        self.send_frame(&json!({"kind": "deliver", "to": "hub", "message": message}));
        self.wait_for_reply(id)
    }
}

/// The body of a tool call request.
pub(crate) fn call_body(tool: &str, arguments: &Value) -> Value {
    json!({"op": "call", "tool": tool, "arguments": arguments.to_string()})
}
