//! A broker hub listening on localhost, without a gateway.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bowline_core::BoxFuture;
use bowline_core::policy::RoleAllowlist;
use bowline_host::broker::mailbox::MailboxName;
use bowline_host::broker::{
    AdmittedPeer, BrokerHello, BrokerRefusal, HostBackend, Hub, HubLimits, PeerAuthenticator,
    PeerRights, RequestLedger, ServeEngine, ServeLimits,
};
use bowline_host::tools::ToolExecutor;
use bowline_host::{Host, Principal, Role, Server, SpawnOptions};
use bowline_journal::{Journal, MemoryJournal};
use bowline_link::websocket::{
    WebSocketConnection, WebSocketLimits, WebSocketRole, accept_key, open_websocket,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Bytes of a request head.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// A hub on a free local port. Admits every peer: the token is the peer's name, and the role is
/// `user` with full access.
#[derive(Debug)]
pub struct TestHub {
    /// The hub.
    pub hub: Hub,
    /// The host with the tools.
    pub host: Host,
    address: SocketAddr,
    url: String,
}

impl TestHub {
    /// Starts a hub with these tools as server `box`.
    ///
    /// # Errors
    /// Listening or serving the tools failed.
    pub async fn start(tools: impl ToolExecutor + 'static) -> io::Result<Self> {
        let host = Host::builder()
            .policy(&RoleAllowlist::unrestricted())
            .build()
            .map_err(io::Error::other)?;
        let server = Server::in_process("box", tools);
        let spawned = host.spawn(server, SpawnOptions::default()).await;
        spawned.map_err(io::Error::other)?;
        let journal: Arc<dyn Journal> = Arc::new(MemoryJournal::default());
        let ledger = RequestLedger::new(Arc::clone(&journal), "hub").map_err(io::Error::other)?;
        let serving = ServeEngine::new(
            Arc::new(HostBackend::new(host.clone())),
            ledger,
            ServeLimits::default(),
            Arc::clone(host.clock()),
        );
        let hub = Hub::start(&host, journal, HubLimits::default(), Arc::new(serving));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (attending, tasks) = (hub.clone(), host.tasks().clone());
        host.tasks().spawn("hub listener", async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (hub, spawner) = (attending.clone(), tasks.clone());
                tasks.spawn("hub peer", async move {
                    if let Ok(socket) = accept_websocket(stream, &spawner).await {
                        hub.serve_peer(socket, &AcceptAnyPeer).await;
                    }
                });
            }
        });
        Ok(Self {
            hub,
            host,
            address,
            url: format!("http://{address}"),
        })
    }

    /// Returns the listening address.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the URL for clients.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }
}

/// Accepts a WebSocket upgrade request.
async fn accept_websocket(
    mut stream: TcpStream,
    tasks: &bowline_runtime::TaskTracker,
) -> io::Result<WebSocketConnection> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= HEAD_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&head);
    let keys = head.lines().filter_map(|line| line.split_once(':'));
    let mut keys = keys.filter(|(name, _)| name.eq_ignore_ascii_case("sec-websocket-key"));
    let (_, key) = keys.next().ok_or(io::ErrorKind::InvalidData)?;
    let accept = accept_key(key.trim().as_bytes());
    let response = format!(
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\
         sec-websocket-accept: {accept}\r\n\r\n"
    );
    stream.write_all(response.as_bytes()).await?;
    let limits = WebSocketLimits::default();
    Ok(open_websocket(
        stream,
        WebSocketRole::Server,
        bytes::Bytes::new(),
        limits,
        tasks,
    ))
}

/// Admits every peer with a name.
#[derive(Debug)]
struct AcceptAnyPeer;

impl PeerAuthenticator for AcceptAnyPeer {
    fn authenticate(
        &self,
        hello: &BrokerHello,
    ) -> Result<(AdmittedPeer, BoxFuture<'static, BrokerRefusal>), BrokerRefusal> {
        let name = hello.token.as_deref().unwrap_or_default();
        let Some(mailbox) = MailboxName::from_claim(name, &hello.claimed_mailbox) else {
            return Err(BrokerRefusal {
                reason: "the token is the name of who comes".into(),
                id: None,
                code: Some("auth".into()),
            });
        };
        let role: Arc<str> = "user".into();
        let admitted = AdmittedPeer {
            principal: Arc::new(Principal::new(name, Role::Named(Arc::clone(&role)))),
            mailbox,
            role: Some(role),
            rights: PeerRights::default(),
        };
        Ok((admitted, Box::pin(std::future::pending())))
    }
}
