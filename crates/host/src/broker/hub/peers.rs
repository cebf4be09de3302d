//! Who is here, and who takes the messages of which mailbox.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, Weak};

use bowline_core::caller::CallerEnd;
use bowline_core::mailbox::Mailbox;
use bowline_core::sync::lock;
use bowline_core::time::Now;
use bowline_journal::Receipt;
use bowline_link::websocket::Outgoing;
use bowline_wire::broker::{Frame, From, Refusal};
use bytes::Bytes;
use foldhash::fast::RandomState;
use tokio::sync::{Notify, Semaphore, oneshot, watch};

use super::Admitted;
use super::remote::PeerRemote;
use crate::broker::asking::{Patience, Put};

/// Moments at which messages of one mailbox are due again that are kept; more are taken together.
const DUES_MAX: usize = 1_024;

/// One connection of a peer that was let in.
#[derive(Debug)]
pub(super) struct Peer {
    /// Tells connections apart.
    pub(super) number: u64,
    pub(super) admitted: Admitted,
    /// What is stamped on all that it sends.
    pub(super) stamp: From,
    pub(super) out: Outgoing,
    pub(super) since_unix_ms: u64,
    /// Wakes its pump.
    pub(super) poke: Notify,
    /// As many as may be asked of it at once.
    pub(super) turns: Semaphore,
    /// What its servers ask those who wait for its answers.
    pub(super) put: Arc<Put>,
    /// Words of tools that it did not read in time.
    pub(super) events_dropped: AtomicU64,
    pub(super) books: Mutex<Books>,
}

/// What changes while a peer is here.
#[derive(Debug, Default)]
pub(super) struct Books {
    /// Whether it is gone, or another took its place: nothing more is pushed.
    pub(super) over: bool,
    /// Whether it takes messages.
    pub(super) subscribed: bool,
    /// What was pushed to it and not acknowledged, by the ids of the messages.
    pub(super) pushed: HashMap<Arc<str>, Pushed>,
    /// What the hub asked of it, live, by the names that the hub gave.
    pub(super) asked: HashMap<Arc<str>, Waiter, RandomState>,
    /// What it last saw of the catalog.
    pub(super) seen: [u8; 32],
    /// Whether somebody waits to tell it that this changed.
    pub(super) telling: bool,
    /// Its servers in our catalog.
    pub(super) offers: Vec<Arc<str>>,
}

/// A message that is a subscriber's until it says what became of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pushed {
    pub(super) receipt: Receipt,
    /// When it is pushed again.
    pub(super) until: Now,
}

/// Somebody who waits for a peer's live answer.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) answer: oneshot::Sender<Bytes>,
    pub(super) ear: Ear,
}

/// Who hears what the server of a request says and asks before it answers.
#[derive(Clone, Debug, Default)]
pub(super) struct Ear {
    pub(super) sink: Option<Arc<dyn CallerEnd>>,
    /// How long it was asked.
    pub(super) patience: Arc<Patience>,
}

impl Ear {
    pub(super) fn of(sink: Option<Arc<dyn CallerEnd>>) -> Self {
        Self {
            sink,
            patience: Arc::default(),
        }
    }
}

impl Peer {
    /// Queues a frame, and waits while it does not read; `false` when it is gone.
    pub(super) async fn send(&self, frame: &Frame) -> bool {
        self.out.send(frame.to_bytes()).await.is_ok()
    }

    /// Queues a frame if there is room.
    pub(super) fn try_send(&self, frame: &Frame) -> bool {
        self.out.try_send(frame.to_bytes()).is_ok()
    }

    /// Tells it why the connection ends, and ends it.
    pub(super) fn end(&self, close: u16, refusal: Refusal) {
        let reason = Arc::clone(&refusal.reason);
        self.try_send(&Frame::Error(refusal));
        self.out.close(close, &reason);
    }

    pub(super) const fn mailbox(&self) -> &Mailbox {
        &self.admitted.mailbox
    }
}

/// All who are here.
#[derive(Debug, Default)]
pub(super) struct Peers {
    here: HashMap<u64, Arc<Peer>, RandomState>,
    slots: HashMap<Mailbox, Slot, RandomState>,
    /// Peers as the hub asks them, while anybody holds them.
    pub(super) remotes: HashMap<Mailbox, Weak<PeerRemote>, RandomState>,
    count: watch::Sender<usize>,
}

/// One mailbox that somebody takes messages of, or of which some are due later.
#[derive(Debug, Default)]
struct Slot {
    subscriber: Option<Arc<Peer>>,
    /// When messages that were given back are due.
    dues: BTreeSet<Now>,
}

/// What came of a subscription.
#[derive(Debug)]
pub(super) enum Subscribed {
    /// It takes the messages from now on, in place of the other.
    First(Option<Arc<Peer>>),
    /// It did so before, or is gone already.
    Already,
}

