//! Which of the hub's own messages are under way, and whose turn it is.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use bowline_core::time::Now;
use bowline_journal::{MessageId, Receipt};
use foldhash::fast::RandomState;
use tokio::sync::watch;

/// Requests of one sender in hand at once.
const SENDER_MAX: usize = 256;

/// Requests of all senders in hand at once.
const IN_HAND_MAX: usize = 2_048;

/// Messages that are taken of one sender at a time.
const BATCH_MAX: usize = 32;

/// Bytes of one principal in hand beyond which no more is taken up of it.
const HAND_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Bytes that are taken of one sender at a time, or one message.
const BATCH_BYTES_MAX: u64 = 2 * 1024 * 1024;

/// Senders whose messages are being taken at the same time.
const LOOKS_MAX: usize = 64;

/// Requests that were taken back before they came up, as many as are remembered.
const CANCELLED_MAX: usize = 4_096;

/// What is under way. Senders take turns, and none has more in hand than a share.
#[derive(Debug, Default)]
pub(super) struct Desk {
    /// Senders that may have something waiting, in turn.
    queue: VecDeque<Arc<str>>,
    queued: HashSet<Arc<str>, RandomState>,
    /// Senders whose messages are being taken now, and how many bytes those may have.
    looks: HashMap<Arc<str>, u64, RandomState>,
    /// Senders that may have more, and have their share in hand or are being looked at.
    later: HashSet<Arc<str>, RandomState>,
    /// What is in hand.
    hands: HashMap<MessageId, Held, RandomState>,
    shares: HashMap<Arc<str>, usize, RandomState>,
    /// Bytes in hand, or being taken, by principal.
    bytes: HashMap<Arc<str>, u64, RandomState>,
    /// The largest message of each sender that may be waiting.
    largest: HashMap<Arc<str>, u64, RandomState>,
    /// When a sender's messages are due again that were put back.
    dues: BTreeSet<(Now, Arc<str>)>,
    /// Requests that were taken back before they came up: `SENDER/ID`.
    cancelled: HashSet<Arc<str>, RandomState>,
    /// The same, oldest first; those that came up since are among them.
    cancelled_order: VecDeque<Arc<str>>,
    count: watch::Sender<usize>,
}

/// A message in hand.
#[derive(Debug)]
struct Held {
    sender: Arc<str>,
    /// What proves that it is ours; the newest, should it be handed out again meanwhile.
    receipt: Receipt,
    bytes: u64,
}

/// Returns the principal of a sender.
fn principal_of(sender: &str) -> &str {
    sender.split('#').next().unwrap_or(sender)
}

impl Desk {
    /// Notes how large a message is that may come to wait.
    pub(super) fn note_bytes(&mut self, sender: &str, bytes: u64) {
        match self.largest.get_mut(sender) {
            Some(largest) => *largest = bytes.max(*largest),
            None => {
                self.largest.insert(sender.into(), bytes);
            }
        }
    }

    /// Notes that a sender may have something waiting.
    pub(super) fn note(&mut self, sender: &str) {
        if !self.queued.contains(sender) {
            let sender: Arc<str> = sender.into();
            self.queued.insert(Arc::clone(&sender));
            self.queue.push_back(sender);
        }
    }

    /// Returns whose turn it is, and how much of it may be taken. [`looked`](Self::looked) says
    /// that this is done.
    pub(super) fn next(&mut self) -> Option<(Arc<str>, usize)> {
        let room = IN_HAND_MAX.saturating_sub(self.hands.len());
        while room > 0 && self.looks.len() < LOOKS_MAX {
            let sender = self.queue.pop_front()?;
            self.queued.remove(&sender);
            let share = self.shares.get(&sender).copied().unwrap_or_default();
            let batch = BATCH_MAX.min(self.batch_of(&sender));
            let max = SENDER_MAX.saturating_sub(share).min(room).min(batch);
            if max > 0 && !self.has_hands_full(&sender) && !self.looks.contains_key(&sender) {
                let largest = self.largest.get(&sender).copied().unwrap_or_default();
                let bytes = largest.saturating_mul(max as u64);
                *self.bytes.entry(principal_of(&sender).into()).or_default() += bytes;
                self.looks.insert(Arc::clone(&sender), bytes);
                return Some((sender, max));
            }
            self.later.insert(sender);
        }
        None
    }

