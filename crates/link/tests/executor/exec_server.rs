//! A client of an exec-server over real sockets: the other side is a script that writes the wire
//! by itself.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bowline_link::executor::{Carrier, Errand, ExecServer, OpenError, exec_server_limits};
use bowline_link::http::client::{Body, HttpError, Outgoing as Request, Response, Wait};
use bowline_link::http::endpoint::Endpoint;
use bowline_link::websocket::{self, Ended, Incoming, Outgoing, accept, dial};
use bowline_link::{BoxFuture, Spawner};
use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::{Instant, timeout};

mod asking;
mod bounds;
mod opening;
mod streams;

/// No wait of a test takes longer; a test that does has failed.
const LONG: Duration = Duration::from_secs(5);

struct Tokio;

impl Spawner for Tokio {
    #[expect(clippy::disallowed_methods, reason = "tests have no task keeper")]
    fn spawn(&self, _: &'static str, task: BoxFuture<'static, ()>) {
        tokio::spawn(task);
    }
}

fn soon() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "the tests' own deadline")]
    let now = Instant::now();
    now + LONG
}

async fn in_time<T>(what: impl Future<Output = T>) -> T {
    timeout(LONG, Box::pin(what))
        .await
        .expect("it takes too long")
}

/// The scripted side.
struct Peer {
    outgoing: Outgoing,
    incoming: Incoming,
}

/// A request that the script was asked for.
struct Asked {
    id: Value,
    params: Value,
}

impl Asked {
    fn name(&self) -> &str {
        self.params["requestId"].as_str().unwrap()
    }
}

impl Peer {
    async fn read(&mut self) -> Value {
        let message = in_time(self.incoming.next()).await.unwrap();
        let message: Value = serde_json::from_slice(&message).unwrap();
        assert_eq!(message.get("jsonrpc"), None);
        message
    }

    async fn write(&self, message: &Value) {
        let message = Bytes::from(message.to_string());
        in_time(self.outgoing.send(message)).await.unwrap();
    }

    /// Keeps the handshake.
    async fn shake(&mut self) {
        let first = self.read().await;
        assert_eq!(first["method"], "initialize");
        let want = json!({"clientName": "bowline", "resumeSessionId": null});
        assert_eq!(first["params"], want);
        self.write(&json!({"id": first["id"], "result": {"sessionId": "s-1"}}))
            .await;
        let second = self.read().await;
        assert_eq!(second, json!({"method": "initialized", "params": {}}));
    }

    async fn asked(&mut self) -> Asked {
        let message = self.read().await;
        assert_eq!(message["method"], "http/request");
        Asked {
            id: message["id"].clone(),
            params: message["params"].clone(),
        }
    }

    /// Answers with a head whose body comes in pieces.
    async fn head(&self, asked: &Asked) {
        let headers = json!([{"name": "x-a", "value": "1"}, {"name": "x-a", "value": "2"}]);
        let head = json!({"status": 200, "headers": headers, "bodyBase64": ""});
        self.write(&json!({"id": asked.id, "result": head})).await;
    }

    async fn piece(&self, name: &str, seq: u64, bytes: &[u8]) {
        self.delta(name, seq, bytes, false, None).await;
    }

    async fn end(&self, name: &str, seq: u64) {
        self.delta(name, seq, b"", true, None).await;
    }

    async fn delta(&self, name: &str, seq: u64, bytes: &[u8], done: bool, error: Option<&str>) {
        let params = json!({
            "requestId": name, "seq": seq, "deltaBase64": STANDARD.encode(bytes),
            "done": done, "error": error,
        });
        self.write(&json!({"method": "http/request/bodyDelta", "params": params}))
            .await;
    }

    /// Waits until everything that was written before was taken by the other side.
    async fn settle(&mut self) {
        self.write(&json!({"id": "mark", "method": "no/such", "params": {}}))
            .await;
        let answer = self.read().await;
        assert_eq!(answer["id"], "mark");
        assert_eq!(answer["error"]["code"], -32601);
    }
}

/// Listens for one caller, and gives out where.
async fn listening() -> (TcpListener, Endpoint) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let endpoint = Endpoint::parse(&format!("http://{address}/")).unwrap();
    (listener, endpoint)
}

async fn accepted(listener: &TcpListener) -> Peer {
    let (stream, _) = listener.accept().await.unwrap();
    let caller = accept(stream, soon()).await.unwrap();
    let limits = websocket::SocketLimits {
        message_bytes_max: 64 * 1024 * 1024,
        ..exec_server_limits()
    };
    let (outgoing, incoming) = caller.upgrade(limits, &Tokio).await.unwrap();
    Peer { outgoing, incoming }
}

async fn dialled(endpoint: &Endpoint) -> (Outgoing, Incoming) {
    let limits = exec_server_limits();
    let dialling = dial(endpoint, None, soon(), limits, &Tokio);
    Box::pin(dialling).await.unwrap()
}

/// A client that shook hands with a script.
async fn connected() -> (Arc<ExecServer>, Peer) {
    let (listener, endpoint) = listening().await;
    let opening = async {
        let io = dialled(&endpoint).await;
        ExecServer::open(io, "bowline", None, &Tokio).await.unwrap()
    };
    let scripting = async {
        let mut peer = accepted(&listener).await;
        peer.shake().await;
        peer
    };
    let (client, peer) = in_time(async { tokio::join!(opening, scripting) }).await;
    assert_eq!(&**client.session(), "s-1");
    (Arc::new(client), peer)
}

fn there() -> Endpoint {
    Endpoint::parse("https://tracker.example/mcp?a=1").unwrap()
}

fn wait() -> Wait<'static> {
    Wait {
        connect: None,
        first_byte: Some(soon()),
        leaving: &|| (),
    }
}

fn errand(to: &Endpoint) -> Errand<'_> {
    Errand {
        server: "tracker",
        request: Request::new(Method::GET, to),
        fills: &[],
    }
}

/// Asks for something whose body comes in pieces.
async fn carry(client: &ExecServer) -> Result<Response, HttpError> {
    client.carry(errand(&there()), wait()).await
}

/// Asks for something, and has the script answer with a head; returns the body and its name.
async fn opened(client: &ExecServer, peer: &mut Peer) -> (Body, String) {
    let scripting = async {
        let asked = peer.asked().await;
        peer.head(&asked).await;
        asked.name().to_owned()
    };
    let (response, name) = tokio::join!(carry(client), scripting);
    (response.unwrap().body, name)
}

/// Reads pieces to the end, however that is.
async fn read(body: &mut Body) -> (Vec<Bytes>, Option<HttpError>) {
    let mut pieces = Vec::new();
    loop {
        match in_time(body.chunk()).await {
            Some(Ok(piece)) => pieces.push(piece),
            Some(Err(error)) => return (pieces, Some(error)),
            None => return (pieces, None),
        }
    }
}

/// Has one more stream go through from its beginning to its end: the connection is as it was.
async fn works(client: &ExecServer, peer: &mut Peer, want: &str) {
    let (mut body, name) = opened(client, peer).await;
    assert_eq!(name, want);
    peer.piece(&name, 1, want.as_bytes()).await;
    peer.end(&name, 2).await;
    let read = in_time(body.whole(1_024)).await.unwrap();
    assert_eq!(read, want.as_bytes());
}
