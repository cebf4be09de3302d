//! Registry of client connections by token, so that a connection closes with its token.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bowline_core::call::{PeerAddress, Principal};
use bowline_core::shares::{ShareError, SharedResource};
use bowline_core::sync::lock;
use bowline_host::accounts::{PrincipalAccounts, ResourceShare};
use http::{HeaderValue, StatusCode, header};
use tokio::sync::Notify;

use super::auth::AuthError;
use super::connection_pool::PoolSlot;
use super::mcp::share_exceeded_response;
use super::response_body::{self, EdgeResponse};
use super::upgrade::PendingUpgrade;
use crate::tokens::IssuedToken;

/// Connections authenticated with a token; bounded by the number of connections.
#[derive(Debug, Default)]
pub struct ConnectionRegistry {
    next_key: AtomicU64,
    table: Mutex<HashMap<u64, Arc<ClientConnection>>>,
}

/// A client connection. HTTP/1.1 carries one request at a time, so the token of the latest request
/// covers all work in flight.
#[derive(Debug)]
pub struct ClientConnection {
    key: u64,
    token: Mutex<Option<Arc<IssuedToken>>>,
    close_notify: Notify,
    /// Pending protocol switch, applied after the current response.
    upgrade: Mutex<Option<Box<PendingUpgrade>>>,
    /// Remote address.
    peer: PeerAddress,
    /// Principal of the latest request: as authenticated, and with the address of this peer.
    principal: Mutex<Option<(Arc<Principal>, Arc<Principal>)>>,
    /// Slot in the pool of unauthenticated connections, until authentication.
    pool_slot: Mutex<Option<PoolSlot>>,
    /// Connection share of the authenticated principal.
    share: Mutex<Option<ConnectionShare>>,
}

/// Share of a principal's connection limit.
#[derive(Debug)]
struct ConnectionShare {
    principal: Arc<str>,
    _share: ResourceShare,
}

/// Reason for refusing an authenticated connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionRefusal {
    /// Evicted from the pool concurrently.
    Evicted,
    /// The connection limit of the principal, or of all principals, is exhausted.
    Share(ShareError),
}

impl ConnectionRefusal {
    /// Returns the error response; the connection closes afterwards.
    pub(super) fn into_response(self) -> EdgeResponse {
        let mut response = match self {
            Self::Share(cause) => share_exceeded_response(None, cause),
            Self::Evicted => {
                let message = "the connection gave way to another; try again\n";
                response_body::text_response(StatusCode::SERVICE_UNAVAILABLE, message)
            }
        };
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(header::CONNECTION, close);
        response
    }
}

/// Identifies a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionKey(u64);

/// Keeps a connection registered until dropped.
#[derive(Debug)]
pub(super) struct ConnectionGuard<'a> {
    registry: &'a ConnectionRegistry,
    connection: Arc<ClientConnection>,
}

impl ConnectionGuard<'_> {
    pub(super) const fn connection(&self) -> &Arc<ClientConnection> {
        &self.connection
    }
}

impl Drop for ConnectionGuard<'_> {
    fn drop(&mut self) {
        lock(&self.registry.table).remove(&self.connection.key);
    }
}

impl ConnectionRegistry {
    /// Begins an unauthenticated connection.
    pub(super) fn begin_connection(
        &self,
        peer: SocketAddr,
        pool_slot: PoolSlot,
    ) -> ConnectionGuard<'_> {
        let hold = Arc::new(ClientConnection {
            key: self.next_key.fetch_add(1, Ordering::Relaxed),
            token: Mutex::default(),
            close_notify: Notify::new(),
            upgrade: Mutex::default(),
            peer: PeerAddress(Some(peer)),
            principal: Mutex::default(),
            pool_slot: Mutex::new(Some(pool_slot)),
            share: Mutex::default(),
        });
        ConnectionGuard {
            registry: self,
            connection: hold,
        }
    }

    /// Records the token of the latest request.
    ///
    /// # Errors
    /// The token was revoked concurrently.
    pub(super) fn record_token(
        &self,
        connection: &Arc<ClientConnection>,
        token: Option<&Arc<IssuedToken>>,
    ) -> Result<(), AuthError> {
        {
            let mut current_token = lock(&connection.token);
            let same = current_token.as_ref().map(Arc::as_ptr) == token.map(Arc::as_ptr);
            if same {
                return Ok(());
            }
            *current_token = token.cloned();
        }
        let Some(token) = token else {
            return Ok(());
        };
        lock(&self.table).insert(connection.key, Arc::clone(connection));
        // Revocation marks the token first and then scans connections, so either this check or the
        // scan sees the other side.
        if token.is_ended() {
            return Err(AuthError::Unauthorized);
        }
        Ok(())
    }

    /// Closes every connection except `but` authenticated with exactly this token, not with a
    /// different token of the same id.
    pub(super) fn close_others(&self, token: &IssuedToken, but: ConnectionKey) {
        for hold in lock(&self.table).values() {
            let current_token = lock(&hold.token);
            let is_it = current_token
                .as_ref()
                .is_some_and(|current_token| std::ptr::eq(&**current_token, token));
            if is_it && hold.key() != but {
                hold.close_notify.notify_one();
            }
        }
    }

    /// Closes every connection authenticated with this token.
    pub(super) fn close_by_token(&self, token: &IssuedToken) {
        for hold in lock(&self.table).values() {
            let current_token = lock(&hold.token);
            if current_token
                .as_ref()
                .is_some_and(|current_token| current_token.id() == token.id())
            {
                hold.close_notify.notify_one();
            }
        }
    }
}

