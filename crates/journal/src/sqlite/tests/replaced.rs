//! What happens when the files of an open journal are deleted, moved or replaced.

use super::*;
use crate::engine::{Expect, Health};
use crate::sqlite::files::beside;
use crate::sqlite::{Kind, of_bytes};

/// Does something to the files of the journal at a path.
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
    ("database replaced", |path| replace(path)),
    ("log deleted", |path| {
        std::fs::remove_file(beside(path, "-wal")).unwrap();
    }),
    ("log replaced", |path| replace(&beside(path, "-wal"))),
];

/// Puts a copy of a file in its place.
fn replace(path: &Path) {
    let copy = beside(path, ".copy");
    std::fs::copy(path, &copy).unwrap();
    std::fs::rename(copy, path).unwrap();
}

/// A journal in a directory of its own, which may go.
fn home() -> (tempfile::TempDir, std::path::PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state/state.db");
    (directory, path)
}

#[test]
fn replaced_files_are_written_to_no_more() {
    for (way, tamper) in WAYS {
        let (_directory, path) = home();
        let journal = open(&path);
        let held = hold(&journal, "one", "before");
        tamper(&path);
        let drafts = ["a", "b", "c"].map(|name| journal.publish(draft("one", name), at(2)));
        let [a, b, c] = drafts;
        let (a, b, c) = wait(async { tokio::join!(a, b, c) });
        for outcome in [a, b, c] {
            assert_eq!(outcome, Err(JournalError::Replaced), "{way}");
        }
        assert_eq!(journal.health(), Health::Replaced, "{way}");
        let acked = wait(journal.ack(held, None, at(3)));
        assert_eq!(acked, Err(JournalError::Replaced), "{way}");
        let nak = wait(journal.nak(held, Duration::ZERO, at(3)));
        assert_eq!(nak, Err(JournalError::Replaced), "{way}");
        // Reads go on, and what was refused is not among what they show.
        let lanes = wait(journal.lanes("", at(4))).unwrap();
        assert_eq!(lanes[0].waiting, 1, "{way}");
    }
}

#[test]
fn read_notices_replaced_files() {
    let (_directory, path) = home();
    let journal = open(&path);
    assert_eq!(journal.health(), Health::Good);
    std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    wait(journal.lanes("", at(1))).unwrap();
    assert_eq!(journal.health(), Health::Replaced);
}

#[test]
fn files_deleted_during_commit_acknowledge_nothing() {
    let (_directory, path) = home();
    let journal = open(&path);
    let mut changes = journal.watch("k");
    changes.mark_unchanged();
    let put = journal.ask(Kind::New, 0, move |book| {
        // The check before the transaction has passed by now.
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
        let bytes = Bytes::from_static(b"v");
        let sum = of_bytes(&bytes);
        book.put("k", Some((&bytes, sum)), Expect::Any)
    });
    assert_eq!(wait(put), Err(JournalError::Replaced));
    assert_eq!(journal.health(), Health::Replaced);
    assert!(!changes.has_changed().unwrap(), "watchers are told nothing");
}

#[test]
fn files_put_back_count_after_reopen_only() {
    let (directory, path) = home();
    let journal = open(&path);
    wait(journal.publish(draft("one", "before"), at(1))).unwrap();
    let (home, aside) = (path.parent().unwrap(), directory.path().join("aside"));
    std::fs::rename(home, &aside).unwrap();
    let refused = wait(journal.publish(draft("one", "away"), at(2)));
    assert_eq!(refused, Err(JournalError::Replaced));
    std::fs::rename(&aside, home).unwrap();
    let refused = wait(journal.publish(draft("one", "back"), at(3)));
    assert_eq!(refused, Err(JournalError::Replaced));
    drop(journal);
    let journal = open(&path);
    assert_eq!(journal.health(), Health::Good);
    let lanes = wait(journal.lanes("", at(4))).unwrap();
    assert_eq!(lanes[0].waiting, 1, "only what was acknowledged");
    wait(journal.publish(draft("one", "after"), at(5))).unwrap();
}
