//! Which connection proved itself with which token, so that it ends with the token.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bowline_core::call::{Peer, Principal};
use bowline_core::sync::lock;
use tokio::sync::Notify;

use super::door::Refused;
use super::upgrade::Upgrade;
use crate::tokens::Issued;

/// The connections that proved themselves with a token; no more than there are connections.
#[derive(Debug, Default)]
pub struct Holds {
    next: AtomicU64,
    table: Mutex<HashMap<u64, Arc<Hold>>>,
}

/// One connection. It carries one request at a time, so the token of the last one is the token of
/// all that is under way on it.
#[derive(Debug)]
pub struct Hold {
    key: u64,
    token: Mutex<Option<Arc<Issued>>>,
    closed: Notify,
    /// What it is once the answer under way is written, where it is something else then.
    upgrade: Mutex<Option<Box<Upgrade>>>,
    /// Where it comes from.
    peer: Peer,
    /// The principal of its latest request: as its credential has it, and at this peer.
    principal: Mutex<Option<(Arc<Principal>, Arc<Principal>)>>,
}

/// Keeps a connection known for as long as it lives.
#[derive(Debug)]
pub(super) struct Held<'a> {
    holds: &'a Holds,
    hold: Arc<Hold>,
}

impl Held<'_> {
    pub(super) const fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        lock(&self.holds.table).remove(&self.hold.key);
    }
}

impl Holds {
    /// Begins a connection that has proved nothing yet.
    pub(super) fn begin(&self, peer: Option<SocketAddr>) -> Held<'_> {
        let hold = Arc::new(Hold {
            key: self.next.fetch_add(1, Ordering::Relaxed),
            token: Mutex::default(),
            closed: Notify::new(),
            upgrade: Mutex::default(),
            peer: Peer(peer),
            principal: Mutex::default(),
        });
        Held { holds: self, hold }
    }

    /// Notes with what the latest request of a connection was proved.
    ///
    /// # Errors
    /// The token was revoked in this very moment.
    pub(super) fn prove(
        &self,
        hold: &Arc<Hold>,
        token: Option<&Arc<Issued>>,
    ) -> Result<(), Refused> {
        {
            let mut held = lock(&hold.token);
            let same = held.as_ref().map(Arc::as_ptr) == token.map(Arc::as_ptr);
            if same {
                return Ok(());
            }
            *held = token.cloned();
        }
        let Some(token) = token else {
            return Ok(());
        };
        lock(&self.table).insert(hold.key, Arc::clone(hold));
        // Whoever revokes it marks it first and looks for connections then: one of us sees the
        // other.
        if token.is_over() {
            return Err(Refused::Unauthorized);
        }
        Ok(())
    }

    /// Ends every connection that was last proved with this token.
    pub(super) fn close(&self, token: &Issued) {
        for hold in lock(&self.table).values() {
            let held = lock(&hold.token);
            if held.as_ref().is_some_and(|held| held.id() == token.id()) {
                hold.closed.notify_one();
            }
        }
    }
}

impl Hold {
    /// Returns where the connection comes from.
    pub(super) const fn peer(&self) -> Option<SocketAddr> {
        self.peer.0
    }

    /// Returns a principal as one that asks from here; made once for all requests of it.
    pub(super) fn principal(&self, proven: &Arc<Principal>) -> Arc<Principal> {
        let mut known = lock(&self.principal);
        match &*known {
            Some((of, here)) if Arc::ptr_eq(of, proven) => Arc::clone(here),
            _ => {
                let here = Arc::new(proven.at_peer(self.peer));
                *known = Some((Arc::clone(proven), Arc::clone(&here)));
                here
            }
        }
    }

    /// Returns once the connection must end.
    pub(super) async fn closed(&self) {
        self.closed.notified().await;
    }

    /// Says what the connection is once the answer under way is written.
    pub(super) fn becomes(&self, upgrade: Upgrade) {
        *lock(&self.upgrade) = Some(Box::new(upgrade));
    }

    /// Returns what it is from now on, where it is something else.
    pub(super) fn upgrade(&self) -> Option<Box<Upgrade>> {
        lock(&self.upgrade).take()
    }
}
