//! Damaged rows are reported and never read as valid.

use std::path::Path;

use rusqlite::Connection;

use super::*;
use crate::engine::{
    COMPLETED_TTL, CompletedMessage, JournalHealth, LaneStats, LeaseOrder, MessageFilter,
    MessageId, MessageStatus, MessageView, VersionedValue,
};

type ReadResult<T> = Result<T, JournalError>;

/// Everything readable in a journal.
#[derive(Debug)]
struct JournalReading {
    entries: ReadResult<Vec<MessageView>>,
    lanes: ReadResult<Vec<LaneStats>>,
    each: Vec<ReadResult<Option<MessageView>>>,
    results: Vec<ReadResult<Option<CompletedMessage>>>,
    values: Vec<ReadResult<Option<VersionedValue>>>,
    listed: ReadResult<Vec<(Arc<str>, VersionedValue)>>,
}

fn read_all(journal: &SqliteJournal) -> JournalReading {
    let all = MessageFilter {
        limit: 99,
        ..MessageFilter::default()
    };
    block_on(async {
        let mut each = Vec::new();
        for id in 0..15 {
            each.push(journal.get_message(MessageId(id), moment_at(9)).await);
        }
        let mut results = Vec::new();
        for lane in ["one", "two"] {
            for name in ["done", "dead", "never"] {
                let lane = LaneName::new(lane).unwrap();
                results.push(journal.get_result(&lane, name).await);
            }
        }
        let mut values = Vec::new();
        for key in ["k/0", "k/1", "k/2", "k/3"] {
            values.push(journal.get_value(key).await);
        }
        JournalReading {
            entries: journal.list_messages(all, moment_at(9)).await,
            lanes: journal.lane_stats("", moment_at(9)).await,
            each,
            results,
            values,
            listed: journal.list_values("k/", 9).await,
        }
    })
}

/// Checks that a result is unchanged or reports damage.
fn count_damaged<T: PartialEq + std::fmt::Debug>(
    is: &ReadResult<T>,
    was: &ReadResult<T>,
    what: &str,
) -> u64 {
    match is {
        Err(JournalError::Damaged { .. }) => 1,
        is => {
            assert_eq!(is, was, "{what}");
            0
        }
    }
}

/// Checks that a message is unchanged; its position may be unknown.
fn assert_same_message(is: &MessageView, was: &MessageView, what: &str) -> u64 {
    let is_unknown = is.position == 0 && was.position != 0;
    let mut was = was.clone();
    if is_unknown {
        was.position = 0;
    }
    assert_eq!(is, &was, "{what}");
    u64::from(is_unknown)
}

impl JournalReading {
    /// Returns the number of results that report damage; all remaining results must be unchanged.
    fn assert_same_or_damaged(&self, before: &Self, what: &str) -> u64 {
        let mut told = 0;
        if let (Ok(is), Ok(was)) = (&self.entries, &before.entries) {
            assert_eq!(is.len(), was.len(), "{what}");
            for (is, was) in is.iter().zip(was) {
                match is.status {
                    MessageStatus::Damaged => told += 1,
                    _ => told += assert_same_message(is, was, what),
                }
            }
        } else {
            told += count_damaged(&self.entries, &before.entries, what);
        }
        told += count_damaged(&self.lanes, &before.lanes, what);
        told += count_damaged(&self.listed, &before.listed, what);
        for (is, was) in self.each.iter().zip(&before.each) {
            told += match (is, was) {
                (Ok(Some(is)), Ok(Some(was))) => assert_same_message(is, was, what),
                _ => count_damaged(is, was, what),
            };
        }
        for (is, was) in self.results.iter().zip(&before.results) {
            told += count_damaged(is, was, what);
        }
        for (is, was) in self.values.iter().zip(&before.values) {
            told += count_damaged(is, was, what);
        }
        told
    }
}

/// Outcomes of all bit flips.
#[derive(Debug, Default)]
struct FlipTally {
    refused: u64,
    told: u64,
    harmless: u64,
}

#[test]
fn flipped_bit_is_never_misread() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.db");
    fill_journal(&path);
    let whole = std::fs::read(&path).unwrap();
    let before = {
        let journal = open_journal(&path);
        read_all(&journal)
    };
    #[expect(
        clippy::disallowed_methods,
        reason = "a test may be told to run longer"
    )]
    let flips = std::env::var("BOWLINE_FLIPS").ok();
    let flips = flips.and_then(|flips| flips.parse().ok()).unwrap_or(250);
    let mut rng = fastrand::Rng::with_seed(7);
    let mut tally = FlipTally::default();
    for flip in 0..flips {
        let bit = rng.usize(..whole.len() * 8);
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(&path, &bytes).unwrap();
        let what = format!("flip {flip}, bit {bit} (page {})", bit / 8 / 4096);
        match SqliteJournal::open(&path) {
            Err(_) => tally.refused += 1,
            Ok(journal) => match read_all(&journal).assert_same_or_damaged(&before, &what) {
                0 => tally.harmless += 1,
                _ => tally.told += 1,
            },
        }
    }
    assert!(tally.told > 0, "{tally:?}");
    assert!(tally.harmless > 0, "{tally:?}");
}

