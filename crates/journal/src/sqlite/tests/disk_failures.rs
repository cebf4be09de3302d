//! Full and failing disks.

use super::*;
use crate::engine::{ExpectedRevision, JournalHealth, LeaseOrder};

/// Runs a closure on the writer's state.
fn with_state(
    journal: &SqliteJournal,
    mut act: impl FnMut(&mut super::super::JournalState) + Send + 'static,
) {
    let asked = journal.run_on_writer(super::super::OperationKind::Read, 0, move |state| {
        act(state);
        Ok(())
    });
    block_on(asked).unwrap();
}

/// Lets the file grow by `more` pages; `None` removes the limit.
fn limit_pages(journal: &SqliteJournal, more: Option<u32>) {
    with_state(journal, move |state| state.allow_pages(more));
}

#[test]
fn full_disk_refuses_new_but_settles() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.db");
    let journal = open_journal(&path);
    let held: Vec<_> = (0..6)
        .map(|number| publish_leased(&journal, "one", &number.to_string()))
        .collect();
    block_on(journal.publish(message_draft("two", "waits"), moment_at(1))).unwrap();
    block_on(journal.put_value("k", Some(Bytes::from_static(b"v")), ExpectedRevision::Any))
        .unwrap();
    limit_pages(&journal, Some(2));
    let large = MessageDraft {
        body: Bytes::from(vec![1; 100_000]),
        ..message_draft("one", "large")
    };
    let refused = block_on(journal.publish(large.clone(), moment_at(2)));
    assert_eq!(refused, Err(JournalError::DiskFull));
    assert_eq!(journal.health(), JournalHealth::DiskFull);
    block_on(journal.ack(held[0], Some(Bytes::from_static(b"ok")), moment_at(3))).unwrap();
    block_on(journal.nak(held[1], Duration::ZERO, moment_at(3))).unwrap();
    block_on(journal.dead_letter(held[2], "no".into(), moment_at(3))).unwrap();
    block_on(journal.discard_leased(held[3], moment_at(3))).unwrap();
    let two = LaneName::new("two").unwrap();
    let lease = journal.lease(
        &two,
        LeaseOrder::Strict,
        1,
        Duration::from_secs(9),
        moment_at(3),
    );
    let leased = block_on(lease).unwrap();
    block_on(journal.ack(leased[0].receipt, None, moment_at(3))).unwrap();
    block_on(journal.remove_message(held[2].id, moment_at(4))).unwrap();
    block_on(journal.put_value("k", None, ExpectedRevision::Any)).unwrap();
    limit_pages(&journal, None);
    // Space is free again, as the next publication detects.
    block_on(journal.publish(large, moment_at(5))).unwrap();
    assert_eq!(journal.health(), JournalHealth::Good);
    let reserve = super::super::journal_files::sibling_path(&path, ".ballast");
    assert_eq!(reserve.metadata().unwrap().len(), 8 * 1024 * 1024);
    drop(journal);
    let journal = open_journal(&path);
    let lanes = block_on(journal.lane_stats("", moment_at(6))).unwrap();
    assert_eq!((lanes.len(), lanes[0].queued), (1, 4));
}

#[test]
fn failing_operation_does_not_fail_batch() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.db");
    let journal = open_journal(&path);
    publish_leased(&journal, "one", "first");
    with_state(&journal, |state| state.fail_bodies_of(5_000));
    let bad = MessageDraft {
        body: Bytes::from(vec![1; 5_000]),
        ..message_draft("one", "bad")
    };
    let good = ["a", "b", "c", "d"].map(|name| message_draft("one", name));
    let [a, b, c, d] = good.map(|draft| journal.publish(draft, moment_at(2)));
    let bad = journal.publish(bad, moment_at(2));
    let outcomes = block_on(async { tokio::join!(a, b, bad, c, d) });
    let good = [outcomes.0, outcomes.1, outcomes.3, outcomes.4];
    for (before, outcome) in good.into_iter().enumerate() {
        let Ok(PublishOutcome::Stored { position, .. }) = outcome else {
            panic!("{outcome:?}");
        };
        assert_eq!(position, before as u64 + 2);
    }
    assert!(is_damaged(&outcomes.2), "{:?}", outcomes.2);
    assert_eq!(journal.health(), JournalHealth::Good);
}

#[test]
fn failed_sync_stops_acks_but_not_reads() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.db");
    let journal = open_journal(&path);
    let held = publish_leased(&journal, "one", "a");
    with_state(&journal, |state| state.fail_commits(true));
    let acked = block_on(journal.ack(held, None, moment_at(2)));
    assert!(
        matches!(acked, Err(JournalError::Poisoned { .. })),
        "{acked:?}"
    );
    assert!(matches!(journal.health(), JournalHealth::Poisoned(_)));
    with_state(&journal, |state| state.fail_commits(false));
    // The disk may report success again, but its content is unknown.
    let again = block_on(journal.ack(held, None, moment_at(3)));
    assert!(
        matches!(again, Err(JournalError::Poisoned { .. })),
        "{again:?}"
    );
    let more = block_on(journal.publish(message_draft("one", "b"), moment_at(3)));
    assert!(
        matches!(more, Err(JournalError::Poisoned { .. })),
        "{more:?}"
    );
    let entry = block_on(journal.get_message(held.id, moment_at(4))).unwrap();
    assert_eq!(&*entry.unwrap().dedupe, "a");
    drop(journal);
    let journal = open_journal(&path);
    assert_eq!(journal.health(), JournalHealth::Good);
    let lanes = block_on(journal.lane_stats("", moment_at(5))).unwrap();
    assert_eq!(lanes[0].queued, 1);
}

#[test]
fn receipt_stays_valid_after_rollback() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.db");
    let journal = open_journal(&path);
    let held = publish_leased(&journal, "one", "a");
    with_state(&journal, |state| state.fail_bodies_of(5_000));
    let bad = MessageDraft {
        body: Bytes::from(vec![1; 5_000]),
        ..message_draft("one", "bad")
    };
    let ack = journal.ack(held, None, moment_at(2));
    let bad = journal.publish(bad, moment_at(2));
    let (acked, bad) = block_on(async { tokio::join!(ack, bad) });
    assert_eq!(acked, Ok(()));
    assert!(is_damaged(&bad), "{bad:?}");
    let lane = LaneName::new("one").unwrap();
    assert!(block_on(journal.get_result(&lane, "a")).unwrap().is_some());
}
