//! Which connection proved itself with which token, so that it ends with the token.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bowline_core::call::{Peer, Principal};
use bowline_core::shares::{Resource, ShareError};
use bowline_core::sync::lock;
use bowline_host::accounts::{PrincipalAccounts, Share};
use http::{HeaderValue, StatusCode, header};
use tokio::sync::Notify;

use super::body::{self, Answer};
use super::connection_pool::Place;
use super::door::Refused;
use super::mcp::over_share;
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
    /// Its place among connections that have proved nothing, while it is one.
    place: Mutex<Option<Place>>,
    /// Whose connection it is, once it has proved that.
    seat: Mutex<Option<Seat>>,
}

/// A connection as a part of the share of its principal.
#[derive(Debug)]
struct Seat {
    principal: Arc<str>,
    _share: Share,
}

/// Why a connection that proved who it is has no seat all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unseated {
    /// It gave way to another in the same moment.
    GaveWay,
    /// Its principal has as many as it may, or all there are are taken.
    Share(ShareError),
}

impl Unseated {
    /// Returns the answer that says so; the connection ends with it.
    pub(super) fn answer(self) -> Answer {
        let mut answer = match self {
            Self::Share(cause) => over_share(None, cause),
            Self::GaveWay => {
                let message = "the connection gave way to another; try again\n";
                body::text(StatusCode::SERVICE_UNAVAILABLE, message)
            }
        };
        let close = HeaderValue::from_static("close");
        answer.headers_mut().insert(header::CONNECTION, close);
        answer
    }
}

/// Names a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HoldKey(u64);

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
    pub(super) fn begin(&self, peer: SocketAddr, place: Place) -> Held<'_> {
        let hold = Arc::new(Hold {
            key: self.next.fetch_add(1, Ordering::Relaxed),
            token: Mutex::default(),
            closed: Notify::new(),
            upgrade: Mutex::default(),
            peer: Peer(Some(peer)),
            principal: Mutex::default(),
            place: Mutex::new(Some(place)),
            seat: Mutex::default(),
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

    /// Ends every connection but this one that was last proved with this very token, and not
    /// with another of the same id.
    pub(super) fn close_others(&self, token: &Issued, but: HoldKey) {
        for hold in lock(&self.table).values() {
            let held = lock(&hold.token);
            let is_it = held
                .as_ref()
                .is_some_and(|held| std::ptr::eq(&**held, token));
            if is_it && hold.key() != but {
                hold.closed.notify_one();
            }
        }
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
    /// Returns its name.
    pub(super) const fn key(&self) -> HoldKey {
        HoldKey(self.key)
    }

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

    /// Returns the principal of its latest request, where the connection has proved one.
    pub(super) fn latest_principal(&self) -> Option<Arc<Principal>> {
        if !self.is_proven() {
            return None;
        }
        let known = lock(&self.principal);
        known.as_ref().map(|(_, here)| Arc::clone(here))
    }

    /// Makes it a connection of the principal that its latest request proved.
    pub(super) fn seat(
        &self,
        accounts: &PrincipalAccounts,
        principal: &Principal,
    ) -> Result<(), Unseated> {
        let mut seat = lock(&self.seat);
        if seat
            .as_ref()
            .is_some_and(|seat| seat.principal == principal.name)
        {
            return Ok(());
        }
        // The share of another principal that it was proved by before.
        *seat = None;
        let share = accounts.take(principal, Resource::Connections, 1);
        let share = share.map_err(Unseated::Share)?;
        if let Some(mut place) = lock(&self.place).take()
            && !place.leave()
        {
            return Err(Unseated::GaveWay);
        }
        *seat = Some(Seat {
            principal: Arc::clone(&principal.name),
            _share: share,
        });
        Ok(())
    }

    /// Whether it has proved who it is.
    pub(super) fn is_proven(&self) -> bool {
        lock(&self.seat).is_some()
    }

    /// Returns the address that it comes from.
    pub(super) fn address(&self) -> IpAddr {
        let unknown = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        self.peer().map_or(unknown, |peer| peer.ip())
    }

    /// Gives up its place among connections of HTTP that have proved nothing.
    pub(super) fn leave_pool(&self) {
        drop(lock(&self.place).take());
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
