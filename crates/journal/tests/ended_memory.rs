//! Memory use of completed messages, in a separate test binary without unrelated allocations.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::time::MonotonicTime;
use bowline_journal::{Journal, LaneName, MessageDraft, PublishOutcome, SqliteJournal, Timestamps};
use bytes::Bytes;

/// Messages before the first reading, to fill part of the SQLite cache.
const WARM_UP: usize = 4_000;

const MESSAGES: usize = 20_000;

/// Workers, so the writer thread commits full batches.
const WORKERS: usize = 32;

/// Allowed growth between the readings: the rest of the 2 MiB SQLite cache, and at most 64 bytes
/// per message.
const GROWTH_BYTES_MAX: u64 = 2 * 1024 * 1024 + (MESSAGES - WARM_UP) as u64 * 64;

fn moment_at(ms: u64) -> Timestamps {
    Timestamps {
        now: MonotonicTime(ms),
        unix_ms: 1_700_000_000_000 + ms,
    }
}

/// Returns the anonymous memory of this process in bytes.
fn anonymous_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:"));
    let kib = line.unwrap().split_whitespace().nth(1).unwrap();
    kib.parse::<u64>().unwrap() * 1024
}

/// Publishes and acks each message of a range, with a result.
async fn complete_messages(journal: &Arc<SqliteJournal>, lane: &LaneName, from: usize, to: usize) {
    let mut workers = tokio::task::JoinSet::new();
    for first in 0..WORKERS {
        let (journal, lane) = (Arc::clone(journal), lane.clone());
        workers.spawn(async move {
            for number in (from + first..to).step_by(WORKERS) {
                let draft = MessageDraft {
                    lane: lane.clone(),
                    dedupe: format!("write_note\n{number:08}-6f1c-4a35-9d5e-0123456789ab").into(),
                    digest: [7; 32],
                    body: Bytes::from_static(b"{\"number\":1}"),
                    ttl: None,
                    lease: Some(Duration::from_secs(60)),
                };
                let stored = journal.publish(draft, moment_at(1)).await.unwrap();
                let PublishOutcome::Stored { receipt, .. } = stored else {
                    panic!("{stored:?}");
                };
                let result = Some(Bytes::from_static(b"{\"content\":[]}"));
                journal
                    .ack(receipt.unwrap(), result, moment_at(2))
                    .await
                    .unwrap();
            }
        });
    }
    while let Some(ended) = workers.join_next().await {
        ended.unwrap();
    }
}

#[tokio::test]
async fn completed_messages_take_bounded_memory() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Arc::new(SqliteJournal::open(&directory.path().join("state.db")).unwrap());
    let lane = LaneName::new("outbox/principal/server").unwrap();
    complete_messages(&journal, &lane, 0, WARM_UP).await;
    let before = anonymous_bytes();
    complete_messages(&journal, &lane, WARM_UP, MESSAGES).await;
    let growth = anonymous_bytes().saturating_sub(before);
    let figures = format!("growth of {growth} bytes, {GROWTH_BYTES_MAX} allowed");
    writeln!(std::io::stderr(), "{figures}").unwrap();
    assert!(growth <= GROWTH_BYTES_MAX, "{figures}");
    let oldest = journal
        .get_result(&lane, "write_note\n00000000-6f1c-4a35-9d5e-0123456789ab")
        .await;
    assert!(oldest.unwrap().is_some());
    journal.close().await;
}
