//! The broker on a host: `bowline-broker`, and the adapters between its ports and a [`Host`].
//!
//! [`HostBackend`] runs the requests of peers on the host. [`Federation`] adopts the servers that a
//! peer offers, [`AcceptOffers`] those of all workers of a hub, and [`ServerOffer`] offers the
//! servers of the host to a hub.
//!
//! [`Host`]: crate::Host
//!
//! A program serves its own tools over a hub with [`serve_supervised`]:
//!
//! ```
//! use std::sync::Arc;
//!
//! use bowline_host::broker::{BrokerCall, CredentialSource, serve_supervised};
//! use bowline_host::tools::Toolbox;
//! use bowline_host::{RoleAllowlist, ToolOutput};
//! use bowline_host::broker::frames::{
//!     BrokerArguments, BrokerRequest, BrokerResponse, MessageSender,
//! };
//! use serde_json::json;
//! # use std::time::Duration;
//! # use bowline_host::broker::mailbox::MailboxName;
//! # use bowline_host::broker::{
//! #     AdmittedPeer, HostBackend, Hub, HubLimits, PeerAuthenticator, PeerRights, RequestLedger,
//! #     ServeEngine, ServeLimits,
//! # };
//! # use bowline_host::{BoxFuture, Host, Principal, Role};
//! # use bowline_link::websocket::{WebSocketLimits, WebSocketRole, accept_key, open_websocket};
//! # use bowline_host::broker::frames::{BrokerHello, BrokerRefusal};
//! # use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
//! # use tokio::net::TcpListener;
//! #
//! # #[derive(Debug)]
//! # struct OneToken;
//! # impl PeerAuthenticator for OneToken {
//! #     fn authenticate(
//! #         &self,
//! #         hello: &BrokerHello,
//! #     ) -> Result<(AdmittedPeer, BoxFuture<'static, BrokerRefusal>), BrokerRefusal> {
//! #         assert_eq!(hello.token.as_deref(), Some("secret"));
//! #         let admitted = AdmittedPeer {
//! #             principal: Arc::new(Principal::new("box", Role::None)),
//! #             mailbox: MailboxName::parse("box").unwrap(),
//! #             role: None,
//! #             rights: PeerRights::default(),
//! #         };
//! #         Ok((admitted, Box::pin(std::future::pending())))
//! #     }
//! # }
//! #
//! # async fn peer(hub: Hub, listener: TcpListener, host: Host) {
//! #     let (mut stream, _) = listener.accept().await.unwrap();
//! #     let mut head = Vec::new();
//! #     while !head.ends_with(b"\r\n\r\n") {
//! #         head.push(stream.read_u8().await.unwrap());
//! #     }
//! #     let head = String::from_utf8(head).unwrap();
//! #     let is_key = |line: &&str| line.to_ascii_lowercase().starts_with("sec-websocket-key:");
//! #     let key = head.lines().find(is_key).unwrap().split_once(':').unwrap().1.trim();
//! #     let accept = accept_key(key.as_bytes());
//! #     let answer = format!(
//! #         "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\
//! #          connection: upgrade\r\nsec-websocket-accept: {accept}\r\n\r\n"
//! #     );
//! #     stream.write_all(answer.as_bytes()).await.unwrap();
//! #     let limits = WebSocketLimits::default();
//! #     let bytes = Default::default();
//! #     let role = WebSocketRole::Server;
//! #     let io = open_websocket(stream, role, bytes, limits, host.tasks());
//! #     hub.serve_peer(io, &OneToken).await;
//! # }
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! # let host = Host::builder().build()?;
//! # let journal = Arc::new(bowline_journal::MemoryJournal::default());
//! # let engine = Arc::new(ServeEngine::new(
//! #     Arc::new(HostBackend::new(host.clone())),
//! #     RequestLedger::in_memory("hub")?,
//! #     ServeLimits::default(),
//! #     Arc::clone(host.clock()),
//! # ));
//! # let hub = Hub::start(&host, journal, HubLimits::default(), engine);
//! # let listener = TcpListener::bind("127.0.0.1:0").await?;
//! # let endpoint = format!("http://{}", listener.local_addr()?);
//! # let accepting = peer(hub.clone(), listener, host.clone());
//! # tokio::spawn(accepting);
//! // On the machine with the tools: a program with a token of the hub.
//! let tools = Toolbox::default().with("shout", "Says it louder.", &json!({}), |said, _| {
//!     let text = said.to_value()["text"].as_str().unwrap_or_default().to_uppercase();
//!     async move { Ok(ToolOutput::from_text(&text)) }
//! });
//! let roles = RoleAllowlist::unrestricted().with_role("guest", [""; 0]);
//! let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
//! let served = tokio::spawn(async move {
//!     let stopped = async { drop(stopped.await) };
//!     let credential = CredentialSource::from_token("secret");
//!     serve_supervised(&endpoint, credential, Arc::new(tools), roles, stopped).await
//! });
//!
//! // On the hub's machine: call the peer.
//! let peer = hub.remote_peer(&MailboxName::parse("box")?).ok_or("no such peer")?;
//! let call = |role: Option<Arc<str>>| BrokerCall {
//!     request: BrokerRequest::Call {
//!         tool: "shout".into(),
//!         server: None,
//!         arguments: BrokerArguments::Object(r#"{"text":"hi"}"#.into()),
//!     },
//!     stored: true,
//!     deadline: host.clock().now().plus(Duration::from_secs(30)),
//!     sender: Some(MessageSender { session_id: "ann".into(), role, principal: None }),
//!     client: None,
//! };
//! let response = peer.call(call(None)).await;
//! let Ok(BrokerResponse::Output { result, .. }) = response else { panic!("{response:?}") };
//! assert_eq!(ToolOutput::from_result(result).text(), "HI");
//! let refused = peer.call(call(Some("guest".into()))).await;
//! let Ok(BrokerResponse::Failed(why)) = refused else { panic!("{refused:?}") };
//! assert_eq!(*why.reason, *"tool `shout` is not allowed for role `guest`");
//!
//! drop(stop);
//! served.await??;
//! # Ok::<(), Box<dyn std::error::Error>>(()) })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod federation;
mod gateway;
mod host_backend;
mod mcp_requests;
pub(crate) mod peer_connector;
mod server_offer;

pub use bowline_broker::*;
pub use federation::{AcceptOffers, FederatedPeer, Federation, WORKER_RETENTION};
pub use host_backend::{CallerMapping, CredentialRevocations, HostBackend, TracePlacer};
pub use server_offer::ServerOffer;