/// Edits the file without the journal's knowledge.
fn edit_database(path: &Path, sql: &str) {
    let conn = Connection::open(path).unwrap();
    conn.execute_batch(sql).unwrap();
}

fn lease_ids(journal: &SqliteJournal, lane: &str, order: LeaseOrder) -> ReadResult<Vec<String>> {
    let lane = LaneName::new(lane).unwrap();
    let hold = Duration::from_secs(9);
    let leased = block_on(journal.lease(&lane, order, 9, hold, moment_at(20)))?;
    Ok(leased.iter().map(|one| one.dedupe.to_string()).collect())
}

fn open_edited(sql: &str) -> (tempfile::TempDir, SqliteJournal) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.db");
    fill_journal(&path);
    edit_database(&path, sql);
    let journal = open_journal(&path);
    assert_eq!(journal.health(), JournalHealth::Good);
    (directory, journal)
}

#[test]
fn damaged_row_stops_lane_until_removed() {
    let (_directory, journal) =
        open_edited("UPDATE message SET stored = stored + 1 WHERE lane = 'one' AND dedupe = 'a'");
    assert!(is_damaged(&lease_ids(&journal, "one", LeaseOrder::Strict)));
    assert!(is_damaged(&lease_ids(&journal, "one", LeaseOrder::Any)));
    assert!(is_damaged(&block_on(
        journal.publish(message_draft("one", "new"), moment_at(21))
    )));
    assert!(is_damaged(&block_on(
        journal.publish(message_draft("one", "b"), moment_at(21))
    )));
    assert_eq!(
        lease_ids(&journal, "two", LeaseOrder::Strict).unwrap(),
        ["a"]
    );
    block_on(journal.publish(message_draft("two", "new"), moment_at(21))).unwrap();
    let all = MessageFilter {
        limit: 99,
        ..MessageFilter::default()
    };
    let entries = block_on(journal.list_messages(all, moment_at(22))).unwrap();
    let damaged = entries
        .iter()
        .filter(|one| one.status == MessageStatus::Damaged);
    let ids: Vec<_> = damaged.map(|one| one.id).collect();
    assert_eq!(ids.len(), 1);
    assert!(is_damaged(&block_on(
        journal.get_message(ids[0], moment_at(23))
    )));
    block_on(journal.remove_message(ids[0], moment_at(24))).unwrap();
    assert_eq!(
        lease_ids(&journal, "one", LeaseOrder::Strict).unwrap(),
        ["b"]
    );
    block_on(journal.publish(message_draft("one", "new"), moment_at(25))).unwrap();
    let lanes = block_on(journal.lane_stats("one", moment_at(26))).unwrap();
    assert_eq!((lanes[0].queued, lanes[0].dead_letters), (4, 1));
}

#[test]
fn damaged_body_is_neither_leased_nor_overtaken() {
    let (_directory, journal) = open_edited(
        "UPDATE body SET bytes = zeroblob(9) WHERE id IN \
         (SELECT id FROM message WHERE lane = 'one' AND dedupe = 'a')",
    );
    assert!(is_damaged(&lease_ids(&journal, "one", LeaseOrder::Strict)));
    // A mailbox skips the message.
    let others = lease_ids(&journal, "one", LeaseOrder::Any).unwrap();
    assert_eq!(others, ["b", "c", "d"]);
    assert!(is_damaged(&lease_ids(&journal, "one", LeaseOrder::Any)));
    let all = MessageFilter {
        limit: 99,
        ..MessageFilter::default()
    };
    let entries = block_on(journal.list_messages(all, moment_at(22))).unwrap();
    let damaged = entries
        .iter()
        .find(|one| one.status == MessageStatus::Damaged);
    let id = damaged.unwrap().id;
    block_on(journal.remove_message(id, moment_at(24))).unwrap();
    assert_eq!(
        lease_ids(&journal, "one", LeaseOrder::Any).unwrap(),
        [""; 0]
    );
}

#[test]
fn missing_row_is_detected() {
    let (_directory, journal) =
        open_edited("DELETE FROM message WHERE lane = 'one' AND dedupe = 'b'");
    let gone = lease_ids(&journal, "one", LeaseOrder::Strict);
    assert!(is_damaged(&gone), "{gone:?}");
    assert!(is_damaged(&block_on(
        journal.publish(message_draft("one", "b"), moment_at(21))
    )));
    assert!(is_damaged(&block_on(
        journal.get_message(MessageId(7), moment_at(21))
    )));
    let all = MessageFilter {
        limit: 99,
        ..MessageFilter::default()
    };
    assert!(is_damaged(&block_on(
        journal.list_messages(all, moment_at(22))
    )));
    assert_eq!(
        lease_ids(&journal, "two", LeaseOrder::Strict).unwrap(),
        ["a"]
    );
}

