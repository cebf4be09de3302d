//! What was changed on the disk is told, and never read as something else.

use std::path::Path;

use rusqlite::Connection;

use super::*;
use crate::engine::{
    DONE_KEPT, Done, Entry, Filter, Health, LaneView, MessageId, Order, Standing, Value,
};

type Said<T> = Result<T, JournalError>;

/// Everything that can be read.
#[derive(Debug)]
struct Reading {
    entries: Said<Vec<Entry>>,
    lanes: Said<Vec<LaneView>>,
    each: Vec<Said<Option<Entry>>>,
    results: Vec<Said<Option<Done>>>,
    values: Vec<Said<Option<Value>>>,
    listed: Said<Vec<(Arc<str>, Value)>>,
}

fn read(journal: &Sqlite) -> Reading {
    let all = Filter {
        limit: 99,
        ..Filter::default()
    };
    wait(async {
        let mut each = Vec::new();
        for id in 0..15 {
            each.push(journal.entry(MessageId(id), at(9)).await);
        }
        let mut results = Vec::new();
        for lane in ["one", "two"] {
            for name in ["done", "dead", "never"] {
                let lane = Lane::new(lane).unwrap();
                results.push(journal.result(&lane, name).await);
            }
        }
        let mut values = Vec::new();
        for key in ["k/0", "k/1", "k/2", "k/3"] {
            values.push(journal.get(key).await);
        }
        Reading {
            entries: journal.inspect(all, at(9)).await,
            lanes: journal.lanes("", at(9)).await,
            each,
            results,
            values,
            listed: journal.list("k/", 9).await,
        }
    })
}

/// An answer is the right one, or says that something is damaged.
fn right<T: PartialEq + std::fmt::Debug>(is: &Said<T>, was: &Said<T>, what: &str) -> u64 {
    match is {
        Err(JournalError::Damaged { .. }) => 1,
        is => {
            assert_eq!(is, was, "{what}");
            0
        }
    }
}

/// A message is as it was; its position may be told as unknown.
fn alike(is: &Entry, was: &Entry, what: &str) -> u64 {
    let is_unknown = is.position == 0 && was.position != 0;
    let mut was = was.clone();
    if is_unknown {
        was.position = 0;
    }
    assert_eq!(is, &was, "{what}");
    u64::from(is_unknown)
}

impl Reading {
    /// Returns how many answers told of damage; all others must be the same.
    fn check(&self, before: &Self, what: &str) -> u64 {
        let mut told = 0;
        if let (Ok(is), Ok(was)) = (&self.entries, &before.entries) {
            assert_eq!(is.len(), was.len(), "{what}");
            for (is, was) in is.iter().zip(was) {
                match is.standing {
                    Standing::Damaged => told += 1,
                    _ => told += alike(is, was, what),
                }
            }
        } else {
            told += right(&self.entries, &before.entries, what);
        }
        told += right(&self.lanes, &before.lanes, what);
        told += right(&self.listed, &before.listed, what);
        for (is, was) in self.each.iter().zip(&before.each) {
            told += match (is, was) {
                (Ok(Some(is)), Ok(Some(was))) => alike(is, was, what),
                _ => right(is, was, what),
            };
        }
        for (is, was) in self.results.iter().zip(&before.results) {
            told += right(is, was, what);
        }
        for (is, was) in self.values.iter().zip(&before.values) {
            told += right(is, was, what);
        }
        told
    }
}

/// What came of one flipped bit.
#[derive(Debug, Default)]
struct Tally {
    refused: u64,
    told: u64,
    harmless: u64,
}

#[test]
fn no_flipped_bit_is_read_as_something_else() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.db");
    fill(&path);
    let whole = std::fs::read(&path).unwrap();
    let before = {
        let journal = open(&path);
        read(&journal)
    };
    #[expect(
        clippy::disallowed_methods,
        reason = "a test may be told to run longer"
    )]
    let flips = std::env::var("BOWLINE_FLIPS").ok();
    let flips = flips.and_then(|flips| flips.parse().ok()).unwrap_or(250);
    let mut rng = fastrand::Rng::with_seed(7);
    let mut tally = Tally::default();
    for flip in 0..flips {
        let bit = rng.usize(..whole.len() * 8);
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(&path, &bytes).unwrap();
        let what = format!("flip {flip}, bit {bit} (page {})", bit / 8 / 4096);
        match Sqlite::open(&path) {
            Err(_) => tally.refused += 1,
            Ok(journal) => match read(&journal).check(&before, &what) {
                0 => tally.harmless += 1,
                _ => tally.told += 1,
            },
        }
    }
    assert!(tally.told > 0, "{tally:?}");
    assert!(tally.harmless > 0, "{tally:?}");
}

