//! Bounded pool of unauthenticated connections; the oldest is evicted for a new connection.
//!
//! No connection is refused a slot: on loopback, attacker and owner share an address, and a client
//! with valid credentials authenticates before eviction.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bowline_core::lru::{LruArena, LruQueue, LruSlot};
use bowline_core::sync::lock;
use foldhash::fast::RandomState;
use tokio::sync::Notify;

/// Slots of unauthenticated connections.
#[derive(Debug)]
pub struct UnauthenticatedPool {
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
    signal: Arc<EvictionSignal>,
    address: Option<(IpAddr, LruSlot)>,
}

/// Tells a connection to close.
#[derive(Debug, Default)]
pub struct EvictionSignal {
    /// Set under the pool lock when the slot is gone.
    is_evicted: AtomicBool,
    notify: Notify,
}

impl EvictionSignal {
    /// Resolves when the connection must close.
    pub async fn wait_evicted(&self) {
        self.notify.notified().await;
    }
}

/// The slot of a connection; released on drop.
#[derive(Debug)]
pub struct PoolSlot {
    pool: Arc<UnauthenticatedPool>,
    slot: LruSlot,
    signal: Arc<EvictionSignal>,
    /// Whether the slot was already released.
    is_released: bool,
}

impl UnauthenticatedPool {
    /// Creates a pool with a total limit and a limit per address.
    #[must_use]
    pub fn new(places_max: usize, address_max: usize) -> Arc<Self> {
        Arc::new(Self {
            slots_max: places_max.max(1),
            address_max: address_max.max(1),
            table: Mutex::default(),
        })
    }

    /// Acquires a slot for a connection from `address`. A full pool evicts the oldest slot of the
    /// address, or of all addresses.
    pub fn acquire_slot(self: &Arc<Self>, address: IpAddr) -> PoolSlot {
        let signal = Arc::new(EvictionSignal::default());
        let address = address.to_canonical();
        let address = (!address.is_loopback()).then_some(address);
        let (slot, evicted) = {
            let mut table = lock(&self.table);
            let evicted = table.make_room(self, address);
            (table.insert(Arc::clone(&signal), address), evicted)
        };
        if let Some(evicted) = evicted {
            evicted.notify.notify_one();
        }
        PoolSlot {
            pool: Arc::clone(self),
            slot,
            signal,
            is_released: false,
        }
    }
}

impl PoolTable {
    fn make_room(
        &mut self,
        pool: &UnauthenticatedPool,
        address: Option<IpAddr>,
    ) -> Option<Arc<EvictionSignal>> {
        let own = address.and_then(|address| self.addresses.get(&address));
        let own = own.filter(|own| own.len() >= pool.address_max);
        let oldest = match own.and_then(LruQueue::oldest) {
            Some(slot) => self.by_address.get(slot).copied(),
            None if self.by_age.len() >= pool.slots_max => self.by_age.oldest(),
            None => None,
        };
        let entry = self.remove(oldest?)?;
        entry.signal.is_evicted.store(true, Ordering::Relaxed);
        Some(entry.signal)
    }

    fn insert(&mut self, signal: Arc<EvictionSignal>, address: Option<IpAddr>) -> LruSlot {
        let entry = PoolEntry {
            signal,
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
    pub fn eviction_signal(&self) -> Arc<EvictionSignal> {
        Arc::clone(&self.signal)
    }

    /// Releases the slot; `false` if the slot was already evicted.
    pub fn release(&mut self) -> bool {
        let mut table = lock(&self.pool.table);
        if self.signal.is_evicted.load(Ordering::Relaxed) {
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

    const LOCAL: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn remote_address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn is_evicted(slot: &PoolSlot) -> bool {
        slot.signal.is_evicted.load(Ordering::Relaxed)
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
        places[0].eviction_signal().wait_evicted().await;
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
