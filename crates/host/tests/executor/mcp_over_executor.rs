//! An HTTP server behind an executor, across cuts.

use std::sync::{Arc, Mutex};

use bowline_core::call::{Principal, Role};
use bowline_core::egress::EgressRule;
use bowline_core::error::ExecutionStatus;
use bowline_host::executor::{
    CredentialSource, ExecutorOffer, ExecutorRunOptions, ExecutorService, run_executor_with,
};
use bowline_host::spec::{ExecutorRoute, RemoteSpec, ServerTransport};
use bowline_host::{ExecuteError, Host, ServerSpec};
use bowline_link::http::HttpTransport;
use bowline_link::http::endpoint::HttpEndpoint;
use bowline_link::http::upstream_credentials::NoCredentials;
use bowline_runtime::SystemClock;
use bowline_testkit::registry_gateway::{RegistryGateway, quick};
use bowline_testkit::{poll_until, spawn_task, wait_bounded};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

/// Longer than every other message.
const LONG_BYTES: usize = 20_000;

/// A request on the server's side.
#[derive(Debug)]
struct ReceivedRequest {
    /// `GET`, or the method of the message.
    what: String,
    last_event: Option<String>,
    stream: TcpStream,
    id: Value,
}

impl ReceivedRequest {
    async fn write_text(mut self, text: &str) -> Self {
        // A disconnected peer gets nothing.
        let _ = self.stream.write_all(text.as_bytes()).await;
        self
    }

    async fn respond(self, result: Value) {
        let body = json!({"jsonrpc": "2.0", "id": self.id, "result": result}).to_string();
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close";
        self.write_text(&format!(
            "{head}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ))
        .await;
    }
}

/// Reads one request of a connection.
async fn read_request(mut stream: TcpStream) -> Option<ReceivedRequest> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).unwrap();
    let header = |name: &str| {
        let mut lines = head.lines().filter_map(|line| line.split_once(": "));
        let found = lines.find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.to_owned())
    };
    let length = header("content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    let message: Value = serde_json::from_slice(&body).unwrap_or_default();
    let what = match head.starts_with("GET ") {
        true => "GET".to_owned(),
        false => message["method"].as_str().unwrap_or_default().to_owned(),
    };
    Some(ReceivedRequest {
        what,
        last_event: header("last-event-id"),
        id: message["id"].clone(),
        stream,
    })
}

/// Answers the standard requests, and hands on calls and streams.
async fn serve(listener: TcpListener, heard: mpsc::Sender<ReceivedRequest>) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let heard = heard.clone();
        spawn_task(async move {
            let Some(request) = read_request(stream).await else {
                return;
            };
            match request.what.as_str() {
                "initialize" => {
                    let result = json!({
                        "protocolVersion": "2025-06-18",
                        "capabilities": {"tools": {}},
                        "serverInfo": {"name": "inside", "version": "1"},
                    });
                    request.respond(result).await;
                }
                "tools/list" => {
                    let schema = json!({"type": "object"});
                    let tool = |name: &str, safe: bool| {
                        let hints = json!({"readOnlyHint": safe});
                        json!({"name": name, "inputSchema": schema, "annotations": hints})
                    };
                    let tools = json!({"tools": [tool("read", true), tool("write", false)]});
                    request.respond(tools).await;
                }
                "tools/call" | "GET" => heard.send(request).await.unwrap(),
                _ => {
                    let accepted = "HTTP/1.1 202 Accepted\r\nconnection: close\r\n\
                                    content-length: 0\r\n\r\n";
                    request.write_text(accepted).await;
                }
            }
        });
    }
}

/// A host with one server behind a reconnecting executor.
struct ExecutorWorld {
    gateway: RegistryGateway,
    host: Host,
    heard: Mutex<mpsc::Receiver<ReceivedRequest>>,
}

