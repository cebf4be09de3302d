//! What a journal holds, as plain maps: the model that every engine is compared with.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bowline_core::time::{Now, millis};
use bytes::Bytes;

use crate::engine::{
    At, DEAD_MAX, DONE_BYTES_MAX, DONE_KEPT, DONE_MAX, Delivery, Done, Draft, EXPIRE_MAX, Entry,
    Expect, Filter, JournalError, Known, LANE_MESSAGES_MAX, Lane, LaneView, MessageId, Order,
    Published, Receipt, SHOWN_BYTES_MAX, Standing, Value,
};
use crate::limits::{expiry, fits, names, span};
use crate::watches::Watches;

/// Everything.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// The last number of a message, of a place in a lane, of a lease, and of a change of values.
    id: u64,
    place: u64,
    lease: u64,
    revision: u64,
    messages: BTreeMap<MessageId, Stored>,
    /// The messages of each lane that are not dead, by their place.
    lanes: BTreeMap<Lane, BTreeMap<u64, MessageId>>,
    by_dedupe: HashMap<(Lane, Arc<str>), MessageId>,
    done: HashMap<(Lane, Arc<str>), ([u8; 32], Done)>,
    /// The same by age.
    done_by_age: VecDeque<(Lane, Arc<str>)>,
    /// Bytes of their results.
    done_bytes: u64,
    dead: BTreeMap<MessageId, ()>,
    values: BTreeMap<Arc<str>, Value>,
    pub(super) watches: Watches,
    pub(super) closed: bool,
}

#[derive(Debug)]
struct Stored {
    draft: Draft,
    place: u64,
    attempts: u32,
    stored_unix_ms: u64,
    expires_unix_ms: Option<u64>,
    /// The newest lease and until when it holds.
    lease: Option<(u64, Now)>,
    /// Not handed out before.
    due: Now,
    dead: Option<Arc<str>>,
}

impl Stored {
    fn is_held(&self, at: At) -> bool {
        self.lease.is_some_and(|(_, until)| at.now < until)
    }

    fn is_past(&self, at: At) -> bool {
        self.expires_unix_ms.is_some_and(|end| end <= at.unix_ms)
    }
}

fn bytes_of(done: &Done) -> u64 {
    done.result.as_ref().map_or(0, |result| result.len() as u64)
}

impl Table {
    pub(super) fn publish(&mut self, draft: Draft, at: At) -> Result<Published, JournalError> {
        names(&draft.dedupe)?;
        fits(&draft.body)?;
        self.forget_done(at);
        let key = (draft.lane.clone(), Arc::clone(&draft.dedupe));
        if let Some((digest, done)) = self.done.get(&key) {
            return match *digest == draft.digest {
                true => Ok(Published::Known(Known::Done(done.clone()))),
                false => Err(JournalError::Conflict),
            };
        }
        if let Some(id) = self.by_dedupe.get(&key).copied() {
            return self.known(id, draft.digest, at);
        }
        let lane = self.lanes.get(&draft.lane);
        let waiting = lane.map_or(0, |lane| lane.len() as u64);
        if waiting >= LANE_MESSAGES_MAX {
            return Err(JournalError::LaneFull {
                limit: LANE_MESSAGES_MAX,
            });
        }
        let mut ahead = lane.into_iter().flat_map(BTreeMap::values);
        let free = ahead.all(|id| self.messages.get(id).is_some_and(|one| one.is_held(at)));
        self.id += 1;
        self.place += 1;
        let id = MessageId(self.id);
        let hold = draft.hold.filter(|_| free);
        let lease = hold.map(|hold| {
            self.lease += 1;
            (self.lease, at.now.plus(hold))
        });
        let held = lease.map(|(lease, _)| Receipt { id, lease });
        let lane = self.lanes.entry(draft.lane.clone()).or_default();
        lane.insert(self.place, id);
        let stored = Stored {
            place: self.place,
            attempts: u32::from(held.is_some()),
            stored_unix_ms: at.unix_ms,
            expires_unix_ms: expiry(draft.ttl, at),
            lease,
            due: at.now,
            dead: None,
            draft,
        };
        self.messages.insert(id, stored);
        self.by_dedupe.insert(key, id);
        let position = waiting + 1;
        Ok(Published::Stored { id, position, held })
    }

