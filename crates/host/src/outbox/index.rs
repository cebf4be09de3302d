//! Which queued writes were delivered, by number: whoever was told a number may ask what became of
//! it, also after a restart.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use bowline_core::sync::lock;
use bowline_journal::{Done, Expect, Journal, JournalError, Lane, MessageId};
use serde::{Deserialize, Serialize};

/// Delivered writes that can be asked for by number; the oldest go first.
const DELIVERED_MAX: usize = 10_000;

/// How the keys of their values begin.
const KEYS: &str = "outbox/";

/// The numbers that are known, oldest first.
#[derive(Debug, Default)]
pub(super) struct Index(Mutex<VecDeque<u64>>);

/// A write that was delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) lane: Lane,
    pub(super) dedupe: Arc<str>,
    pub(super) done: Done,
}

#[derive(Debug, Serialize, Deserialize)]
struct Place {
    lane: String,
    dedupe: String,
}

impl Index {
    /// Reads which numbers are known.
    pub(super) async fn load(&self, journal: &dyn Journal) -> Result<(), JournalError> {
        let all = journal.list(KEYS, DELIVERED_MAX.saturating_mul(2)).await?;
        let numbers = all.iter().filter_map(|(key, _)| {
            let number = key.strip_prefix(KEYS)?;
            number.parse().ok()
        });
        let numbers: VecDeque<u64> = numbers.collect();
        *lock(&self.0) = numbers;
        Ok(())
    }

    /// Remembers where a write is to be found, and forgets the oldest where there are too many.
    pub(super) async fn note(
        &self,
        journal: &dyn Journal,
        id: MessageId,
        (lane, dedupe): (&Lane, &str),
    ) -> Result<(), JournalError> {
        let place = Place {
            lane: lane.as_str().to_owned(),
            dedupe: dedupe.to_owned(),
        };
        // Two texts can always be written.
        let bytes = serde_json::to_vec(&place).unwrap_or_default();
        let oldest = {
            let mut known = lock(&self.0);
            known.push_back(id.0);
            (known.len() > DELIVERED_MAX).then(|| known.pop_front())
        };
        let key = key(id.0);
        let noted = journal.put(&key, Some(bytes.into()), Expect::Any);
        if let Some(oldest) = oldest.flatten() {
            let key = self::key(oldest);
            let (noted, gone) = tokio::join!(noted, journal.put(&key, None, Expect::Any));
            return noted.and(gone).map(drop);
        }
        noted.await.map(drop)
    }

    /// Returns how a write ended that was delivered, as long as that is known.
    pub(super) async fn find(
        &self,
        journal: &dyn Journal,
        id: MessageId,
    ) -> Result<Option<Ended>, JournalError> {
        let Some(value) = journal.get(&key(id.0)).await? else {
            return Ok(None);
        };
        let Ok(Place { lane, dedupe }) = serde_json::from_slice(&value.bytes) else {
            return Ok(None);
        };
        let lane = Lane::new(&lane)?;
        let done = journal.result(&lane, &dedupe).await?;
        Ok(done.filter(|done| done.id == id).map(|done| Ended {
            lane,
            dedupe: dedupe.into(),
            done,
        }))
    }
}

/// Numbers are written so that their order is that of their keys.
fn key(id: u64) -> String {
    format!("{KEYS}{id:020}")
}

#[cfg(test)]
mod tests {
    use bowline_journal::Memory;

    use super::*;

    #[tokio::test]
    async fn so_many_numbers_are_known_and_the_oldest_go_first() {
        let (journal, index) = (Memory::default(), Index::default());
        let lane = Lane::new("outbox/p/s").unwrap();
        for id in 0..DELIVERED_MAX as u64 + 5 {
            let noted = index.note(&journal, MessageId(id), (&lane, "t\nk"));
            noted.await.unwrap();
        }
        let left = journal.list(KEYS, usize::MAX).await.unwrap();
        assert_eq!(left.len(), DELIVERED_MAX);
        assert_eq!(&*left[0].0, key(5));
        let again = Index::default();
        again.load(&journal).await.unwrap();
        assert_eq!(lock(&again.0).front(), Some(&5));
        assert_eq!(again.find(&journal, MessageId(1)).await, Ok(None));
    }
}
