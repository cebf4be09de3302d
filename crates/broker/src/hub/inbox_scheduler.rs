//! Schedules the hub's own inbox: fair rotation of senders, with limits per sender and principal.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use bowline_core::time::MonotonicTime;
use bowline_journal::{LeaseReceipt, MessageId};
use foldhash::fast::RandomState;

/// Requests of one sender in flight.
const SENDER_IN_FLIGHT_MAX: usize = 256;

/// Requests of all senders in flight.
const IN_FLIGHT_MAX: usize = 2_048;

/// Messages leased from one sender at a time.
const BATCH_MAX: usize = 32;

/// Bytes of one principal in flight beyond which no further message is leased.
const PRINCIPAL_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Bytes leased from one sender at a time, or a single message.
const BATCH_BYTES_MAX: u64 = 2 * 1024 * 1024;

/// Senders scanned at the same time.
const SCANS_MAX: usize = 64;

/// Cancelled requests remembered until the message arrives.
const CANCELLED_MAX: usize = 4_096;

/// Inbox state. Senders take turns, and each has a limited share in flight.
#[derive(Debug, Default)]
pub(super) struct InboxScheduler {
    /// Senders that may have pending messages, in rotation order.
    queue: VecDeque<Arc<str>>,
    queued: HashSet<Arc<str>, RandomState>,
    /// Senders being scanned now, with the bytes reserved for the scan.
    scans: HashMap<Arc<str>, u64, RandomState>,
    /// Senders with possible further messages that are at a limit or being scanned.
    deferred: HashSet<Arc<str>, RandomState>,
    /// Messages in flight.
    in_flight: HashMap<MessageId, InboxMessage, RandomState>,
    sender_counts: HashMap<Arc<str>, usize, RandomState>,
    /// Bytes in flight or reserved by a scan, by principal.
    principal_bytes: HashMap<Arc<str>, u64, RandomState>,
    /// Largest pending message of each sender.
    largest_message: HashMap<Arc<str>, u64, RandomState>,
    /// Retry times of senders with returned messages.
    due_times: BTreeSet<(MonotonicTime, Arc<str>)>,
    /// Requests cancelled before arrival: `SENDER/ID`.
    cancelled: HashSet<Arc<str>, RandomState>,
    /// Insertion order of `cancelled`, oldest first; may name requests that arrived since.
    cancelled_order: VecDeque<Arc<str>>,
}

/// A message in flight.
#[derive(Debug)]
struct InboxMessage {
    sender: Arc<str>,
    /// The newest lease receipt, in case of a redelivery meanwhile.
    receipt: LeaseReceipt,
    bytes: u64,
}

/// Returns the principal of a sender.
fn sender_principal(sender: &str) -> &str {
    sender.split('#').next().unwrap_or(sender)
}

impl InboxScheduler {
    /// Records the size of a message that may become pending.
    pub(super) fn record_size(&mut self, sender: &str, bytes: u64) {
        match self.largest_message.get_mut(sender) {
            Some(largest) => *largest = bytes.max(*largest),
            None => {
                self.largest_message.insert(sender.into(), bytes);
            }
        }
    }

    /// Marks a sender as possibly having pending messages.
    pub(super) fn mark_pending(&mut self, sender: &str) {
        if !self.queued.contains(sender) {
            let sender: Arc<str> = sender.into();
            self.queued.insert(Arc::clone(&sender));
            self.queue.push_back(sender);
        }
    }

    /// Returns the next sender and the number of messages to lease. The caller ends the scan with
    /// [`finish_scan`](Self::finish_scan).
    pub(super) fn next_sender(&mut self) -> Option<(Arc<str>, usize)> {
        let room = IN_FLIGHT_MAX.saturating_sub(self.in_flight.len());
        while room > 0 && self.scans.len() < SCANS_MAX {
            let sender = self.queue.pop_front()?;
            self.queued.remove(&sender);
            let in_flight = self.sender_counts.get(&sender).copied().unwrap_or_default();
            let batch = BATCH_MAX.min(self.batch_limit(&sender));
            let max = SENDER_IN_FLIGHT_MAX
                .saturating_sub(in_flight)
                .min(room)
                .min(batch);
            if max > 0 && !self.is_over_byte_limit(&sender) && !self.scans.contains_key(&sender) {
                let largest = self
                    .largest_message
                    .get(&sender)
                    .copied()
                    .unwrap_or_default();
                let bytes = largest.saturating_mul(max as u64);
                *self
                    .principal_bytes
                    .entry(sender_principal(&sender).into())
                    .or_default() += bytes;
                self.scans.insert(Arc::clone(&sender), bytes);
                return Some((sender, max));
            }
            self.deferred.insert(sender);
        }
        None
    }

