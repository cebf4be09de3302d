//! A hub with servers inside the process, and peers on streams that never leave it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::policy::Policy;
use bowline_core::sync::lock;
use bowline_host::broker::{
    Admitted, HostBackend, Hub, HubLimits, Ledger, Porter, ServeLimits, Serving,
};
use bowline_host::tools::{Arguments, ExecuteContext, ExecuteError, ToolExecutor};
use bowline_host::{BoxFuture, Host, Server, ToolOutput, ToolSchema};
use bowline_journal::Memory;
use bowline_link::websocket::{Incoming, Outgoing, Side, SocketLimits, join};
use bowline_wire::broker::{Hello, Refusal};
use bytes::Bytes;
use fastrand::Rng;
use serde_json::{Value, json};

use super::Tally;
use super::attack;
use super::rules::{self, PEERS, SERVERS, TOOLS};

/// How many cases one set of rules lasts, at most.
const RULES_LAST: usize = 24;

/// How much a stream holds.
const STREAM_BYTES: usize = 256 * 1024;

/// Nothing that comes at all comes later.
const PATIENCE: Duration = Duration::from_secs(5);

/// What ran: server, tool, and the tag that the call gave.
pub(super) type Ran = Arc<Mutex<Vec<(&'static str, String, String)>>>;

/// A server whose tools note that they ran, and say their tag.
#[derive(Debug)]
struct Noting {
    server: &'static str,
    ran: Ran,
}

impl ToolExecutor for Noting {
    fn execute<'a>(
        &'a self,
        name: &'a str,
        arguments: Arguments,
        _context: &'a ExecuteContext,
    ) -> BoxFuture<'a, Result<ToolOutput, ExecuteError>> {
        Box::pin(async move {
            let tag = arguments.value()["tag"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            lock(&self.ran).push((self.server, name.to_owned(), tag.clone()));
            Ok(ToolOutput::of_text(&format!("ran {tag}")))
        })
    }

    fn tools(&self) -> Vec<ToolSchema> {
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

/// Knows the peers by their tokens, which are `token-NAME`.
#[derive(Debug)]
pub(super) struct Book(HashMap<String, Admitted>);

impl Porter for Book {
    fn admit(&self, hello: &Hello) -> Result<(Admitted, BoxFuture<'static, Refusal>), Refusal> {
        let token = hello.token.as_deref().unwrap_or_default();
        match self.0.get(token) {
            Some(admitted) => Ok((admitted.clone(), Box::pin(std::future::pending()))),
            None => Err(Refusal {
                reason: "no".into(),
                ..Refusal::default()
            }),
        }
    }
}

/// One connection as a peer has it.
#[derive(Debug)]
pub(super) struct Peer {
    out: Outgoing,
    incoming: Incoming,
    attended: tokio::task::JoinHandle<()>,
}

impl Peer {
    pub(super) async fn say(&self, frame: &Value) {
        // A connection that was ended takes nothing, which is what it is there for.
        let _ended = self.out.send(Bytes::from(frame.to_string())).await;
    }

    /// The next frame that is not about the state of things; nothing once it has ended.
    pub(super) async fn hear(&mut self) -> Option<Value> {
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

    /// Everything that has come, without waiting for more.
    pub(super) async fn rest(&mut self) -> Vec<Value> {
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

/// Everything that a batch of cases happens in.
#[derive(Debug)]
pub(super) struct World {
    pub(super) seed: u64,
    pub(super) rng: Rng,
    host: Host,
    hub: Hub,
    book: Arc<Book>,
    pub(super) peers: Vec<Peer>,
    pub(super) policy: Policy,
    pub(super) ran: Ran,
    pub(super) tally: Tally,
    left: usize,
}

impl World {
    pub(super) async fn begin(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let ran = Ran::default();
        let mut builder = Host::builder();
        for server in SERVERS {
            let ran = Arc::clone(&ran);
            builder = builder.server(Server::in_process(server, Noting { server, ran }));
        }
        let host = builder.build().unwrap();
        host.settled().await;
        let journal = Arc::new(Memory::default());
        let serving = Serving::new(
            Arc::new(HostBackend::new(host.clone())),
            Ledger::new(journal.clone(), "hub").unwrap(),
            ServeLimits::default(),
            Arc::clone(host.clock()),
        );
        let limits = HubLimits {
            deliver_per_second: 1_000_000,
            deliver_burst: 1_000_000,
            ..HubLimits::default()
        };
        let hub = Hub::start(&host, journal, limits, Arc::new(serving));
        let known = PEERS.map(|name| (format!("token-{name}"), rules::admitted(&mut rng, name)));
        let mut world = Self {
            seed,
            rng,
            host,
            hub,
            book: Arc::new(Book(known.into_iter().collect())),
            peers: Vec::new(),
            policy: Policy::default(),
            ran,
            tally: Tally::default(),
            left: 0,
        };
        for name in PEERS {
            let hello = json!({"kind": "hello", "agent": {"session_id": name},
                "token": format!("token-{name}")});
            let (peer, first) = world.connect(&hello).await;
            assert_eq!(first.unwrap()["kind"], "welcome");
            peer.say(&json!({"kind": "subscribe"})).await;
            world.peers.push(peer);
        }
        world
    }

    /// Opens a connection, says hello and returns what is answered.
    pub(super) async fn connect(&self, hello: &Value) -> (Peer, Option<Value>) {
        let (near, far) = tokio::io::duplex(STREAM_BYTES);
        let limits = SocketLimits::default();
        let tasks = self.host.tasks();
        let theirs = join(far, Side::Server, Bytes::new(), limits, tasks);
        let (hub, book) = (self.hub.clone(), Arc::clone(&self.book));
        #[expect(clippy::disallowed_methods, reason = "a test holds it itself")]
        let attended = tokio::spawn(async move { hub.attend(theirs, &*book).await });
        let (out, incoming) = join(near, Side::Client, Bytes::new(), limits, tasks);
        let mut peer = Peer {
            out,
            incoming,
            attended,
        };
        peer.say(hello).await;
        let first = peer.hear().await;
        (peer, first)
    }

    pub(super) fn known(&self, peer: usize) -> &Admitted {
        &self.book.0[&format!("token-{}", PEERS[peer])]
    }

    pub(super) async fn case(&mut self, nth: usize) {
        if self.left == 0 {
            self.left = self.rng.usize(1..=RULES_LAST);
            self.policy = rules::policy(&mut self.rng);
            self.host.set_policy(self.policy.clone());
        }
        self.left -= 1;
        attack::case(self, nth).await;
    }

    /// Takes what ran since the last time.
    pub(super) fn take_ran(&self) -> Vec<(&'static str, String, String)> {
        std::mem::take(&mut *lock(&self.ran))
    }

    pub(super) async fn end(mut self) -> Tally {
        for peer in self.peers.drain(..) {
            drop((peer.out, peer.incoming));
            peer.attended.await.unwrap();
        }
        self.hub.close().await;
        self.host.shutdown().await;
        self.tally
    }
}
