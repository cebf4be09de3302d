//! Values with compare-and-set.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::JournalState;
use crate::engine::{ExpectedRevision, JournalError, VersionedValue};
use crate::sqlite::checksum::{Checksum, ChecksumTotal, checksum_bytes};
use crate::sqlite::rows::ValueRow;
use crate::sqlite::sqlite_error::{OperationError, damaged_error};

/// Index of all value keys.
#[derive(Debug, Default)]
pub(super) struct ValueIndex {
    by_key: BTreeMap<Arc<str>, ValueRow>,
    /// Whether a value row is unreadable, so an absent key may be the damaged row.
    suspect: bool,
}

impl JournalState {
    fn load_values(&mut self) -> Result<&mut ValueIndex, OperationError> {
        if self.value_index.is_none() {
            let mut values = ValueIndex::default();
            let mut total = ChecksumTotal::default();
            for slot in ValueRow::read_all(&self.conn)?.into_iter().flatten() {
                total.add(slot.checksum());
                values.by_key.insert(Arc::clone(&slot.key), slot);
            }
            values.suspect = total != self.ledger.values;
            self.value_index = Some(values);
        }
        self.value_index
            .as_mut()
            .ok_or_else(|| damaged_error("the list of values").into())
    }

    fn find_value_row(&mut self, key: &str) -> Result<Option<ValueRow>, OperationError> {
        let values = self.load_values()?;
        match values.by_key.get(key) {
            None if values.suspect => {
                Err(damaged_error(format!("value `{key}` or another")).into())
            }
            slot => Ok(slot.cloned()),
        }
    }

    fn read_value(&self, slot: &ValueRow) -> Result<VersionedValue, OperationError> {
        let bytes = slot.read_bytes(&self.conn)?;
        let bytes = bytes.filter(|bytes| {
            bytes.len() as u64 == slot.bytes_len && checksum_bytes(bytes) == slot.bytes_sum
        });
        let damaged = || damaged_error(format!("value `{}`", slot.key));
        Ok(VersionedValue {
            revision: slot.revision,
            bytes: bytes.ok_or_else(damaged)?.into(),
        })
    }

    pub(in crate::sqlite) fn get_value(
        &mut self,
        key: &str,
    ) -> Result<Option<VersionedValue>, OperationError> {
        match self.find_value_row(key)? {
            Some(slot) => self.read_value(&slot).map(Some),
            None => Ok(None),
        }
    }

    pub(in crate::sqlite) fn list_values(
        &mut self,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<(Arc<str>, VersionedValue)>, OperationError> {
        let values = self.load_values()?;
        if values.suspect {
            return Err(damaged_error("a value").into());
        }
        let from = values.by_key.range(Arc::<str>::from(prefix)..);
        let slots: Vec<_> = from
            .take_while(|(key, _)| key.starts_with(prefix))
            .take(limit)
            .map(|(_, slot)| slot.clone())
            .collect();
        let values = slots.iter();
        values
            .map(|slot| Ok((Arc::clone(&slot.key), self.read_value(slot)?)))
            .collect()
    }

    pub(in crate::sqlite) fn put_value(
        &mut self,
        key: &str,
        bytes: Option<(&Bytes, Checksum)>,
        expect: ExpectedRevision,
    ) -> Result<u64, OperationError> {
        let previous = self.find_value_row(key)?;
        let current = previous.as_ref().map(|slot| slot.revision);
        let as_expected = match expect {
            ExpectedRevision::Any => true,
            ExpectedRevision::Absent => current.is_none(),
            ExpectedRevision::Revision(revision) => current == Some(revision),
        };
        if !as_expected {
            return Err(JournalError::RevisionMismatch.into());
        }
        self.begin_transaction()?;
        self.ledger.revision += 1;
        let revision = self.ledger.revision;
        let key: Arc<str> = key.into();
        if let Some(previous) = previous {
            ValueRow::delete(&self.conn, previous.revision)?;
            self.ledger.values.subtract(previous.checksum());
            self.load_values()?.by_key.remove(&key);
        }
        if let Some((bytes, bytes_sum)) = bytes {
            let slot = ValueRow {
                revision,
                key: Arc::clone(&key),
                bytes_len: bytes.len() as u64,
                bytes_sum,
            };
            slot.insert(&self.conn, bytes)?;
            self.ledger.values.add(slot.checksum());
            self.load_values()?.by_key.insert(Arc::clone(&key), slot);
        }
        self.changed_values.push((key, revision));
        Ok(revision)
    }
}
