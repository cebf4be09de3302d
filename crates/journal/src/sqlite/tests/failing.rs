//! What happens when the disk is full or fails.

use super::*;
use crate::engine::{Expect, Health, Order};

/// Does something to the writer's book.
fn tamper(journal: &Sqlite, mut act: impl FnMut(&mut super::super::Book) + Send + 'static) {
    let asked = journal.ask(super::super::Kind::Read, 0, move |book| {
        act(book);
        Ok(())
    });
    wait(asked).unwrap();
}

/// Lets the file grow by so many pages, or by none.
fn allow(journal: &Sqlite, more: Option<u32>) {
    tamper(journal, move |book| book.allow_pages(more));
}

#[test]
fn a_full_disk_takes_nothing_new_but_lets_work_end() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.db");
    let journal = open(&path);
    let held: Vec<_> = (0..6)
        .map(|number| hold(&journal, "one", &number.to_string()))
        .collect();
    wait(journal.publish(draft("two", "waits"), at(1))).unwrap();
    wait(journal.put("k", Some(Bytes::from_static(b"v")), Expect::Any)).unwrap();
    allow(&journal, Some(2));
    let large = Draft {
        body: Bytes::from(vec![1; 100_000]),
        ..draft("one", "large")
    };
    let refused = wait(journal.publish(large.clone(), at(2)));
    assert_eq!(refused, Err(JournalError::Full));
    assert_eq!(journal.health(), Health::Full);
    wait(journal.ack(held[0], Some(Bytes::from_static(b"ok")), at(3))).unwrap();
    wait(journal.nak(held[1], Duration::ZERO, at(3))).unwrap();
    wait(journal.bury(held[2], "no".into(), at(3))).unwrap();
    wait(journal.withdraw(held[3], at(3))).unwrap();
    let two = Lane::new("two").unwrap();
    let lease = journal.lease(&two, Order::Strict, 1, Duration::from_secs(9), at(3));
    let given = wait(lease).unwrap();
    wait(journal.ack(given[0].receipt, None, at(3))).unwrap();
    wait(journal.remove(held[2].id, at(4))).unwrap();
    wait(journal.put("k", None, Expect::Any)).unwrap();
    allow(&journal, None);
    // There is room again, which the next one finds out.
    wait(journal.publish(large, at(5))).unwrap();
    assert_eq!(journal.health(), Health::Good);
    let ballast = super::super::files::beside(&path, ".ballast");
    assert_eq!(ballast.metadata().unwrap().len(), 8 * 1024 * 1024);
    drop(journal);
    let journal = open(&path);
    let lanes = wait(journal.lanes("", at(6))).unwrap();
    assert_eq!((lanes.len(), lanes[0].waiting), (1, 4));
}

#[test]
fn one_that_fails_does_not_fail_its_neighbours() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.db");
    let journal = open(&path);
    hold(&journal, "one", "first");
    tamper(&journal, |book| book.fail_bodies_of(5_000));
    let bad = Draft {
        body: Bytes::from(vec![1; 5_000]),
        ..draft("one", "bad")
    };
    let good = ["a", "b", "c", "d"].map(|name| draft("one", name));
    let [a, b, c, d] = good.map(|draft| journal.publish(draft, at(2)));
    let bad = journal.publish(bad, at(2));
    let outcomes = wait(async { tokio::join!(a, b, bad, c, d) });
    let good = [outcomes.0, outcomes.1, outcomes.3, outcomes.4];
    for (before, outcome) in good.into_iter().enumerate() {
        let Ok(Published::Stored { position, .. }) = outcome else {
            panic!("{outcome:?}");
        };
        assert_eq!(position, before as u64 + 2);
    }
    assert!(is_damaged(&outcomes.2), "{:?}", outcomes.2);
    assert_eq!(journal.health(), Health::Good);
}

#[test]
fn after_a_failed_sync_nothing_is_acknowledged_but_reads_go_on() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.db");
    let journal = open(&path);
    let held = hold(&journal, "one", "a");
    tamper(&journal, |book| book.fail_commits(true));
    let acked = wait(journal.ack(held, None, at(2)));
    assert!(
        matches!(acked, Err(JournalError::Poisoned { .. })),
        "{acked:?}"
    );
    assert!(matches!(journal.health(), Health::Poisoned(_)));
    tamper(&journal, |book| book.fail_commits(false));
    // The disk may say that all is well again: nobody knows what it has kept.
    let again = wait(journal.ack(held, None, at(3)));
    assert!(
        matches!(again, Err(JournalError::Poisoned { .. })),
        "{again:?}"
    );
    let more = wait(journal.publish(draft("one", "b"), at(3)));
    assert!(
        matches!(more, Err(JournalError::Poisoned { .. })),
        "{more:?}"
    );
    let entry = wait(journal.entry(held.id, at(4))).unwrap();
    assert_eq!(&*entry.unwrap().dedupe, "a");
    drop(journal);
    let journal = open(&path);
    assert_eq!(journal.health(), Health::Good);
    let lanes = wait(journal.lanes("", at(5))).unwrap();
    assert_eq!(lanes[0].waiting, 1);
}

#[test]
fn a_receipt_is_good_again_when_its_transaction_was_taken_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.db");
    let journal = open(&path);
    let held = hold(&journal, "one", "a");
    tamper(&journal, |book| book.fail_bodies_of(5_000));
    let bad = Draft {
        body: Bytes::from(vec![1; 5_000]),
        ..draft("one", "bad")
    };
    let ack = journal.ack(held, None, at(2));
    let bad = journal.publish(bad, at(2));
    let (acked, bad) = wait(async { tokio::join!(ack, bad) });
    assert_eq!(acked, Ok(()));
    assert!(is_damaged(&bad), "{bad:?}");
    let lane = Lane::new("one").unwrap();
    assert!(wait(journal.result(&lane, "a")).unwrap().is_some());
}
