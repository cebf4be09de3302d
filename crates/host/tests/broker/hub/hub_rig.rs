//! A hub with a few tools, and peers that send raw JSON text.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bowline_core::BoxFuture;
use bowline_core::call::{Principal, Role};
use bowline_core::policy::RoleAllowlist;
use bowline_host::broker::frames::{BrokerHello, BrokerRefusal};
use bowline_host::broker::mailbox::MailboxName;
use bowline_host::broker::{
    AdmittedPeer, DeadLetterView, HostBackend, Hub, HubLimits, OfferHandler, PeerAuthenticator,
    PeerRights, RejectOffers, RequestLedger, ServeEngine, ServeLimits,
};
use bowline_host::tools::Toolbox;
use bowline_host::{Host, Server, ToolOutput};
use bowline_journal::{Journal, MemoryJournal, SqliteJournal};
use bowline_link::websocket::{
    DisconnectReason, WebSocketLimits, WebSocketReceiver, WebSocketRole, WebSocketSender,
    open_websocket,
};
use bowline_runtime::Clock;
use bowline_testkit::{PausedClock, poll_for, poll_until, wait_bounded};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, watch};

/// Admits tokens equal to a principal name, and can end all credentials.
pub(crate) struct TokenAuthenticator {
    rights: Mutex<HashMap<String, (Role, PeerRights)>>,
    over: watch::Sender<bool>,
    /// Refusals, with the refused peer.
    pub(crate) refused: Mutex<Vec<(Option<String>, BrokerRefusal)>>,
}

impl fmt::Debug for TokenAuthenticator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenAuthenticator")
    }
}

impl TokenAuthenticator {
    /// Grants rights to a principal.
    pub(crate) fn grant(&self, name: &str, rights: PeerRights) {
        let role = Role::Named("user".into());
        self.rights
            .lock()
            .unwrap()
            .insert(name.into(), (role, rights));
    }

    /// Lets a principal deliver to other principals.
    pub(crate) fn grant_reach(&self, name: &str, to: &[&str]) {
        let to = to.iter().map(|name| (*name).into()).collect();
        self.grant(
            name,
            PeerRights {
                to,
                ..PeerRights::default()
            },
        );
    }

    /// Ends every credential.
    pub(crate) fn end_credentials(&self) {
        self.over.send_replace(true);
    }
}

impl PeerAuthenticator for TokenAuthenticator {
    fn authenticate(
        &self,
        hello: &BrokerHello,
    ) -> Result<(AdmittedPeer, BoxFuture<'static, BrokerRefusal>), BrokerRefusal> {
        let token = hello.token.as_deref().unwrap_or_default();
        let Some(name) = token.strip_prefix("token-") else {
            return Err(BrokerRefusal {
                reason: "not admitted".into(),
                id: None,
                code: Some("auth".into()),
            });
        };
        let known = self.rights.lock().unwrap().get(name).cloned();
        let (role, rights) =
            known.unwrap_or_else(|| (Role::Named("user".into()), PeerRights::default()));
        let claimed = MailboxName::from_claim(name, &hello.claimed_mailbox);
        let mailbox = claimed.unwrap_or_else(|| MailboxName::parse(name).unwrap());
        let admitted = AdmittedPeer {
            principal: Arc::new(Principal::new(name, role)),
            mailbox,
            role: Some("user".into()),
            rights,
        };
        let mut over = self.over.subscribe();
        let end = async move {
            if over.wait_for(|over| *over).await.is_err() {
                std::future::pending::<()>().await;
            }
            BrokerRefusal {
                reason: "the token is over".into(),
                id: None,
                code: Some("expired".into()),
            }
        };
        Ok((admitted, Box::pin(end)))
    }

    fn on_refused(&self, peer: Option<&AdmittedPeer>, refusal: &BrokerRefusal) {
        let peer = peer.map(|peer| peer.mailbox.to_string());
        self.refused.lock().unwrap().push((peer, refusal.clone()));
    }
}

/// A hub with all dependencies.
pub(crate) struct HubRig {
    pub(crate) hub: Hub,
    pub(crate) host: Host,
    pub(crate) journal: Arc<dyn Journal>,
    pub(crate) authenticator: Arc<TokenAuthenticator>,
    /// Runs of `count`.
    pub(crate) counted: Arc<AtomicUsize>,
    /// Each permit ends one `wait`.
    pub(crate) gate: Arc<Semaphore>,
    /// Started runs of `wait`.
    pub(crate) waiting: Arc<watch::Sender<usize>>,
}

/// Options of a rig.
pub(crate) struct HubRigOptions {
    pub(crate) journal: Arc<dyn Journal>,
    pub(crate) limits: HubLimits,
    pub(crate) serve: ServeLimits,
    pub(crate) offers: Arc<dyn OfferHandler>,
    /// One clock per journal, until reopened.
    pub(crate) clock: Arc<dyn Clock>,
}

impl Default for HubRigOptions {
    fn default() -> Self {
        Self {
            journal: Arc::new(MemoryJournal::default()),
            limits: HubLimits::default(),
            serve: ServeLimits::default(),
            offers: Arc::new(RejectOffers),
            clock: Arc::new(PausedClock::start()),
        }
    }
}

