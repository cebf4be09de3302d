//! Tests specific to a journal on disk.

mod damage;
mod disk_failures;
mod files;
mod replaced_files;
mod segments;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::time::MonotonicTime;
use bowline_testkit::block_on;
use bytes::Bytes;

use super::SqliteJournal;
use crate::engine::{
    Journal, JournalError, LaneName, LeaseReceipt, MessageDraft, PublishOutcome, Timestamps,
};

fn moment_at(ms: u64) -> Timestamps {
    Timestamps {
        now: MonotonicTime(ms),
        unix_ms: 1_000_000 + ms,
    }
}

fn message_draft(lane: &str, name: &str) -> MessageDraft {
    MessageDraft {
        lane: LaneName::new(lane).unwrap(),
        dedupe: name.into(),
        digest: [name.len() as u8; 32],
        body: Bytes::from(format!("what {name} says in {lane}").repeat(8)),
        ttl: Some(Duration::from_secs(3600)),
        lease: None,
    }
}

fn open_journal(path: &Path) -> SqliteJournal {
    SqliteJournal::open(path).unwrap()
}

/// Runs a future to its end.
/// Publishes a message with a lease.
fn publish_leased(journal: &SqliteJournal, lane: &str, name: &str) -> LeaseReceipt {
    let draft = MessageDraft {
        lease: Some(Duration::from_secs(60)),
        ..message_draft(lane, name)
    };
    match block_on(journal.publish(draft, moment_at(1))) {
        Ok(PublishOutcome::Stored {
            receipt: Some(held),
            ..
        }) => held,
        other => panic!("{other:?}"),
    }
}

fn is_damaged<T>(outcome: &Result<T, JournalError>) -> bool {
    matches!(outcome, Err(JournalError::Damaged { .. }))
}

/// Writes two lanes with messages of every status, completed messages and values, and closes.
fn fill_journal(path: &Path) {
    let journal = open_journal(path);
    block_on(async {
        for name in ["done", "dead", "a", "b", "c", "d"] {
            for lane in ["one", "two"] {
                journal
                    .publish(message_draft(lane, name), moment_at(1))
                    .await
                    .unwrap();
            }
        }
        for lane in ["one", "two"] {
            let lane = LaneName::new(lane).unwrap();
            let hold = Duration::from_secs(9);
            let order = crate::engine::LeaseOrder::Any;
            let two = journal
                .lease(&lane, order, 2, hold, moment_at(2))
                .await
                .unwrap();
            let result = Some(Bytes::from(vec![7; 300]));
            journal
                .ack(two[0].receipt, result, moment_at(3))
                .await
                .unwrap();
            let reason = Arc::from("it was refused");
            journal
                .dead_letter(two[1].receipt, reason, moment_at(4))
                .await
                .unwrap();
        }
        for key in ["k/1", "k/2", "k/3"] {
            let value = Bytes::from(key.repeat(50));
            let expect = crate::engine::ExpectedRevision::Any;
            journal.put_value(key, Some(value), expect).await.unwrap();
        }
        journal.close().await;
    });
}
