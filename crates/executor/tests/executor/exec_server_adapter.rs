//! The exec-server adapter over real sockets, with a raw client that writes the wire format.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bowline_core::egress::EgressRule;
use bowline_executor::connection::exec_server_limits;
use bowline_executor::{ExecutorOffer, ListenAuth, listen_as_exec_server};
use bowline_link::http::endpoint::HttpEndpoint;
use bowline_link::websocket::{DialError, DisconnectReason, WebSocketConnection, dial};
use bowline_runtime::TaskTracker;
use bowline_testkit::{RawUpstream, test_deadline, wait_bounded};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

mod adapter_bounds;
mod adapter_handshake;
mod adapter_requests;
mod adapter_streams;
mod own_client;
mod redirects;

/// A listening exec-server adapter.
struct AdapterServer {
    endpoint: HttpEndpoint,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<()>,
}

#[expect(clippy::disallowed_methods, reason = "the tests' own clock")]
fn now() -> Instant {
    Instant::now()
}

impl AdapterServer {
    async fn new(offer: ExecutorOffer) -> Self {
        Self::listen_with(ListenAuth::Loopback, offer).await
    }

    async fn listen_with(door: ListenAuth, offer: ExecutorOffer) -> Self {
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
            endpoint: HttpEndpoint::parse(&format!("http://{address}/")).unwrap(),
            stop: Some(stop),
            serving,
        }
    }

    async fn dial(&self, token: Option<&str>) -> Result<RawClient, DialError> {
        let limits = exec_server_limits();
        let tasks = TaskTracker::default();
        let dialling = dial(&self.endpoint, token, test_deadline(), limits, &tasks);
        let socket = Box::pin(dialling).await?;
        Ok(RawClient { socket })
    }

    /// A client after the handshake.
    async fn client(&self) -> RawClient {
        let mut client = self.dial(None).await.unwrap();
        client.handshake().await;
        client
    }

    async fn stop(mut self) {
        let _ = self.stop.take().unwrap().send(());
        wait_bounded(&mut self.serving).await.unwrap();
    }
}

/// Raw client.
struct RawClient {
    socket: WebSocketConnection,
}

impl RawClient {
    async fn send_text(&self, text: &str) {
        let message = Bytes::from(text.to_owned());
        wait_bounded(self.socket.sender.send(message))
            .await
            .unwrap();
    }

    async fn write(&self, message: &Value) {
        self.send_text(&message.to_string()).await;
    }

    async fn read(&mut self) -> Value {
        let message = wait_bounded(self.socket.receiver.next()).await.unwrap();
        let message: Value = serde_json::from_slice(&message).unwrap();
        assert_eq!(message.get("jsonrpc"), None);
        message
    }

    async fn wait_closed(&mut self) -> DisconnectReason {
        loop {
            if let Err(ended) = wait_bounded(self.socket.receiver.next()).await {
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

    /// Performs the handshake; returns the session.
    async fn handshake(&mut self) -> String {
        let answer = self.initialize(Value::Null).await;
        self.write(&json!({"method": "initialized", "params": {}}))
            .await;
        answer["result"]["sessionId"].as_str().unwrap().to_owned()
    }

    /// Sends a request with changes to a plain request.
    async fn send_request(&self, id: u64, url: &str, more: Value) {
        let mut params = json!({"method": "GET", "url": url, "requestId": "r"});
        for (key, value) in more.as_object().unwrap() {
            params[key] = value.clone();
        }
        self.write(&json!({"id": id, "method": "http/request", "params": params}))
            .await;
    }

    /// Sends a request, and waits for the refusal.
    async fn refused(&mut self, url: &str, more: Value) -> Value {
        self.send_request(9, url, more).await;
        let answer = self.read().await;
        assert_eq!(answer["id"], 9, "{answer}");
        answer["error"].clone()
    }

    /// Waits for the next delta of a stream.
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

fn rule_for(upstream: &RawUpstream) -> EgressRule {
    EgressRule::parse(&upstream.address().to_string()).unwrap()
}

/// An offer that allows only this upstream.
fn offer_for(upstream: &RawUpstream) -> ExecutorOffer {
    let mut offer = ExecutorOffer::new("office");
    offer.egress.all = vec![rule_for(upstream)];
    offer
}

/// A response with a content length, followed by a close.
fn plain(body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}")
}

/// Head of a chunked response.
const CHUNKED: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";

/// An upstream, and an adapter allowed to reach the upstream.
async fn served() -> (RawUpstream, AdapterServer) {
    let upstream = RawUpstream::start().await;
    let served = AdapterServer::new(offer_for(&upstream)).await;
    (upstream, served)
}
