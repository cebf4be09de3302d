//! Tools across machines: mailboxes in the journal, and peers that use or offer tools over them.
//!
//! The **hub** ([`Hub`]) keeps a mailbox for each peer, authenticates peers, and answers requests
//! addressed to the hub. A **client** dials a hub: [`RemoteTools`] runs the hub's tools,
//! [`serve_supervised`] serves local tools, and a worker does both. Hub and workers answer
//! requests through one [`ServeEngine`], with a [`RequestLedger`] that keeps a redelivered request
//! from running twice.
//!
//! The gateway around the broker is behind ports: [`Backend`] runs tools, [`HubGateway`] has the
//! clock, the accounts and the views of principals, [`SessionGateway`] the sessions of its servers,
//! [`OfferHandler`] takes the servers that peers offer.

mod backend;
mod broker_client;
pub mod failures;
pub mod frames;
#[cfg(test)]
#[path = "../../wire/src/testing/fuzz.rs"]
#[allow(
    dead_code,
    reason = "the corpus of JSON-RPC messages is for bowline-wire"
)]
mod fuzz;
mod hub;
mod ledger;
pub mod mailbox;
mod peer_link;
mod remote_sessions;
mod remote_tools;
mod serve;
mod server_requests;
mod supervise;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bowline_core::BoxFuture;
use bowline_core::client_handle::ClientHandle;
use bowline_core::error::{ExecutionStatus, FailureReport};
use bowline_core::time::MonotonicTime;
use bowline_link::Revision;
use bytes::Bytes;

use self::peer_link::tool_index::item_server;
use crate::frames::{BrokerRequest, BrokerResponse, ManifestItem, MessageSender, SessionEvent};

pub use backend::{Backend, BackendRequest, ExecutorBackend, build_call, build_manifest};
pub use bowline_link::websocket::close_codes;
pub use bowline_runtime::CredentialSource;
pub use broker_client::{
    BrokerClient, BrokerClientOptions, BrokerConnectError, DeliverError, HubRequestHandler,
    HubSender, ReconnectPolicy,
};
pub use failures::{
    BAD_REQUEST, EXPIRED, OUTCOME_UNKNOWN, TOOL_FAILED, outcome_unknown, request_expired,
};
pub use hub::{
    AdmittedPeer, DeadLetterError, DeadLetterView, Hub, HubAliases, HubCounts, HubGateway,
    HubLimits, HubOptions, MailboxView, OfferHandler, PeerAuthenticator, PeerRights, PeerView,
    RejectOffers,
};
pub use ledger::{LedgerError, RequestLedger};
pub use peer_link::{PeerLink, PeerRole, RemoteServer};
pub use remote_sessions::{RemoteSessionGuard, RemoteSessions, SessionGateway};
pub use remote_tools::RemoteTools;
pub use serve::{ReplyError, ReplySink, ServeEngine, ServeLimits, ServeRequest, reply_id};
pub use supervise::{ServeOptions, ServeSession, serve_supervised, serve_with};

// Parameters of `PeerAuthenticator`: an authenticator needs no dependency beside this crate.
pub use crate::frames::{BrokerHello, BrokerRefusal};

/// Time to live of a request without an explicit TTL.
pub const REQUEST_TTL: Duration = Duration::from_secs(300);

/// Largest size of the tools in an offer, in bytes; the envelope still fits into the frame.
pub const OFFER_BYTES_MAX: usize = 6 * 1024 * 1024;

/// Largest `initialize` result of a server in an offer, in bytes.
pub const INITIALIZE_BYTES_MAX: usize = 64 * 1024;

/// A request from one peer to another.
#[derive(Clone, Debug)]
pub struct BrokerCall {
    /// The request body.
    pub request: BrokerRequest,
    /// Stored calls are durable before they run and survive a lost connection; other calls are
    /// live.
    pub stored: bool,
    /// The caller stops waiting at this time.
    pub deadline: MonotonicTime,
    /// The original caller, stamped by the hub when the hub itself sends the call.
    pub sender: Option<MessageSender>,
    /// Receives notifications and server requests of the tool before the response.
    pub client: Option<Arc<dyn ClientHandle>>,
}