    fn known(&self, id: MessageId, digest: [u8; 32], at: At) -> Result<Published, JournalError> {
        let stored = self.messages.get(&id).ok_or(JournalError::Unknown)?;
        if stored.draft.digest != digest {
            return Err(JournalError::Conflict);
        }
        Ok(Published::Known(match stored.dead {
            Some(_) => Known::Dead(id),
            None => Known::Waiting {
                id,
                position: self.position(stored),
                held: stored.is_held(at),
            },
        }))
    }

    fn position(&self, stored: &Stored) -> u64 {
        let lane = self.lanes.get(&stored.draft.lane);
        lane.map_or(0, |lane| lane.range(..=stored.place).count() as u64)
    }

    pub(super) fn lease(
        &mut self,
        lane: &Lane,
        order: Order,
        max: usize,
        hold: Duration,
        at: At,
    ) -> Vec<Delivery> {
        let lane = self.lanes.get(lane).into_iter();
        let ids: Vec<_> = lane.flat_map(BTreeMap::values).copied().collect();
        let mut given = Vec::new();
        for id in ids {
            let Some(stored) = self.messages.get_mut(&id) else {
                continue;
            };
            let is_free = !stored.is_held(at) && stored.due <= at.now && !stored.is_past(at);
            if given.len() >= max || (order == Order::Strict && !is_free) {
                break;
            }
            if is_free {
                self.lease += 1;
                stored.lease = Some((self.lease, at.now.plus(hold)));
                stored.attempts = stored.attempts.saturating_add(1);
                given.push(Delivery {
                    receipt: Receipt {
                        id,
                        lease: self.lease,
                    },
                    dedupe: Arc::clone(&stored.draft.dedupe),
                    body: stored.draft.body.clone(),
                    attempts: stored.attempts,
                    stored_unix_ms: stored.stored_unix_ms,
                    expires_unix_ms: stored.expires_unix_ms,
                    age: span(stored.stored_unix_ms, at.unix_ms),
                    left: stored.expires_unix_ms.map(|end| span(at.unix_ms, end)),
                });
            }
            if order == Order::Strict {
                break;
            }
        }
        given
    }

    /// Returns a message that is held under this receipt. A lease that ran out counts until
    /// somebody else was given the message.
    fn held(&mut self, receipt: Receipt) -> Result<&mut Stored, JournalError> {
        let stored = self.messages.get_mut(&receipt.id);
        stored
            .filter(|stored| {
                stored
                    .lease
                    .is_some_and(|(lease, _)| lease == receipt.lease)
            })
            .ok_or(JournalError::Lapsed)
    }

    /// Takes a message out of its lane.
    fn leave(&mut self, id: MessageId) -> Option<Stored> {
        let stored = self.messages.remove(&id)?;
        if let Some(lane) = self.lanes.get_mut(&stored.draft.lane) {
            lane.remove(&stored.place);
            if lane.is_empty() {
                self.lanes.remove(&stored.draft.lane);
            }
        }
        self.dead.remove(&id);
        Some(stored)
    }

    fn key(stored: &Stored) -> (Lane, Arc<str>) {
        let Draft { lane, dedupe, .. } = &stored.draft;
        (lane.clone(), Arc::clone(dedupe))
    }

    pub(super) fn ack(
        &mut self,
        receipt: Receipt,
        result: Option<Bytes>,
        at: At,
    ) -> Result<(), JournalError> {
        result.as_ref().map_or(Ok(()), fits)?;
        self.held(receipt)?;
        let Some(stored) = self.leave(receipt.id) else {
            return Err(JournalError::Lapsed);
        };
        let key = Self::key(&stored);
        self.by_dedupe.remove(&key);
        let done = Done {
            id: receipt.id,
            result,
            unix_ms: at.unix_ms,
        };
        self.done_bytes += bytes_of(&done);
        self.done_by_age.push_back(key.clone());
        self.done.insert(key, (stored.draft.digest, done));
        self.forget_done(at);
        Ok(())
    }

    fn forget_done(&mut self, at: At) {
        let oldest_kept = at.unix_ms.saturating_sub(millis(DONE_KEPT));
        while let Some(first) = self.done_by_age.front() {
            let old = self.done.get(first);
            let is_old = old.is_none_or(|(_, done)| done.unix_ms < oldest_kept);
            let is_many = self.done.len() as u64 > DONE_MAX || self.done_bytes > DONE_BYTES_MAX;
            if !is_old && !is_many {
                return;
            }
            if let Some((_, done)) = self.done.remove(first) {
                self.done_bytes -= bytes_of(&done);
            }
            self.done_by_age.pop_front();
        }
    }