#[test]
fn missing_completed_row_is_detected() {
    let (_directory, journal) = open_edited("DELETE FROM done WHERE seq = 1");
    let one = LaneName::new("one").unwrap();
    assert!(is_damaged(&block_on(journal.get_result(&one, "done"))));
    assert!(is_damaged(&block_on(
        journal.publish(message_draft("one", "done"), moment_at(21))
    )));
    let two = LaneName::new("two").unwrap();
    assert!(
        block_on(journal.get_result(&two, "done"))
            .unwrap()
            .is_some()
    );
}

#[test]
fn damaged_completed_row_stops_only_lane() {
    let (_directory, journal) = open_edited("UPDATE done SET at = at + 1 WHERE seq = 1");
    assert!(is_damaged(&block_on(
        journal.publish(message_draft("one", "done"), moment_at(21))
    )));
    block_on(journal.publish(message_draft("two", "new"), moment_at(21))).unwrap();
    let two = LaneName::new("two").unwrap();
    assert_eq!(block_on(journal.get_result(&two, "new")), Ok(None));
}

#[test]
fn completed_row_changed_while_open_is_damaged() {
    for sql in [
        "DELETE FROM done WHERE seq = 1",
        "UPDATE done SET at = at + 1 WHERE seq = 1",
    ] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.db");
        fill_journal(&path);
        let journal = open_journal(&path);
        let (one, two) = (LaneName::new("one").unwrap(), LaneName::new("two").unwrap());
        assert!(
            block_on(journal.get_result(&one, "done"))
                .unwrap()
                .is_some()
        );
        let intruder = Connection::open(&path).unwrap();
        intruder.execute_batch(sql).unwrap();
        assert!(
            is_damaged(&block_on(journal.get_result(&one, "done"))),
            "{sql}"
        );
        let again = block_on(journal.publish(message_draft("one", "done"), moment_at(21)));
        assert!(is_damaged(&again), "{sql}: {again:?}");
        assert!(
            block_on(journal.get_result(&two, "done"))
                .unwrap()
                .is_some()
        );
    }
}

#[test]
fn damaged_oldest_completed_row_allows_expiry() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.db");
    fill_journal(&path);
    let journal = open_journal(&path);
    let two = LaneName::new("two").unwrap();
    assert!(
        block_on(journal.get_result(&two, "done"))
            .unwrap()
            .is_some()
    );
    let intruder = Connection::open(&path).unwrap();
    let sql = "UPDATE done SET at = at + 1 WHERE seq = 1";
    intruder.execute_batch(sql).unwrap();
    let late = COMPLETED_TTL + Duration::from_secs(60);
    let late = moment_at(u64::try_from(late.as_millis()).unwrap());
    let new = publish_leased(&journal, "three", "new");
    block_on(journal.ack(new, None, late)).unwrap();
    assert_eq!(block_on(journal.get_result(&two, "done")), Ok(None));
    let one = LaneName::new("one").unwrap();
    assert!(is_damaged(&block_on(journal.get_result(&one, "done"))));
}

#[test]
fn missing_value_is_detected() {
    let (_directory, journal) = open_edited("DELETE FROM value WHERE key = 'k/2'");
    assert!(is_damaged(&block_on(journal.get_value("k/2"))));
    assert!(is_damaged(&block_on(journal.list_values("k/", 9))));
    assert!(block_on(journal.get_value("k/1")).unwrap().is_some());
}

#[test]
fn missing_lane_is_detected() {
    let (_directory, journal) = open_edited("DELETE FROM lane WHERE name = 'one'");
    assert!(is_damaged(&lease_ids(&journal, "one", LeaseOrder::Strict)));
    assert!(is_damaged(&block_on(
        journal.publish(message_draft("one", "new"), moment_at(21))
    )));
    assert!(is_damaged(&block_on(journal.lane_stats("", moment_at(21)))));
    assert_eq!(
        lease_ids(&journal, "two", LeaseOrder::Strict).unwrap(),
        ["a"]
    );
}

#[test]
fn broken_index_is_rebuilt() {
    let (_directory, journal) = open_edited(
        "PRAGMA writable_schema = ON; DROP INDEX message_lane; \
         CREATE INDEX message_lane ON message (lane, place) WHERE dedupe <> 'a'; \
         UPDATE sqlite_schema SET sql = 'CREATE INDEX message_lane ON message (lane, place)' \
         WHERE name = 'message_lane';",
    );
    assert_eq!(
        lease_ids(&journal, "one", LeaseOrder::Strict).unwrap(),
        ["a"]
    );
    let all = MessageFilter {
        limit: 99,
        ..MessageFilter::default()
    };
    assert_eq!(
        block_on(journal.list_messages(all, moment_at(22)))
            .unwrap()
            .len(),
        10
    );
    let lane = LaneName::new("two").unwrap();
    let hold = Duration::from_secs(9);
    let leased =
        block_on(journal.lease(&lane, LeaseOrder::Strict, 1, hold, moment_at(23))).unwrap();
    block_on(journal.ack(leased[0].receipt, None, moment_at(24))).unwrap();
}
