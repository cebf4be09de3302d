//! Exec-server client over real sockets, against a script that writes the protocol directly.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bowline_executor::connection::{
    ExecServerConnection, ExecServerOpenError, ExecutorConnection, ExecutorRequest,
    exec_server_limits,
};
use bowline_link::http::endpoint::HttpEndpoint;
use bowline_link::http::http_client::{
    HttpBody, HttpError, HttpRequest as Request, HttpResponse, SendOptions,
};
use bowline_link::websocket::{self, DisconnectReason, WebSocketConnection, accept_upgrade, dial};
use bowline_testkit::{DetachedSpawner, test_deadline, wait_bounded};
use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};
use tokio::net::TcpListener;

mod exec_bounds;
mod exec_opening;
mod exec_requests;
mod exec_streams;

/// The scripted exec-server.
struct ScriptedExecServer {
    socket: WebSocketConnection,
}

/// A request received by the script.
struct ExecRequest {
    id: Value,
    params: Value,
}

impl ExecRequest {
    fn stream_name(&self) -> &str {
        self.params["requestId"].as_str().unwrap()
    }
}

impl ScriptedExecServer {
    async fn read_message(&mut self) -> Value {
        let message = wait_bounded(self.socket.receiver.next()).await.unwrap();
        let message: Value = serde_json::from_slice(&message).unwrap();
        assert_eq!(message.get("jsonrpc"), None);
        message
    }

    async fn write_message(&self, message: &Value) {
        let message = Bytes::from(message.to_string());
        wait_bounded(self.socket.sender.send(message))
            .await
            .unwrap();
    }

    /// Completes the handshake.
    async fn complete_handshake(&mut self) {
        let first = self.read_message().await;
        assert_eq!(first["method"], "initialize");
        let want = json!({"clientName": "bowline", "resumeSessionId": null});
        assert_eq!(first["params"], want);
        self.write_message(&json!({"id": first["id"], "result": {"sessionId": "s-1"}}))
            .await;
        let second = self.read_message().await;
        assert_eq!(second, json!({"method": "initialized", "params": {}}));
    }

    async fn receive_request(&mut self) -> ExecRequest {
        let message = self.read_message().await;
        assert_eq!(message["method"], "http/request");
        ExecRequest {
            id: message["id"].clone(),
            params: message["params"].clone(),
        }
    }

    /// Responds with the head of a streamed body.
    async fn send_head(&self, asked: &ExecRequest) {
        let headers = json!([{"name": "x-a", "value": "1"}, {"name": "x-a", "value": "2"}]);
        let head = json!({"status": 200, "headers": headers, "bodyBase64": ""});
        self.write_message(&json!({"id": asked.id, "result": head}))
            .await;
    }

    async fn send_piece(&self, name: &str, seq: u64, bytes: &[u8]) {
        self.send_delta(name, seq, bytes, false, None).await;
    }

    async fn send_end(&self, name: &str, seq: u64) {
        self.send_delta(name, seq, b"", true, None).await;
    }

    async fn send_delta(
        &self,
        name: &str,
        seq: u64,
        bytes: &[u8],
        done: bool,
        error: Option<&str>,
    ) {
        let params = json!({
            "requestId": name, "seq": seq, "deltaBase64": STANDARD.encode(bytes),
            "done": done, "error": error,
        });
        self.write_message(&json!({"method": "http/request/bodyDelta", "params": params}))
            .await;
    }

    /// Waits until the client has read all earlier messages.
    async fn settle(&mut self) {
        self.write_message(&json!({"id": "mark", "method": "no/such", "params": {}}))
            .await;
        let answer = self.read_message().await;
        assert_eq!(answer["id"], "mark");
        assert_eq!(answer["error"]["code"], -32601);
    }
}

/// Listens on a free port.
async fn listen_on_free_port() -> (TcpListener, HttpEndpoint) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let endpoint = HttpEndpoint::parse(&format!("http://{address}/")).unwrap();
    (listener, endpoint)
}

async fn accept_client(listener: &TcpListener) -> ScriptedExecServer {
    let (stream, _) = listener.accept().await.unwrap();
    let caller = accept_upgrade(stream, test_deadline()).await.unwrap();
    let limits = websocket::WebSocketLimits {
        message_bytes_max: 64 * 1024 * 1024,
        ..exec_server_limits()
    };
    let socket = caller.upgrade(limits, &DetachedSpawner).await.unwrap();
    ScriptedExecServer { socket }
}

async fn dial_endpoint(endpoint: &HttpEndpoint) -> WebSocketConnection {
    let limits = exec_server_limits();
    let dialling = dial(endpoint, None, test_deadline(), limits, &DetachedSpawner);
    Box::pin(dialling).await.unwrap()
}

/// Returns a client after the handshake, and the script.
async fn connect_pair() -> (Arc<ExecServerConnection>, ScriptedExecServer) {
    let (listener, endpoint) = listen_on_free_port().await;
    let opening = async {
        let socket = dial_endpoint(&endpoint).await;
        ExecServerConnection::open(socket, "bowline", None, &DetachedSpawner)
            .await
            .unwrap()
    };
    let scripting = async {
        let mut peer = accept_client(&listener).await;
        peer.complete_handshake().await;
        peer
    };
    let (client, peer) = wait_bounded(async { tokio::join!(opening, scripting) }).await;
    assert_eq!(&**client.session_id(), "s-1");
    (Arc::new(client), peer)
}

fn test_endpoint() -> HttpEndpoint {
    HttpEndpoint::parse("https://tracker.example/mcp?a=1").unwrap()
}

fn send_options() -> SendOptions<'static> {
    SendOptions {
        connect_by: None,
        first_byte_by: Some(test_deadline()),
        on_send: &|| (),
    }
}

fn executor_request(to: &HttpEndpoint) -> ExecutorRequest<'_> {
    ExecutorRequest {
        server: "tracker",
        request: Request::new(Method::GET, to),
        secret_headers: &[],
    }
}

/// Sends a request with a streamed response.
async fn send_streamed(client: &ExecServerConnection) -> Result<HttpResponse, HttpError> {
    client
        .send_request(executor_request(&test_endpoint()), send_options())
        .await
}

/// Sends a request, responds with a head, and returns the body and the stream name.
async fn open_stream(
    client: &ExecServerConnection,
    peer: &mut ScriptedExecServer,
) -> (HttpBody, String) {
    let scripting = async {
        let asked = peer.receive_request().await;
        peer.send_head(&asked).await;
        asked.stream_name().to_owned()
    };
    let (response, name) = tokio::join!(send_streamed(client), scripting);
    (response.unwrap().body, name)
}

/// Reads chunks until the end or an error.
async fn read_chunks(body: &mut HttpBody) -> (Vec<Bytes>, Option<HttpError>) {
    let mut pieces = Vec::new();
    loop {
        match wait_bounded(body.next_chunk()).await {
            Some(Ok(piece)) => pieces.push(piece),
            Some(Err(error)) => return (pieces, Some(error)),
            None => return (pieces, None),
        }
    }
}

/// Asserts that a new stream works from start to end.
async fn assert_stream_works(
    client: &ExecServerConnection,
    peer: &mut ScriptedExecServer,
    want: &str,
) {
    let (mut body, name) = open_stream(client, peer).await;
    assert_eq!(name, want);
    peer.send_piece(&name, 1, want.as_bytes()).await;
    peer.send_end(&name, 2).await;
    let read = wait_bounded(body.read_whole(1_024)).await.unwrap();
    assert_eq!(read, want.as_bytes());
}