    /// Returns how many messages of a sender fit into one look.
    fn batch_of(&self, sender: &str) -> usize {
        let largest = self.largest.get(sender).copied().unwrap_or_default();
        let fits = BATCH_BYTES_MAX / largest.max(1);
        usize::try_from(fits.max(1)).unwrap_or(usize::MAX)
    }

    fn has_hands_full(&self, sender: &str) -> bool {
        let bytes = self.bytes.get(principal_of(sender));
        bytes.is_some_and(|bytes| *bytes >= HAND_BYTES_MAX)
    }

    /// Ends a look.
    pub(super) fn looked(&mut self, sender: &Arc<str>, found: Found) {
        if let Some(bytes) = self.looks.remove(sender) {
            self.free(sender, bytes);
        }
        if matches!(found, Found::All) && !self.queued.contains(sender) {
            self.largest.remove(sender);
        }
        let later = self.later.remove(sender);
        if later || matches!(found, Found::More) {
            self.note(sender);
        }
    }

    /// Takes a message in hand; `false` where it is already, and then under the newer receipt.
    pub(super) fn begin(&mut self, receipt: Receipt, sender: &Arc<str>, bytes: u64) -> bool {
        let held = Held {
            sender: Arc::clone(sender),
            receipt,
            bytes,
        };
        let fresh = self.hands.insert(receipt.id, held).is_none();
        if fresh {
            *self.shares.entry(Arc::clone(sender)).or_default() += 1;
            *self.bytes.entry(principal_of(sender).into()).or_default() += bytes;
            self.count.send_replace(self.hands.len());
        }
        fresh
    }

    /// Returns what proves that a message in hand is ours.
    pub(super) fn receipt(&self, id: MessageId) -> Option<Receipt> {
        Some(self.hands.get(&id)?.receipt)
    }

    /// Lets go of a message.
    pub(super) fn end(&mut self, id: MessageId) {
        let Some(Held { sender, bytes, .. }) = self.hands.remove(&id) else {
            return;
        };
        if let Some(share) = self.shares.get_mut(&sender) {
            *share = share.saturating_sub(1);
            if *share == 0 {
                self.shares.remove(&sender);
            }
        }
        self.free(&sender, bytes);
        if !self.looks.contains_key(&sender) && self.later.remove(&sender) {
            self.note(&sender);
        }
        self.count.send_replace(self.hands.len());
    }

    /// Takes bytes out of the hands of a principal; where they were full, its other mailboxes have
    /// their turn again.
    fn free(&mut self, sender: &Arc<str>, bytes: u64) {
        let principal = principal_of(sender);
        let Some(held) = self.bytes.get_mut(principal) else {
            return;
        };
        let was_full = *held >= HAND_BYTES_MAX;
        *held = held.saturating_sub(bytes);
        let is_full = *held >= HAND_BYTES_MAX;
        if *held == 0 {
            self.bytes.remove(principal);
        }
        if was_full && !is_full {
            let looks = &self.looks;
            let again = |one: &Arc<str>| principal_of(one) == principal && !looks.contains_key(one);
            let again: Vec<_> = self.later.extract_if(again).collect();
            for one in &again {
                self.note(one);
            }
        }
    }

    /// Notes when messages of a sender are due again.
    pub(super) fn is_due(&mut self, sender: &Arc<str>, at: Now) {
        self.dues.insert((at, Arc::clone(sender)));
    }

    /// Notes those whose messages are due again, and returns when the next ones are.
    pub(super) fn ripen(&mut self, now: Now) -> Option<Now> {
        while let Some((due, sender)) = self.dues.first().cloned() {
            if due > now {
                return Some(due);
            }
            self.dues.pop_first();
            self.note(&sender);
        }
        None
    }