/// Changes the file behind the journal's back.
fn meddle(path: &Path, sql: &str) {
    let conn = Connection::open(path).unwrap();
    conn.execute_batch(sql).unwrap();
}

fn lease(journal: &Sqlite, lane: &str, order: Order) -> Said<Vec<String>> {
    let lane = Lane::new(lane).unwrap();
    let hold = Duration::from_secs(9);
    let given = wait(journal.lease(&lane, order, 9, hold, at(20)))?;
    Ok(given.iter().map(|one| one.dedupe.to_string()).collect())
}

fn filled(sql: &str) -> (tempfile::TempDir, Sqlite) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.db");
    fill(&path);
    meddle(&path, sql);
    let journal = open(&path);
    assert_eq!(journal.health(), Health::Good);
    (directory, journal)
}

#[test]
fn a_damaged_row_stops_its_lane_until_it_is_removed() {
    let (_directory, journal) =
        filled("UPDATE message SET stored = stored + 1 WHERE lane = 'one' AND dedupe = 'a'");
    assert!(is_damaged(&lease(&journal, "one", Order::Strict)));
    assert!(is_damaged(&lease(&journal, "one", Order::Any)));
    assert!(is_damaged(&wait(
        journal.publish(draft("one", "new"), at(21))
    )));
    assert!(is_damaged(&wait(
        journal.publish(draft("one", "b"), at(21))
    )));
    assert_eq!(lease(&journal, "two", Order::Strict).unwrap(), ["a"]);
    wait(journal.publish(draft("two", "new"), at(21))).unwrap();
    let all = Filter {
        limit: 99,
        ..Filter::default()
    };
    let entries = wait(journal.inspect(all, at(22))).unwrap();
    let damaged = entries
        .iter()
        .filter(|one| one.standing == Standing::Damaged);
    let ids: Vec<_> = damaged.map(|one| one.id).collect();
    assert_eq!(ids.len(), 1);
    assert!(is_damaged(&wait(journal.entry(ids[0], at(23)))));
    wait(journal.remove(ids[0], at(24))).unwrap();
    assert_eq!(lease(&journal, "one", Order::Strict).unwrap(), ["b"]);
    wait(journal.publish(draft("one", "new"), at(25))).unwrap();
    let lanes = wait(journal.lanes("one", at(26))).unwrap();
    assert_eq!((lanes[0].waiting, lanes[0].dead), (4, 1));
}

#[test]
fn a_damaged_body_is_not_handed_out_and_not_overtaken() {
    let (_directory, journal) = filled(
        "UPDATE body SET bytes = zeroblob(9) WHERE id IN \
         (SELECT id FROM message WHERE lane = 'one' AND dedupe = 'a')",
    );
    assert!(is_damaged(&lease(&journal, "one", Order::Strict)));
    // In a mailbox nobody waits for it.
    let others = lease(&journal, "one", Order::Any).unwrap();
    assert_eq!(others, ["b", "c", "d"]);
    assert!(is_damaged(&lease(&journal, "one", Order::Any)));
    let all = Filter {
        limit: 99,
        ..Filter::default()
    };
    let entries = wait(journal.inspect(all, at(22))).unwrap();
    let damaged = entries.iter().find(|one| one.standing == Standing::Damaged);
    let id = damaged.unwrap().id;
    wait(journal.remove(id, at(24))).unwrap();
    assert_eq!(lease(&journal, "one", Order::Any).unwrap(), [""; 0]);
}

#[test]
fn a_row_that_is_gone_is_missed() {
    let (_directory, journal) = filled("DELETE FROM message WHERE lane = 'one' AND dedupe = 'b'");
    let gone = lease(&journal, "one", Order::Strict);
    assert!(is_damaged(&gone), "{gone:?}");
    assert!(is_damaged(&wait(
        journal.publish(draft("one", "b"), at(21))
    )));
    assert!(is_damaged(&wait(journal.entry(MessageId(7), at(21)))));
    let all = Filter {
        limit: 99,
        ..Filter::default()
    };
    assert!(is_damaged(&wait(journal.inspect(all, at(22)))));
    assert_eq!(lease(&journal, "two", Order::Strict).unwrap(), ["a"]);
}

