//! Ends of messages: for each an entry of a few bytes in memory, and the row on disk.
//!
//! A fingerprint of the key leads to the row, so memory does not grow with the rows themselves. A
//! row carries its own checksum: a row that changed or went while the journal is open is reported
//! as damaged, never as absent.

use std::collections::HashSet;
use std::hash::BuildHasher as _;

use bowline_core::time::millis;
use bytes::Bytes;

use super::Book;
use super::segments::Dedupes;
use crate::engine::{
    At, DONE_BYTES_MAX, DONE_KEPT, DONE_MAX, Done, Draft, JournalError, Lane, MessageId,
};
use crate::sqlite::fault::{Fault, damaged};
use crate::sqlite::rows::{DoneSlot, Slot, done_key, lane_mark};
use crate::sqlite::sum::{Sum, Tally, of_bytes};

/// Index of the ends on disk.
#[derive(Debug, Default)]
pub(super) struct Dones {
    /// Fingerprint of a key to the sequence number of its row.
    seqs: Dedupes,
    count: u64,
    /// Bytes of results.
    bytes: u64,
    /// The oldest row; absent until it is needed.
    oldest: Option<DoneSlot>,
    /// Rows up to this sequence number are deleted, or damaged and left alone.
    passed: u64,
    /// Lanes that have a damaged row.
    suspect: HashSet<u64>,
    /// True if a row is gone or damaged beyond its lane.
    all_suspect: bool,
}

impl Dones {
    /// Refuses to report a message as never done if its row may be a damaged one.
    fn check_absent(&self, lane: &Lane) -> Result<(), JournalError> {
        match self.all_suspect || self.suspect.contains(&lane_mark(lane)) {
            true => Err(damaged_end(lane)),
            false => Ok(()),
        }
    }

    fn insert(&mut self, print: u32, slot: &DoneSlot) {
        self.seqs.insert(print, slot.seq);
        self.count += 1;
        self.bytes += slot.result_bytes();
    }

    fn add_damaged(&mut self, lane: Option<u64>) {
        self.suspect.extend(lane);
        self.all_suspect |= lane.is_none();
    }
}

fn damaged_end(lane: &Lane) -> JournalError {
    damaged(format!("the end of a message of lane `{lane}`"))
}

impl Book {
    /// Returns the index of ends, read from disk on first use.
    fn dones(&mut self) -> Result<&mut Dones, Fault> {
        if self.dones.is_none() {
            let mut dones = Dones::default();
            let mut tally = Tally::default();
            let mut bad = 0;
            DoneSlot::each(&self.conn, |read| match read {
                Ok(slot) => {
                    tally.add(slot.sum());
                    dones.insert(self.done_print(&slot.key), &slot);
                }
                Err(lane) => {
                    bad += 1;
                    dones.add_damaged(lane);
                }
            })?;
            let is_all = tally == self.ledger.done;
            dones.all_suspect |= !is_all && tally.count + bad != self.ledger.done.count;
            dones.all_suspect |= !is_all && bad == 0;
            self.dones = Some(dones);
        }
        self.dones
            .as_mut()
            .ok_or_else(|| damaged("the list of ends").into())
    }

    /// Fingerprints a key with the key of this process, so that no caller can choose keys that
    /// share a fingerprint.
    fn done_print(&self, key: &Sum) -> u32 {
        (self.prints.hash_one(key) >> 32) as u32
    }

    /// Returns the row of a message that ended.
    fn find_done(&mut self, lane: &Lane, dedupe: &str) -> Result<Option<DoneSlot>, Fault> {
        let key = done_key(lane, dedupe);
        let print = self.done_print(&key);
        let candidates: Vec<u64> = self.dones()?.seqs.candidates(print).collect();
        for seq in candidates {
            match DoneSlot::by_seq(&self.conn, seq)? {
                Some(Ok(slot)) if slot.key == key => return Ok(Some(slot)),
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Err(damaged_end(lane).into()),
            }
        }
        self.dones()?.check_absent(lane)?;
        Ok(None)
    }

    /// Returns how a message of the same id ended.
    pub(super) fn done_before(&mut self, draft: &Draft) -> Result<Option<Done>, Fault> {
        match self.find_done(&draft.lane, &draft.dedupe)? {
            None => Ok(None),
            Some(slot) if slot.digest == draft.digest => self.done_of(&slot).map(Some),
            Some(_) => Err(JournalError::Conflict.into()),
        }
    }

    pub(in crate::sqlite) fn result(
        &mut self,
        lane: &Lane,
        dedupe: &str,
    ) -> Result<Option<Done>, Fault> {
        match self.find_done(lane, dedupe)? {
            None => Ok(None),
            Some(slot) => self.done_of(&slot).map(Some),
        }
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
        let print = self.done_print(&slot.key);
        self.dones()?.insert(print, &slot);
        Ok(())
    }

    /// Deletes ends that are too old or too many.
    pub(super) fn forget_done(&mut self, at: At) -> Result<(), Fault> {
        let oldest_kept = at.unix_ms.saturating_sub(millis(DONE_KEPT));
        while let Some(oldest) = self.oldest_done()? {
            let dones = self.dones()?;
            let is_many = dones.count > DONE_MAX || dones.bytes > DONE_BYTES_MAX;
            if !is_many && oldest.unix_ms >= oldest_kept {
                return Ok(());
            }
            self.begin()?;
            DoneSlot::delete(&self.conn, oldest.seq)?;
            self.ledger.done.take(oldest.sum());
            let print = self.done_print(&oldest.key);
            let dones = self.dones()?;
            dones.seqs.remove(print, oldest.seq);
            dones.count = dones.count.saturating_sub(1);
            dones.bytes = dones.bytes.saturating_sub(oldest.result_bytes());
            dones.passed = oldest.seq;
            dones.oldest = None;
        }
        Ok(())
    }

    /// Returns the oldest row. Damaged rows are passed over and stay on disk.
    fn oldest_done(&mut self) -> Result<Option<DoneSlot>, Fault> {
        loop {
            let dones = self.dones()?;
            if dones.oldest.is_some() || dones.count == 0 {
                return Ok(dones.oldest.clone());
            }
            let passed = dones.passed;
            let next = DoneSlot::first_after(&self.conn, passed)?;
            let dones = self.dones()?;
            match next {
                None => return Ok(None),
                Some((_, Ok(slot))) => dones.oldest = Some(slot),
                Some((seq, Err(lane))) => {
                    dones.passed = seq;
                    dones.add_damaged(lane);
                }
            }
        }
    }
}