impl ExecutorWorld {
    async fn new() -> Self {
        let gateway = RegistryGateway::new(quick()).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (said, heard) = mpsc::channel(64);
        spawn_task(serve(listener, said));
        let mut offer = ExecutorOffer::new("office");
        offer.egress.all = vec![EgressRule::parse(&address).unwrap()];
        let clock = Arc::new(SystemClock::start());
        let servant = ExecutorService::new(offer, gateway.tasks.clone(), clock);
        let url = gateway.url.clone();
        spawn_task(async move {
            let credential = CredentialSource::from_token("token");
            let never = std::future::pending();
            run_executor_with(
                &url,
                &credential,
                &servant,
                ExecutorRunOptions::default(),
                never,
            )
            .await
        });
        poll_until("the executor is connected", || {
            let statuses = gateway.executors.list_statuses();
            statuses.iter().any(|one| one.connected)
        })
        .await;
        let reach = RemoteSpec {
            url: HttpEndpoint::parse(&format!("http://{address}/mcp")).unwrap(),
            transport: HttpTransport::default(),
            credentials: Arc::new(NoCredentials),
            via: Some(ExecutorRoute {
                executor: "office".into(),
                fills: Vec::new(),
            }),
        };
        let host = Host::builder()
            .tasks(gateway.tasks.clone())
            .executors(gateway.executors.clone())
            .server(ServerSpec::with_transport(
                "inside",
                ServerTransport::Remote(reach),
            ))
            .build()
            .unwrap();
        Self {
            gateway,
            host,
            heard: Mutex::new(heard),
        }
    }

    /// Returns the next stream or call received by the server.
    async fn next(&self, what: &str) -> ReceivedRequest {
        loop {
            let next = std::future::poll_fn(|cx| self.heard.lock().unwrap().poll_recv(cx));
            let heard = wait_bounded(next).await.unwrap();
            if heard.what == what {
                return heard;
            }
        }
    }

    fn call(&self, tool: &'static str) -> tokio::task::JoinHandle<Result<String, ExecuteError>> {
        let host = self.host.clone();
        spawn_task(async move {
            let owner = Principal::new("owner", Role::Owner);
            let output = host.call_tool(&owner, "inside", tool, json!({})).await;
            output.map(|output| output.text().into_owned())
        })
    }
}

fn text(said: &str) -> Value {
    json!({"content": [{"type": "text", "text": said}]})
}

#[tokio::test]
async fn event_stream_resumes_after_last_event() {
    let world = ExecutorWorld::new().await;
    let listening = world.next("GET").await;
    assert_eq!(listening.last_event, None);
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
    let log = json!({"jsonrpc": "2.0", "method": "notifications/message",
                     "params": {"level": "info", "data": "x".repeat(LONG_BYTES)}});
    let mut listening = listening
        .write_text(&format!("{head}id: seven\nretry: 10\ndata: {log}\n\n"))
        .await;
    // All messages arrive before the cut.
    let carried = |world: &ExecutorWorld| world.gateway.status("office").traffic.received_bytes;
    poll_until("the messages are carried", || {
        carried(&world) >= u64::try_from(LONG_BYTES).unwrap()
    })
    .await;
    world.gateway.cut("office").await;
    // The exchange also ends for the server.
    let mut rest = Vec::new();
    let _ = wait_bounded(listening.stream.read_to_end(&mut rest)).await;
    let again = world.next("GET").await;
    assert_eq!(again.last_event.as_deref(), Some("seven"));
}

#[tokio::test]
async fn only_repeatable_calls_are_resent() {
    let world = ExecutorWorld::new().await;
    let reading = world.call("read");
    let first = world.next("tools/call").await;
    let writing = world.call("write");
    let only = world.next("tools/call").await;
    world.gateway.cut("office").await;
    let second = world.next("tools/call").await;
    second.respond(text("read at last")).await;
    assert_eq!(
        wait_bounded(reading).await.unwrap().unwrap(),
        "read at last"
    );
    let error = wait_bounded(writing).await.unwrap().unwrap_err();
    assert_eq!(error.execution(), ExecutionStatus::Unknown, "{error:?}");
    drop((first, only));
    let heard = world.heard.lock().unwrap().try_recv();
    assert!(
        !matches!(&heard, Ok(heard) if heard.what == "tools/call"),
        "a third call: {heard:?}"
    );
}
