//! Memory use of queued messages, in a separate test binary without unrelated allocations.
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
use bowline_journal::{
    Journal, LaneName, LeaseOrder, MessageDraft, PublishOutcome, SqliteJournal, Timestamps,
};
use bytes::Bytes;

const LANES: usize = 20;

/// Publishers per lane, so the writer has full batches.
const PUBLISHERS: usize = 12;

/// Memory budget besides the entries, in bytes: SQLite cache, cached rows, and work in flight.
const FIXED_BYTES_MAX: u64 = 20 * 1024 * 1024;

/// Memory budget per message, in bytes.
const MESSAGE_BYTES_MAX: u64 = 40;

fn moment_at(ms: u64) -> Timestamps {
    Timestamps {
        now: MonotonicTime(ms),
        unix_ms: 1_700_000_000_000 + ms,
    }
}

/// Returns the resident memory of this process in bytes.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib: u64 = line
        .unwrap()
        .split_whitespace()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap();
    kib * 1024
}

fn message_draft(lane: &LaneName, number: usize) -> MessageDraft {
    let mut digest = [0; 32];
    digest[..8].copy_from_slice(&number.to_le_bytes());
    MessageDraft {
        lane: lane.clone(),
        dedupe: format!("write_note\n{number:08}-6f1c-4a35-9d5e-0123456789ab").into(),
        digest,
        body: Bytes::from(vec![b'x'; 1024]),
        ttl: Some(Duration::from_secs(24 * 3_600)),
        lease: None,
    }
}

async fn fill_lanes(journal: &Arc<SqliteJournal>, lanes: &[LaneName], messages: usize) {
    let mut publishers = tokio::task::JoinSet::new();
    for lane in lanes {
        for first in 0..PUBLISHERS {
            let (journal, lane) = (Arc::clone(journal), lane.clone());
            publishers.spawn(async move {
                for number in (first..messages).step_by(PUBLISHERS) {
                    let stored = journal
                        .publish(message_draft(&lane, number), moment_at(1))
                        .await;
                    assert!(
                        matches!(stored, Ok(PublishOutcome::Stored { .. })),
                        "{stored:?}"
                    );
                }
            });
        }
    }
    while let Some(ended) = publishers.join_next().await {
        ended.unwrap();
    }
}

/// Leases the first message of each lane, republishes a message in the middle, and expires.
async fn use_lanes(journal: &SqliteJournal, lanes: &[LaneName], messages: usize) {
    for lane in lanes {
        let hold = Duration::from_secs(60);
        let given = journal
            .lease(lane, LeaseOrder::Strict, 1, hold, moment_at(2))
            .await;
        assert_eq!(given.unwrap().len(), 1);
        let known = journal
            .publish(message_draft(lane, messages / 2), moment_at(2))
            .await;
        assert!(
            matches!(known, Ok(PublishOutcome::Duplicate(_))),
            "{known:?}"
        );
    }
    while !journal
        .expire_messages("", moment_at(3))
        .await
        .unwrap()
        .is_empty()
    {}
}

#[tokio::test]
async fn queued_messages_take_bounded_memory() {
    #[expect(
        clippy::disallowed_methods,
        reason = "a test may be told to run longer"
    )]
    let messages = std::env::var("BOWLINE_LANE_MESSAGES").ok();
    let messages = messages
        .and_then(|count| count.parse().ok())
        .unwrap_or(2_500);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.db");
    let lanes: Vec<_> = (0..LANES)
        .map(|number| LaneName::new(&format!("outbox/principal-{number}/server")).unwrap())
        .collect();
    let journal = Arc::new(SqliteJournal::open(&path).unwrap());
    let before = resident_bytes();
    fill_lanes(&journal, &lanes, messages).await;
    use_lanes(&journal, &lanes, messages).await;
    let filled = resident_bytes().saturating_sub(before);
    journal.close().await;
    drop(journal);
    let journal = SqliteJournal::open(&path).unwrap();
    use_lanes(&journal, &lanes, messages).await;
    let opened = resident_bytes().saturating_sub(before);
    let all = (LANES * messages) as u64;
    let limit = FIXED_BYTES_MAX + all * MESSAGE_BYTES_MAX;
    let figures =
        format!("{all} messages: {filled} bytes filled, {opened} opened, {limit} allowed");
    writeln!(std::io::stderr(), "{figures}").unwrap();
    assert!(filled <= limit && opened <= limit, "{figures}");
}
