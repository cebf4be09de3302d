//! Journal state in plain maps: the reference model for all engines.

mod memory_queries;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bowline_core::time::{MonotonicTime, to_millis};
use bytes::Bytes;

use crate::engine::{
    COMPLETED_BYTES_MAX, COMPLETED_MAX, COMPLETED_TTL, CompletedMessage, DEAD_LETTERS_MAX,
    Duplicate, EXPIRE_MAX, ExpectedRevision, JournalError, LANE_MESSAGES_MAX, LISTED_BYTES_MAX,
    LaneName, LeaseOrder, LeaseReceipt, LeasedMessage, MessageDraft, MessageId, MessageStatus,
    MessageView, PublishOutcome, Timestamps, VersionedValue,
};
use crate::validation::{check_key, check_size, duration_between, expiry_unix_ms};
use crate::watches::RevisionWatches;

/// Complete state of an in-memory journal.
#[derive(Debug, Default)]
pub(super) struct MemoryTable {
    /// Last number of a message, of a place in a lane, of a lease, and of a value revision.
    id: u64,
    place: u64,
    lease: u64,
    revision: u64,
    messages: BTreeMap<MessageId, MemoryMessage>,
    /// Live messages of each lane, by place.
    lanes: BTreeMap<LaneName, BTreeMap<u64, MessageId>>,
    by_dedupe: HashMap<(LaneName, Arc<str>), MessageId>,
    completed: HashMap<(LaneName, Arc<str>), ([u8; 32], CompletedMessage)>,
    /// Keys of `completed`, oldest first.
    completed_by_age: VecDeque<(LaneName, Arc<str>)>,
    /// Bytes of all kept results.
    completed_bytes: u64,
    dead_letters: BTreeMap<MessageId, ()>,
    values: BTreeMap<Arc<str>, VersionedValue>,
    pub(super) watches: RevisionWatches,
    pub(super) is_closed: bool,
}

#[derive(Debug)]
struct MemoryMessage {
    draft: MessageDraft,
    place: u64,
    attempts: u32,
    stored_unix_ms: u64,
    expires_unix_ms: Option<u64>,
    /// Newest lease and its end.
    lease: Option<(u64, MonotonicTime)>,
    /// Earliest time of the next lease.
    due: MonotonicTime,
    dead: Option<Arc<str>>,
}

impl MemoryMessage {
    fn is_leased(&self, at: Timestamps) -> bool {
        self.lease.is_some_and(|(_, until)| at.now < until)
    }

    fn is_expired(&self, at: Timestamps) -> bool {
        self.expires_unix_ms.is_some_and(|end| end <= at.unix_ms)
    }
}

fn result_bytes(done: &CompletedMessage) -> u64 {
    done.result.as_ref().map_or(0, |result| result.len() as u64)
}

impl MemoryTable {
    pub(super) fn publish(
        &mut self,
        draft: MessageDraft,
        at: Timestamps,
    ) -> Result<PublishOutcome, JournalError> {
        check_key(&draft.dedupe)?;
        check_size(&draft.body)?;
        self.evict_completed(at);
        let key = (draft.lane.clone(), Arc::clone(&draft.dedupe));
        if let Some((digest, done)) = self.completed.get(&key) {
            return match *digest == draft.digest {
                true => Ok(PublishOutcome::Duplicate(Duplicate::Completed(
                    done.clone(),
                ))),
                false => Err(JournalError::Conflict),
            };
        }
        if let Some(id) = self.by_dedupe.get(&key).copied() {
            return self.duplicate_outcome(id, draft.digest, at);
        }
        let lane = self.lanes.get(&draft.lane);
        let waiting = lane.map_or(0, |lane| lane.len() as u64);
        if waiting >= LANE_MESSAGES_MAX {
            return Err(JournalError::LaneFull {
                limit: LANE_MESSAGES_MAX,
            });
        }
        let mut ahead = lane.into_iter().flat_map(BTreeMap::values);
        let free = ahead.all(|id| self.messages.get(id).is_some_and(|one| one.is_leased(at)));
        self.id += 1;
        self.place += 1;
        let id = MessageId(self.id);
        let hold = draft.lease.filter(|_| free);
        let lease = hold.map(|hold| {
            self.lease += 1;
            (self.lease, at.now.plus(hold))
        });
        let receipt = lease.map(|(lease, _)| LeaseReceipt { id, lease });
        let lane = self.lanes.entry(draft.lane.clone()).or_default();
        lane.insert(self.place, id);
        let stored = MemoryMessage {
            place: self.place,
            attempts: u32::from(receipt.is_some()),
            stored_unix_ms: at.unix_ms,
            expires_unix_ms: expiry_unix_ms(draft.ttl, at),
            lease,
            due: at.now,
            dead: None,
            draft,
        };
        self.messages.insert(id, stored);
        self.by_dedupe.insert(key, id);
        let position = waiting + 1;
        Ok(PublishOutcome::Stored {
            id,
            position,
            receipt,
        })
    }

