//! Completed messages: an entry of a few bytes in memory per message, and the row on disk.
//!
//! A fingerprint of the key leads to the row, so memory does not grow with the rows. Each row
//! carries a checksum: a row changed or lost while the journal is open is reported as damaged,
//! never as absent.

use std::collections::HashSet;

use bowline_core::time::to_millis;
use bytes::Bytes;

use super::JournalState;
use super::segments::DedupeIndex;
use crate::engine::{
    COMPLETED_BYTES_MAX, COMPLETED_MAX, COMPLETED_TTL, CompletedMessage, JournalError, LaneName,
    MessageDraft, MessageId, Timestamps,
};
use crate::sqlite::checksum::{ChecksumTotal, checksum_bytes};
use crate::sqlite::rows::{CompletedRow, MessageRow, completed_key, lane_tag};
use crate::sqlite::sqlite_error::{OperationError, damaged_error};

/// Index of the completed messages on disk.
#[derive(Debug, Default)]
pub(super) struct CompletedIndex {
    /// Sequence numbers of rows by fingerprint of the key.
    seqs: DedupeIndex,
    count: u64,
    /// Bytes of all results.
    bytes: u64,
    /// Oldest row; `None` until needed.
    oldest: Option<CompletedRow>,
    /// Rows up to this sequence number are deleted, or damaged and left alone.
    passed_seq: u64,
    /// Lanes with a damaged row.
    suspect_lanes: HashSet<u64>,
    /// Whether a row is missing, or damaged beyond recognition of its lane.
    all_suspect: bool,
}

impl CompletedIndex {
    /// Fails if the row of an absent message may be a damaged row.
    fn check_absent(&self, lane: &LaneName) -> Result<(), JournalError> {
        match self.all_suspect || self.suspect_lanes.contains(&lane_tag(lane)) {
            true => Err(damaged_completion(lane)),
            false => Ok(()),
        }
    }

    fn insert_row(&mut self, fingerprint: u32, slot: &CompletedRow) {
        self.seqs.insert(fingerprint, slot.seq);
        self.count += 1;
        self.bytes += slot.result_bytes();
    }

    fn add_damaged(&mut self, lane: Option<u64>) {
        self.suspect_lanes.extend(lane);
        self.all_suspect |= lane.is_none();
    }
}

fn damaged_completion(lane: &LaneName) -> JournalError {
    damaged_error(format!("the end of a message of lane `{lane}`"))
}

impl JournalState {
    /// Returns the index of completed messages, read from disk on first use.
    fn load_completed(&mut self) -> Result<&mut CompletedIndex, OperationError> {
        if self.completed.is_none() {
            let mut completed = CompletedIndex::default();
            let mut total = ChecksumTotal::default();
            let mut bad = 0;
            CompletedRow::visit_all(&self.conn, |read| match read {
                Ok(slot) => {
                    total.add(slot.checksum());
                    completed.insert_row(self.fingerprint(slot.key), &slot);
                }
                Err(lane) => {
                    bad += 1;
                    completed.add_damaged(lane);
                }
            })?;
            let is_all = total == self.ledger.done;
            completed.all_suspect |= !is_all && total.count + bad != self.ledger.done.count;
            completed.all_suspect |= !is_all && bad == 0;
            self.completed = Some(completed);
        }
        self.completed
            .as_mut()
            .ok_or_else(|| damaged_error("the list of ends").into())
    }

    /// Returns the row of a completed message.
    fn find_completed(
        &mut self,
        lane: &LaneName,
        dedupe: &str,
    ) -> Result<Option<CompletedRow>, OperationError> {
        let key = completed_key(lane, dedupe);
        let fingerprint = self.fingerprint(key);
        let candidates: Vec<u64> = self
            .load_completed()?
            .seqs
            .candidates(fingerprint)
            .collect();
        for seq in candidates {
            match CompletedRow::read_by_seq(&self.conn, seq)? {
                Some(Ok(slot)) if slot.key == key => return Ok(Some(slot)),
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Err(damaged_completion(lane).into()),
            }
        }
        self.load_completed()?.check_absent(lane)?;
        Ok(None)
    }

