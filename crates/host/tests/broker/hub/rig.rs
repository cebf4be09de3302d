//! A hub with a few tools, and peers that speak raw JSON text to it.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::call::{Principal, Role};
use bowline_core::mailbox::Mailbox;
use bowline_core::policy::RoleAllowlist;
use bowline_core::time::Now;
use bowline_host::broker::{
    Admitted, HostBackend, Hub, HubLimits, Ledger, Offers, Porter, Rights, ServeLimits, Serving,
    Untaken,
};
use bowline_host::ports::{Clock, SystemClock};
use bowline_host::tools::Toolbox;
use bowline_host::{BoxFuture, Host, Server, ToolOutput};
use bowline_journal::{Journal, Memory, Sqlite};
use bowline_link::websocket::{Ended, Incoming, Outgoing, Side, SocketLimits, join};
use bowline_wire::broker::{Hello, Refusal};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

/// How long a test waits for what must come.
const SOON: Duration = Duration::from_secs(20);

/// The wall clock goes with the clock of the test.
#[derive(Debug)]
struct Hands(SystemClock);

impl Clock for Hands {
    fn now(&self) -> Now {
        self.0.now()
    }

    fn instant(&self, at: Now) -> Instant {
        self.0.instant(at)
    }

    fn unix_ms(&self) -> u64 {
        1_000_000 + self.0.now().0
    }
}

/// Lets in whoever has a token that is the name of a principal, and cuts credentials off.
pub(crate) struct Doors {
    rights: Mutex<HashMap<String, (Role, Rights)>>,
    over: watch::Sender<bool>,
    /// What was refused, and to whom.
    pub(crate) refused: Mutex<Vec<(Option<String>, Refusal)>>,
}

impl fmt::Debug for Doors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Doors")
    }
}

impl Doors {
    /// Grants something to a principal.
    pub(crate) fn grant(&self, name: &str, rights: Rights) {
        let role = Role::Named("user".into());
        self.rights
            .lock()
            .unwrap()
            .insert(name.into(), (role, rights));
    }

    /// Lets a principal deliver to others.
    pub(crate) fn may_reach(&self, name: &str, to: &[&str]) {
        let to = to.iter().map(|name| (*name).into()).collect();
        self.grant(
            name,
            Rights {
                to,
                ..Rights::default()
            },
        );
    }

    /// Ends every credential.
    pub(crate) fn end_credentials(&self) {
        self.over.send_replace(true);
    }
}

impl Porter for Doors {
    fn admit(&self, hello: &Hello) -> Result<(Admitted, BoxFuture<'static, Refusal>), Refusal> {
        let token = hello.token.as_deref().unwrap_or_default();
        let Some(name) = token.strip_prefix("token-") else {
            return Err(Refusal {
                reason: "not admitted".into(),
                id: None,
                code: Some("auth".into()),
            });
        };
        let known = self.rights.lock().unwrap().get(name).cloned();
        let (role, rights) =
            known.unwrap_or_else(|| (Role::Named("user".into()), Rights::default()));
        let claimed = Mailbox::claimed(name, &hello.session_id);
        let mailbox = claimed.unwrap_or_else(|| Mailbox::parse(name).unwrap());
        let admitted = Admitted {
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
            Refusal {
                reason: "the token is over".into(),
                id: None,
                code: Some("expired".into()),
            }
        };
        Ok((admitted, Box::pin(end)))
    }

    fn refused(&self, peer: Option<&Admitted>, refusal: &Refusal) {
        let peer = peer.map(|peer| peer.mailbox.to_string());
        self.refused.lock().unwrap().push((peer, refusal.clone()));
    }
}

/// A hub and all that belongs to it.
pub(crate) struct Rig {
    pub(crate) hub: Hub,
    pub(crate) host: Host,
    pub(crate) journal: Arc<dyn Journal>,
    pub(crate) doors: Arc<Doors>,
    /// How often `count` ran.
    pub(crate) counted: Arc<AtomicUsize>,
    /// Lets `wait` end, once for each permit.
    pub(crate) gate: Arc<Semaphore>,
    /// How many of `wait` run or ran.
    pub(crate) waiting: Arc<watch::Sender<usize>>,
}