/// Why a call has no response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BrokerCallError {
    /// The call was never sent: no connection, or too many calls in flight.
    NotSent(Arc<str>),
    /// The connection was lost after the call may have been sent.
    Lost(Arc<str>),
    /// The deadline passed first.
    Timeout(ExecutionStatus),
    /// The broker refused the call; nothing ran.
    Refused(FailureReport),
}

impl BrokerCallError {
    /// Returns whether the call ran, as far as known.
    #[must_use]
    pub const fn execution(&self) -> ExecutionStatus {
        match self {
            Self::NotSent(_) => ExecutionStatus::NotStarted,
            Self::Lost(_) => ExecutionStatus::Unknown,
            Self::Timeout(execution) => *execution,
            Self::Refused(failure) => failure.execution,
        }
    }
}

/// Everything a peer offers: an immutable snapshot, replaced as a unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerManifest {
    /// Changes with the contents.
    pub revision: u64,
    /// The tools.
    pub items: Vec<ManifestItem>,
    /// Servers that offer more than tools.
    pub servers: Vec<OfferedServer>,
}

impl PeerManifest {
    /// Returns the names of the servers that the peer offers, with or without more than tools.
    #[must_use]
    pub fn server_names(&self) -> BTreeSet<&str> {
        let tool_servers = self.items.iter().map(item_server);
        let complete_servers = self.servers.iter().map(|offered| &*offered.name);
        tool_servers.chain(complete_servers).collect()
    }
}

/// A complete MCP server of a peer: handshake result and list digests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferedServer {
    /// The server name.
    pub name: Arc<str>,
    /// The protocol revision of the server.
    pub revision: Revision,
    /// The result of `initialize`, or an equivalent (see [`ServerInfo`]).
    ///
    /// [`ServerInfo`]: bowline_link::ServerInfo
    pub initialize: Bytes,
    /// Digests of the lists, to detect changes.
    pub lists: ListDigests,
}

/// Digests of a server's lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListDigests {
    /// Set when the tools are too large for the offer; the hub then lists tools on demand.
    pub tools: Option<Arc<str>>,
    /// Digest of the prompts.
    pub prompts: Arc<str>,
    /// Digest of the resources and resource templates.
    pub resources: Arc<str>,
}

/// Handles notifications of a peer's server outside any request.
pub trait NotificationHandler: fmt::Debug + Send + Sync {
    /// Handles one complete notification, for one session or for all sessions of the hub.
    /// Must not block.
    fn on_notification(&self, session: Option<&str>, notification: Bytes);
}

/// The far end of a connection that may drop and return: the hub as seen by a client, or a worker
/// as seen by the hub.
pub trait RemotePeer: fmt::Debug + Send + Sync {
    /// Sends a call and waits for the response. Dropping the future cancels the call at the peer.
    fn call(&self, call: BrokerCall) -> BoxFuture<'_, Result<BrokerResponse, BrokerCallError>>;

    /// Returns the latest manifest, without a request to the peer.
    fn manifest(&self) -> Arc<PeerManifest>;

    /// Subscribes to new manifests and to connects and disconnects.
    fn subscribe_changes(&self) -> tokio::sync::watch::Receiver<u64>;

    /// Whether the peer is connected now.
    fn is_connected(&self) -> bool;

    /// Returns a display name.
    fn name(&self) -> Arc<str>;

    /// Installs the handler for notifications of `server` outside requests, replacing the previous
    /// handler. A peer that offers only tools sends none.
    fn set_notification_handler(&self, server: &Arc<str>, handler: Weak<dyn NotificationHandler>) {
        let _ = (server, handler);
    }

    /// Reports a session event to a server that serves the session; best effort.
    fn notify_session_event(&self, server: &Arc<str>, session: Arc<str>, event: SessionEvent) {
        let _ = (server, session, event);
    }
}