impl Peers {
    /// Takes a peer in; `false` where there are as many as may be.
    pub(super) fn enter(&mut self, peer: &Arc<Peer>, peers_max: usize) -> bool {
        if self.here.len() >= peers_max {
            return false;
        }
        self.here.insert(peer.number, Arc::clone(peer));
        self.count.send_replace(self.here.len());
        true
    }

    /// Gives a peer the messages of its mailbox, and takes them from whoever had them.
    pub(super) fn subscribe(&mut self, peer: &Arc<Peer>) -> Subscribed {
        let is_over = lock(&peer.books).over;
        if is_over || !self.here.contains_key(&peer.number) {
            return Subscribed::Already;
        }
        let slot = self.slots.entry(peer.mailbox().clone()).or_default();
        let same = |old: &Arc<Peer>| old.number == peer.number;
        if slot.subscriber.as_ref().is_some_and(same) {
            return Subscribed::Already;
        }
        lock(&peer.books).subscribed = true;
        Subscribed::First(slot.subscriber.replace(Arc::clone(peer)))
    }

    /// Forgets a peer. What another took over in the meantime stays the other's.
    pub(super) fn leave(&mut self, peer: &Peer) {
        self.here.remove(&peer.number);
        if let Some(slot) = self.slots.get_mut(peer.mailbox()) {
            let own = |held: &mut Arc<Peer>| held.number == peer.number;
            slot.subscriber.take_if(own);
        }
        self.tidy(peer.mailbox());
        self.count.send_replace(self.here.len());
    }

    /// Returns who takes the messages of a mailbox.
    pub(super) fn subscriber(&self, mailbox: &Mailbox) -> Option<Arc<Peer>> {
        self.slots.get(mailbox)?.subscriber.clone()
    }

    /// Returns the mailboxes of a principal that somebody is here for.
    pub(super) fn mailboxes_of(&self, principal: &str) -> HashSet<Mailbox, RandomState> {
        let here = self.here.values().map(|peer| peer.mailbox());
        let own = here.filter(|mailbox| mailbox.principal() == principal);
        own.cloned().collect()
    }

    /// Returns all who are here.
    pub(super) fn here(&self) -> impl Iterator<Item = &Arc<Peer>> {
        self.here.values()
    }

    /// Returns all who take messages.
    pub(super) fn subscribers(&self) -> impl Iterator<Item = &Arc<Peer>> {
        self.slots
            .values()
            .filter_map(|slot| slot.subscriber.as_ref())
    }

    /// Notes that a message of a mailbox is due at a moment.
    pub(super) fn is_due(&mut self, mailbox: &Mailbox, at: Now) {
        let slot = self.slots.entry(mailbox.clone()).or_default();
        slot.dues.insert(at);
        if slot.dues.len() > DUES_MAX {
            // The last moment stands for the one before it as well.
            let covered = slot.dues.iter().rev().nth(1).copied();
            covered.map(|covered| slot.dues.remove(&covered));
        }
    }

    /// Returns when the next message of a mailbox is due that was given back; those that are due
    /// now are forgotten.
    pub(super) fn next_due(&mut self, mailbox: &Mailbox, now: Now) -> Option<Now> {
        let slot = self.slots.get_mut(mailbox)?;
        let later = slot.dues.split_off(&Now(now.0.saturating_add(1)));
        slot.dues = later;
        slot.dues.first().copied()
    }

    /// Forgets what is of no more use of a mailbox.
    fn tidy(&mut self, mailbox: &Mailbox) {
        let is_empty = |slot: &Slot| slot.subscriber.is_none() && slot.dues.is_empty();
        if self.slots.get(mailbox).is_some_and(is_empty) {
            self.slots.remove(mailbox);
        }
        let is_gone = |remote: &Weak<PeerRemote>| remote.strong_count() == 0;
        if self.remotes.get(mailbox).is_some_and(is_gone) {
            self.remotes.remove(mailbox);
        }
    }

    /// Forgets what is of no more use of mailboxes that nobody takes messages of.
    pub(super) fn sweep(&mut self, now: Now) {
        self.slots.retain(|_, slot| {
            let is_due_later = slot.dues.last().is_some_and(|last| *last > now);
            slot.subscriber.is_some() || is_due_later
        });
        self.remotes.retain(|_, remote| remote.strong_count() > 0);
    }

    /// Sees how many are here.
    pub(super) fn quiet(&self) -> watch::Receiver<usize> {
        self.count.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_many_moments_is_never_forgotten() {
        let mut peers = Peers::default();
        let mailbox = Mailbox::parse("a").unwrap();
        for at in (1..=DUES_MAX as u64 + 10).rev() {
            peers.is_due(&mailbox, Now(at));
        }
        assert_eq!(peers.slots[&mailbox].dues.len(), DUES_MAX);
        let last = Now(DUES_MAX as u64 + 10);
        assert_eq!(peers.next_due(&mailbox, Now(last.0 - 1)), Some(last));
        peers.sweep(Now(last.0 - 1));
        assert_eq!(peers.slots.len(), 1);
        peers.sweep(last);
        assert!(peers.slots.is_empty(), "nothing is due and nobody is there");
    }
}
