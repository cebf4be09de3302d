//! Values with compare-and-set.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::Book;
use crate::engine::{Expect, JournalError, Value};
use crate::sqlite::fault::{Fault, damaged};
use crate::sqlite::rows::ValueSlot;
use crate::sqlite::sum::{Sum, Tally, of_bytes};

/// The keys of all values.
#[derive(Debug, Default)]
pub(super) struct Values {
    by_key: BTreeMap<Arc<str>, ValueSlot>,
    /// Whether a value cannot be read, so that a key that is not there may be its.
    suspect: bool,
}

impl Book {
    fn values(&mut self) -> Result<&mut Values, Fault> {
        if self.values.is_none() {
            let mut values = Values::default();
            let mut tally = Tally::default();
            for slot in ValueSlot::all(&self.conn)?.into_iter().flatten() {
                tally.add(slot.sum());
                values.by_key.insert(Arc::clone(&slot.key), slot);
            }
            values.suspect = tally != self.ledger.values;
            self.values = Some(values);
        }
        self.values
            .as_mut()
            .ok_or_else(|| damaged("the list of values").into())
    }

    fn slot(&mut self, key: &str) -> Result<Option<ValueSlot>, Fault> {
        let values = self.values()?;
        match values.by_key.get(key) {
            None if values.suspect => Err(damaged(format!("value `{key}` or another")).into()),
            slot => Ok(slot.cloned()),
        }
    }

    fn value(&self, slot: &ValueSlot) -> Result<Value, Fault> {
        let bytes = slot.bytes(&self.conn)?;
        let bytes = bytes.filter(|bytes| {
            bytes.len() as u64 == slot.bytes_len && of_bytes(bytes) == slot.bytes_sum
        });
        let what = || damaged(format!("value `{}`", slot.key));
        Ok(Value {
            revision: slot.revision,
            bytes: bytes.ok_or_else(what)?.into(),
        })
    }

    pub(in crate::sqlite) fn get(&mut self, key: &str) -> Result<Option<Value>, Fault> {
        match self.slot(key)? {
            Some(slot) => self.value(&slot).map(Some),
            None => Ok(None),
        }
    }

    pub(in crate::sqlite) fn list(
        &mut self,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<(Arc<str>, Value)>, Fault> {
        let values = self.values()?;
        if values.suspect {
            return Err(damaged("a value").into());
        }
        let from = values.by_key.range(Arc::<str>::from(prefix)..);
        let slots: Vec<_> = from
            .take_while(|(key, _)| key.starts_with(prefix))
            .take(limit)
            .map(|(_, slot)| slot.clone())
            .collect();
        let values = slots.iter();
        values
            .map(|slot| Ok((Arc::clone(&slot.key), self.value(slot)?)))
            .collect()
    }

    pub(in crate::sqlite) fn put(
        &mut self,
        key: &str,
        bytes: Option<(&Bytes, Sum)>,
        expect: Expect,
    ) -> Result<u64, Fault> {
        let was = self.slot(key)?;
        let is = was.as_ref().map(|slot| slot.revision);
        let as_expected = match expect {
            Expect::Any => true,
            Expect::Absent => is.is_none(),
            Expect::Revision(revision) => is == Some(revision),
        };
        if !as_expected {
            return Err(JournalError::Changed.into());
        }
        self.begin()?;
        self.ledger.revision += 1;
        let revision = self.ledger.revision;
        let key: Arc<str> = key.into();
        if let Some(was) = was {
            ValueSlot::delete(&self.conn, was.revision)?;
            self.ledger.values.take(was.sum());
            self.values()?.by_key.remove(&key);
        }
        if let Some((bytes, bytes_sum)) = bytes {
            let slot = ValueSlot {
                revision,
                key: Arc::clone(&key),
                bytes_len: bytes.len() as u64,
                bytes_sum,
            };
            slot.insert(&self.conn, bytes)?;
            self.ledger.values.add(slot.sum());
            self.values()?.by_key.insert(Arc::clone(&key), slot);
        }
        self.news.push((key, revision));
        Ok(revision)
    }
}