/// How a rig is made.
pub(crate) struct Make {
    pub(crate) journal: Arc<dyn Journal>,
    pub(crate) limits: HubLimits,
    pub(crate) serve: ServeLimits,
    pub(crate) offers: Arc<dyn Offers>,
    /// One journal goes by one clock, as long as it is not opened anew.
    pub(crate) clock: Arc<dyn Clock>,
}

impl Default for Make {
    fn default() -> Self {
        Self {
            journal: Arc::new(Memory::default()),
            limits: HubLimits::default(),
            serve: ServeLimits::default(),
            offers: Arc::new(Untaken),
            clock: Arc::new(Hands(SystemClock::start())),
        }
    }
}

impl Make {
    /// On a disk.
    pub(crate) fn at(path: &Path) -> Self {
        Self {
            journal: Arc::new(Sqlite::open(path).unwrap()),
            ..Self::default()
        }
    }

    pub(crate) async fn start(self) -> Rig {
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
        // So that its tools are known.
        let ready = host.server("box").unwrap();
        ready
            .state()
            .wait_for(|state| state.is_settled())
            .await
            .unwrap();
        let backend = Arc::new(HostBackend::new(host.clone()));
        let ledger = Ledger::new(Arc::clone(&self.journal), "hub").unwrap();
        let serving = Serving::new(backend, ledger, self.serve, Arc::clone(host.clock()));
        let journal = Arc::clone(&self.journal);
        let hub = Hub::taking(
            &host,
            self.journal,
            self.limits,
            Arc::new(serving),
            self.offers,
        );
        Rig {
            hub,
            host,
            journal,
            doors: Arc::new(Doors {
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
        .with(("echo", "Repeats."), &any, |arguments, _| async move {
            Ok(ToolOutput::of_text(&arguments.value().to_string()))
        })
        .with(("count", "Counts."), &any, move |_, _| {
            let count = counted.fetch_add(1, Ordering::SeqCst) + 1;
            async move { Ok(ToolOutput::of_text(&count.to_string())) }
        })
        .with(("wait", "Waits."), &any, move |_, context| {
            let (gate, waiting) = (Arc::clone(&gate), Arc::clone(&waiting));
            async move {
                if let Some(caller) = &context.caller {
                    let word = br#"{"jsonrpc":"2.0","method":"notifications/message"}"#;
                    caller.push(Bytes::from_static(word));
                }
                waiting.send_modify(|count| *count += 1);
                gate.acquire().await.unwrap().forget();
                Ok(ToolOutput::of_text("waited"))
            }
        })
}

impl Rig {
    pub(crate) async fn new() -> Self {
        Make::default().start().await
    }

    /// Waits until so many of `wait` were begun.
    pub(crate) async fn begun(&self, count: usize) {
        let mut begun = self.waiting.subscribe();
        soon(begun.wait_for(|begun| *begun >= count)).await.unwrap();
    }

    /// Connects without a word.
    pub(crate) fn dial(&self) -> Peer {
        let (near, far) = tokio::io::duplex(1 << 16);
        self.over(near, far, SocketLimits::default())
    }

    /// Connects over two ends of a stream.
    pub(crate) fn over<S>(&self, near: S, far: S, limits: SocketLimits) -> Peer
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let tasks = self.host.tasks();
        let served = join(far, Side::Server, Bytes::new(), limits, tasks);
        let (hub, doors) = (self.hub.clone(), Arc::clone(&self.doors));
        tasks.spawn("attend", async move { hub.attend(served, &*doors).await });
        let (out, incoming) = join(near, Side::Client, Bytes::new(), limits, tasks);
        Peer { out, incoming }
    }

    /// Connects over TCP.
    pub(crate) async fn dial_tcp(&self) -> Peer {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (near, far) = tokio::join!(tokio::net::TcpStream::connect(address), listener.accept());
        self.over(near.unwrap(), far.unwrap().0, SocketLimits::default())
    }

    /// Connects and is let in.
    pub(crate) async fn join(&self, mailbox: &str) -> Peer {
        let mut peer = self.dial();
        peer.hello(mailbox).await;
        peer
    }

    /// The same, and takes messages.
    pub(crate) async fn subscribe(&self, mailbox: &str) -> Peer {
        let peer = self.join(mailbox).await;
        peer.send(json!({"kind": "subscribe"})).await;
        self.seen(mailbox, |peer| peer.subscribed).await;
        peer
    }

    /// Waits until a peer is seen so.
    pub(crate) async fn seen(
        &self,
        mailbox: &str,
        is_so: impl Fn(&bowline_host::broker::PeerView) -> bool,
    ) {
        let all = async {
            loop {
                let peers = self.hub.peers();
                if peers
                    .iter()
                    .any(|peer| &**peer.mailbox.as_str() == mailbox && is_so(peer))
                {
                    return;
                }
                tokio::task::yield_now().await;
            }
        };
        soon(all).await;
    }

    /// Waits until nobody is here under this name.
    pub(crate) async fn left(&self, mailbox: &str) {
        let all = async {
            let here = || {
                let peers = self.hub.peers();
                peers.iter().any(|peer| &**peer.mailbox.as_str() == mailbox)
            };
            while here() {
                tokio::task::yield_now().await;
            }
        };
        soon(all).await;
    }
}

/// Waits for what must come.
pub(crate) async fn soon<T>(what: impl Future<Output = T>) -> T {
    let waited = tokio::time::timeout(SOON, what).await;
    waited.expect("it comes")
}

/// One end of a connection, in raw JSON.
pub(crate) struct Peer {
    pub(crate) out: Outgoing,
    pub(crate) incoming: Incoming,
}

impl Peer {
    pub(crate) async fn send(&self, frame: Value) {
        self.out.send(frame.to_string().into()).await.unwrap();
    }

    /// Returns the next frame.
    pub(crate) async fn next(&mut self) -> Value {
        let bytes = soon(self.incoming.next()).await.expect("a frame");
        serde_json::from_slice(&bytes).unwrap()
    }

    /// Returns the next frame of a kind; others are passed over.
    pub(crate) async fn next_of(&mut self, kind: &str) -> Value {
        loop {
            let frame = self.next().await;
            if frame["kind"] == kind {
                return frame;
            }
        }
    }

    /// Waits for the end, and returns its close code.
    pub(crate) async fn closed(&mut self) -> u16 {
        loop {
            match soon(self.incoming.next()).await {
                Ok(_) => {}
                Err(Ended::Closed { code, .. }) => return code,
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

    /// Hands over a message, without waiting for its receipt.
    pub(crate) async fn deliver(&self, to: &str, message: Value) {
        self.send(json!({"kind": "deliver", "to": to, "message": message}))
            .await;
    }

    /// Hands over a message and waits for its receipt.
    pub(crate) async fn delivered(&mut self, to: &str, message: Value) {
        let id = message["id"].clone();
        self.deliver(to, message).await;
        let receipt = self.next_of("delivered").await;
        assert_eq!(receipt["id"], id);
    }

    /// Asks the hub by a stored request, and returns the reply.
    pub(crate) async fn ask(&mut self, id: &str, body: Value) -> Value {
        self.deliver("hub", request(id, body)).await;
        self.reply_to(id).await
    }

    /// Waits for the reply to a stored request, and acknowledges it.
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

    /// Makes a round trip, so that all that was sent before is read.
    pub(crate) async fn settle(&mut self) {
        self.send(json!({"kind": "list_connected"})).await;
        self.next_of("connected").await;
    }

    /// Hangs up without a word.
    pub(crate) fn hang_up(self) {
        drop(self);
    }
}

/// A stored request.
pub(crate) fn request(id: &str, body: Value) -> Value {
    letter(id, "mcp_request", body)
}

/// A message.
pub(crate) fn letter(id: &str, kind: &str, body: Value) -> Value {
    let mut letter = json!({"id": id, "kind": kind, "created_at": "2026-01-01T00:00:00Z"});
    letter["body"] = body;
    letter
}

/// What a call asks for.
pub(crate) fn call(tool: &str, arguments: &Value) -> Value {
    json!({"op": "call", "tool": format!("box__{tool}"), "arguments": arguments.to_string()})
}
