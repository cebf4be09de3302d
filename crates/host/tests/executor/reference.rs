//! Our exec-server over real sockets: the client writes the wire by itself, as the reference does.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bowline_core::egress::Rule;
use bowline_host::executor::{Door, Offer, listen_as_exec_server};
use bowline_host::tasks::Tasks;
use bowline_link::executor::exec_server_limits;
use bowline_link::http::endpoint::Endpoint;
use bowline_link::websocket::{DialError, Ended, Incoming, Outgoing, dial};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

mod asking;
mod both;
mod bounds;
mod opening;
mod redirects;
mod streams;

/// An exec-server of ours that listens.
struct Served {
    endpoint: Endpoint,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<()>,
}

#[expect(clippy::disallowed_methods, reason = "the tests' own clock")]
fn now() -> Instant {
    Instant::now()
}

fn until() -> Instant {
    now() + Duration::from_secs(20)
}

impl Served {
    async fn new(offer: Offer) -> Self {
        Self::behind(Door::Open, offer).await
    }

    async fn behind(door: Door, offer: Offer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        #[expect(clippy::disallowed_methods, reason = "tests have no task keeper")]
        let serving = tokio::spawn(async move {
            let stopped = async {
                let _ = stopped.await;
            };
            let serving = listen_as_exec_server(listener, door, offer, stopped);
            serving.await.unwrap();
        });
        Self {
            endpoint: Endpoint::parse(&format!("http://{address}/")).unwrap(),
            stop: Some(stop),
            serving,
        }
    }

    async fn dial(&self, token: Option<&str>) -> Result<Client, DialError> {
        let limits = exec_server_limits();
        let tasks = Tasks::default();
        let dialling = dial(&self.endpoint, token, until(), limits, &tasks);
        let (outgoing, incoming) = Box::pin(dialling).await?;
        Ok(Client { outgoing, incoming })
    }

    /// A client that may ask.
    async fn client(&self) -> Client {
        let mut client = self.dial(None).await.unwrap();
        client.shake().await;
        client
    }

    async fn stop(mut self) {
        let _ = self.stop.take().unwrap().send(());
        soon(&mut self.serving).await.unwrap();
    }
}

/// The side that writes the wire by itself.
struct Client {
    outgoing: Outgoing,
    incoming: Incoming,
}

impl Client {
    async fn say(&self, text: &str) {
        let message = Bytes::from(text.to_owned());
        soon(self.outgoing.send(message)).await.unwrap();
    }

    async fn write(&self, message: &Value) {
        self.say(&message.to_string()).await;
    }

    async fn read(&mut self) -> Value {
        let message = soon(self.incoming.next()).await.unwrap();
        let message: Value = serde_json::from_slice(&message).unwrap();
        assert_eq!(message.get("jsonrpc"), None);
        message
    }

    async fn ended(&mut self) -> Ended {
        loop {
            if let Err(ended) = soon(self.incoming.next()).await {
                return ended;
            }
        }
    }

    async fn initialize(&mut self, resume: Value) -> Value {
        let params = json!({"clientName": "test", "resumeSessionId": resume});
        self.write(&json!({"id": 1, "method": "initialize", "params": params}))
            .await;
        self.read().await
    }

    /// Keeps the handshake; returns the session.
    async fn shake(&mut self) -> String {
        let answer = self.initialize(Value::Null).await;
        self.write(&json!({"method": "initialized", "params": {}}))
            .await;
        answer["result"]["sessionId"].as_str().unwrap().to_owned()
    }

    /// Asks for a request with what differs from a plain one.
    async fn ask(&self, id: u64, url: &str, more: Value) {
        let mut params = json!({"method": "GET", "url": url, "requestId": "r"});
        for (key, value) in more.as_object().unwrap() {
            params[key] = value.clone();
        }
        self.write(&json!({"id": id, "method": "http/request", "params": params}))
            .await;
    }

    /// Asks, and waits for the refusal.
    async fn refused(&mut self, url: &str, more: Value) -> Value {
        self.ask(9, url, more).await;
        let answer = self.read().await;
        assert_eq!(answer["id"], 9, "{answer}");
        answer["error"].clone()
    }

    /// Waits for the next piece of a stream.
    async fn delta(&mut self, name: &str, seq: u64) -> Value {
        let message = self.read().await;
        assert_eq!(message["method"], "http/request/bodyDelta", "{message}");
        let params = &message["params"];
        assert_eq!(
            (&params["requestId"], &params["seq"]),
            (&json!(name), &json!(seq))
        );
        params.clone()
    }
}

fn decoded(value: &Value) -> Vec<u8> {
    STANDARD.decode(value.as_str().unwrap()).unwrap()
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    let waiting = tokio::time::timeout(Duration::from_secs(20), Box::pin(what));
    waiting.await.expect("it takes too long")
}

/// A server that does what it is told to do.
struct Upstream {
    listener: TcpListener,
    url: String,
}

impl Upstream {
    async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        Self { listener, url }
    }

    fn rule(&self) -> Rule {
        let address = self.listener.local_addr().unwrap();
        Rule::parse(&address.to_string()).unwrap()
    }

    /// An offer to go here, and nowhere else.
    fn offer(&self) -> Offer {
        let mut offer = Offer::new("office");
        offer.egress.all = vec![self.rule()];
        offer
    }

    /// Takes a connection and reads the head of the request on it.
    async fn taken(&self) -> (TcpStream, String) {
        let (mut stream, _) = soon(self.listener.accept()).await.unwrap();
        let mut head = Vec::new();
        soon(async {
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
        })
        .await;
        (stream, String::from_utf8(head).unwrap())
    }

    /// Takes a request and answers it at once; returns its head.
    async fn answers(&self, answer: impl AsRef<[u8]>) -> String {
        let (mut stream, head) = self.taken().await;
        write(&mut stream, answer).await;
        head
    }

    /// Whether nobody came.
    async fn is_alone(&self) -> bool {
        let accepting = self.listener.accept();
        tokio::time::timeout(Duration::from_millis(1), accepting)
            .await
            .is_err()
    }
}

async fn write(stream: &mut TcpStream, bytes: impl AsRef<[u8]>) {
    soon(stream.write_all(bytes.as_ref())).await.unwrap();
}

/// Waits until the other side has closed its end.
async fn closed(stream: &mut TcpStream) {
    soon(async {
        let mut nothing = [0; 1_024];
        while let Ok(1..) = stream.read(&mut nothing).await {}
    })
    .await;
}

/// An answer with a body of a known length, after which the connection is not used again.
fn plain(body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}")
}

/// The head of an answer whose body comes in chunks.
const CHUNKED: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";

/// An upstream, and an exec-server that may go there.
async fn served() -> (Upstream, Served) {
    let upstream = Upstream::new().await;
    let served = Served::new(upstream.offer()).await;
    (upstream, served)
}