    fn duplicate_outcome(
        &self,
        id: MessageId,
        digest: [u8; 32],
        at: Timestamps,
    ) -> Result<PublishOutcome, JournalError> {
        let stored = self.messages.get(&id).ok_or(JournalError::NotFound)?;
        if stored.draft.digest != digest {
            return Err(JournalError::Conflict);
        }
        Ok(PublishOutcome::Duplicate(match stored.dead {
            Some(_) => Duplicate::DeadLetter(id),
            None => Duplicate::Queued {
                id,
                position: self.position(stored),
                is_leased: stored.is_leased(at),
            },
        }))
    }

    fn position(&self, stored: &MemoryMessage) -> u64 {
        let lane = self.lanes.get(&stored.draft.lane);
        lane.map_or(0, |lane| lane.range(..=stored.place).count() as u64)
    }

    pub(super) fn lease(
        &mut self,
        lane: &LaneName,
        order: LeaseOrder,
        max: usize,
        hold: Duration,
        at: Timestamps,
    ) -> Vec<LeasedMessage> {
        let lane = self.lanes.get(lane).into_iter();
        let ids: Vec<_> = lane.flat_map(BTreeMap::values).copied().collect();
        let mut leased = Vec::new();
        for id in ids {
            let Some(stored) = self.messages.get_mut(&id) else {
                continue;
            };
            let is_free = !stored.is_leased(at) && stored.due <= at.now && !stored.is_expired(at);
            if leased.len() >= max || (order == LeaseOrder::Strict && !is_free) {
                break;
            }
            if is_free {
                self.lease += 1;
                stored.lease = Some((self.lease, at.now.plus(hold)));
                stored.attempts = stored.attempts.saturating_add(1);
                leased.push(LeasedMessage {
                    receipt: LeaseReceipt {
                        id,
                        lease: self.lease,
                    },
                    dedupe: Arc::clone(&stored.draft.dedupe),
                    body: stored.draft.body.clone(),
                    attempts: stored.attempts,
                    stored_unix_ms: stored.stored_unix_ms,
                    expires_unix_ms: stored.expires_unix_ms,
                    age: duration_between(stored.stored_unix_ms, at.unix_ms),
                    remaining: stored
                        .expires_unix_ms
                        .map(|end| duration_between(at.unix_ms, end)),
                });
            }
            if order == LeaseOrder::Strict {
                break;
            }
        }
        leased
    }

    /// Returns the message leased under this receipt. An expired lease stays valid until the
    /// message is leased again.
    fn leased_mut(&mut self, receipt: LeaseReceipt) -> Result<&mut MemoryMessage, JournalError> {
        let stored = self.messages.get_mut(&receipt.id);
        stored
            .filter(|stored| {
                stored
                    .lease
                    .is_some_and(|(lease, _)| lease == receipt.lease)
            })
            .ok_or(JournalError::LeaseLost)
    }

