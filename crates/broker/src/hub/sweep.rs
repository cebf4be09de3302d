//! Periodic work of the hub: expires messages, and notifies peers of catalog changes.

use std::collections::HashMap;
use std::sync::Arc;

use bowline_core::sync::lock;
use bowline_journal::MessageView;
use bowline_runtime::{Service, Shutdown};

use super::hub_counts::increment;
use super::peer_registry::ConnectedPeer;
use super::stored_message::{self, LANE_PREFIX};
use super::{HubShared, hub_inbox};
use crate::frames::{BrokerFrame, BrokerResponse, MessageBody, REQUEST_KIND};
use crate::mailbox::MailboxName;
use crate::{PeerManifest, request_expired};

/// Runs expiry sweeps.
pub(super) struct HubSweep(pub(super) Arc<HubShared>);

impl Service for HubSweep {
    const NAME: &'static str = "hub sweep";

    async fn run(self, shutdown: Shutdown) {
        let Self(shared) = self;
        loop {
            let next = shared.now().plus(shared.limits.sweep_interval);
            tokio::select! {
                () = shutdown.wait_closing() => return,
                () = tokio::time::sleep_until(shared.clock().instant(next)) => {}
            }
            lock(&shared.peers).prune_all(shared.now());
            if let Some(keep) = shared.offer_handler.retention() {
                shared.offer_store.sweep(shared.now(), keep);
            }
            // Each pass expires a bounded number of messages.
            while expire_messages(&shared).await > 0 {}
        }
    }
}

async fn expire_messages(shared: &HubShared) -> usize {
    let past = match shared
        .journal
        .expire_messages(LANE_PREFIX, shared.timestamps())
        .await
    {
        Ok(past) => past,
        Err(error) => {
            tracing::error!(%error, "cannot expire messages");
            return 0;
        }
    };
    for entry in &past {
        increment(&shared.counters.dead);
        reply_expired(shared, entry).await;
    }
    past.len()
}

/// Replies to the sender of an expired request: the request did not run.
async fn reply_expired(shared: &HubShared, entry: &MessageView) {
    let Some(stored_message::StoredMessage { message, alias, .. }) =
        stored_message::decode_message(&entry.body)
    else {
        return;
    };
    let from = message
        .sender
        .as_ref()
        .map(|from| MailboxName::parse(&from.session_id));
    let Some(Ok(from)) = from.filter(|_| &*message.kind == REQUEST_KIND) else {
        return;
    };
    // After a delivery the receiver may have run the request, and replies.
    if from == MailboxName::new_hub() || entry.attempts > 0 {
        return;
    }
    let response = BrokerResponse::Failed(request_expired());
    let body = MessageBody::Reply(&response);
    let stored = hub_inbox::store_hub_reply(shared, &from, &message.id, alias.as_ref(), body);
    if let Err(error) = stored.await {
        tracing::warn!(%from, %error, "cannot reply to an expired request");
    }
}

/// Announces changes of the catalog to the peers whose view changed.
pub(super) struct ChangeAnnouncer(pub(super) Arc<HubShared>);

impl Service for ChangeAnnouncer {
    const NAME: &'static str = "hub changes";

    async fn run(self, shutdown: Shutdown) {
        let Self(shared) = self;
        let (mut catalog, mut policy) = (
            shared.gateway.catalog_changes(),
            shared.gateway.policy_changes(),
        );
        loop {
            tokio::select! {
                () = shutdown.wait_closing() => return,
                changed = catalog.changed() => if changed.is_err() { return },
                changed = policy.changed() => if changed.is_err() { return },
            }
            let peers: Vec<_> = lock(&shared.peers)
                .iter_connected()
                .map(Arc::clone)
                .collect();
            // Peers with equal views share a manifest.
            let mut revisions = HashMap::new();
            for peer in peers {
                notify_peer(&shared, &peer, &mut revisions).await;
            }
        }
    }
}

async fn notify_peer(
    shared: &HubShared,
    peer: &Arc<ConnectedPeer>,
    revisions: &mut HashMap<[u8; 32], u64>,
) {
    let principal = &peer.admitted.principal;
    let fingerprint = shared.gateway.tools_digest(principal);
    let before = std::mem::replace(&mut lock(&peer.state).catalog_fingerprint, fingerprint);
    if before == fingerprint {
        return;
    }
    let revision = match revisions.get(&fingerprint) {
        Some(revision) => *revision,
        None => {
            let manifest = shared.engine.manifest(&peer.stamp, Some(principal)).await;
            let Ok(PeerManifest { revision, .. }) = manifest else {
                return;
            };
            revisions.insert(fingerprint, revision);
            revision
        }
    };
    let changed = BrokerFrame::Changed { revision };
    if peer.try_send(&changed) || std::mem::replace(&mut lock(&peer.state).is_notifying, true) {
        return;
    }
    // The peer does not read. A separate task waits, so that other peers are not delayed; the
    // announced revision may be older than the manifest fetched later.
    let peer = Arc::clone(peer);
    shared.tasks().spawn("peer rights change", async move {
        peer.send(&changed).await;
        lock(&peer.state).is_notifying = false;
    });
}