    pub(super) fn nak(
        &mut self,
        receipt: Receipt,
        delay: Duration,
        at: At,
    ) -> Result<(), JournalError> {
        let stored = self.held(receipt)?;
        stored.lease = None;
        stored.due = at.now.plus(delay);
        Ok(())
    }

    pub(super) fn bury(&mut self, receipt: Receipt, reason: Arc<str>) -> Result<(), JournalError> {
        self.held(receipt)?;
        self.kill(receipt.id, reason);
        Ok(())
    }

    fn kill(&mut self, id: MessageId, reason: Arc<str>) {
        let Some(mut stored) = self.leave(id) else {
            return;
        };
        stored.lease = None;
        stored.dead = Some(reason);
        self.messages.insert(id, stored);
        self.dead.insert(id, ());
        while self.dead.len() as u64 > DEAD_MAX {
            let Some((oldest, ())) = self.dead.pop_first() else {
                return;
            };
            if let Some(stored) = self.messages.remove(&oldest) {
                self.by_dedupe.remove(&Self::key(&stored));
            }
        }
    }

    pub(super) fn revive(
        &mut self,
        id: MessageId,
        ttl: Option<Duration>,
        at: At,
    ) -> Result<(), JournalError> {
        let stored = self.messages.get_mut(&id);
        let stored = stored.filter(|stored| stored.dead.is_some());
        let stored = stored.ok_or(JournalError::Unknown)?;
        let lane = self.lanes.get(&stored.draft.lane);
        if lane.is_some_and(|lane| lane.len() as u64 >= LANE_MESSAGES_MAX) {
            return Err(JournalError::LaneFull {
                limit: LANE_MESSAGES_MAX,
            });
        }
        self.dead.remove(&id);
        self.place += 1;
        stored.place = self.place;
        stored.dead = None;
        stored.due = at.now;
        stored.expires_unix_ms = expiry(ttl, at);
        let lane = self.lanes.entry(stored.draft.lane.clone()).or_default();
        lane.insert(self.place, id);
        Ok(())
    }

    pub(super) fn remove(&mut self, id: MessageId, at: At) -> Result<(), JournalError> {
        match self.messages.get(&id) {
            None => Err(JournalError::Unknown),
            Some(stored) if stored.is_held(at) => Err(JournalError::Lapsed),
            Some(_) => {
                self.forget(id);
                Ok(())
            }
        }
    }

    pub(super) fn withdraw(&mut self, receipt: Receipt) -> Result<(), JournalError> {
        self.held(receipt)?;
        self.forget(receipt.id);
        Ok(())
    }

    fn forget(&mut self, id: MessageId) {
        if let Some(stored) = self.leave(id) {
            self.by_dedupe.remove(&Self::key(&stored));
        }
    }

    pub(super) fn expire(&mut self, lanes: &str, at: At) -> Vec<Entry> {
        let messages = self.messages.iter();
        let past: Vec<_> = messages
            .filter(|(_, one)| one.dead.is_none() && one.is_past(at) && !one.is_held(at))
            .filter(|(_, one)| one.draft.lane.as_str().starts_with(lanes))
            .map(|(id, _)| *id)
            .collect();
        let mut entries = Vec::new();
        let mut bytes = 0;
        for id in past {
            let Some(mut entry) = self.entry(id, at) else {
                continue;
            };
            bytes += entry.body.len() as u64;
            if entries.len() >= EXPIRE_MAX || (bytes > SHOWN_BYTES_MAX && !entries.is_empty()) {
                break;
            }
            let reason: Arc<str> = "expired".into();
            self.kill(id, Arc::clone(&reason));
            (entry.standing, entry.position) = (Standing::Dead(reason), 0);
            entries.push(entry);
        }
        entries
    }

    pub(super) fn lane_bytes(&self, prefix: &str) -> Vec<(Lane, u64)> {
        let mut bytes: BTreeMap<Lane, u64> = BTreeMap::new();
        for stored in self.messages.values() {
            let lane = &stored.draft.lane;
            if lane.as_str().starts_with(prefix) {
                *bytes.entry(lane.clone()).or_default() += stored.draft.body.len() as u64;
            }
        }
        bytes.into_iter().collect()
    }