    /// Removes a message from its lane.
    fn take_from_lane(&mut self, id: MessageId) -> Option<MemoryMessage> {
        let stored = self.messages.remove(&id)?;
        if let Some(lane) = self.lanes.get_mut(&stored.draft.lane) {
            lane.remove(&stored.place);
            if lane.is_empty() {
                self.lanes.remove(&stored.draft.lane);
            }
        }
        self.dead_letters.remove(&id);
        Some(stored)
    }

    fn dedupe_key(stored: &MemoryMessage) -> (LaneName, Arc<str>) {
        let MessageDraft { lane, dedupe, .. } = &stored.draft;
        (lane.clone(), Arc::clone(dedupe))
    }

    pub(super) fn ack(
        &mut self,
        receipt: LeaseReceipt,
        result: Option<Bytes>,
        at: Timestamps,
    ) -> Result<(), JournalError> {
        result.as_ref().map_or(Ok(()), check_size)?;
        self.leased_mut(receipt)?;
        let Some(stored) = self.take_from_lane(receipt.id) else {
            return Err(JournalError::LeaseLost);
        };
        let key = Self::dedupe_key(&stored);
        self.by_dedupe.remove(&key);
        let done = CompletedMessage {
            id: receipt.id,
            result,
            unix_ms: at.unix_ms,
        };
        self.completed_bytes += result_bytes(&done);
        self.completed_by_age.push_back(key.clone());
        self.completed.insert(key, (stored.draft.digest, done));
        self.evict_completed(at);
        Ok(())
    }

    fn evict_completed(&mut self, at: Timestamps) {
        let oldest_kept = at.unix_ms.saturating_sub(to_millis(COMPLETED_TTL));
        while let Some(first) = self.completed_by_age.front() {
            let old = self.completed.get(first);
            let is_old = old.is_none_or(|(_, done)| done.unix_ms < oldest_kept);
            let is_many = self.completed.len() as u64 > COMPLETED_MAX
                || self.completed_bytes > COMPLETED_BYTES_MAX;
            if !is_old && !is_many {
                return;
            }
            if let Some((_, done)) = self.completed.remove(first) {
                self.completed_bytes -= result_bytes(&done);
            }
            self.completed_by_age.pop_front();
        }
    }

    pub(super) fn nak(
        &mut self,
        receipt: LeaseReceipt,
        delay: Duration,
        at: Timestamps,
    ) -> Result<(), JournalError> {
        let stored = self.leased_mut(receipt)?;
        stored.lease = None;
        stored.due = at.now.plus(delay);
        Ok(())
    }

    pub(super) fn dead_letter(
        &mut self,
        receipt: LeaseReceipt,
        reason: Arc<str>,
    ) -> Result<(), JournalError> {
        self.leased_mut(receipt)?;
        self.mark_dead(receipt.id, reason);
        Ok(())
    }

    fn mark_dead(&mut self, id: MessageId, reason: Arc<str>) {
        let Some(mut stored) = self.take_from_lane(id) else {
            return;
        };
        stored.lease = None;
        stored.dead = Some(reason);
        self.messages.insert(id, stored);
        self.dead_letters.insert(id, ());
        while self.dead_letters.len() as u64 > DEAD_LETTERS_MAX {
            let Some((oldest, ())) = self.dead_letters.pop_first() else {
                return;
            };
            if let Some(stored) = self.messages.remove(&oldest) {
                self.by_dedupe.remove(&Self::dedupe_key(&stored));
            }
        }
    }