impl HubRigOptions {
    /// With a journal on disk.
    pub(crate) fn at(path: &Path) -> Self {
        Self {
            journal: Arc::new(SqliteJournal::open(path).unwrap()),
            ..Self::default()
        }
    }

    pub(crate) async fn start(self) -> HubRig {
        let counted = Arc::new(AtomicUsize::new(0));
        let gate = Arc::new(Semaphore::new(0));
        let waiting = Arc::new(watch::Sender::new(0));
        let server = tools(&counted, &gate, &waiting);
        let host = Host::builder()
            .policy(&RoleAllowlist::unrestricted())
            .clock(self.clock)
            .server(Server::in_process("box", server))
            .build()
            .unwrap();
        // Let the tools be listed.
        let ready = host.server("box").unwrap();
        ready
            .subscribe_state()
            .wait_for(|state| state.is_settled())
            .await
            .unwrap();
        let backend = Arc::new(HostBackend::new(host.clone()));
        let ledger = RequestLedger::new(Arc::clone(&self.journal), "hub").unwrap();
        let serving = ServeEngine::new(backend, ledger, self.serve, Arc::clone(host.clock()));
        let journal = Arc::clone(&self.journal);
        let hub = Hub::start_with_offers(
            &host,
            self.journal,
            self.limits,
            Arc::new(serving),
            self.offers,
        );
        HubRig {
            hub,
            host,
            journal,
            authenticator: Arc::new(TokenAuthenticator {
                rights: Mutex::default(),
                over: watch::Sender::new(false),
                refused: Mutex::default(),
            }),
            counted,
            gate,
            waiting,
        }
    }
}

fn tools(
    counted: &Arc<AtomicUsize>,
    gate: &Arc<Semaphore>,
    waiting: &Arc<watch::Sender<usize>>,
) -> Toolbox {
    let any = json!({"type": "object"});
    let counted = Arc::clone(counted);
    let (gate, waiting) = (Arc::clone(gate), Arc::clone(waiting));
    Toolbox::default()
        .with("echo", "Repeats.", &any, |arguments, _| async move {
            Ok(ToolOutput::from_text(&arguments.to_value().to_string()))
        })
        .with("count", "Counts.", &any, move |_, _| {
            let count = counted.fetch_add(1, Ordering::SeqCst) + 1;
            async move { Ok(ToolOutput::from_text(&count.to_string())) }
        })
        .with("wait", "Waits.", &any, move |_, context| {
            let (gate, waiting) = (Arc::clone(&gate), Arc::clone(&waiting));
            async move {
                if let Some(caller) = &context.caller {
                    let word = br#"{"jsonrpc":"2.0","method":"notifications/message"}"#;
                    caller.notify(Bytes::from_static(word));
                }
                waiting.send_modify(|count| *count += 1);
                gate.acquire().await.unwrap().forget();
                Ok(ToolOutput::from_text("waited"))
            }
        })
}

impl HubRig {
    pub(crate) async fn new() -> Self {
        HubRigOptions::default().start().await
    }

    /// Waits until `count` runs of `wait` started.
    pub(crate) async fn wait_begun(&self, count: usize) {
        let mut begun = self.waiting.subscribe();
        wait_bounded(begun.wait_for(|begun| *begun >= count))
            .await
            .unwrap();
    }

    /// Connects without `hello`.
    pub(crate) fn dial(&self) -> RawPeer {
        let (near, far) = tokio::io::duplex(1 << 16);
        self.connect_over(near, far, WebSocketLimits::default())
    }

    /// Connects over two ends of a stream.
    pub(crate) fn connect_over<S>(&self, near: S, far: S, limits: WebSocketLimits) -> RawPeer
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let tasks = self.host.tasks();
        let served = open_websocket(far, WebSocketRole::Server, Bytes::new(), limits, tasks);
        let (hub, doors) = (self.hub.clone(), Arc::clone(&self.authenticator));
        tasks.spawn(
            "attend",
            async move { hub.serve_peer(served, &*doors).await },
        );
        let socket = open_websocket(near, WebSocketRole::Client, Bytes::new(), limits, tasks);
        RawPeer {
            out: socket.sender,
            incoming: socket.receiver,
        }
    }

    /// Connects over TCP.
    pub(crate) async fn dial_tcp(&self) -> RawPeer {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (near, far) = tokio::join!(tokio::net::TcpStream::connect(address), listener.accept());
        self.connect_over(near.unwrap(), far.unwrap().0, WebSocketLimits::default())
    }

    /// Connects and authenticates.
    pub(crate) async fn join(&self, mailbox: &str) -> RawPeer {
        let mut peer = self.dial();
        peer.hello(mailbox).await;
        peer
    }

    /// Connects, authenticates and subscribes.
    pub(crate) async fn subscribe(&self, mailbox: &str) -> RawPeer {
        let peer = self.join(mailbox).await;
        peer.send(json!({"kind": "subscribe"})).await;
        self.wait_seen(mailbox, |peer| peer.subscribed).await;
        peer
    }

    /// Waits until the view of a peer satisfies the predicate.
    pub(crate) async fn wait_seen(
        &self,
        mailbox: &str,
        is_so: impl Fn(&bowline_host::broker::PeerView) -> bool,
    ) {
        poll_until(&format!("{mailbox} is seen so"), || {
            let peers = self.hub.peers();
            peers
                .iter()
                .any(|peer| &**peer.mailbox.as_str() == mailbox && is_so(peer))
        })
        .await;
    }

    /// Waits until no peer with this name is connected.
    pub(crate) async fn wait_left(&self, mailbox: &str) {
        poll_until(&format!("{mailbox} has left"), || {
            let peers = self.hub.peers();
            peers.iter().all(|peer| &**peer.mailbox.as_str() != mailbox)
        })
        .await;
    }

    /// Waits for this many dead letters; the hub publishes no event for them.
    pub(crate) async fn wait_dead_letters(&self, count: usize) -> Vec<DeadLetterView> {
        poll_for("the dead letters", async || {
            let dead = self.hub.dead_letters(0, 10).await.unwrap();
            (dead.len() == count).then_some(dead)
        })
        .await
    }
}

