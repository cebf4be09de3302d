//! Connections of clients: registered by token, so that a connection closes with its token, and
//! before authentication in a bounded pool, whose oldest connection is evicted for a new one.
//!
//! No connection is refused a slot of the pool: on loopback, attacker and owner share an address,
//! and a client with valid credentials authenticates before eviction.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bowline_core::call::{PeerAddress, Principal};
use bowline_core::lru::{LruArena, LruQueue, LruSlot};
use bowline_core::shares::{ShareError, SharedResource};
use bowline_core::sync::lock;
use bowline_host::accounts::{PrincipalAccounts, ResourceShare};
use bowline_runtime::Lifecycle;
use foldhash::fast::RandomState;
use http::{HeaderValue, StatusCode, header};

use super::auth::AuthError;
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
pub(crate) struct ClientConnection {
    key: u64,
    token: Mutex<Option<Arc<IssuedToken>>>,
    lifecycle: Lifecycle,
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
            lifecycle: Lifecycle::default(),
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
                hold.lifecycle.close();
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
                hold.lifecycle.close();
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
        self.lifecycle.shutdown().wait_closing().await;
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

/// Slots of unauthenticated connections.
#[derive(Debug)]
pub(crate) struct UnauthenticatedPool {
    /// Total number of slots.
    slots_max: usize,
    /// Maximum number of slots per remote address.
    address_max: usize,
    table: Mutex<PoolTable>,
}

#[derive(Debug, Default)]
struct PoolTable {
    /// All slots, oldest first.
    by_age: LruQueue,
    entries: LruArena<PoolEntry>,
    /// Slots per remote address.
    addresses: HashMap<IpAddr, LruQueue, RandomState>,
    /// Indices into `entries` of slots per address.
    by_address: LruArena<LruSlot>,
}

#[derive(Debug)]
struct PoolEntry {
    eviction: Arc<Lifecycle>,
    address: Option<(IpAddr, LruSlot)>,
}

/// The slot of a connection; released on drop.
#[derive(Debug)]
pub(crate) struct PoolSlot {
    pool: Arc<UnauthenticatedPool>,
    slot: LruSlot,
    /// Closed under the pool lock when the slot is taken away.
    eviction: Arc<Lifecycle>,
    /// Whether the slot was already released.
    is_released: bool,
}

impl UnauthenticatedPool {
    /// Creates a pool with a total limit and a limit per address.
    #[must_use]
    pub(crate) fn new(places_max: usize, address_max: usize) -> Arc<Self> {
        Arc::new(Self {
            slots_max: places_max.max(1),
            address_max: address_max.max(1),
            table: Mutex::default(),
        })
    }

    /// Acquires a slot for a connection from `address`. A full pool evicts the oldest slot of the
    /// address, or of all addresses.
    pub(crate) fn acquire_slot(self: &Arc<Self>, address: IpAddr) -> PoolSlot {
        let eviction = Arc::new(Lifecycle::default());
        let address = address.to_canonical();
        let address = (!address.is_loopback()).then_some(address);
        let slot = {
            let mut table = lock(&self.table);
            table.make_room(self, address);
            table.insert(Arc::clone(&eviction), address)
        };
        PoolSlot {
            pool: Arc::clone(self),
            slot,
            eviction,
            is_released: false,
        }
    }
}

impl PoolTable {
    /// Evicts the oldest slot if the pool, or the share of the address, is full.
    fn make_room(&mut self, pool: &UnauthenticatedPool, address: Option<IpAddr>) {
        let own = address.and_then(|address| self.addresses.get(&address));
        let own = own.filter(|own| own.len() >= pool.address_max);
        let oldest = match own.and_then(LruQueue::oldest) {
            Some(slot) => self.by_address.get(slot).copied(),
            None if self.by_age.len() >= pool.slots_max => self.by_age.oldest(),
            None => None,
        };
        if let Some(entry) = oldest.and_then(|slot| self.remove(slot)) {
            entry.eviction.close();
        }
    }

    fn insert(&mut self, eviction: Arc<Lifecycle>, address: Option<IpAddr>) -> LruSlot {
        let entry = PoolEntry {
            eviction,
            address: None,
        };
        let slot = self.entries.push(&mut self.by_age, entry);
        if let Some(address) = address {
            let own = self.addresses.entry(address).or_default();
            let at = self.by_address.push(own, slot);
            if let Some(entry) = self.entries.get_mut(slot) {
                entry.address = Some((address, at));
            }
        }
        slot
    }

    fn remove(&mut self, slot: LruSlot) -> Option<PoolEntry> {
        let entry = self.entries.remove(&mut self.by_age, slot)?;
        if let Some((address, at)) = entry.address
            && let Some(own) = self.addresses.get_mut(&address)
        {
            self.by_address.remove(own, at);
            if own.is_empty() {
                self.addresses.remove(&address);
            }
        }
        Some(entry)
    }
}

impl PoolSlot {
    /// Returns the signal that tells the connection to close.
    #[must_use]
    pub(crate) fn eviction(&self) -> Arc<Lifecycle> {
        Arc::clone(&self.eviction)
    }

    /// Releases the slot; `false` if the slot was already evicted.
    pub(crate) fn release(&mut self) -> bool {
        let mut table = lock(&self.pool.table);
        if self.eviction.shutdown().is_closing() {
            return false;
        }
        if !self.is_released {
            self.is_released = true;
            table.remove(self.slot);
        }
        true
    }
}

impl Drop for PoolSlot {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn remote_address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn is_evicted(slot: &PoolSlot) -> bool {
        slot.eviction.shutdown().is_closing()
    }

    #[tokio::test]
    async fn oldest_slot_is_evicted_for_next() {
        let pool = UnauthenticatedPool::new(3, 1);
        let mut places: Vec<_> = (0..3).map(|_| pool.acquire_slot(LOCAL)).collect();
        let fourth = pool.acquire_slot(LOCAL);
        assert_eq!(
            [&places[0], &places[1], &fourth].map(is_evicted),
            [true, false, false]
        );
        places[0].eviction().shutdown().wait_closing().await;
        assert!(!places[0].release(), "it came too late");
        // An authenticated connection needs no slot, so nothing is evicted for the next.
        assert!(places[1].release());
        let fifth = pool.acquire_slot(LOCAL);
        assert!(!is_evicted(&places[2]) && !is_evicted(&fourth) && !is_evicted(&fifth));
        drop((places, fourth, fifth));
        let table = lock(&pool.table);
        assert!(table.by_age.is_empty() && table.addresses.is_empty());
    }

    #[test]
    fn address_at_cap_evicts_own_oldest() {
        let pool = UnauthenticatedPool::new(100, 2);
        let others = [
            pool.acquire_slot(remote_address(1)),
            pool.acquire_slot(LOCAL),
        ];
        let own: Vec<_> = (0..5)
            .map(|_| pool.acquire_slot(remote_address(9)))
            .collect();
        let gone: Vec<_> = own.iter().map(is_evicted).collect();
        assert_eq!(gone, [true, true, true, false, false]);
        assert_eq!(others.each_ref().map(is_evicted), [false, false]);
        let mapped = pool.acquire_slot("::ffff:192.0.2.9".parse().unwrap());
        assert!(
            is_evicted(&own[3]) && !is_evicted(&mapped),
            "it is the same address"
        );
        drop(own);
        drop(mapped);
        assert_eq!(lock(&pool.table).by_age.len(), 2);
        assert_eq!(lock(&pool.table).addresses.len(), 1);
    }
}