    pub(super) fn requeue(
        &mut self,
        id: MessageId,
        ttl: Option<Duration>,
        at: Timestamps,
    ) -> Result<(), JournalError> {
        let stored = self.messages.get_mut(&id);
        let stored = stored.filter(|stored| stored.dead.is_some());
        let stored = stored.ok_or(JournalError::NotFound)?;
        let lane = self.lanes.get(&stored.draft.lane);
        if lane.is_some_and(|lane| lane.len() as u64 >= LANE_MESSAGES_MAX) {
            return Err(JournalError::LaneFull {
                limit: LANE_MESSAGES_MAX,
            });
        }
        self.dead_letters.remove(&id);
        self.place += 1;
        stored.place = self.place;
        stored.dead = None;
        stored.due = at.now;
        stored.expires_unix_ms = expiry_unix_ms(ttl, at);
        let lane = self.lanes.entry(stored.draft.lane.clone()).or_default();
        lane.insert(self.place, id);
        Ok(())
    }

    pub(super) fn remove_message(
        &mut self,
        id: MessageId,
        at: Timestamps,
    ) -> Result<(), JournalError> {
        match self.messages.get(&id) {
            None => Err(JournalError::NotFound),
            Some(stored) if stored.is_leased(at) => Err(JournalError::LeaseLost),
            Some(_) => {
                self.forget_message(id);
                Ok(())
            }
        }
    }

    pub(super) fn discard_leased(&mut self, receipt: LeaseReceipt) -> Result<(), JournalError> {
        self.leased_mut(receipt)?;
        self.forget_message(receipt.id);
        Ok(())
    }

    fn forget_message(&mut self, id: MessageId) {
        if let Some(stored) = self.take_from_lane(id) {
            self.by_dedupe.remove(&Self::dedupe_key(&stored));
        }
    }

    pub(super) fn expire_messages(&mut self, lanes: &str, at: Timestamps) -> Vec<MessageView> {
        let messages = self.messages.iter();
        let past: Vec<_> = messages
            .filter(|(_, one)| one.dead.is_none() && one.is_expired(at) && !one.is_leased(at))
            .filter(|(_, one)| one.draft.lane.as_str().starts_with(lanes))
            .map(|(id, _)| *id)
            .collect();
        let mut entries = Vec::new();
        let mut bytes = 0;
        for id in past {
            let Some(mut entry) = self.get_message(id, at) else {
                continue;
            };
            bytes += entry.body.len() as u64;
            if entries.len() >= EXPIRE_MAX || (bytes > LISTED_BYTES_MAX && !entries.is_empty()) {
                break;
            }
            let reason: Arc<str> = "expired".into();
            self.mark_dead(id, Arc::clone(&reason));
            (entry.status, entry.position) = (MessageStatus::DeadLetter(reason), 0);
            entries.push(entry);
        }
        entries
    }

    pub(super) fn get_value(&self, key: &str) -> Option<VersionedValue> {
        self.values.get(key).cloned()
    }

    pub(super) fn list_values(
        &self,
        prefix: &str,
        limit: usize,
    ) -> Vec<(Arc<str>, VersionedValue)> {
        let from = self.values.range(Arc::<str>::from(prefix)..);
        from.take_while(|(key, _)| key.starts_with(prefix))
            .take(limit)
            .map(|(key, value)| (Arc::clone(key), value.clone()))
            .collect()
    }

    pub(super) fn put_value(
        &mut self,
        key: &str,
        bytes: Option<Bytes>,
        expect: ExpectedRevision,
    ) -> Result<u64, JournalError> {
        check_key(key)?;
        bytes.as_ref().map_or(Ok(()), check_size)?;
        let current = self.values.get(key).map(|value| value.revision);
        let as_expected = match expect {
            ExpectedRevision::Any => true,
            ExpectedRevision::Absent => current.is_none(),
            ExpectedRevision::Revision(revision) => current == Some(revision),
        };
        if !as_expected {
            return Err(JournalError::RevisionMismatch);
        }
        self.revision += 1;
        let revision = self.revision;
        match bytes {
            Some(bytes) => {
                self.values
                    .insert(key.into(), VersionedValue { revision, bytes });
            }
            None => {
                self.values.remove(key);
            }
        }
        self.watches.notify_change(key, revision);
        Ok(revision)
    }
}
