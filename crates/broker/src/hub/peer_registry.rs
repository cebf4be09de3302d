//! Registry of connected peers and mailbox subscribers.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};

use bowline_core::client_handle::ClientHandle;
use bowline_core::sync::lock;
use bowline_core::time::MonotonicTime;
use bowline_journal::LeaseReceipt;
use bowline_link::websocket::WebSocketSender;
use bowline_runtime::{Lifecycle, Work};
use bytes::Bytes;
use foldhash::fast::RandomState;
use tokio::sync::{Semaphore, oneshot};

use super::AdmittedPeer;
use super::remote_peer::HubRemotePeer;
use crate::frames::{BrokerFrame, BrokerRefusal, MessageSender};
use crate::mailbox::MailboxName;
use crate::server_requests::{DeadlineExtension, IncomingServerRequests};

/// Redelivery times kept per mailbox; beyond the limit neighbouring times are merged.
const DUE_TIMES_MAX: usize = 1_024;

/// One connection of an authenticated peer.
#[derive(Debug)]
pub(super) struct ConnectedPeer {
    /// Number of the connection.
    pub(super) number: u64,
    pub(super) admitted: AdmittedPeer,
    /// Sender stamped on every message of the peer.
    pub(super) stamp: MessageSender,
    pub(super) outgoing: WebSocketSender,
    pub(super) since_unix_ms: u64,
    /// Permits for live requests to the peer.
    pub(super) live_permits: Semaphore,
    /// Server requests of the peer's servers, relayed to waiting clients.
    pub(super) server_requests: Arc<IncomingServerRequests>,
    /// Notifications dropped because the peer read too slowly.
    pub(super) events_dropped: AtomicU64,
    /// Open until the peer disconnects or is fenced; closed under the lock of `state`.
    pub(super) lifecycle: Lifecycle,
    /// Worked off by the mailbox pump.
    pub(super) state: Work<PeerState>,
}

/// Mutable state of a connected peer.
#[derive(Debug, Default)]
pub(super) struct PeerState {
    /// Whether the peer receives messages.
    pub(super) is_subscribed: bool,
    /// Unacknowledged pushed messages, by message id.
    pub(super) pushed: HashMap<Arc<str>, PushedMessage>,
    /// Pending live requests of the hub to the peer, by request id.
    pub(super) pending: HashMap<Arc<str>, PeerResponseWaiter, RandomState>,
    /// Fingerprint of the catalog view last announced to the peer.
    pub(super) catalog_fingerprint: [u8; 32],
    /// Whether a task waits to announce a change.
    pub(super) is_notifying: bool,
    /// Servers of the peer in the hub's catalog.
    pub(super) offered_servers: Vec<Arc<str>>,
}

/// A message leased to a subscriber until ack or nak.
#[derive(Clone, Copy, Debug)]
pub(super) struct PushedMessage {
    pub(super) receipt: LeaseReceipt,
    /// Redelivery time.
    pub(super) lease_until: MonotonicTime,
}

/// Waiter for a peer's live response.
#[derive(Debug)]
pub(super) struct PeerResponseWaiter {
    pub(super) response: oneshot::Sender<Bytes>,
    pub(super) client: WaitingClient,
}

/// The client that receives notifications and server requests before the response.
#[derive(Clone, Debug, Default)]
pub(super) struct WaitingClient {
    pub(super) handle: Option<Arc<dyn ClientHandle>>,
    /// Deadline extension by the client's answer time.
    pub(super) extension: Arc<DeadlineExtension>,
}

impl WaitingClient {
    pub(super) fn new(handle: Option<Arc<dyn ClientHandle>>) -> Self {
        Self {
            handle,
            extension: Arc::default(),
        }
    }
}

impl ConnectedPeer {
    /// Queues a frame, waiting for room; `false` after a disconnect.
    pub(super) async fn send(&self, frame: &BrokerFrame) -> bool {
        self.outgoing.send(frame.to_bytes()).await.is_ok()
    }

    /// Queues a frame if there is room.
    pub(super) fn try_send(&self, frame: &BrokerFrame) -> bool {
        self.outgoing.try_send(frame.to_bytes()).is_ok()
    }

    /// Sends the reason and closes the connection.
    pub(super) fn close_with(&self, close: u16, refusal: BrokerRefusal) {
        let reason = Arc::clone(&refusal.reason);
        self.try_send(&BrokerFrame::Error(refusal));
        self.outgoing.close(close, &reason);
    }

    pub(super) const fn mailbox(&self) -> &MailboxName {
        &self.admitted.mailbox
    }

    /// Whether the peer disconnected or was fenced: no more pushes.
    pub(super) fn is_over(&self) -> bool {
        self.lifecycle.shutdown().is_closing()
    }
}

/// All connected peers.
#[derive(Debug, Default)]
pub(super) struct PeerRegistry {
    connected: HashMap<u64, Arc<ConnectedPeer>, RandomState>,
    mailboxes: HashMap<MailboxName, MailboxSlot, RandomState>,
    /// Peers as call targets of the hub, while referenced.
    pub(super) remotes: HashMap<MailboxName, Weak<HubRemotePeer>, RandomState>,
}

/// A mailbox with a subscriber or with scheduled redeliveries.
#[derive(Debug, Default)]
struct MailboxSlot {
    subscriber: Option<Arc<ConnectedPeer>>,
    /// Times of scheduled redeliveries.
    due_times: BTreeSet<MonotonicTime>,
}

/// Result of a subscription.
#[derive(Debug)]
pub(super) enum SubscribeOutcome {
    /// The peer is now the subscriber, in place of the former subscriber.
    Started(Option<Arc<ConnectedPeer>>),
    /// The peer was already the subscriber, or is gone.
    Unchanged,
}

