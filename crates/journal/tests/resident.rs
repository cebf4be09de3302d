//! How much memory waiting messages take. A test binary of its own: nothing else allocates.
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

use bowline_core::time::Now;
use bowline_journal::{At, Draft, Journal, Lane, Order, Published, Sqlite};
use bytes::Bytes;

const LANES: usize = 20;

/// Publishers of one lane, so that the writer has whole batches.
const PUBLISHERS: usize = 12;

/// What the journal may take up besides an entry for each message, in bytes: the cache of SQLite,
/// the rows in memory, and what is under way.
const FIXED_BYTES_MAX: u64 = 20 * 1024 * 1024;

/// What each message may take up, in bytes.
const MESSAGE_BYTES_MAX: u64 = 40;

fn at(ms: u64) -> At {
    At {
        now: Now(ms),
        unix_ms: 1_700_000_000_000 + ms,
    }
}

/// Memory of this process that is in use, in bytes.
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

fn draft(lane: &Lane, number: usize) -> Draft {
    let mut digest = [0; 32];
    digest[..8].copy_from_slice(&number.to_le_bytes());
    Draft {
        lane: lane.clone(),
        dedupe: format!("write_note\n{number:08}-6f1c-4a35-9d5e-0123456789ab").into(),
        digest,
        body: Bytes::from(vec![b'x'; 1024]),
        ttl: Some(Duration::from_secs(24 * 3_600)),
        hold: None,
    }
}

async fn fill(journal: &Arc<Sqlite>, lanes: &[Lane], messages: usize) {
    let mut publishers = tokio::task::JoinSet::new();
    for lane in lanes {
        for first in 0..PUBLISHERS {
            let (journal, lane) = (Arc::clone(journal), lane.clone());
            publishers.spawn(async move {
                for number in (first..messages).step_by(PUBLISHERS) {
                    let stored = journal.publish(draft(&lane, number), at(1)).await;
                    assert!(matches!(stored, Ok(Published::Stored { .. })), "{stored:?}");
                }
            });
        }
    }
    while let Some(ended) = publishers.join_next().await {
        ended.unwrap();
    }
}

/// Hands out the first of each lane, asks for one in the middle, and looks for what is past.
async fn use_lanes(journal: &Sqlite, lanes: &[Lane], messages: usize) {
    for lane in lanes {
        let hold = Duration::from_secs(60);
        let given = journal.lease(lane, Order::Strict, 1, hold, at(2)).await;
        assert_eq!(given.unwrap().len(), 1);
        let known = journal.publish(draft(lane, messages / 2), at(2)).await;
        assert!(matches!(known, Ok(Published::Known(_))), "{known:?}");
    }
    while !journal.expire("", at(3)).await.unwrap().is_empty() {}
}

#[tokio::test]
async fn waiting_messages_take_bounded_memory() {
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
        .map(|number| Lane::new(&format!("outbox/principal-{number}/server")).unwrap())
        .collect();
    let journal = Arc::new(Sqlite::open(&path).unwrap());
    let before = resident_bytes();
    fill(&journal, &lanes, messages).await;
    use_lanes(&journal, &lanes, messages).await;
    let filled = resident_bytes().saturating_sub(before);
    journal.close().await;
    drop(journal);
    let journal = Sqlite::open(&path).unwrap();
    use_lanes(&journal, &lanes, messages).await;
    let opened = resident_bytes().saturating_sub(before);
    let all = (LANES * messages) as u64;
    let limit = FIXED_BYTES_MAX + all * MESSAGE_BYTES_MAX;
    let figures =
        format!("{all} messages: {filled} bytes filled, {opened} opened, {limit} allowed");
    writeln!(std::io::stderr(), "{figures}").unwrap();
    assert!(filled <= limit && opened <= limit, "{figures}");
}
