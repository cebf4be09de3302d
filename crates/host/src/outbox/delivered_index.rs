//! Index of delivered writes by number, so that clients can query a write by number even after a
//! restart.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use bowline_core::sync::lock;
use bowline_journal::{
    CompletedMessage, ExpectedRevision, Journal, JournalError, LaneName, MessageId,
};
use serde::{Deserialize, Serialize};

/// Maximum number of indexed writes; the oldest are dropped first.
const DELIVERED_MAX: usize = 10_000;

/// Key prefix in the journal.
const KEY_PREFIX: &str = "outbox/";

/// Indexed numbers, oldest first.
#[derive(Debug, Default)]
pub(super) struct DeliveredIndex(Mutex<VecDeque<u64>>);

/// A delivered write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DeliveredWrite {
    pub(super) lane: LaneName,
    pub(super) dedupe: Arc<str>,
    pub(super) done: CompletedMessage,
}

#[derive(Debug, Serialize, Deserialize)]
struct IndexRecord {
    lane: String,
    dedupe: String,
}

impl DeliveredIndex {
    /// Loads the indexed numbers.
    pub(super) async fn load_numbers(&self, journal: &dyn Journal) -> Result<(), JournalError> {
        let all = journal
            .list_values(KEY_PREFIX, DELIVERED_MAX.saturating_mul(2))
            .await?;
        let numbers = all.iter().filter_map(|(key, _)| {
            let number = key.strip_prefix(KEY_PREFIX)?;
            number.parse().ok()
        });
        let numbers: VecDeque<u64> = numbers.collect();
        *lock(&self.0) = numbers;
        Ok(())
    }

    /// Indexes a write, and drops the oldest beyond the limit.
    pub(super) async fn add(
        &self,
        journal: &dyn Journal,
        id: MessageId,
        lane: &LaneName,
        dedupe: &str,
    ) -> Result<(), JournalError> {
        let record = IndexRecord {
            lane: lane.as_str().to_owned(),
            dedupe: dedupe.to_owned(),
        };
        // Two strings always serialize.
        let bytes = serde_json::to_vec(&record).unwrap_or_default();
        let oldest = {
            let mut ids = lock(&self.0);
            ids.push_back(id.0);
            (ids.len() > DELIVERED_MAX).then(|| ids.pop_front())
        };
        let key = journal_key(id.0);
        let noted = journal.put_value(&key, Some(bytes.into()), ExpectedRevision::Any);
        if let Some(oldest) = oldest.flatten() {
            let key = journal_key(oldest);
            let (noted, removed) =
                tokio::join!(noted, journal.put_value(&key, None, ExpectedRevision::Any));
            return noted.and(removed).map(drop);
        }
        noted.await.map(drop)
    }

    /// Returns a delivered write, while indexed.
    pub(super) async fn find_write(
        &self,
        journal: &dyn Journal,
        id: MessageId,
    ) -> Result<Option<DeliveredWrite>, JournalError> {
        let Some(value) = journal.get_value(&journal_key(id.0)).await? else {
            return Ok(None);
        };
        let Ok(IndexRecord { lane, dedupe }) = serde_json::from_slice(&value.bytes) else {
            return Ok(None);
        };
        let lane = LaneName::new(&lane)?;
        let done = journal.get_result(&lane, &dedupe).await?;
        Ok(done
            .filter(|done| done.id == id)
            .map(|done| DeliveredWrite {
                lane,
                dedupe: dedupe.into(),
                done,
            }))
    }
}

/// Returns the journal key; zero-padded so that keys sort by number.
fn journal_key(id: u64) -> String {
    format!("{KEY_PREFIX}{id:020}")
}

#[cfg(test)]
mod tests {
    use bowline_journal::MemoryJournal;

    use super::*;

    #[tokio::test]
    async fn index_is_bounded_and_drops_oldest() {
        let (journal, index) = (MemoryJournal::default(), DeliveredIndex::default());
        let lane = LaneName::new("outbox/p/s").unwrap();
        for id in 0..DELIVERED_MAX as u64 + 5 {
            let noted = index.add(&journal, MessageId(id), &lane, "t\nk");
            noted.await.unwrap();
        }
        let left = journal.list_values(KEY_PREFIX, usize::MAX).await.unwrap();
        assert_eq!(left.len(), DELIVERED_MAX);
        assert_eq!(&*left[0].0, journal_key(5));
        let again = DeliveredIndex::default();
        again.load_numbers(&journal).await.unwrap();
        assert_eq!(lock(&again.0).front(), Some(&5));
        assert_eq!(again.find_write(&journal, MessageId(1)).await, Ok(None));
    }
}
