//! A hub with in-process servers, and peers over in-memory streams.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::BoxFuture;
use bowline_core::policy::Policy;
use bowline_core::sync::lock;
use bowline_host::broker::frames::{BrokerHello, BrokerRefusal};
use bowline_host::broker::{
    AdmittedPeer, HostBackend, Hub, HubLimits, PeerAuthenticator, RequestLedger, ServeEngine,
    ServeLimits,
};
use bowline_host::tools::{ExecuteContext, ExecuteError, ToolArguments, ToolExecutor};
use bowline_host::{Host, Server, ToolOutput, ToolSchema};
use bowline_journal::MemoryJournal;
use bowline_link::websocket::{
    WebSocketLimits, WebSocketReceiver, WebSocketRole, WebSocketSender, open_websocket,
};
use bytes::Bytes;
use fastrand::Rng;
use serde_json::{Value, json};

use super::AttackTally;
use super::attack;
use super::random_rules::{self, PEERS, SERVERS, TOOLS};

/// Most cases per policy.
const RULES_LAST: usize = 24;

/// Buffer size of a stream.
const STREAM_BYTES: usize = 256 * 1024;

/// Timeout for frames.
const PATIENCE: Duration = Duration::from_secs(5);

/// Tool runs: server, tool, and the tag of the call.
pub(super) type ToolRunLog = Arc<Mutex<Vec<(&'static str, String, String)>>>;

/// A server with tools that record each run and return the tag.
#[derive(Debug)]
struct RecordingTools {
    server: &'static str,
    ran: ToolRunLog,
}

impl ToolExecutor for RecordingTools {
    fn execute<'a>(
        &'a self,
        name: &'a str,
        arguments: ToolArguments,
        _context: &'a ExecuteContext,
    ) -> BoxFuture<'a, Result<ToolOutput, ExecuteError>> {
        Box::pin(async move {
            let tag = arguments.to_value()["tag"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            lock(&self.ran).push((self.server, name.to_owned(), tag.clone()));
            Ok(ToolOutput::from_text(&format!("ran {tag}")))
        })
    }

    fn list_tools(&self) -> Vec<ToolSchema> {
        let tools = TOOLS.iter().map(|(name, repeatable)| {
            ToolSchema::from_definition(&json!({
                "name": name,
                "inputSchema": {"type": "object"},
                "annotations": {"readOnlyHint": repeatable},
            }))
        });
        tools.map(Option::unwrap).collect()
    }
}

/// Admits peers by token, `token-NAME`.
#[derive(Debug)]
pub(super) struct PeerTokens(HashMap<String, AdmittedPeer>);

impl PeerAuthenticator for PeerTokens {
    fn authenticate(
        &self,
        hello: &BrokerHello,
    ) -> Result<(AdmittedPeer, BoxFuture<'static, BrokerRefusal>), BrokerRefusal> {
        let token = hello.token.as_deref().unwrap_or_default();
        match self.0.get(token) {
            Some(admitted) => Ok((admitted.clone(), Box::pin(std::future::pending()))),
            None => Err(BrokerRefusal {
                reason: "no".into(),
                ..BrokerRefusal::default()
            }),
        }
    }
}

/// Client end of a connection.
#[derive(Debug)]
pub(super) struct BrokerWorldPeer {
    out: WebSocketSender,
    incoming: WebSocketReceiver,
    attended: tokio::task::JoinHandle<()>,
}

impl BrokerWorldPeer {
    pub(super) async fn send_frame(&self, frame: &Value) {
        // A closed connection drops the frame, as intended.
        let _ended = self.out.send(Bytes::from(frame.to_string())).await;
    }

    /// Returns the next frame except status frames; `None` after the end.
    pub(super) async fn next_frame(&mut self) -> Option<Value> {
        loop {
            let next = tokio::time::timeout(PATIENCE, self.incoming.next()).await;
            let frame: Value = serde_json::from_slice(&next.ok()?.ok()?).unwrap();
            if !matches!(
                frame["kind"].as_str(),
                Some("changed" | "broker_identity" | "event")
            ) {
                return Some(frame);
            }
        }
    }

    /// Returns all received frames, without waiting.
    pub(super) async fn drain_frames(&mut self) -> Vec<Value> {
        let mut frames = Vec::new();
        while let Ok(Ok(next)) = tokio::time::timeout(Duration::ZERO, self.incoming.next()).await {
            let frame: Value = serde_json::from_slice(&next).unwrap();
            if !matches!(frame["kind"].as_str(), Some("changed" | "broker_identity")) {
                frames.push(frame);
            }
        }
        frames
    }
}

