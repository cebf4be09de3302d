//! The stored requests that are dealt with in this process, each by one.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex};

use bowline_core::sync::lock;
use bowline_wire::broker::Answer;
use tokio::sync::watch;

/// Names a request: the mailbox it came from and its id there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) caller: Arc<str>,
    pub(super) id: Arc<str>,
}

/// The requests in hand.
#[derive(Debug, Default)]
pub(super) struct Desk(Mutex<Open>);

#[derive(Debug, Default)]
struct Open {
    slots: HashMap<Key, Arc<Slot>>,
    /// Set once: no more are taken.
    closed: bool,
}

/// One request in hand.
#[derive(Debug)]
struct Slot {
    /// How it ended, once it has.
    ended: watch::Sender<Option<Ended>>,
    /// Whether it was taken back.
    cancelled: watch::Sender<bool>,
}

/// How the one who dealt with a request ended.
#[derive(Clone, Debug)]
pub(super) enum Ended {
    /// The reply is stored.
    Replied,
    /// There is an answer, and no way to give it.
    Unreplied(Arc<Answer>),
}

/// What came of taking a request in hand.
#[derive(Debug)]
pub(super) enum Entered<'a> {
    /// It is ours alone.
    Alone(Turn<'a>),
    /// Somebody deals with it.
    Beside(Other),
    /// There are too many, or no more are taken.
    Full,
}

/// Whoever deals with the same request.
#[derive(Debug)]
pub(super) struct Other(watch::Receiver<Option<Ended>>);

impl Other {
    /// Waits for how it ended; nothing where it went away without an end.
    pub(super) async fn ended(mut self) -> Option<Ended> {
        let ended = self.0.wait_for(Option::is_some).await;
        ended.ok().and_then(|ended| ended.clone())
    }
}

/// One request that is ours until this is dropped.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    desk: &'a Desk,
    key: Key,
    slot: Arc<Slot>,
}

impl Desk {
    /// Takes a request in hand where fewer than `max` are.
    pub(super) fn enter(&self, key: &Key, max: usize) -> Entered<'_> {
        let mut open = lock(&self.0);
        let (count, closed) = (open.slots.len(), open.closed);
        match open.slots.entry(key.clone()) {
            Entry::Occupied(other) => Entered::Beside(Other(other.get().ended.subscribe())),
            Entry::Vacant(_) if closed || count >= max => Entered::Full,
            Entry::Vacant(free) => {
                let slot = Arc::new(Slot {
                    ended: watch::Sender::new(None),
                    cancelled: watch::Sender::new(false),
                });
                free.insert(Arc::clone(&slot));
                Entered::Alone(Turn {
                    desk: self,
                    key: key.clone(),
                    slot,
                })
            }
        }
    }

    /// Takes a request back; `false` where nobody deals with it.
    pub(super) fn cancel(&self, key: &Key) -> bool {
        let open = lock(&self.0);
        let slot = open.slots.get(key);
        slot.map(|slot| slot.cancelled.send_replace(true)).is_some()
    }

    /// Takes no more requests, and returns those in hand.
    pub(super) fn close(&self) -> Vec<Other> {
        let mut open = lock(&self.0);
        open.closed = true;
        let slots = open.slots.values();
        slots.map(|slot| Other(slot.ended.subscribe())).collect()
    }

    /// Takes every request back.
    pub(super) fn cancel_all(&self) {
        for slot in lock(&self.0).slots.values() {
            slot.cancelled.send_replace(true);
        }
    }

    /// Returns how many are in hand.
    pub(super) fn len(&self) -> usize {
        lock(&self.0).slots.len()
    }
}

impl Turn<'_> {
    /// Waits until the request is taken back.
    pub(super) async fn cancelled(&self) {
        let mut cancelled = self.slot.cancelled.subscribe();
        // The sender is ours, so the channel cannot close under us.
        let _ = cancelled.wait_for(|cancelled| *cancelled).await;
    }

    /// Tells those who wait beside how it ended.
    pub(super) fn end(self, ended: Ended) {
        self.slot.ended.send_replace(Some(ended));
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        lock(&self.desk.0).slots.remove(&self.key);
    }
}
