//! Serves tools over a hub for as long as it is wanted, whatever becomes of the connection.

mod attending;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::backoff::{Backoff, Restarts};
use bowline_core::policy::RoleAllowlist;

use super::client::Reconnect;
use super::{
    Client, ClientOptions, ConnectError, Credential, ExecutorBackend, Ledger, Remote as _,
    ServeLimits, Served, Serving,
};
use crate::tools::ToolExecutor;

pub use attending::Attending;

/// Connections are made by the supervisor: a client that lost one does not try by itself.
const NEVER: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// How tools are served.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Which mailbox is served, and the bounds of its connection. How it reconnects is said here.
    pub client: ClientOptions,
    /// How much runs at once.
    pub limits: ServeLimits,
    /// Remembers what ran: in memory where absent, so that a restart of the program forgets it.
    /// With [`Ledger::open`] what cannot be repeated is not run again over a kill of the program
    /// either: its caller is told that nobody knows whether it ran.
    pub ledger: Option<Ledger>,
    /// Offers the tools to the hub's catalog as a server of this name, as they are when a
    /// connection is made. The config of the hub lets the peer bring it:
    /// `[principals.NAME] offers`.
    pub offer_as: Option<Arc<str>>,
    /// The wait before the next connection.
    pub backoff: Backoff,
    /// A connection that lasted so long was a good one: the wait is the shortest again.
    pub steady: Duration,
    /// How long requests may go on when it ends.
    pub drain: Duration,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            client: ClientOptions::default(),
            limits: ServeLimits::default(),
            ledger: None,
            offer_as: None,
            backoff: Backoff {
                base: Duration::from_millis(500),
                cap: Duration::from_secs(30),
            },
            steady: Duration::from_secs(10),
            drain: Duration::from_secs(1),
        }
    }
}

/// Serves the tools of `executor` in the mailbox of `credential` until `shutdown` ends.
///
/// A connection that ends, well or not, is made anew after a wait that doubles from 500 ms to 30 s
/// and is the shortest again after 10 s of service. A request runs once while the program lives:
/// what comes again is answered by what came of it. A request that was running when the program
/// was killed comes again to its next life and runs again there, unless [`serve_with`] is given a
/// ledger on a disk.
///
/// ```
/// use std::sync::Arc;
///
/// use bowline_host::broker::{Credential, Errand, serve_supervised};
/// use bowline_host::tools::Toolbox;
/// use bowline_host::{RoleAllowlist, ToolOutput};
/// use bowline_wire::broker::{Answer, Arguments, Ask, From};
/// use serde_json::json;
/// # use std::time::Duration;
/// # use bowline_core::mailbox::Mailbox;
/// # use bowline_host::broker::{
/// #     Admitted, HostBackend, Hub, HubLimits, Ledger, Porter, Rights, ServeLimits, Serving,
/// # };
/// # use bowline_host::{BoxFuture, Host, Principal, Role};
/// # use bowline_link::websocket::{Side, SocketLimits, accept_key, join};
/// # use bowline_wire::broker::{Hello, Refusal};
/// # use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
/// # use tokio::net::TcpListener;
/// #
/// # #[derive(Debug)]
/// # struct OneToken;
/// # impl Porter for OneToken {
/// #     fn admit(
/// #         &self,
/// #         hello: &Hello,
/// #     ) -> Result<(Admitted, BoxFuture<'static, Refusal>), Refusal> {
/// #         assert_eq!(hello.token.as_deref(), Some("secret"));
/// #         let admitted = Admitted {
/// #             principal: Arc::new(Principal::new("box", Role::None)),
/// #             mailbox: Mailbox::parse("box").unwrap(),
/// #             role: None,
/// #             rights: Rights::default(),
/// #         };
/// #         Ok((admitted, Box::pin(std::future::pending())))
/// #     }
/// # }
/// #
/// # async fn peer(hub: Hub, listener: TcpListener, host: Host) {
/// #     let (mut stream, _) = listener.accept().await.unwrap();
/// #     let mut head = Vec::new();
/// #     while !head.ends_with(b"\r\n\r\n") {
/// #         head.push(stream.read_u8().await.unwrap());
/// #     }
/// #     let head = String::from_utf8(head).unwrap();
/// #     let is_key = |line: &&str| line.to_ascii_lowercase().starts_with("sec-websocket-key:");
/// #     let key = head.lines().find(is_key).unwrap().split_once(':').unwrap().1.trim();
/// #     let accept = accept_key(key.as_bytes());
/// #     let answer = format!(
/// #         "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\
/// #          connection: upgrade\r\nsec-websocket-accept: {accept}\r\n\r\n"
/// #     );
/// #     stream.write_all(answer.as_bytes()).await.unwrap();
/// #     let limits = SocketLimits::default();
/// #     let io = join(stream, Side::Server, Default::default(), limits, host.tasks());
/// #     hub.attend(io, &OneToken).await;
/// # }
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # let host = Host::builder().build()?;
/// # let journal = Arc::new(bowline_journal::Memory::default());
/// # let serving = Arc::new(Serving::new(
/// #     Arc::new(HostBackend::new(host.clone())),
/// #     Ledger::in_memory("hub")?,
/// #     ServeLimits::default(),
/// #     Arc::clone(host.clock()),
/// # ));
/// # let hub = Hub::start(&host, journal, HubLimits::default(), serving);
/// # let listener = TcpListener::bind("127.0.0.1:0").await?;
/// # let endpoint = format!("http://{}", listener.local_addr()?);
/// # let door = peer(hub.clone(), listener, host.clone());
/// # tokio::spawn(door);
/// // On one machine, the program that has the tools, with a token of the hub.
/// let tools = Toolbox::default().with(("shout", "Says it louder."), &json!({}), |said, _| {
///     let text = said.value()["text"].as_str().unwrap_or_default().to_uppercase();
///     async move { Ok(ToolOutput::of_text(&text)) }
/// });
/// let roles = RoleAllowlist::unrestricted().with_role("guest", [""; 0]);
/// let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
/// let served = tokio::spawn(async move {
///     let stopped = async { drop(stopped.await) };
///     let credential = Credential::fixed("secret");
///     serve_supervised(&endpoint, credential, Arc::new(tools), roles, stopped).await
/// });
///
/// // On another, the hub, for somebody who asks it.
/// let whom = hub.remote(&Mailbox::parse("box")?).ok_or("no such peer")?;
/// let call = |role: Option<Arc<str>>| Errand {
///     ask: Ask::Call {
///         tool: "shout".into(),
///         server: None,
///         arguments: Arguments::Object(r#"{"text":"hi"}"#.into()),
///     },
///     stored: true,
///     deadline: host.clock().now().plus(Duration::from_secs(30)),
///     caller: Some(From { session_id: "ann".into(), role, principal: None }),
///     sink: None,
/// };
/// let answer = whom.ask(call(None)).await;
/// let Ok(Answer::Output { result, .. }) = answer else { panic!("{answer:?}") };
/// assert_eq!(ToolOutput::from_result(result).text(), "HI");
/// let refused = whom.ask(call(Some("guest".into()))).await;
/// let Ok(Answer::Failed(why)) = refused else { panic!("{refused:?}") };
/// assert_eq!(*why.reason, *"tool `shout` is not allowed for role `guest`");
///
/// drop(stop);
/// served.await??;
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The address cannot be used, or another peer took our place, which ends it: two that come back
/// again and again would serve nobody.
pub async fn serve_supervised(
    endpoint: &str,
    credential: Credential,
    executor: Arc<dyn ToolExecutor>,
    allowlist: RoleAllowlist,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), ConnectError> {
    let options = ServeOptions::default();
    let tools = (executor, allowlist);
    serve_with(endpoint, credential, tools, options, shutdown).await
}

