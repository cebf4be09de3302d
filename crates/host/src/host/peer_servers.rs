//! Servers offered by peers: they come and go with their peers and never replace a local server.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bowline_core::name;
use bowline_core::sync::lock;
use thiserror::Error;

use super::{ApplyReport, Host};
use crate::broker::RemotePeer;
use crate::broker::peer_connector::{peer_spec, remote_id};
use crate::callpath::ServerMap;
use crate::spec::{PeerRole, ServerSpec, ServerTransport};
use crate::supervisor::{ServerAction, ServerState, Supervisor};

/// Maximum number of servers per peer.
pub const PEER_SERVERS_MAX: usize = 256;

/// Why a peer's server is refused.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum AdoptError {
    /// Invalid server name.
    #[error("`{0}` cannot name a server: lower-case letters, digits and hyphens, 32 at most")]
    BadName(Arc<str>),
    /// Refused by the guard.
    #[error("server `{server}` is refused: {reason}")]
    Denied {
        /// The server.
        server: Arc<str>,
        /// The guard's reason.
        reason: Arc<str>,
    },
    /// A local server has this name.
    #[error("this gateway has a server `{0}` of its own")]
    Own(Arc<str>),
    /// Another peer offers a server of this name.
    #[error("{by} has brought a server `{server}` before")]
    Brought {
        /// The server.
        server: Arc<str>,
        /// The peer, for display.
        by: Arc<str>,
    },
    /// The peer offers too many servers.
    #[error("server `{0}` is one too many: a peer brings {PEER_SERVERS_MAX} at most")]
    TooMany(Arc<str>),
    /// The host shuts down.
    #[error("the gateway is shutting down")]
    ShuttingDown,
}

/// Result of adopting a peer's servers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdoptReport {
    /// Added servers.
    pub added: Vec<Arc<str>>,
    /// Removed servers.
    pub removed: Vec<Arc<str>>,
    /// Refused servers with the reason.
    pub refused: Vec<AdoptError>,
}

impl Host {
    /// Adopts the servers of a peer and removes those no longer offered; all other servers stay.
    /// Does not wait.
    pub fn adopt_servers(
        &self,
        remote: &Arc<dyn RemotePeer>,
        role: PeerRole,
        servers: &[Arc<str>],
    ) -> AdoptReport {
        let mut adopted = AdoptReport::default();
        let mut starting = lock(&self.starting);
        if self.call_path.closing.load(Ordering::Relaxed) {
            adopted.refused.push(AdoptError::ShuttingDown);
            return adopted;
        }
        let old = self.call_path.servers.load_full();
        let mut new = ServerMap::clone(&old);
        let wanted: BTreeSet<&Arc<str>> = servers.iter().collect();
        let mut retired = Vec::new();
        new.retain(|name, server| {
            let goes = is_from_peer(server, remote) && !wanted.contains(name);
            if goes {
                server.detach();
                adopted.removed.push(Arc::clone(name));
                retired.push(server.clone());
            }
            !goes
        });
        let mut specs = Vec::new();
        for (at, server) in wanted.into_iter().enumerate() {
            match self.check_adopt(server, at, remote, &new) {
                Ok(true) => {
                    specs.push(ServerSpec::peer(server, peer_spec(remote, server, role)));
                }
                Ok(false) => {}
                Err(refusal) => adopted.refused.push(refusal),
            }
        }
        self.deps.pins.register_servers(&specs);
        let mut fresh = Vec::new();
        for spec in specs {
            adopted.added.push(Arc::clone(&spec.name));
            let server = self.start_server(spec, None);
            new.insert(Arc::clone(&server.spec().name), server.clone());
            fresh.push(server);
        }
        if fresh.is_empty() && retired.is_empty() {
            return adopted;
        }
        adopted.removed.sort();
        // Before the catalog changes, so that list notifications wait for the new servers.
        starting.track(&fresh, self.call_path.clock.now());
        self.call_path.servers.store(Arc::new(new));
        self.call_path.catalog.withdraw_servers(&adopted.removed);
        for name in &adopted.removed {
            self.call_path.cache.forget_server(name);
        }
        drop(starting);
        for server in retired {
            drop(self.retire_in_background(server));
        }
        for server in &fresh {
            self.subscriptions.wake(server);
        }
        self.emit_config_event(&ApplyReport {
            added: adopted.added.clone(),
            removed: adopted.removed.clone(),
            ..ApplyReport::default()
        });
        adopted
    }

    /// Retries the failed servers of a reconnected peer at once.
    pub(crate) async fn retry_peer_servers(&self, remote: &Arc<dyn RemotePeer>) {
        let servers = self.call_path.servers.load_full();
        for server in servers
            .values()
            .filter(|server| is_from_peer(server, remote))
        {
            let state = server.subscribe_state().borrow().clone();
            if matches!(
                state,
                ServerState::Backoff { .. } | ServerState::Ejected { .. }
            ) {
                // A failed send means that the server is gone.
                let _gone = server.apply_action(ServerAction::Start).await;
            }
        }
    }

    /// Checks whether to adopt a server; `false` if already adopted.
    fn check_adopt(
        &self,
        server: &Arc<str>,
        nth: usize,
        remote: &Arc<dyn RemotePeer>,
        servers: &ServerMap,
    ) -> Result<bool, AdoptError> {
        if !name::is_server_name(server) {
            return Err(AdoptError::BadName(Arc::clone(server)));
        }
        match servers.get(server) {
            Some(existing) if is_from_peer(existing, remote) => return Ok(false),
            Some(existing) if existing.is_peer_server() => {
                return Err(AdoptError::Brought {
                    server: Arc::clone(server),
                    by: existing.spec().transport.display_target().into(),
                });
            }
            Some(_) => return Err(AdoptError::Own(Arc::clone(server))),
            None => {}
        }
        if nth >= PEER_SERVERS_MAX {
            return Err(AdoptError::TooMany(Arc::clone(server)));
        }
        match self.call_path.authorizer.check_server(server) {
            Ok(()) => Ok(true),
            Err(refusal) => Err(AdoptError::Denied {
                server: Arc::clone(server),
                reason: refusal.reason,
            }),
        }
    }
}

/// True if this peer offers the server.
fn is_from_peer(server: &Supervisor, remote: &Arc<dyn RemotePeer>) -> bool {
    let transport = &server.spec().transport;
    let remote = remote_id(remote);
    matches!(transport, ServerTransport::Peer(peer) if peer.connector.peer_id() == remote)
}
