//! A hub that can be dialled, without a gateway around it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bowline_core::mailbox::Mailbox;
use bowline_core::policy::RoleAllowlist;
use bowline_host::broker::{
    Admitted, Hello, HostBackend, Hub, HubLimits, Ledger, Porter, Refusal, Rights, ServeLimits,
    Serving,
};
use bowline_host::tools::ToolExecutor;
use bowline_host::{BoxFuture, Host, Principal, Role, Server, SpawnOptions};
use bowline_journal::{Journal, Memory};
use bowline_link::websocket::{Incoming, Outgoing, Side, SocketLimits, accept_key, join};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// The longest head of a request, in bytes.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// A hub on a free port of this machine. Whoever comes is let in: its token is its name, and its
/// role is `user`, which may do all.
#[derive(Debug)]
pub struct OpenHub {
    /// The hub.
    pub hub: Hub,
    /// The host whose tools it has.
    pub host: Host,
    address: SocketAddr,
    url: String,
}

impl OpenHub {
    /// Opens a hub that has these tools, as those of server `box`.
    ///
    /// # Errors
    /// It cannot listen, or the tools cannot be served.
    pub async fn with(tools: impl ToolExecutor + 'static) -> io::Result<Self> {
        let host = Host::builder()
            .policy(&RoleAllowlist::unrestricted())
            .build()
            .map_err(io::Error::other)?;
        let server = Server::in_process("box", tools);
        let spawned = host.spawn(server, SpawnOptions::default()).await;
        spawned.map_err(io::Error::other)?;
        let journal: Arc<dyn Journal> = Arc::new(Memory::default());
        let ledger = Ledger::new(Arc::clone(&journal), "hub").map_err(io::Error::other)?;
        let serving = Serving::new(
            Arc::new(HostBackend::new(host.clone())),
            ledger,
            ServeLimits::default(),
            Arc::clone(host.clock()),
        );
        let hub = Hub::start(&host, journal, HubLimits::default(), Arc::new(serving));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (attending, tasks) = (hub.clone(), host.tasks().clone());
        host.tasks().spawn("hub door", async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (hub, spawner) = (attending.clone(), tasks.clone());
                tasks.spawn("hub peer", async move {
                    if let Ok(io) = shake(stream, &spawner).await {
                        hub.attend(io, &Anybody).await;
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

    /// Returns where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the same as clients want it.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }
}

/// Answers the request of a client to speak WebSocket.
async fn shake(
    mut stream: TcpStream,
    tasks: &bowline_host::tasks::Tasks,
) -> io::Result<(Outgoing, Incoming)> {
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
    let answer = format!(
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\
         sec-websocket-accept: {accept}\r\n\r\n"
    );
    stream.write_all(answer.as_bytes()).await?;
    let limits = SocketLimits::default();
    Ok(join(
        stream,
        Side::Server,
        bytes::Bytes::new(),
        limits,
        tasks,
    ))
}

/// Lets in whoever says its name.
#[derive(Debug)]
struct Anybody;

impl Porter for Anybody {
    fn admit(&self, hello: &Hello) -> Result<(Admitted, BoxFuture<'static, Refusal>), Refusal> {
        let name = hello.token.as_deref().unwrap_or_default();
        let Some(mailbox) = Mailbox::claimed(name, &hello.session_id) else {
            return Err(Refusal {
                reason: "the token is the name of who comes".into(),
                id: None,
                code: Some("auth".into()),
            });
        };
        let role: Arc<str> = "user".into();
        let admitted = Admitted {
            principal: Arc::new(Principal::new(name, Role::Named(Arc::clone(&role)))),
            mailbox,
            role: Some(role),
            rights: Rights::default(),
        };
        Ok((admitted, Box::pin(std::future::pending())))
    }
}
