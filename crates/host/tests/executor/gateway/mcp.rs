//! A server over HTTP that only an executor reaches, through cuts.

use std::sync::{Arc, Mutex};

use bowline_core::call::{Principal, Role};
use bowline_core::egress::Rule;
use bowline_core::error::Execution;
use bowline_host::executor::{Credential, Offer, RunOptions, Servant, run_with};
use bowline_host::ports::SystemClock;
use bowline_host::spec::{Placement, Reach, RemoteSpec};
use bowline_host::{ExecuteError, Host, ServerSpec};
use bowline_link::http::Transport;
use bowline_link::http::credentials::Anonymous;
use bowline_link::http::endpoint::Endpoint;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::rig::{Gateway, quick, start, within};

/// Longer than all else that is said.
const LONG_BYTES: usize = 20_000;

/// A request as a server sees it.
#[derive(Debug)]
struct Heard {
    /// `GET`, or the method of the message.
    what: String,
    last_event: Option<String>,
    stream: TcpStream,
    id: Value,
}

impl Heard {
    async fn say(mut self, text: &str) -> Self {
        // Who is gone hears nothing.
        let _ = self.stream.write_all(text.as_bytes()).await;
        self
    }

    async fn answer(self, result: Value) {
        let body = json!({"jsonrpc": "2.0", "id": self.id, "result": result}).to_string();
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close";
        self.say(&format!(
            "{head}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ))
        .await;
    }
}

/// Reads one request of a connection.
async fn hear(mut stream: TcpStream) -> Option<Heard> {
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
    Some(Heard {
        what,
        last_event: header("last-event-id"),
        id: message["id"].clone(),
        stream,
    })
}

/// Answers what every server answers, and hands on calls and streams.
async fn serve(listener: TcpListener, heard: mpsc::Sender<Heard>) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let heard = heard.clone();
        start(async move {
            let Some(request) = hear(stream).await else {
                return;
            };
            match request.what.as_str() {
                "initialize" => {
                    let result = json!({
                        "protocolVersion": "2025-06-18",
                        "capabilities": {"tools": {}},
                        "serverInfo": {"name": "inside", "version": "1"},
                    });
                    request.answer(result).await;
                }
                "tools/list" => {
                    let schema = json!({"type": "object"});
                    let tool = |name: &str, safe: bool| {
                        let hints = json!({"readOnlyHint": safe});
                        json!({"name": name, "inputSchema": schema, "annotations": hints})
                    };
                    let tools = json!({"tools": [tool("read", true), tool("write", false)]});
                    request.answer(tools).await;
                }
                "tools/call" | "GET" => heard.send(request).await.unwrap(),
                _ => {
                    let accepted = "HTTP/1.1 202 Accepted\r\nconnection: close\r\n\
                                    content-length: 0\r\n\r\n";
                    request.say(accepted).await;
                }
            }
        });
    }
}

/// A host that reaches its one server through an executor that comes back.
struct World {
    gateway: Gateway,
    host: Host,
    heard: Mutex<mpsc::Receiver<Heard>>,
}

impl World {
    async fn new() -> Self {
        let gateway = Gateway::new(quick()).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (said, heard) = mpsc::channel(64);
        start(serve(listener, said));
        let mut offer = Offer::new("office");
        offer.egress.all = vec![Rule::parse(&address).unwrap()];
        let clock = Arc::new(SystemClock::start());
        let servant = Servant::new(offer, gateway.tasks.clone(), clock);
        let url = gateway.url.clone();
        start(async move {
            let credential = Credential::fixed("token");
            let never = std::future::pending();
            run_with(&url, &credential, &servant, RunOptions::default(), never).await
        });
        within(async {
            while gateway.executors.list().iter().all(|one| !one.connected) {
                tokio::task::yield_now().await;
            }
        })
        .await;
        let reach = RemoteSpec {
            url: Endpoint::parse(&format!("http://{address}/mcp")).unwrap(),
            transport: Transport::default(),
            credentials: Arc::new(Anonymous),
            via: Some(Placement {
                executor: "office".into(),
                fills: Vec::new(),
            }),
        };
        let host = Host::builder()
            .tasks(gateway.tasks.clone())
            .executors(gateway.executors.clone())
            .server(ServerSpec::reached("inside", Reach::Remote(reach)))
            .build()
            .unwrap();
        Self {
            gateway,
            host,
            heard: Mutex::new(heard),
        }
    }

    /// Returns the next stream or call that the server hears.
    async fn next(&self, what: &str) -> Heard {
        loop {
            let next = std::future::poll_fn(|cx| self.heard.lock().unwrap().poll_recv(cx));
            let heard = within(next).await.unwrap();
            if heard.what == what {
                return heard;
            }
        }
    }

    fn call(&self, tool: &'static str) -> tokio::task::JoinHandle<Result<String, ExecuteError>> {
        let host = self.host.clone();
        start(async move {
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
async fn a_stream_of_events_is_opened_again_behind_its_last_event_after_a_cut() {
    let world = World::new().await;
    let listening = world.next("GET").await;
    assert_eq!(listening.last_event, None);
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
    let log = json!({"jsonrpc": "2.0", "method": "notifications/message",
                     "params": {"level": "info", "data": "x".repeat(LONG_BYTES)}});
    let mut listening = listening
        .say(&format!("{head}id: seven\nretry: 10\ndata: {log}\n\n"))
        .await;
    // What was said is here before the wire is cut.
    let carried = |world: &World| world.gateway.status("office").carried.received_bytes;
    within(async {
        while carried(&world) < u64::try_from(LONG_BYTES).unwrap() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    world.gateway.cut("office").await;
    // The exchange is over for the server, too.
    let mut rest = Vec::new();
    let _ = within(listening.stream.read_to_end(&mut rest)).await;
    let again = world.next("GET").await;
    assert_eq!(again.last_event.as_deref(), Some("seven"));
}

#[tokio::test]
async fn a_safe_call_that_a_cut_interrupts_is_sent_again_and_no_other_is() {
    let world = World::new().await;
    let reading = world.call("read");
    let first = world.next("tools/call").await;
    let writing = world.call("write");
    let only = world.next("tools/call").await;
    world.gateway.cut("office").await;
    let second = world.next("tools/call").await;
    second.answer(text("read at last")).await;
    assert_eq!(within(reading).await.unwrap().unwrap(), "read at last");
    let error = within(writing).await.unwrap().unwrap_err();
    assert_eq!(error.execution(), Execution::Unknown, "{error:?}");
    drop((first, only));
    let heard = world.heard.lock().unwrap().try_recv();
    assert!(
        !matches!(&heard, Ok(heard) if heard.what == "tools/call"),
        "a third call: {heard:?}"
    );
}