/// Client end of a connection, in raw JSON.
pub(crate) struct RawPeer {
    pub(crate) out: WebSocketSender,
    pub(crate) incoming: WebSocketReceiver,
}

impl RawPeer {
    pub(crate) async fn send(&self, frame: Value) {
        self.out.send(frame.to_string().into()).await.unwrap();
    }

    /// Returns the next frame.
    pub(crate) async fn next(&mut self) -> Value {
        let bytes = wait_bounded(self.incoming.next()).await.expect("a frame");
        serde_json::from_slice(&bytes).unwrap()
    }

    /// Returns the next frame of a kind; skips other frames.
    pub(crate) async fn next_of(&mut self, kind: &str) -> Value {
        loop {
            let frame = self.next().await;
            if frame["kind"] == kind {
                return frame;
            }
        }
    }

    /// Waits for the end, and returns the close code.
    pub(crate) async fn wait_closed(&mut self) -> u16 {
        loop {
            match wait_bounded(self.incoming.next()).await {
                Ok(_) => {}
                Err(DisconnectReason::Closed { code, .. }) => return code,
                Err(other) => panic!("not closed in order: {other}"),
            }
        }
    }

    pub(crate) async fn hello(&mut self, mailbox: &str) {
        let whose = mailbox.split('#').next().unwrap();
        let hello = json!({
            "kind": "hello",
            "agent": {"session_id": mailbox},
            "token": format!("token-{whose}"),
        });
        self.send(hello).await;
        let welcome = self.next().await;
        assert_eq!(
            (&welcome["kind"], &welcome["mailbox"]),
            (&json!("welcome"), &json!(mailbox))
        );
        assert_eq!(self.next().await["kind"], "broker_identity");
    }

    /// Delivers a message, without waiting for the receipt.
    pub(crate) async fn deliver(&self, to: &str, message: Value) {
        self.send(json!({"kind": "deliver", "to": to, "message": message}))
            .await;
    }

    /// Delivers a message and waits for the receipt.
    pub(crate) async fn delivered(&mut self, to: &str, message: Value) {
        let id = message["id"].clone();
        self.deliver(to, message).await;
        let receipt = self.next_of("delivered").await;
        assert_eq!(receipt["id"], id);
    }

    /// Sends a stored request to the hub, and returns the reply.
    pub(crate) async fn ask(&mut self, id: &str, body: Value) -> Value {
        self.deliver("hub", request(id, body)).await;
        self.reply_to(id).await
    }

    /// Waits for the reply to a stored request, and acks.
    pub(crate) async fn reply_to(&mut self, id: &str) -> Value {
        loop {
            let message = self.next_of("message").await["message"].clone();
            self.send(json!({"kind": "ack", "id": message["id"]})).await;
            if message["correlation_id"] == id {
                assert_eq!(message["kind"], "mcp_reply");
                assert_eq!(message["from"]["session_id"], "hub");
                return message["body"].clone();
            }
        }
    }

    /// Makes a round trip, so that the hub has read all earlier frames.
    pub(crate) async fn settle(&mut self) {
        self.send(json!({"kind": "list_connected"})).await;
        self.next_of("connected").await;
    }

    /// Drops the connection silently.
    pub(crate) fn hang_up(self) {
        drop(self);
    }
}

/// A stored request.
pub(crate) fn request(id: &str, body: Value) -> Value {
    message_json(id, "mcp_request", body)
}

/// A message.
pub(crate) fn message_json(id: &str, kind: &str, body: Value) -> Value {
    let mut letter = json!({"id": id, "kind": kind, "created_at": "2026-01-01T00:00:00Z"});
    letter["body"] = body;
    letter
}

/// The body of a call.
pub(crate) fn call(tool: &str, arguments: &Value) -> Value {
    json!({"op": "call", "tool": format!("box__{tool}"), "arguments": arguments.to_string()})
}
