//! Handshake of one peer connection, and the lifetime of the connection after it.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bowline_core::BoxFuture;
use bowline_core::sync::lock;
use bowline_core::time::to_millis;
use bowline_link::websocket::close_codes;
use bowline_link::websocket::{WebSocketConnection, WebSocketReceiver, WebSocketSender};
use bowline_runtime::{ActivityGuard, Lifecycle, Work};
use tokio::sync::Semaphore;

use super::hub_counts::increment;
use super::peer_registry::{ConnectedPeer, PeerState};
use super::read_loop::{self, PeerReader};
use super::rights::{not_allowed, refusal};
use super::{AdmittedPeer, HubShared, PeerAuthenticator, pump, stored_message};
use crate::frames::{BrokerFrame, BrokerRefusal, BrokerWelcome};
use crate::mailbox::MailboxName;

/// Resolves when a credential ends.
type CredentialExpiry = BoxFuture<'static, BrokerRefusal>;

/// Serves one peer until the connection ends.
pub(super) async fn serve_peer(
    shared: &Arc<HubShared>,
    socket: WebSocketConnection,
    authenticator: &dyn PeerAuthenticator,
) {
    let WebSocketConnection {
        sender: out,
        receiver: mut incoming,
    } = socket;
    let admitted = authenticate_peer(shared, &mut incoming, authenticator).await;
    let registered = admitted.and_then(|(admitted, credential)| {
        let peer = register_peer(shared, &out, admitted)?;
        Ok((peer, credential))
    });
    let (peer, credential) = match registered {
        Ok(registered) => registered,
        Err(Some(refusal)) => {
            increment(&shared.counters.refused);
            authenticator.on_refused(None, &refusal);
            let reason = Arc::clone(&refusal.reason);
            let _ = out.try_send(BrokerFrame::Error(refusal).to_bytes());
            out.close(close_codes::NOT_ADMITTED, &reason);
            return;
        }
        // The connection closed before the first frame.
        Err(None) => return,
    };
    // The guard removes the peer even if this future is dropped.
    let guard = ConnectedPeerGuard {
        shared: Arc::clone(shared),
        peer: Arc::clone(&peer),
        _activity: shared.shutdown.start_activity(),
    };
    if !send_welcome(shared, &peer).await {
        return;
    }
    shared.emit_peer_event(&peer, "joined");
    let reader = PeerReader::new(shared, &peer, authenticator);
    tokio::select! {
        biased;
        refusal = credential => {
            authenticator.on_refused(Some(&peer.admitted), &refusal);
            peer.close_with(close_codes::CREDENTIAL_ENDED, refusal);
        }
        () = shared.shutdown.wait_closing() => {
            let refusal = refusal("shutting_down", "the hub goes down", None);
            peer.close_with(close_codes::GOING_AWAY, refusal);
        }
        end = reader.run(&mut incoming) => {
            if let read_loop::ReadLoopEnd::ProtocolError(refusal) = end {
                authenticator.on_refused(Some(&peer.admitted), &refusal);
                peer.close_with(close_codes::PROTOCOL_ERROR, refusal);
            }
        }
    }
    drop(guard);
}

