//! Compatibility and clocks: files of older versions open, and leases ignore the wall clock.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bowline_core::time::MonotonicTime;
use bowline_journal::{
    Duplicate, ExpectedRevision, Journal, LaneName, LeaseOrder, MemoryJournal, MessageDraft,
    MessageFilter, MessageStatus, PublishOutcome, SqliteJournal, Timestamps,
};
use bowline_testkit::block_on;
use bytes::Bytes;

const LANE: &str = "outbox/ann/mail";
const HOUR: Duration = Duration::from_secs(3_600);

fn at_clocks(now: u64, unix_ms: u64) -> Timestamps {
    Timestamps {
        now: MonotonicTime(now),
        unix_ms,
    }
}

fn message_draft(name: &str, ttl: Option<Duration>) -> MessageDraft {
    MessageDraft {
        lane: LaneName::new(LANE).unwrap(),
        dedupe: name.into(),
        digest: [7; 32],
        body: Bytes::from(format!("body of {name}")),
        ttl,
        lease: None,
    }
}

/// Writes the content of every fixture file. Each fixture was written by the version in its name.
async fn write_fixture(journal: &dyn Journal) {
    let lane = LaneName::new(LANE).unwrap();
    for name in ["done", "dead", "waits"] {
        let stored = journal
            .publish(message_draft(name, Some(HOUR)), at_clocks(1_000, 1_000))
            .await;
        assert!(
            matches!(stored, Ok(PublishOutcome::Stored { .. })),
            "{stored:?}"
        );
    }
    let held = journal.lease(&lane, LeaseOrder::Any, 2, HOUR, at_clocks(2_000, 2_000));
    let held = held.await.unwrap();
    let result = Some(Bytes::from_static(b"sent"));
    journal
        .ack(held[0].receipt, result, at_clocks(3_000, 3_000))
        .await
        .unwrap();
    journal
        .dead_letter(held[1].receipt, "refused".into(), at_clocks(4, 4_000))
        .await
        .unwrap();
    let value = Some(Bytes::from_static(b"one"));
    journal
        .put_value("pins/a", value, ExpectedRevision::Absent)
        .await
        .unwrap();
    journal.close().await;
}

async fn assert_fixture(journal: &dyn Journal) {
    let lane = LaneName::new(LANE).unwrap();
    let filter = MessageFilter {
        limit: 10,
        ..MessageFilter::default()
    };
    let entries = journal
        .list_messages(filter, at_clocks(5, 5_000))
        .await
        .unwrap();
    let shown: Vec<_> = entries
        .iter()
        .map(|one| (&*one.dedupe, one.status.clone(), one.expires_unix_ms))
        .collect();
    let expires = Some(1_000 + 3_600_000);
    assert_eq!(
        shown,
        [
            ("dead", MessageStatus::DeadLetter("refused".into()), expires),
            ("waits", MessageStatus::Queued, expires)
        ]
    );
    assert_eq!(entries[1].body, "body of waits");
    let done = journal.get_result(&lane, "done").await.unwrap().unwrap();
    assert_eq!(
        (done.result.as_deref(), done.unix_ms),
        (Some(&b"sent"[..]), 3_000)
    );
    let again = journal
        .publish(message_draft("done", None), at_clocks(6, 6_000))
        .await;
    assert_eq!(
        again,
        Ok(PublishOutcome::Duplicate(Duplicate::Completed(done)))
    );
    assert_eq!(
        journal.get_value("pins/a").await.unwrap().unwrap().bytes,
        "one"
    );
    journal.close().await;
}

fn fixture_files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let files = fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path());
    files.collect()
}

#[test]
fn files_of_every_version_open() {
    let files = fixture_files();
    assert!(!files.is_empty());
    for file in files {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.db");
        fs::copy(&file, &path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        block_on(assert_fixture(&SqliteJournal::open(&path).unwrap()));
    }
}

#[test]
fn current_version_matches_fixtures() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.db");
    block_on(write_fixture(&SqliteJournal::open(&path).unwrap()));
    // A release adds this file to the fixtures.
    block_on(assert_fixture(&SqliteJournal::open(&path).unwrap()));
}