    /// Returns the completed message with the same dedupe id.
    pub(super) fn find_completed_duplicate(
        &mut self,
        draft: &MessageDraft,
    ) -> Result<Option<CompletedMessage>, OperationError> {
        match self.find_completed(&draft.lane, &draft.dedupe)? {
            None => Ok(None),
            Some(slot) if slot.digest == draft.digest => self.read_completed(&slot).map(Some),
            Some(_) => Err(JournalError::Conflict.into()),
        }
    }

    pub(in crate::sqlite) fn get_result(
        &mut self,
        lane: &LaneName,
        dedupe: &str,
    ) -> Result<Option<CompletedMessage>, OperationError> {
        match self.find_completed(lane, dedupe)? {
            None => Ok(None),
            Some(slot) => self.read_completed(&slot).map(Some),
        }
    }

    fn read_completed(&self, slot: &CompletedRow) -> Result<CompletedMessage, OperationError> {
        let result = match slot.result {
            None => None,
            Some((bytes, sum)) => {
                let result = slot.read_result(&self.conn)?;
                let result = result
                    .filter(|result| result.len() as u64 == bytes && checksum_bytes(result) == sum);
                let damaged = || damaged_error(format!("what came of message {}", slot.id));
                Some(Bytes::from(result.ok_or_else(damaged)?))
            }
        };
        Ok(CompletedMessage {
            id: MessageId(slot.id),
            result,
            unix_ms: slot.unix_ms,
        })
    }

    /// Records a completed message.
    pub(super) fn record_completed(
        &mut self,
        message: &MessageRow,
        result: Option<&Bytes>,
        at: Timestamps,
    ) -> Result<(), OperationError> {
        self.load_completed()?;
        self.begin_transaction()?;
        self.ledger.seq += 1;
        let slot = CompletedRow {
            seq: self.ledger.seq,
            key: completed_key(&message.lane, &message.dedupe),
            lane: lane_tag(&message.lane),
            id: message.id,
            digest: message.digest,
            unix_ms: at.unix_ms,
            result: result.map(|result| (result.len() as u64, checksum_bytes(result))),
        };
        slot.insert(&self.conn, result.map(AsRef::as_ref))?;
        self.ledger.done.add(slot.checksum());
        let fingerprint = self.fingerprint(slot.key);
        self.load_completed()?.insert_row(fingerprint, &slot);
        Ok(())
    }

    /// Deletes completed messages beyond the age, count and size limits.
    pub(super) fn evict_completed(&mut self, at: Timestamps) -> Result<(), OperationError> {
        let oldest_kept = at.unix_ms.saturating_sub(to_millis(COMPLETED_TTL));
        while let Some(oldest) = self.oldest_completed()? {
            let completed = self.load_completed()?;
            let is_many = completed.count > COMPLETED_MAX || completed.bytes > COMPLETED_BYTES_MAX;
            if !is_many && oldest.unix_ms >= oldest_kept {
                return Ok(());
            }
            self.begin_transaction()?;
            CompletedRow::delete(&self.conn, oldest.seq)?;
            self.ledger.done.subtract(oldest.checksum());
            let fingerprint = self.fingerprint(oldest.key);
            let completed = self.load_completed()?;
            completed.seqs.remove(fingerprint, oldest.seq);
            completed.count = completed.count.saturating_sub(1);
            completed.bytes = completed.bytes.saturating_sub(oldest.result_bytes());
            completed.passed_seq = oldest.seq;
            completed.oldest = None;
        }
        Ok(())
    }

    /// Returns the oldest row. Damaged rows are skipped and stay on disk.
    fn oldest_completed(&mut self) -> Result<Option<CompletedRow>, OperationError> {
        loop {
            let completed = self.load_completed()?;
            if completed.oldest.is_some() || completed.count == 0 {
                return Ok(completed.oldest.clone());
            }
            let passed = completed.passed_seq;
            let next = CompletedRow::read_first_after(&self.conn, passed)?;
            let completed = self.load_completed()?;
            match next {
                None => return Ok(None),
                Some((_, Ok(slot))) => completed.oldest = Some(slot),
                Some((seq, Err(lane))) => {
                    completed.passed_seq = seq;
                    completed.add_damaged(lane);
                }
            }
        }
    }
}