/// Waits for `hello` and authenticates the peer.
async fn authenticate_peer(
    shared: &HubShared,
    incoming: &mut WebSocketReceiver,
    authenticator: &dyn PeerAuthenticator,
) -> Result<(AdmittedPeer, CredentialExpiry), Option<BrokerRefusal>> {
    let permit = shared.handshakes.try_acquire().ok();
    if permit.is_none() && !authenticator.has_handshake_limit() {
        let full = "too many have not said yet who they are";
        return Err(Some(refusal("throttled", full, None)));
    }
    let late = || Some(refusal("auth", "nobody said hello in time", None));
    let first = tokio::time::timeout(shared.limits.hello_timeout, incoming.next());
    let first = first.await.map_err(|_| late())?.map_err(|_| None)?;
    let Ok(BrokerFrame::Hello(hello)) = BrokerFrame::parse(&first) else {
        return Err(Some(refusal("bad_frame", "expected hello", None)));
    };
    let (admitted, credential) = authenticator.authenticate(&hello).map_err(Some)?;
    if !admitted.matches_hello(&hello) {
        return Err(Some(not_allowed(None)));
    }
    if shared.aliases.contains(admitted.mailbox.principal()) {
        let reason = "the hub itself answers to this name: take it out of [broker] aliases";
        return Err(Some(refusal("bad_name", reason, None)));
    }
    // The hub lane of a sender has the longest lane name of all.
    match stored_message::mailbox_lane(&MailboxName::new_hub(), admitted.mailbox.as_str()) {
        Ok(_) => {}
        Err(_) => {
            let reason = "the name of the mailbox is too long";
            return Err(Some(refusal("bad_name", reason, None)));
        }
    }
    match shared
        .check_mailbox_limit(&admitted.principal, &admitted.mailbox)
        .await
    {
        Ok(true) => Ok((admitted, credential)),
        Ok(false) => {
            let reason = "this principal has as many mailboxes as it may have";
            Err(Some(refusal("too_many_mailboxes", reason, None)))
        }
        Err(error) => {
            tracing::error!(%error, "cannot count the mailboxes of a principal");
            let reason = "the store cannot be read";
            Err(Some(refusal("not_stored", reason, None)))
        }
    }
}

/// Registers an authenticated peer.
fn register_peer(
    shared: &Arc<HubShared>,
    out: &WebSocketSender,
    admitted: AdmittedPeer,
) -> Result<Arc<ConnectedPeer>, Option<BrokerRefusal>> {
    let catalog_fingerprint = shared.gateway.tools_digest(&admitted.principal);
    let peer = Arc::new(ConnectedPeer {
        number: shared.take_number(),
        stamp: admitted.sender_stamp(),
        admitted,
        outgoing: out.clone(),
        since_unix_ms: shared.clock().unix_ms(),
        live_permits: Semaphore::new(shared.limits.requests_max),
        server_requests: Arc::default(),
        events_dropped: AtomicU64::new(0),
        lifecycle: Lifecycle::default(),
        state: Work::new(PeerState {
            catalog_fingerprint,
            ..PeerState::default()
        }),
    });
    let is_inserted = lock(&shared.peers).insert(&peer, shared.limits.peers_max);
    match is_inserted && !shared.shutdown.is_closing() {
        true => Ok(peer),
        false => {
            lock(&shared.peers).remove(&peer);
            Err(Some(refusal("throttled", "there are too many peers", None)))
        }
    }
}

async fn send_welcome(shared: &HubShared, peer: &ConnectedPeer) -> bool {
    let id = match shared.store_identity().await {
        Ok(id) => id,
        Err(error) => {
            tracing::error!(%error, "cannot read the store identity");
            let reason = "the store cannot be read";
            peer.close_with(close_codes::GOING_AWAY, refusal("not_stored", reason, None));
            return false;
        }
    };
    let welcome = BrokerWelcome {
        mailbox: Arc::clone(peer.mailbox().as_str()),
        role: peer.admitted.role.clone(),
        heartbeat_ms: to_millis(shared.limits.heartbeat),
        requests_max: shared.limits.requests_max,
    };
    peer.send(&BrokerFrame::Welcome(welcome)).await
        && peer.send(&BrokerFrame::BrokerIdentity { id }).await
}

/// Removes a connected peer on drop and returns the messages pushed to the peer.
#[derive(Debug)]
struct ConnectedPeerGuard {
    shared: Arc<HubShared>,
    peer: Arc<ConnectedPeer>,
    _activity: ActivityGuard,
}

impl Drop for ConnectedPeerGuard {
    fn drop(&mut self) {
        let (shared, peer) = (&self.shared, &self.peer);
        pump::stop_delivery(shared, peer);
        lock(&shared.peers).remove(peer);
        shared.emit_peer_event(peer, "left");
        super::remote_peer::notify_connection_change(shared, peer.mailbox());
        super::peer_offers::on_peer_gone(shared, peer);
    }
}