#[test]
fn an_end_that_is_gone_is_missed() {
    let (_directory, journal) = filled("DELETE FROM done WHERE seq = 1");
    let one = Lane::new("one").unwrap();
    assert!(is_damaged(&wait(journal.result(&one, "done"))));
    assert!(is_damaged(&wait(
        journal.publish(draft("one", "done"), at(21))
    )));
    let two = Lane::new("two").unwrap();
    assert!(wait(journal.result(&two, "done")).unwrap().is_some());
}

#[test]
fn a_damaged_end_stops_only_its_lane() {
    let (_directory, journal) = filled("UPDATE done SET at = at + 1 WHERE seq = 1");
    assert!(is_damaged(&wait(
        journal.publish(draft("one", "done"), at(21))
    )));
    wait(journal.publish(draft("two", "new"), at(21))).unwrap();
    let two = Lane::new("two").unwrap();
    assert_eq!(wait(journal.result(&two, "new")), Ok(None));
}

#[test]
fn end_changed_while_open_is_damaged_not_absent() {
    for sql in [
        "DELETE FROM done WHERE seq = 1",
        "UPDATE done SET at = at + 1 WHERE seq = 1",
    ] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.db");
        fill(&path);
        let journal = open(&path);
        let (one, two) = (Lane::new("one").unwrap(), Lane::new("two").unwrap());
        assert!(wait(journal.result(&one, "done")).unwrap().is_some());
        let intruder = Connection::open(&path).unwrap();
        intruder.execute_batch(sql).unwrap();
        assert!(is_damaged(&wait(journal.result(&one, "done"))), "{sql}");
        let again = wait(journal.publish(draft("one", "done"), at(21)));
        assert!(is_damaged(&again), "{sql}: {again:?}");
        assert!(wait(journal.result(&two, "done")).unwrap().is_some());
    }
}

#[test]
fn damaged_oldest_end_lets_later_ends_expire() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.db");
    fill(&path);
    let journal = open(&path);
    let two = Lane::new("two").unwrap();
    assert!(wait(journal.result(&two, "done")).unwrap().is_some());
    let intruder = Connection::open(&path).unwrap();
    let sql = "UPDATE done SET at = at + 1 WHERE seq = 1";
    intruder.execute_batch(sql).unwrap();
    let late = DONE_KEPT + Duration::from_secs(60);
    let late = at(u64::try_from(late.as_millis()).unwrap());
    let new = hold(&journal, "three", "new");
    wait(journal.ack(new, None, late)).unwrap();
    assert_eq!(wait(journal.result(&two, "done")), Ok(None));
    let one = Lane::new("one").unwrap();
    assert!(is_damaged(&wait(journal.result(&one, "done"))));
}

#[test]
fn a_value_that_is_gone_is_missed() {
    let (_directory, journal) = filled("DELETE FROM value WHERE key = 'k/2'");
    assert!(is_damaged(&wait(journal.get("k/2"))));
    assert!(is_damaged(&wait(journal.list("k/", 9))));
    assert!(wait(journal.get("k/1")).unwrap().is_some());
}

#[test]
fn a_lane_that_is_gone_is_missed() {
    let (_directory, journal) = filled("DELETE FROM lane WHERE name = 'one'");
    assert!(is_damaged(&lease(&journal, "one", Order::Strict)));
    assert!(is_damaged(&wait(
        journal.publish(draft("one", "new"), at(21))
    )));
    assert!(is_damaged(&wait(journal.lanes("", at(21)))));
    assert_eq!(lease(&journal, "two", Order::Strict).unwrap(), ["a"]);
}

#[test]
fn an_index_that_leads_nowhere_is_made_anew() {
    let (_directory, journal) = filled(
        "PRAGMA writable_schema = ON; DROP INDEX message_lane; \
         CREATE INDEX message_lane ON message (lane, place) WHERE dedupe <> 'a'; \
         UPDATE sqlite_schema SET sql = 'CREATE INDEX message_lane ON message (lane, place)' \
         WHERE name = 'message_lane';",
    );
    assert_eq!(lease(&journal, "one", Order::Strict).unwrap(), ["a"]);
    let all = Filter {
        limit: 99,
        ..Filter::default()
    };
    assert_eq!(wait(journal.inspect(all, at(22))).unwrap().len(), 10);
    let lane = Lane::new("two").unwrap();
    let hold = Duration::from_secs(9);
    let given = wait(journal.lease(&lane, Order::Strict, 1, hold, at(23))).unwrap();
    wait(journal.ack(given[0].receipt, None, at(24))).unwrap();
}
