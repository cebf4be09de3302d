//! One connection from its first frame to its end.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use bowline_core::mailbox::Mailbox;
use bowline_core::sync::lock;
use bowline_core::time::millis;
use bowline_link::BoxFuture;
use bowline_link::websocket::{Incoming, Outgoing};
use bowline_wire::broker::{Frame, Refusal, Welcome};
use tokio::sync::{Notify, Semaphore};

use super::counts::one;
use super::intake::{self, Intake};
use super::peers::{Books, Peer};
use super::rights::{not_allowed, refusal};
use super::{
    Admitted, BROKE_PROTOCOL, CREDENTIAL_OVER, GOING_DOWN, NOT_ADMITTED, Porter, Shared, mailbox,
    pump,
};
use crate::catalog::ListKind;
use bowline_core::call::Scope;

/// What ends when a credential does.
type Credential = BoxFuture<'static, Refusal>;

/// Speaks with one peer until its connection ends.
pub(super) async fn attend(
    shared: &Arc<Shared>,
    (out, mut incoming): (Outgoing, Incoming),
    porter: &dyn Porter,
) {
    let admitted = greet(shared, &mut incoming, porter).await;
    let (peer, credential) = match admitted.and_then(|admitted| seat(shared, &out, admitted)) {
        Ok(seated) => seated,
        Err(Some(refusal)) => {
            one(&shared.counts.refused);
            porter.refused(None, &refusal);
            let reason = Arc::clone(&refusal.reason);
            let _ = out.try_send(Frame::Error(refusal).to_bytes());
            out.close(NOT_ADMITTED, &reason);
            return;
        }
        // It ended before it said anything.
        Err(None) => return,
    };
    // Whatever becomes of this future, the peer leaves.
    let seated = Seated {
        shared: Arc::clone(shared),
        peer: Arc::clone(&peer),
    };
    if !welcome(shared, &peer).await {
        return;
    }
    shared.tell(&peer, "joined");
    let intake = Intake::new(shared, &peer, porter);
    tokio::select! {
        biased;
        refusal = credential => {
            porter.refused(Some(&peer.admitted), &refusal);
            peer.end(CREDENTIAL_OVER, refusal);
        }
        () = shared.closed() => {
            peer.end(GOING_DOWN, refusal("shutting_down", "the hub goes down", None));
        }
        end = intake.run(&mut incoming) => {
            if let intake::End::Broke(refusal) = end {
                porter.refused(Some(&peer.admitted), &refusal);
                peer.end(BROKE_PROTOCOL, refusal);
            }
        }
    }
    drop(seated);
}

/// Waits for the first frame, and asks the porter.
async fn greet(
    shared: &Shared,
    incoming: &mut Incoming,
    porter: &dyn Porter,
) -> Result<(Admitted, Credential), Option<Refusal>> {
    let room = shared.greetings.try_acquire().ok();
    if room.is_none() && !porter.bounds_greetings() {
        let full = "too many have not said yet who they are";
        return Err(Some(refusal("throttled", full, None)));
    }
    let late = || Some(refusal("auth", "nobody said hello in time", None));
    let first = tokio::time::timeout(shared.limits.hello_wait, incoming.next());
    let first = first.await.map_err(|_| late())?.map_err(|_| None)?;
    let Ok(Frame::Hello(hello)) = Frame::read(&first) else {
        return Err(Some(refusal("bad_frame", "expected hello", None)));
    };
    let (admitted, credential) = porter.admit(&hello).map_err(Some)?;
    if !admitted.owns_up(&hello) {
        return Err(Some(not_allowed(None)));
    }
    if shared.aliases.has(admitted.mailbox.principal()) {
        let reason = "the hub itself answers to this name: take it out of [broker] aliases";
        return Err(Some(refusal("bad_name", reason, None)));
    }
    // What it sends to the hub has the longest of all names.
    match mailbox::lane(&Mailbox::hub(), admitted.mailbox.as_str()) {
        Ok(_) => {}
        Err(_) => {
            let reason = "the name of the mailbox is too long";
            return Err(Some(refusal("bad_name", reason, None)));
        }
    }
    match shared
        .may_have(&admitted.principal, &admitted.mailbox)
        .await
    {
        Ok(true) => Ok((admitted, credential)),
        Ok(false) => {
            let reason = "this principal has as many mailboxes as it may have";
            Err(Some(refusal("too_many_mailboxes", reason, None)))
        }
        Err(error) => {
            tracing::error!(%error, "the mailboxes of a principal cannot be counted");
            let reason = "the store cannot be read";
            Err(Some(refusal("not_stored", reason, None)))
        }
    }
}

/// Takes a peer in that proved who it is.
fn seat(
    shared: &Arc<Shared>,
    out: &Outgoing,
    (admitted, credential): (Admitted, Credential),
) -> Result<(Arc<Peer>, Credential), Option<Refusal>> {
    let seen = shared
        .host
        .view(&admitted.principal, &Scope::All, ListKind::Tools);
    let peer = Arc::new(Peer {
        number: shared.number(),
        stamp: admitted.stamp(),
        admitted,
        out: out.clone(),
        since_unix_ms: shared.clock().unix_ms(),
        poke: Notify::new(),
        turns: Semaphore::new(shared.limits.requests_max),
        put: Arc::default(),
        events_dropped: AtomicU64::new(0),
        books: Mutex::new(Books {
            seen: seen.fingerprint,
            ..Books::default()
        }),
    });
    let entered = lock(&shared.peers).enter(&peer, shared.limits.peers_max);
    match entered && !shared.is_closing() {
        true => Ok((peer, credential)),
        false => {
            lock(&shared.peers).leave(&peer);
            Err(Some(refusal("throttled", "there are too many peers", None)))
        }
    }
}

async fn welcome(shared: &Shared, peer: &Peer) -> bool {
    let id = match shared.identity().await {
        Ok(id) => id,
        Err(error) => {
            tracing::error!(%error, "which store this is cannot be read");
            let reason = "the store cannot be read";
            peer.end(GOING_DOWN, refusal("not_stored", reason, None));
            return false;
        }
    };
    let welcome = Welcome {
        mailbox: Arc::clone(peer.mailbox().as_str()),
        role: peer.admitted.role.clone(),
        heartbeat_ms: millis(shared.limits.heartbeat),
        requests_max: shared.limits.requests_max,
    };
    peer.send(&Frame::Welcome(welcome)).await && peer.send(&Frame::BrokerIdentity { id }).await
}

/// A peer that is here. Dropping it lets the peer leave, and gives back what was pushed to it.
#[derive(Debug)]
struct Seated {
    shared: Arc<Shared>,
    peer: Arc<Peer>,
}

impl Drop for Seated {
    fn drop(&mut self) {
        let (shared, peer) = (&self.shared, &self.peer);
        pump::stop(shared, peer);
        lock(&shared.peers).leave(peer);
        shared.tell(peer, "left");
        super::remote::tell(shared, peer.mailbox());
        super::offer::gone(shared, peer);
    }
}