/// Everything in which a batch of cases runs.
#[derive(Debug)]
pub(super) struct BrokerWorld {
    pub(super) seed: u64,
    pub(super) rng: Rng,
    host: Host,
    hub: Hub,
    book: Arc<PeerTokens>,
    pub(super) peers: Vec<BrokerWorldPeer>,
    pub(super) policy: Policy,
    pub(super) ran: ToolRunLog,
    pub(super) tally: AttackTally,
    left: usize,
}

impl BrokerWorld {
    pub(super) async fn start(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let ran = ToolRunLog::default();
        let mut builder = Host::builder();
        for server in SERVERS {
            let ran = Arc::clone(&ran);
            builder = builder.server(Server::in_process(server, RecordingTools { server, ran }));
        }
        let host = builder.build().unwrap();
        host.wait_settled().await;
        let journal = Arc::new(MemoryJournal::default());
        let serving = ServeEngine::new(
            Arc::new(HostBackend::new(host.clone())),
            RequestLedger::new(journal.clone(), "hub").unwrap(),
            ServeLimits::default(),
            Arc::clone(host.clock()),
        );
        let limits = HubLimits {
            deliver_per_second: 1_000_000,
            deliver_burst: 1_000_000,
            ..HubLimits::default()
        };
        let hub = Hub::start(&host, journal, limits, Arc::new(serving));
        let known = PEERS.map(|name| {
            (
                format!("token-{name}"),
                random_rules::admitted(&mut rng, name),
            )
        });
        let mut world = Self {
            seed,
            rng,
            host,
            hub,
            book: Arc::new(PeerTokens(known.into_iter().collect())),
            peers: Vec::new(),
            policy: Policy::default(),
            ran,
            tally: AttackTally::default(),
            left: 0,
        };
        for name in PEERS {
            let hello = json!({"kind": "hello", "agent": {"session_id": name},
                "token": format!("token-{name}")});
            let (peer, first) = world.connect(&hello).await;
            assert_eq!(first.unwrap()["kind"], "welcome");
            peer.send_frame(&json!({"kind": "subscribe"})).await;
            world.peers.push(peer);
        }
        world
    }

    /// Opens a connection, sends `hello` and returns the response.
    pub(super) async fn connect(&self, hello: &Value) -> (BrokerWorldPeer, Option<Value>) {
        let (near, far) = tokio::io::duplex(STREAM_BYTES);
        let limits = WebSocketLimits::default();
        let tasks = self.host.tasks();
        let theirs = open_websocket(far, WebSocketRole::Server, Bytes::new(), limits, tasks);
        let (hub, book) = (self.hub.clone(), Arc::clone(&self.book));
        #[expect(clippy::disallowed_methods, reason = "a test holds it itself")]
        let attended = tokio::spawn(async move { hub.serve_peer(theirs, &*book).await });
        let socket = open_websocket(near, WebSocketRole::Client, Bytes::new(), limits, tasks);
        let mut peer = BrokerWorldPeer {
            out: socket.sender,
            incoming: socket.receiver,
            attended,
        };
        peer.send_frame(hello).await;
        let first = peer.next_frame().await;
        (peer, first)
    }

    pub(super) fn admitted_peer(&self, peer: usize) -> &AdmittedPeer {
        &self.book.0[&format!("token-{}", PEERS[peer])]
    }

    pub(super) async fn run_next(&mut self, nth: usize) {
        if self.left == 0 {
            self.left = self.rng.usize(1..=RULES_LAST);
            self.policy = random_rules::policy(&mut self.rng);
            self.host.set_policy(self.policy.clone());
        }
        self.left -= 1;
        attack::run_case(self, nth).await;
    }

    /// Takes the runs since the last call.
    pub(super) fn take_ran(&self) -> Vec<(&'static str, String, String)> {
        std::mem::take(&mut *lock(&self.ran))
    }

    pub(super) async fn end(mut self) -> AttackTally {
        for peer in self.peers.drain(..) {
            drop((peer.out, peer.incoming));
            peer.attended.await.unwrap();
        }
        self.hub.close().await;
        self.host.shutdown().await;
        self.tally
    }
}