    /// Remembers that a request was taken back that is not in hand.
    pub(super) fn take_back(&mut self, name: Arc<str>) {
        if self.cancelled_order.len() >= CANCELLED_MAX
            && let Some(oldest) = self.cancelled_order.pop_front()
        {
            self.cancelled.remove(&oldest);
        }
        if self.cancelled.insert(Arc::clone(&name)) {
            self.cancelled_order.push_back(name);
        }
    }

    /// Whether a request was taken back before it came up.
    pub(super) fn was_taken_back(&mut self, name: &str) -> bool {
        self.cancelled.remove(name)
    }

    /// Sees how many are in hand.
    pub(super) fn quiet(&self) -> watch::Receiver<usize> {
        self.count.subscribe()
    }
}

/// What a look into the messages of a sender found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// As many as were asked for; there may be more.
    More,
    /// All there is.
    All,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receipt(id: u64) -> Receipt {
        Receipt {
            id: MessageId(id),
            lease: 1,
        }
    }

    #[test]
    fn senders_take_turns_and_each_is_looked_at_by_one() {
        let mut desk = Desk::default();
        for sender in ["a", "b", "a"] {
            desk.note(sender);
        }
        let (a, max) = desk.next().unwrap();
        assert_eq!((&*a, max), ("a", BATCH_MAX));
        desk.note("a");
        assert_eq!(&*desk.next().unwrap().0, "b");
        assert_eq!(desk.next(), None, "it is looked at already");
        desk.looked(&a, Found::All);
        assert_eq!(&*desk.next().unwrap().0, "a", "noted meanwhile");
        desk.looked(&a, Found::All);
        assert_eq!(desk.next(), None);
    }

    #[test]
    fn whoever_has_its_share_in_hand_waits_until_something_of_it_ends() {
        let mut desk = Desk::default();
        let a: Arc<str> = "a".into();
        for id in 0..SENDER_MAX as u64 {
            assert!(desk.begin(receipt(id), &a, 0));
        }
        desk.note("a");
        assert_eq!(desk.next(), None);
        desk.end(MessageId(0));
        assert_eq!(desk.next(), Some((Arc::clone(&a), 1)));
        desk.looked(&a, Found::All);
        desk.end(MessageId(1));
        assert_eq!(desk.next(), None, "nothing more was said to wait");
    }

    #[test]
    fn a_message_that_is_handed_out_again_is_in_hand_once_under_its_newer_receipt() {
        let mut desk = Desk::default();
        let a: Arc<str> = "a".into();
        assert!(desk.begin(receipt(7), &a, 0));
        let newer = Receipt {
            lease: 2,
            ..receipt(7)
        };
        assert!(!desk.begin(newer, &a, 0));
        assert_eq!(desk.receipt(MessageId(7)), Some(newer));
        desk.end(MessageId(7));
        assert_eq!((desk.receipt(MessageId(7)), desk.shares.len()), (None, 0));
    }

    #[test]
    fn so_many_requests_are_remembered_as_taken_back() {
        let mut desk = Desk::default();
        for nth in 0..=CANCELLED_MAX {
            desk.take_back(nth.to_string().into());
        }
        assert!(!desk.was_taken_back("0"), "the oldest is forgotten");
        assert!(desk.was_taken_back("1") && !desk.was_taken_back("1"));
    }

    #[test]
    fn what_was_put_back_is_noted_when_it_is_due() {
        let mut desk = Desk::default();
        desk.is_due(&"a".into(), Now(10));
        desk.is_due(&"b".into(), Now(20));
        assert_eq!(desk.ripen(Now(9)), Some(Now(10)));
        assert_eq!(desk.next(), None);
        assert_eq!(desk.ripen(Now(10)), Some(Now(20)));
        assert_eq!(&*desk.next().unwrap().0, "a");
    }
}