    /// Returns how many messages of a sender fit into one scan.
    fn batch_limit(&self, sender: &str) -> usize {
        let largest = self
            .largest_message
            .get(sender)
            .copied()
            .unwrap_or_default();
        let fits = BATCH_BYTES_MAX / largest.max(1);
        usize::try_from(fits.max(1)).unwrap_or(usize::MAX)
    }

    fn is_over_byte_limit(&self, sender: &str) -> bool {
        let bytes = self.principal_bytes.get(sender_principal(sender));
        bytes.is_some_and(|bytes| *bytes >= PRINCIPAL_BYTES_MAX)
    }

    /// Ends a scan.
    pub(super) fn finish_scan(&mut self, sender: &Arc<str>, scan: InboxScan) {
        if let Some(bytes) = self.scans.remove(sender) {
            self.release_bytes(sender, bytes);
        }
        if matches!(scan, InboxScan::All) && !self.queued.contains(sender) {
            self.largest_message.remove(sender);
        }
        let later = self.deferred.remove(sender);
        if later || matches!(scan, InboxScan::More) {
            self.mark_pending(sender);
        }
    }

    /// Records a message as in flight; `false` for a redelivery, which replaces the receipt.
    pub(super) fn start_message(
        &mut self,
        receipt: LeaseReceipt,
        sender: &Arc<str>,
        bytes: u64,
    ) -> bool {
        let message = InboxMessage {
            sender: Arc::clone(sender),
            receipt,
            bytes,
        };
        let is_new = self.in_flight.insert(receipt.id, message).is_none();
        if is_new {
            *self.sender_counts.entry(Arc::clone(sender)).or_default() += 1;
            *self
                .principal_bytes
                .entry(sender_principal(sender).into())
                .or_default() += bytes;
        }
        is_new
    }

    /// Returns the lease receipt of a message in flight.
    pub(super) fn receipt(&self, id: MessageId) -> Option<LeaseReceipt> {
        Some(self.in_flight.get(&id)?.receipt)
    }

    /// Removes a finished message.
    pub(super) fn finish_message(&mut self, id: MessageId) {
        let Some(InboxMessage { sender, bytes, .. }) = self.in_flight.remove(&id) else {
            return;
        };
        if let Some(share) = self.sender_counts.get_mut(&sender) {
            *share = share.saturating_sub(1);
            if *share == 0 {
                self.sender_counts.remove(&sender);
            }
        }
        self.release_bytes(&sender, bytes);
        if !self.scans.contains_key(&sender) && self.deferred.remove(&sender) {
            self.mark_pending(&sender);
        }
    }

    /// Releases bytes of a principal; when the principal drops below the limit, deferred mailboxes
    /// of the same principal become pending again.
    fn release_bytes(&mut self, sender: &Arc<str>, bytes: u64) {
        let principal = sender_principal(sender);
        let Some(used_bytes) = self.principal_bytes.get_mut(principal) else {
            return;
        };
        let was_full = *used_bytes >= PRINCIPAL_BYTES_MAX;
        *used_bytes = used_bytes.saturating_sub(bytes);
        let is_full = *used_bytes >= PRINCIPAL_BYTES_MAX;
        if *used_bytes == 0 {
            self.principal_bytes.remove(principal);
        }
        if was_full && !is_full {
            let scans = &self.scans;
            let ready =
                |one: &Arc<str>| sender_principal(one) == principal && !scans.contains_key(one);
            let ready: Vec<_> = self.deferred.extract_if(ready).collect();
            for one in &ready {
                self.mark_pending(one);
            }
        }
    }

    /// Schedules a retry of a sender's returned messages.
    pub(super) fn schedule_retry(&mut self, sender: &Arc<str>, at: MonotonicTime) {
        self.due_times.insert((at, Arc::clone(sender)));
    }

    /// Marks senders with due retries as pending, and returns the next retry time.
    pub(super) fn promote_due(&mut self, now: MonotonicTime) -> Option<MonotonicTime> {
        while let Some((due, sender)) = self.due_times.first().cloned() {
            if due > now {
                return Some(due);
            }
            self.due_times.pop_first();
            self.mark_pending(&sender);
        }
        None
    }

