//! Remembers how messages ended.

use std::collections::{HashMap, HashSet, VecDeque};

use bowline_core::time::millis;
use bytes::Bytes;

use super::Book;
use crate::engine::{
    At, DONE_BYTES_MAX, DONE_KEPT, DONE_MAX, Done, Draft, JournalError, Lane, MessageId,
};
use crate::sqlite::fault::{Fault, damaged};
use crate::sqlite::rows::{DoneSlot, Slot, done_key, lane_mark};
use crate::sqlite::sum::{Sum, Tally, of_bytes};

/// The ends that are remembered.
#[derive(Debug, Default)]
pub(super) struct Dones {
    by_key: HashMap<Sum, DoneSlot>,
    /// The same by age.
    order: VecDeque<Sum>,
    /// Bytes of results.
    bytes: u64,
    /// Lanes of which the end of a message cannot be read.
    suspect: HashSet<u64>,
    /// Whether ends are gone of which nobody knows the lane.
    all_suspect: bool,
}

impl Dones {
    /// Refuses to say that a message was never done where it may be one that cannot be read.
    fn check_absent(&self, lane: &Lane) -> Result<(), JournalError> {
        match self.all_suspect || self.suspect.contains(&lane_mark(lane)) {
            true => Err(damaged(format!("the end of a message of lane `{lane}`"))),
            false => Ok(()),
        }
    }
}

impl Book {
    /// Reads the ends, where that was not done before.
    fn dones(&mut self) -> Result<&mut Dones, Fault> {
        if self.dones.is_none() {
            let mut dones = Dones::default();
            let mut tally = Tally::default();
            let mut bad = 0;
            for one in DoneSlot::all(&self.conn)? {
                match one {
                    Ok(slot) => {
                        tally.add(slot.sum());
                        dones.bytes += slot.result.map_or(0, |(bytes, _)| bytes);
                        dones.order.push_back(slot.key);
                        dones.by_key.insert(slot.key, slot);
                    }
                    Err(lane) => {
                        bad += 1;
                        dones.suspect.extend(lane);
                        dones.all_suspect |= lane.is_none();
                    }
                }
            }
            let is_all = tally == self.ledger.done;
            dones.all_suspect |= !is_all && tally.count + bad != self.ledger.done.count;
            dones.all_suspect |= !is_all && bad == 0;
            self.dones = Some(dones);
        }
        self.dones
            .as_mut()
            .ok_or_else(|| damaged("the list of ends").into())
    }

    /// Returns how a message of the same id ended.
    pub(super) fn done_before(&mut self, draft: &Draft) -> Result<Option<Done>, Fault> {
        let key = done_key(&draft.lane, &draft.dedupe);
        let dones = self.dones()?;
        let Some(slot) = dones.by_key.get(&key).cloned() else {
            dones.check_absent(&draft.lane)?;
            return Ok(None);
        };
        match slot.digest == draft.digest {
            true => self.done_of(&slot).map(Some),
            false => Err(JournalError::Conflict.into()),
        }
    }

    pub(in crate::sqlite) fn result(
        &mut self,
        lane: &Lane,
        dedupe: &str,
    ) -> Result<Option<Done>, Fault> {
        let key = done_key(lane, dedupe);
        let dones = self.dones()?;
        let Some(slot) = dones.by_key.get(&key).cloned() else {
            dones.check_absent(lane)?;
            return Ok(None);
        };
        self.done_of(&slot).map(Some)
    }

    fn done_of(&self, slot: &DoneSlot) -> Result<Done, Fault> {
        let result = match slot.result {
            None => None,
            Some((bytes, sum)) => {
                let result = slot.result(&self.conn)?;
                let result =
                    result.filter(|result| result.len() as u64 == bytes && of_bytes(result) == sum);
                let what = || damaged(format!("what came of message {}", slot.id));
                Some(Bytes::from(result.ok_or_else(what)?))
            }
        };
        Ok(Done {
            id: MessageId(slot.id),
            result,
            unix_ms: slot.unix_ms,
        })
    }

    /// Remembers that a message is done.
    pub(super) fn remember(
        &mut self,
        message: &Slot,
        result: Option<&Bytes>,
        at: At,
    ) -> Result<(), Fault> {
        self.dones()?;
        self.begin()?;
        self.ledger.seq += 1;
        let slot = DoneSlot {
            seq: self.ledger.seq,
            key: done_key(&message.lane, &message.dedupe),
            lane: lane_mark(&message.lane),
            id: message.id,
            digest: message.digest,
            unix_ms: at.unix_ms,
            result: result.map(|result| (result.len() as u64, of_bytes(result))),
        };
        slot.insert(&self.conn, result.map(AsRef::as_ref))?;
        self.ledger.done.add(slot.sum());
        let dones = self.dones()?;
        dones.bytes += slot.result.map_or(0, |(bytes, _)| bytes);
        dones.order.push_back(slot.key);
        dones.by_key.insert(slot.key, slot);
        Ok(())
    }

    /// Forgets ends that are too old or too many.
    pub(super) fn forget_done(&mut self, at: At) -> Result<(), Fault> {
        let oldest_kept = at.unix_ms.saturating_sub(millis(DONE_KEPT));
        loop {
            let dones = self.dones()?;
            let first = dones.order.front().and_then(|key| dones.by_key.get(key));
            let Some(first) = first else {
                return Ok(());
            };
            let is_many = dones.order.len() as u64 > DONE_MAX || dones.bytes > DONE_BYTES_MAX;
            if !is_many && first.unix_ms >= oldest_kept {
                return Ok(());
            }
            let (seq, key, sum) = (first.seq, first.key, first.sum());
            dones.bytes -= first.result.map_or(0, |(bytes, _)| bytes);
            dones.order.pop_front();
            dones.by_key.remove(&key);
            self.begin()?;
            DoneSlot::delete(&self.conn, seq)?;
            self.ledger.done.take(sum);
        }
    }
}