impl ClientConnection {
    /// Returns the key of the connection.
    pub(super) const fn key(&self) -> ConnectionKey {
        ConnectionKey(self.key)
    }

    /// Returns the remote address.
    pub(super) const fn peer_address(&self) -> Option<SocketAddr> {
        self.peer.0
    }

    /// Returns the principal with the address of this peer; cached across requests.
    pub(super) fn principal_at_peer(&self, principal: &Arc<Principal>) -> Arc<Principal> {
        let mut cached = lock(&self.principal);
        match &*cached {
            Some((source, peer_principal)) if Arc::ptr_eq(source, principal) => {
                Arc::clone(peer_principal)
            }
            _ => {
                let peer_principal = Arc::new(principal.with_peer(self.peer));
                *cached = Some((Arc::clone(principal), Arc::clone(&peer_principal)));
                peer_principal
            }
        }
    }

    /// Returns the principal of the latest request, if authenticated.
    pub(super) fn latest_principal(&self) -> Option<Arc<Principal>> {
        if !self.is_authenticated() {
            return None;
        }
        let cached = lock(&self.principal);
        cached
            .as_ref()
            .map(|(_, peer_principal)| Arc::clone(peer_principal))
    }

    /// Takes a connection share for the authenticated principal.
    pub(super) fn take_share(
        &self,
        accounts: &PrincipalAccounts,
        principal: &Principal,
    ) -> Result<(), ConnectionRefusal> {
        let mut current_share = lock(&self.share);
        if current_share
            .as_ref()
            .is_some_and(|current_share| current_share.principal == principal.name)
        {
            return Ok(());
        }
        // Drops the share of a previously authenticated principal.
        *current_share = None;
        let share = accounts.take_share(principal, SharedResource::Connections, 1);
        let share = share.map_err(ConnectionRefusal::Share)?;
        if let Some(mut pool_slot) = lock(&self.pool_slot).take()
            && !pool_slot.release()
        {
            return Err(ConnectionRefusal::Evicted);
        }
        *current_share = Some(ConnectionShare {
            principal: Arc::clone(&principal.name),
            _share: share,
        });
        Ok(())
    }

    /// Returns whether the connection is authenticated.
    pub(super) fn is_authenticated(&self) -> bool {
        lock(&self.share).is_some()
    }

    /// Returns the remote IP address.
    pub(super) fn peer_ip(&self) -> IpAddr {
        let unknown = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        self.peer_address().map_or(unknown, |peer| peer.ip())
    }

    /// Releases the slot in the pool of unauthenticated connections.
    pub(super) fn leave_pool(&self) {
        drop(lock(&self.pool_slot).take());
    }

    /// Resolves when the connection must close.
    pub(super) async fn wait_closed(&self) {
        self.close_notify.notified().await;
    }

    /// Sets the protocol switch that follows the current response.
    pub(super) fn set_upgrade(&self, upgrade: PendingUpgrade) {
        *lock(&self.upgrade) = Some(Box::new(upgrade));
    }

    /// Takes the pending protocol switch.
    pub(super) fn take_upgrade(&self) -> Option<Box<PendingUpgrade>> {
        lock(&self.upgrade).take()
    }
}