/// The same, with everything said.
///
/// # Errors
/// As for [`serve_supervised`].
pub async fn serve_with(
    endpoint: &str,
    credential: Credential,
    (executor, allowlist): (Arc<dyn ToolExecutor>, RoleAllowlist),
    options: ServeOptions,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), ConnectError> {
    let clock = Arc::clone(&options.client.clock);
    for warning in allowlist.warnings() {
        tracing::warn!(warning, "the allowlist of roles");
    }
    let ledger = match options.ledger {
        Some(ledger) => ledger,
        // A name of ours fits.
        None => Ledger::in_memory("served").map_err(|_| ConnectError::Closed)?,
    };
    let backend = ExecutorBackend::new(executor, &allowlist, Arc::clone(&clock));
    let backend = Arc::new(backend);
    let offered = Arc::clone(&backend);
    let serving = Serving::new(backend, ledger, options.limits, Arc::clone(&clock));
    let serving = Ending(Arc::new(serving));
    let mut restarts = Restarts::new(options.backoff, options.steady);
    let mut shutdown = pin!(shutdown);
    loop {
        let began = clock.now();
        let client = connect(endpoint, &credential, &options.client, &serving.0)?;
        if let Some(server) = &options.offer_as {
            client.offer(offered.offer(server));
        }
        let ended = tokio::select! {
            biased;
            () = &mut shutdown => {
                serving.0.close(options.drain).await;
                client.close();
                return Ok(());
            }
            ended = over(&client, options.client.connect_timeout) => ended,
        };
        match ended {
            Err(fenced @ ConnectError::Fenced(_)) => return Err(fenced),
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "serving ended");
            }
            Ok(()) => {}
        }
        drop(client);
        let wait = restarts.wait(began.until(clock.now()), jitter());
        tokio::select! {
            biased;
            () = &mut shutdown => {
                serving.0.close(options.drain).await;
                return Ok(());
            }
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// Starts a client that makes one connection.
fn connect(
    endpoint: &str,
    credential: &Credential,
    options: &ClientOptions,
    serving: &Arc<Serving>,
) -> Result<Client, ConnectError> {
    let never = Backoff {
        base: NEVER,
        cap: NEVER,
    };
    let options = ClientOptions {
        reconnect: Reconnect {
            attempts_max: 1,
            backoff: never,
            rest: never,
            steady: NEVER,
        },
        wants_manifest: false,
        ..options.clone()
    };
    let (clock, tasks) = (Arc::clone(&options.clock), options.tasks.clone());
    let attending = Attending::new(Arc::clone(serving), clock, tasks);
    let attending = Some(Arc::new(attending) as Arc<dyn Served>);
    Client::start(endpoint, credential.clone(), options, attending)
}

/// Waits until a client is not connected any more, or cannot be.
async fn over(client: &Client, connect_timeout: Duration) -> Result<(), ConnectError> {
    // Its own limit comes first; this one is for what that does not cover.
    let deadline = client.clock().now().plus(connect_timeout * 2);
    client.ready(deadline).await?;
    let mut changes = client.changes();
    loop {
        changes.mark_unchanged();
        if let Some(error) = client.ended() {
            return Err(error);
        }
        if client.generation().is_none() {
            return Ok(());
        }
        if changes.changed().await.is_err() {
            return Ok(());
        }
    }
}

fn jitter() -> u64 {
    let mut random = [0; 8];
    // Without a random number the wait is the whole one.
    let _unlikely = getrandom::fill(&mut random);
    u64::from_be_bytes(random)
}

/// Takes back what runs when nobody serves any more, however that came.
#[derive(Debug)]
struct Ending(Arc<Serving>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.abandon();
    }
}