    /// Remembers the cancellation of a request that is not in flight.
    pub(super) fn remember_cancelled(&mut self, name: Arc<str>) {
        if self.cancelled_order.len() >= CANCELLED_MAX
            && let Some(oldest) = self.cancelled_order.pop_front()
        {
            self.cancelled.remove(&oldest);
        }
        if self.cancelled.insert(Arc::clone(&name)) {
            self.cancelled_order.push_back(name);
        }
    }

    /// Returns whether a request was cancelled before arrival, and forgets the cancellation.
    pub(super) fn take_cancelled(&mut self, name: &str) -> bool {
        self.cancelled.remove(name)
    }
}

/// Result of scanning a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InboxScan {
    /// The batch was full; more messages may be pending.
    More,
    /// No further messages.
    All,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receipt(id: u64) -> LeaseReceipt {
        LeaseReceipt {
            id: MessageId(id),
            lease: 1,
        }
    }

    #[test]
    fn senders_rotate_with_one_scan_each() {
        let mut scheduler = InboxScheduler::default();
        for sender in ["a", "b", "a"] {
            scheduler.mark_pending(sender);
        }
        let (a, max) = scheduler.next_sender().unwrap();
        assert_eq!((&*a, max), ("a", BATCH_MAX));
        scheduler.mark_pending("a");
        assert_eq!(&*scheduler.next_sender().unwrap().0, "b");
        assert_eq!(scheduler.next_sender(), None, "it is looked at already");
        scheduler.finish_scan(&a, InboxScan::All);
        assert_eq!(&*scheduler.next_sender().unwrap().0, "a", "noted meanwhile");
        scheduler.finish_scan(&a, InboxScan::All);
        assert_eq!(scheduler.next_sender(), None);
    }

    #[test]
    fn sender_at_limit_waits_for_a_finish() {
        let mut scheduler = InboxScheduler::default();
        let a: Arc<str> = "a".into();
        for id in 0..SENDER_IN_FLIGHT_MAX as u64 {
            assert!(scheduler.start_message(receipt(id), &a, 0));
        }
        scheduler.mark_pending("a");
        assert_eq!(scheduler.next_sender(), None);
        scheduler.finish_message(MessageId(0));
        assert_eq!(scheduler.next_sender(), Some((Arc::clone(&a), 1)));
        scheduler.finish_scan(&a, InboxScan::All);
        scheduler.finish_message(MessageId(1));
        assert_eq!(
            scheduler.next_sender(),
            None,
            "nothing more was said to wait"
        );
    }

    #[test]
    fn redelivered_message_counts_once_under_newer_receipt() {
        let mut scheduler = InboxScheduler::default();
        let a: Arc<str> = "a".into();
        assert!(scheduler.start_message(receipt(7), &a, 0));
        let newer = LeaseReceipt {
            lease: 2,
            ..receipt(7)
        };
        assert!(!scheduler.start_message(newer, &a, 0));
        assert_eq!(scheduler.receipt(MessageId(7)), Some(newer));
        scheduler.finish_message(MessageId(7));
        assert_eq!(
            (
                scheduler.receipt(MessageId(7)),
                scheduler.sender_counts.len()
            ),
            (None, 0)
        );
    }

    #[test]
    fn oldest_cancelled_request_is_forgotten() {
        let mut scheduler = InboxScheduler::default();
        for nth in 0..=CANCELLED_MAX {
            scheduler.remember_cancelled(nth.to_string().into());
        }
        assert!(!scheduler.take_cancelled("0"), "the oldest is forgotten");
        assert!(scheduler.take_cancelled("1") && !scheduler.take_cancelled("1"));
    }

    #[test]
    fn put_back_sender_is_pending_when_due() {
        let mut scheduler = InboxScheduler::default();
        scheduler.schedule_retry(&"a".into(), MonotonicTime(10));
        scheduler.schedule_retry(&"b".into(), MonotonicTime(20));
        assert_eq!(
            scheduler.promote_due(MonotonicTime(9)),
            Some(MonotonicTime(10))
        );
        assert_eq!(scheduler.next_sender(), None);
        assert_eq!(
            scheduler.promote_due(MonotonicTime(10)),
            Some(MonotonicTime(20))
        );
        assert_eq!(&*scheduler.next_sender().unwrap().0, "a");
    }
}
