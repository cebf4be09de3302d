//! Connections that have not proved who they are: few, and the oldest gives way to the next.
//!
//! Nobody is refused a place: on loopback, attacker and owner come from the same address, and one
//! that can prove itself does so before its place is wanted by another.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bowline_core::lru::{Arena, Queue, Slot};
use bowline_core::sync::lock;
use foldhash::fast::RandomState;
use tokio::sync::Notify;

/// Places of connections that have not proved who they are.
#[derive(Debug)]
pub struct UnprovenPool {
    /// In all.
    places_max: usize,
    /// Of one address that is not this machine's.
    address_max: usize,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// All places, the oldest first.
    all: Queue,
    entries: Arena<Entry>,
    /// The places of each address that is not this machine's.
    addresses: HashMap<IpAddr, Queue, RandomState>,
    /// Where the places of addresses stand in `entries`.
    by_address: Arena<Slot>,
}

#[derive(Debug)]
struct Entry {
    signal: Arc<GiveWay>,
    address: Option<(IpAddr, Slot)>,
}

/// Asks a connection to make room.
#[derive(Debug, Default)]
pub struct GiveWay {
    /// Set under the lock of the pool, when the place is gone.
    is_asked: AtomicBool,
    asked: Notify,
}

impl GiveWay {
    /// Returns once the connection must end.
    pub async fn asked(&self) {
        self.asked.notified().await;
    }
}

/// The place of one connection, until it is dropped.
#[derive(Debug)]
pub struct Place {
    pool: Arc<UnprovenPool>,
    slot: Slot,
    signal: Arc<GiveWay>,
    /// Whether it was left already.
    is_left: bool,
}

impl UnprovenPool {
    /// Returns a pool of so many places, of which one address may have so many.
    #[must_use]
    pub fn new(places_max: usize, address_max: usize) -> Arc<Self> {
        Arc::new(Self {
            places_max: places_max.max(1),
            address_max: address_max.max(1),
            table: Mutex::default(),
        })
    }

    /// Returns a place for a connection of this address. Where there is none, the oldest of the
    /// address, or of all, gives way.
    pub fn enter(self: &Arc<Self>, address: IpAddr) -> Place {
        let signal = Arc::new(GiveWay::default());
        let address = address.to_canonical();
        let address = (!address.is_loopback()).then_some(address);
        let (slot, evicted) = {
            let mut table = lock(&self.table);
            let evicted = table.make_room(self, address);
            (table.insert(Arc::clone(&signal), address), evicted)
        };
        if let Some(evicted) = evicted {
            evicted.asked.notify_one();
        }
        Place {
            pool: Arc::clone(self),
            slot,
            signal,
            is_left: false,
        }
    }
}

impl Table {
    fn make_room(&mut self, pool: &UnprovenPool, address: Option<IpAddr>) -> Option<Arc<GiveWay>> {
        let own = address.and_then(|address| self.addresses.get(&address));
        let own = own.filter(|own| own.len() >= pool.address_max);
        let oldest = match own.and_then(Queue::first) {
            Some(slot) => self.by_address.get(slot).copied(),
            None if self.all.len() >= pool.places_max => self.all.first(),
            None => None,
        };
        let entry = self.remove(oldest?)?;
        entry.signal.is_asked.store(true, Ordering::Relaxed);
        Some(entry.signal)
    }

    fn insert(&mut self, signal: Arc<GiveWay>, address: Option<IpAddr>) -> Slot {
        let entry = Entry {
            signal,
            address: None,
        };
        let slot = self.entries.push(&mut self.all, entry);
        if let Some(address) = address {
            let own = self.addresses.entry(address).or_default();
            let at = self.by_address.push(own, slot);
            if let Some(entry) = self.entries.get_mut(slot) {
                entry.address = Some((address, at));
            }
        }
        slot
    }

    fn remove(&mut self, slot: Slot) -> Option<Entry> {
        let entry = self.entries.remove(&mut self.all, slot)?;
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

impl Place {
    /// Returns what asks the connection to make room.
    #[must_use]
    pub fn signal(&self) -> Arc<GiveWay> {
        Arc::clone(&self.signal)
    }

    /// Gives the place back; `false` when it was given to another before.
    pub fn leave(&mut self) -> bool {
        let mut table = lock(&self.pool.table);
        if self.signal.is_asked.load(Ordering::Relaxed) {
            return false;
        }
        if !self.is_left {
            self.is_left = true;
            table.remove(self.slot);
        }
        true
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn far(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn asked(place: &Place) -> bool {
        place.signal.is_asked.load(Ordering::Relaxed)
    }

    #[tokio::test]
    async fn oldest_place_gives_way_to_the_next() {
        let pool = UnprovenPool::new(3, 1);
        let mut places: Vec<_> = (0..3).map(|_| pool.enter(LOCAL)).collect();
        let fourth = pool.enter(LOCAL);
        assert_eq!(
            [&places[0], &places[1], &fourth].map(asked),
            [true, false, false]
        );
        places[0].signal().asked().await;
        assert!(!places[0].leave(), "it came too late");
        // One that proved itself needs no place, and none gives way for the next.
        assert!(places[1].leave());
        let fifth = pool.enter(LOCAL);
        assert!(!asked(&places[2]) && !asked(&fourth) && !asked(&fifth));
        drop((places, fourth, fifth));
        let table = lock(&pool.table);
        assert!(table.all.is_empty() && table.addresses.is_empty());
    }

    #[test]
    fn address_at_its_cap_gives_way_to_itself() {
        let pool = UnprovenPool::new(100, 2);
        let others = [pool.enter(far(1)), pool.enter(LOCAL)];
        let own: Vec<_> = (0..5).map(|_| pool.enter(far(9))).collect();
        let gone: Vec<_> = own.iter().map(asked).collect();
        assert_eq!(gone, [true, true, true, false, false]);
        assert_eq!(others.each_ref().map(asked), [false, false]);
        let mapped = pool.enter("::ffff:192.0.2.9".parse().unwrap());
        assert!(asked(&own[3]) && !asked(&mapped), "it is the same address");
        drop(own);
        drop(mapped);
        assert_eq!(lock(&pool.table).all.len(), 2);
        assert_eq!(lock(&pool.table).addresses.len(), 1);
    }
}