impl PeerRegistry {
    /// Adds a peer; `false` at the limit.
    pub(super) fn insert(&mut self, peer: &Arc<ConnectedPeer>, peers_max: usize) -> bool {
        if self.connected.len() >= peers_max {
            return false;
        }
        self.connected.insert(peer.number, Arc::clone(peer));
        true
    }

    /// Makes a peer the subscriber of its mailbox, replacing the former subscriber.
    pub(super) fn subscribe(&mut self, peer: &Arc<ConnectedPeer>) -> SubscribeOutcome {
        if peer.is_over() || !self.connected.contains_key(&peer.number) {
            return SubscribeOutcome::Unchanged;
        }
        let slot = self.mailboxes.entry(peer.mailbox().clone()).or_default();
        let same = |old: &Arc<ConnectedPeer>| old.number == peer.number;
        if slot.subscriber.as_ref().is_some_and(same) {
            return SubscribeOutcome::Unchanged;
        }
        lock(&peer.state).is_subscribed = true;
        SubscribeOutcome::Started(slot.subscriber.replace(Arc::clone(peer)))
    }

    /// Removes a peer. A mailbox taken over by a newer connection is unaffected.
    pub(super) fn remove(&mut self, peer: &ConnectedPeer) {
        self.connected.remove(&peer.number);
        if let Some(slot) = self.mailboxes.get_mut(peer.mailbox()) {
            let own = |subscriber: &mut Arc<ConnectedPeer>| subscriber.number == peer.number;
            slot.subscriber.take_if(own);
        }
        self.prune_mailbox(peer.mailbox());
    }

    /// Returns the subscriber of a mailbox.
    pub(super) fn subscriber(&self, mailbox: &MailboxName) -> Option<Arc<ConnectedPeer>> {
        self.mailboxes.get(mailbox)?.subscriber.clone()
    }

    /// Returns the mailboxes of a principal with a connected peer.
    pub(super) fn principal_mailboxes(&self, principal: &str) -> HashSet<MailboxName, RandomState> {
        let mailboxes = self.connected.values().map(|peer| peer.mailbox());
        let own = mailboxes.filter(|mailbox| mailbox.principal() == principal);
        own.cloned().collect()
    }

    /// Iterates over all connected peers.
    pub(super) fn iter_connected(&self) -> impl Iterator<Item = &Arc<ConnectedPeer>> {
        self.connected.values()
    }

    /// Iterates over all subscribers.
    pub(super) fn iter_subscribers(&self) -> impl Iterator<Item = &Arc<ConnectedPeer>> {
        self.mailboxes
            .values()
            .filter_map(|slot| slot.subscriber.as_ref())
    }

    /// Schedules a redelivery.
    pub(super) fn schedule_delivery(&mut self, mailbox: &MailboxName, at: MonotonicTime) {
        let slot = self.mailboxes.entry(mailbox.clone()).or_default();
        slot.due_times.insert(at);
        if slot.due_times.len() > DUE_TIMES_MAX {
            // The latest time also covers the time before.
            let covered = slot.due_times.iter().rev().nth(1).copied();
            covered.map(|covered| slot.due_times.remove(&covered));
        }
    }

    /// Returns the next redelivery time of a mailbox, and removes the times already due.
    pub(super) fn next_due(
        &mut self,
        mailbox: &MailboxName,
        now: MonotonicTime,
    ) -> Option<MonotonicTime> {
        let slot = self.mailboxes.get_mut(mailbox)?;
        let later = slot
            .due_times
            .split_off(&MonotonicTime(now.0.saturating_add(1)));
        slot.due_times = later;
        slot.due_times.first().copied()
    }

    /// Removes unused state of a mailbox.
    fn prune_mailbox(&mut self, mailbox: &MailboxName) {
        let is_empty = |slot: &MailboxSlot| slot.subscriber.is_none() && slot.due_times.is_empty();
        if self.mailboxes.get(mailbox).is_some_and(is_empty) {
            self.mailboxes.remove(mailbox);
        }
        let is_gone = |remote: &Weak<HubRemotePeer>| remote.strong_count() == 0;
        if self.remotes.get(mailbox).is_some_and(is_gone) {
            self.remotes.remove(mailbox);
        }
    }

    /// Removes unused state of all mailboxes.
    pub(super) fn prune_all(&mut self, now: MonotonicTime) {
        self.mailboxes.retain(|_, slot| {
            let is_due_later = slot.due_times.last().is_some_and(|last| *last > now);
            slot.subscriber.is_some() || is_due_later
        });
        self.remotes.retain(|_, remote| remote.strong_count() > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_due_time_survives_overflow() {
        let mut peers = PeerRegistry::default();
        let mailbox = MailboxName::parse("a").unwrap();
        for at in (1..=DUE_TIMES_MAX as u64 + 10).rev() {
            peers.schedule_delivery(&mailbox, MonotonicTime(at));
        }
        assert_eq!(peers.mailboxes[&mailbox].due_times.len(), DUE_TIMES_MAX);
        let last = MonotonicTime(DUE_TIMES_MAX as u64 + 10);
        assert_eq!(
            peers.next_due(&mailbox, MonotonicTime(last.0 - 1)),
            Some(last)
        );
        peers.prune_all(MonotonicTime(last.0 - 1));
        assert_eq!(peers.mailboxes.len(), 1);
        peers.prune_all(last);
        assert!(
            peers.mailboxes.is_empty(),
            "nothing is due and nobody is there"
        );
    }
}