#[test]
fn lease_ignores_wall_clock() {
    let dir = tempfile::tempdir().unwrap();
    let engines: [Box<dyn Journal>; 2] = [
        Box::new(MemoryJournal::default()),
        Box::new(SqliteJournal::open(&dir.path().join("state.db")).unwrap()),
    ];
    for journal in engines {
        block_on(async {
            let lane = LaneName::new(LANE).unwrap();
            let minute = Duration::from_secs(60);
            let (noon, hour) = (12 * 3_600_000, 3_600_000);
            let lease = |at| journal.lease(&lane, LeaseOrder::Any, 1, minute, at);
            journal
                .publish(message_draft("a", None), at_clocks(0, noon))
                .await
                .unwrap();
            assert_eq!(lease(at_clocks(0, noon)).await.unwrap().len(), 1);
            // The wall clock jumps an hour ahead and an hour back; a second has passed.
            assert_eq!(lease(at_clocks(1_000, noon + hour)).await.unwrap(), []);
            assert_eq!(lease(at_clocks(1_000, noon - hour)).await.unwrap(), []);
            // The minute is over, regardless of the wall clock.
            let again = lease(at_clocks(60_000, noon - hour)).await.unwrap();
            let receipt = again[0].receipt;
            // A message after a nak is due after its delay, regardless of the wall clock.
            journal
                .nak(receipt, minute, at_clocks(60_000, noon + hour))
                .await
                .unwrap();
            assert_eq!(lease(at_clocks(61_000, noon + 9 * hour)).await.unwrap(), []);
            assert_eq!(
                lease(at_clocks(120_000, noon - hour)).await.unwrap().len(),
                1
            );
            journal.close().await;
        });
    }
}

#[test]
fn wall_jump_expires_nothing_queued_before() {
    let dir = tempfile::tempdir().unwrap();
    let engines: [Box<dyn Journal>; 2] = [
        Box::new(MemoryJournal::default()),
        Box::new(SqliteJournal::open(&dir.path().join("state.db")).unwrap()),
    ];
    let (noon, hour) = (500_000 * 3_600_000, 3_600_000);
    for journal in engines {
        block_on(async {
            let lane = LaneName::new(LANE).unwrap();
            let stored = journal
                .publish(message_draft("a", Some(HOUR)), at_clocks(0, noon))
                .await;
            stored.unwrap();
            // The wall clock jumps a year ahead; a second has passed.
            let jumped = noon + 365 * 24 * hour;
            let past = journal
                .expire_messages("", at_clocks(1_000, jumped))
                .await
                .unwrap();
            assert_eq!(past, []);
            let minute = Duration::from_secs(60);
            let given = journal.lease(
                &lane,
                LeaseOrder::Strict,
                1,
                minute,
                at_clocks(2_000, jumped),
            );
            let given = given.await.unwrap();
            // The consumer gets the remaining time by elapsed time, not by the wall clock.
            let (age, left) = (given[0].age, given[0].remaining.unwrap());
            assert!(age < minute && left > HOUR - minute, "{age:?} {left:?}");
            let receipt = given[0].receipt;
            let back = journal.nak(receipt, Duration::ZERO, at_clocks(3_000, jumped));
            back.await.unwrap();
            // After an hour the message expires, even if the wall clock went back.
            let past = journal
                .expire_messages("", at_clocks(2 * hour, noon))
                .await
                .unwrap();
            assert_eq!(past.len(), 1);
        });
    }
}

#[test]
fn wall_jump_over_restart_expires_after_grace() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.db");
    let (noon, hour) = (500_000 * 3_600_000, 3_600_000);
    let jumped = noon + 72 * hour;
    let day = Duration::from_secs(24 * 3_600);
    block_on(async {
        let journal = SqliteJournal::open(&path).unwrap();
        for (name, ttl) in [("hour", HOUR), ("day", day)] {
            let stored = journal.publish(message_draft(name, Some(ttl)), at_clocks(7, noon));
            stored.await.unwrap();
        }
        journal.close().await;
    });
    block_on(async {
        let journal = SqliteJournal::open(&path).unwrap();
        let past = journal
            .expire_messages("", at_clocks(0, jumped))
            .await
            .unwrap();
        assert_eq!(past, [], "what was queued a moment ago can be tried");
        // Then the downtime counts, but only partly: three days may be a wrong clock.
        let grace = 300_000;
        let past = journal
            .expire_messages("", at_clocks(grace, jumped + grace))
            .await
            .unwrap();
        let names: Vec<_> = past.iter().map(|entry| &*entry.dedupe).collect();
        assert_eq!(names, ["hour"]);
        let later = 12 * hour;
        let past = journal
            .expire_messages("", at_clocks(later, jumped + later))
            .await
            .unwrap();
        let names: Vec<_> = past.iter().map(|entry| &*entry.dedupe).collect();
        assert_eq!(names, ["day"], "half a day of the stop counted");
        journal.close().await;
    });
}
