//! Deleted, moved or replaced files of an open journal.

use super::*;
use crate::engine::{ExpectedRevision, JournalHealth};
use crate::sqlite::journal_files::sibling_path;
use crate::sqlite::{OperationKind, checksum_bytes};

/// Changes the files of the journal at a path.
type Tamper = fn(&Path);

const WAYS: [(&str, Tamper); 6] = [
    ("directory deleted", |path| {
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }),
    ("directory moved", |path| {
        let home = path.parent().unwrap();
        std::fs::rename(home, home.with_file_name("elsewhere")).unwrap();
    }),
    ("database deleted", |path| {
        std::fs::remove_file(path).unwrap();
    }),
    ("database replaced", |path| replace_file(path)),
    ("log deleted", |path| {
        std::fs::remove_file(sibling_path(path, "-wal")).unwrap();
    }),
    ("log replaced", |path| {
        replace_file(&sibling_path(path, "-wal"))
    }),
];

/// Replaces a file by a copy.
fn replace_file(path: &Path) {
    let copy = sibling_path(path, ".copy");
    std::fs::copy(path, &copy).unwrap();
    std::fs::rename(copy, path).unwrap();
}

/// Returns a path in a dedicated directory, which may be deleted.
fn journal_home() -> (tempfile::TempDir, std::path::PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state/state.db");
    (directory, path)
}

#[test]
fn replaced_files_are_not_written() {
    for (way, tamper) in WAYS {
        let (_directory, path) = journal_home();
        let journal = open_journal(&path);
        let held = publish_leased(&journal, "one", "before");
        tamper(&path);
        let drafts =
            ["a", "b", "c"].map(|name| journal.publish(message_draft("one", name), moment_at(2)));
        let [a, b, c] = drafts;
        let (a, b, c) = block_on(async { tokio::join!(a, b, c) });
        for outcome in [a, b, c] {
            assert_eq!(outcome, Err(JournalError::Replaced), "{way}");
        }
        assert_eq!(journal.health(), JournalHealth::Replaced, "{way}");
        let acked = block_on(journal.ack(held, None, moment_at(3)));
        assert_eq!(acked, Err(JournalError::Replaced), "{way}");
        let nak = block_on(journal.nak(held, Duration::ZERO, moment_at(3)));
        assert_eq!(nak, Err(JournalError::Replaced), "{way}");
        // Reads continue and do not show refused messages.
        let lanes = block_on(journal.lane_stats("", moment_at(4))).unwrap();
        assert_eq!(lanes[0].queued, 1, "{way}");
    }
}

#[test]
fn read_notices_replaced_files() {
    let (_directory, path) = journal_home();
    let journal = open_journal(&path);
    assert_eq!(journal.health(), JournalHealth::Good);
    std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    block_on(journal.lane_stats("", moment_at(1))).unwrap();
    assert_eq!(journal.health(), JournalHealth::Replaced);
}

#[test]
fn files_deleted_during_commit_acknowledge_nothing() {
    let (_directory, path) = journal_home();
    let journal = open_journal(&path);
    let mut changes = journal.watch_prefix("k");
    changes.mark_unchanged();
    let put = journal.run_on_writer(OperationKind::Insert, 0, move |state| {
        // The check before the transaction passed already.
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
        let bytes = Bytes::from_static(b"v");
        let sum = checksum_bytes(&bytes);
        state.put_value("k", Some((&bytes, sum)), ExpectedRevision::Any)
    });
    assert_eq!(block_on(put), Err(JournalError::Replaced));
    assert_eq!(journal.health(), JournalHealth::Replaced);
    assert!(!changes.has_changed().unwrap(), "watchers are told nothing");
}

#[test]
fn restored_files_count_only_after_reopen() {
    let (directory, path) = journal_home();
    let journal = open_journal(&path);
    block_on(journal.publish(message_draft("one", "before"), moment_at(1))).unwrap();
    let (home, aside) = (path.parent().unwrap(), directory.path().join("aside"));
    std::fs::rename(home, &aside).unwrap();
    let refused = block_on(journal.publish(message_draft("one", "away"), moment_at(2)));
    assert_eq!(refused, Err(JournalError::Replaced));
    std::fs::rename(&aside, home).unwrap();
    let refused = block_on(journal.publish(message_draft("one", "back"), moment_at(3)));
    assert_eq!(refused, Err(JournalError::Replaced));
    drop(journal);
    let journal = open_journal(&path);
    assert_eq!(journal.health(), JournalHealth::Good);
    let lanes = block_on(journal.lane_stats("", moment_at(4))).unwrap();
    assert_eq!(lanes[0].queued, 1, "only what was acknowledged");
    block_on(journal.publish(message_draft("one", "after"), moment_at(5))).unwrap();
}