    pub(super) fn lanes(&self, prefix: &str) -> Vec<LaneView> {
        let mut views: BTreeMap<Lane, LaneView> = BTreeMap::new();
        for stored in self.messages.values() {
            let lane = &stored.draft.lane;
            if !lane.as_str().starts_with(prefix) {
                continue;
            }
            let view = views.entry(lane.clone()).or_insert_with(|| LaneView {
                lane: lane.clone(),
                waiting: 0,
                dead: 0,
                oldest_unix_ms: None,
            });
            match stored.dead {
                Some(_) => view.dead += 1,
                None => view.waiting += 1,
            }
        }
        for view in views.values_mut() {
            let first = self
                .lanes
                .get(&view.lane)
                .and_then(BTreeMap::first_key_value);
            let first = first.and_then(|(_, id)| self.messages.get(id));
            view.oldest_unix_ms = first.map(|first| first.stored_unix_ms);
        }
        views.into_values().collect()
    }

    pub(super) fn inspect(&self, filter: &Filter, at: At) -> Vec<Entry> {
        let after = filter.after.map_or(0, |id| id.0.saturating_add(1));
        let mut bytes = 0;
        self.messages
            .range(MessageId(after)..)
            .filter(|(_, one)| one.draft.lane.as_str().starts_with(&filter.lanes))
            .filter(|(_, one)| filter.dead.is_none_or(|dead| dead == one.dead.is_some()))
            .take(filter.limit)
            .take_while(|(_, one)| {
                let is_first = bytes == 0;
                bytes += one.draft.body.len() as u64;
                is_first || bytes <= SHOWN_BYTES_MAX
            })
            .map(|(id, one)| self.shown(*id, one, at))
            .collect()
    }

    pub(super) fn entry(&self, id: MessageId, at: At) -> Option<Entry> {
        Some(self.shown(id, self.messages.get(&id)?, at))
    }

    fn shown(&self, id: MessageId, stored: &Stored, at: At) -> Entry {
        let standing = match &stored.dead {
            Some(reason) => Standing::Dead(Arc::clone(reason)),
            None if stored.is_held(at) => Standing::Held,
            None => Standing::Waiting,
        };
        let position = match stored.dead {
            Some(_) => 0,
            None => self.position(stored),
        };
        Entry {
            id,
            lane: stored.draft.lane.clone(),
            dedupe: Arc::clone(&stored.draft.dedupe),
            standing,
            position,
            body: stored.draft.body.clone(),
            attempts: stored.attempts,
            stored_unix_ms: stored.stored_unix_ms,
            expires_unix_ms: stored.expires_unix_ms,
        }
    }

    pub(super) fn result(&self, lane: &Lane, dedupe: &str) -> Option<Done> {
        let key = (lane.clone(), Arc::from(dedupe));
        self.done.get(&key).map(|(_, done)| done.clone())
    }

    pub(super) fn get(&self, key: &str) -> Option<Value> {
        self.values.get(key).cloned()
    }

    pub(super) fn list(&self, prefix: &str, limit: usize) -> Vec<(Arc<str>, Value)> {
        let from = self.values.range(Arc::<str>::from(prefix)..);
        from.take_while(|(key, _)| key.starts_with(prefix))
            .take(limit)
            .map(|(key, value)| (Arc::clone(key), value.clone()))
            .collect()
    }

    pub(super) fn put(
        &mut self,
        key: &str,
        bytes: Option<Bytes>,
        expect: Expect,
    ) -> Result<u64, JournalError> {
        names(key)?;
        bytes.as_ref().map_or(Ok(()), fits)?;
        let is = self.values.get(key).map(|value| value.revision);
        let as_expected = match expect {
            Expect::Any => true,
            Expect::Absent => is.is_none(),
            Expect::Revision(revision) => is == Some(revision),
        };
        if !as_expected {
            return Err(JournalError::Changed);
        }
        self.revision += 1;
        let revision = self.revision;
        match bytes {
            Some(bytes) => {
                self.values.insert(key.into(), Value { revision, bytes });
            }
            None => {
                self.values.remove(key);
            }
        }
        self.watches.tell(key, revision);
        Ok(revision)
    }
}
