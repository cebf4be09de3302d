//! Lanes longer than the cache: in tests, segments have four rows, and at most a dozen rows are in
//! memory.

use fastrand::Rng;

use super::*;
use crate::engine::{JournalHealth, LeaseOrder, LeasedMessage, MessageFilter, MessageId};
use crate::memory::MemoryJournal;

const LANES: [&str; 3] = ["out/a", "out/b", "box"];

/// Model and engine with the receipts of both.
struct EnginePair {
    model: MemoryJournal,
    engine: SqliteJournal,
    receipts: Vec<(LeaseReceipt, LeaseReceipt)>,
    last: u64,
}

/// Returns leased messages without lease numbers, which differ between engines.
fn without_lease_numbers(leased: &[LeasedMessage]) -> Vec<LeasedMessage> {
    let mut plain = leased.to_vec();
    plain.iter_mut().for_each(|one| one.receipt.lease = 0);
    plain
}

impl EnginePair {
    async fn publish(&mut self, rng: &mut Rng, at: Timestamps) {
        let name = format!("key-{}", rng.u16(..300));
        let draft = MessageDraft {
            ttl: rng.bool().then(|| Duration::from_millis(rng.u64(..20_000))),
            ..message_draft(rng.choice(LANES).unwrap(), &name)
        };
        let was = self.model.publish(draft.clone(), at).await;
        assert_eq!(self.engine.publish(draft, at).await, was);
        if let Ok(PublishOutcome::Stored { id, .. }) = was {
            self.last = id.0;
        }
    }

    async fn lease(&mut self, rng: &mut Rng, at: Timestamps) {
        let lane = LaneName::new(rng.choice(LANES).unwrap()).unwrap();
        let order = *rng
            .choice([LeaseOrder::Strict, LeaseOrder::Any].iter())
            .unwrap();
        let (max, hold) = (rng.usize(..9), Duration::from_millis(rng.u64(..3_000)));
        let was = self.model.lease(&lane, order, max, hold, at).await.unwrap();
        let is = self
            .engine
            .lease(&lane, order, max, hold, at)
            .await
            .unwrap();
        assert_eq!(without_lease_numbers(&is), without_lease_numbers(&was));
        let receipts = was.iter().zip(&is);
        self.receipts
            .extend(receipts.map(|(a, b)| (a.receipt, b.receipt)));
    }

    async fn settle(&mut self, rng: &mut Rng, at: Timestamps) {
        if self.receipts.is_empty() {
            return;
        }
        let (a, b) = self.receipts.swap_remove(rng.usize(..self.receipts.len()));
        let delay = Duration::from_millis(rng.u64(..200));
        match rng.u8(..4) {
            0 | 1 => assert_eq!(
                self.engine.ack(b, None, at).await,
                self.model.ack(a, None, at).await
            ),
            2 => assert_eq!(
                self.engine.nak(b, delay, at).await,
                self.model.nak(a, delay, at).await
            ),
            _ => assert_eq!(
                self.engine.dead_letter(b, "no".into(), at).await,
                self.model.dead_letter(a, "no".into(), at).await
            ),
        }
    }

    async fn compare_queries(&self, rng: &mut Rng, at: Timestamps) {
        let id = MessageId(rng.u64(..self.last + 2));
        match rng.u8(..5) {
            0 => assert_eq!(
                self.engine
                    .requeue(id, Some(Duration::from_secs(9)), at)
                    .await,
                self.model
                    .requeue(id, Some(Duration::from_secs(9)), at)
                    .await
            ),
            1 => assert_eq!(
                self.engine.remove_message(id, at).await,
                self.model.remove_message(id, at).await
            ),
            2 => assert_eq!(
                self.engine.get_message(id, at).await,
                self.model.get_message(id, at).await
            ),
            3 => assert_eq!(
                self.engine.expire_messages("out/", at).await,
                self.model.expire_messages("out/", at).await
            ),
            _ => {
                let filter = MessageFilter {
                    lanes: rng.choice(["", "out/", "box"].iter()).unwrap().to_string(),
                    after: rng.bool().then_some(id),
                    dead: rng.bool().then(|| rng.bool()),
                    limit: rng.usize(..50),
                };
                assert_eq!(
                    self.engine.list_messages(filter.clone(), at).await,
                    self.model.list_messages(filter, at).await
                );
            }
        }
        assert_eq!(
            self.engine.lane_stats("", at).await,
            self.model.lane_stats("", at).await
        );
    }
}

#[test]
fn long_lanes_match_model() {
    for seed in 0..6 {
        let directory = tempfile::tempdir().unwrap();
        let mut rng = Rng::with_seed(seed);
        let mut pair = EnginePair {
            model: MemoryJournal::default(),
            engine: open_journal(&directory.path().join("state.db")),
            receipts: Vec::new(),
            last: 0,
        };
        block_on(async {
            for step in 0..1_200 {
                let at = moment_at(step * 10);
                match rng.u8(..10) {
                    0..5 => pair.publish(&mut rng, at).await,
                    5 | 6 => pair.lease(&mut rng, at).await,
                    7 | 8 => pair.settle(&mut rng, at).await,
                    _ => pair.compare_queries(&mut rng, at).await,
                }
            }
        });
        assert_eq!(pair.engine.stopped_lanes(), []);
    }
}

/// Opens a journal with twenty messages per lane, then edits a row by SQL.
fn open_edited(sql: &str) -> (tempfile::TempDir, SqliteJournal) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.db");
    let journal = open_journal(&path);
    for number in 0..20 {
        let name = format!("m{number:02}");
        block_on(journal.publish(message_draft("one", &name), moment_at(1))).unwrap();
        block_on(journal.publish(message_draft("two", &name), moment_at(1))).unwrap();
    }
    let conn = rusqlite::Connection::open(&path).unwrap();
    conn.execute_batch(sql).unwrap();
    (directory, journal)
}

/// Leases and acks the first message of a lane until that fails; returns the ids.
fn drain_lane(journal: &SqliteJournal, lane: &str) -> (Vec<String>, Option<JournalError>) {
    let lane = LaneName::new(lane).unwrap();
    let mut names = Vec::new();
    loop {
        let hold = Duration::from_secs(9);
        match block_on(journal.lease(&lane, LeaseOrder::Strict, 1, hold, moment_at(2))) {
            Err(error) => return (names, Some(error)),
            Ok(leased) if leased.is_empty() => return (names, None),
            Ok(leased) => {
                names.push(leased[0].dedupe.to_string());
                block_on(journal.ack(leased[0].receipt, None, moment_at(3))).unwrap();
            }
        }
    }
}

#[test]
fn row_deleted_while_open_stops_its_lane() {
    let (_directory, journal) =
        open_edited("DELETE FROM message WHERE lane = 'one' AND dedupe = 'm10'");
    let (names, error) = drain_lane(&journal, "one");
    assert!(
        names.len() <= 10,
        "nobody overtakes what is gone: {names:?}"
    );
    assert!(
        matches!(error, Some(JournalError::Damaged { .. })),
        "{error:?}"
    );
    let stopped = journal.stopped_lanes();
    assert_eq!(stopped.len(), 1);
    assert_eq!(stopped[0].lane.as_str(), "one");
    let (names, error) = drain_lane(&journal, "two");
    assert_eq!((names.len(), error), (20, None));
    // The missing message may be the republished message.
    assert!(is_damaged(&block_on(
        journal.publish(message_draft("one", "m10"), moment_at(4))
    )));
}

#[test]
fn changed_row_stops_lane_until_removed() {
    let (_directory, journal) =
        open_edited("UPDATE message SET place = place + 500 WHERE lane = 'one' AND dedupe = 'm10'");
    let (names, error) = drain_lane(&journal, "one");
    assert!(names.len() <= 10, "{names:?}");
    assert!(
        matches!(error, Some(JournalError::Damaged { .. })),
        "{error:?}"
    );
    let stopped = journal.stopped_lanes();
    assert!(
        stopped[0].reason.contains("message 21 of lane `one`"),
        "{stopped:?}"
    );
    assert_eq!(
        journal.health(),
        JournalHealth::Good,
        "other lanes are served"
    );
    block_on(journal.remove_message(MessageId(21), moment_at(4))).unwrap();
    assert_eq!(journal.stopped_lanes(), []);
    let (rest, error) = drain_lane(&journal, "one");
    assert_eq!((names.len() + rest.len(), error), (19, None));
}

#[test]
fn damaged_body_of_first_shows_stopped_lane() {
    let (_directory, journal) = open_edited("UPDATE body SET bytes = zeroblob(9) WHERE id = 1");
    assert!(drain_lane(&journal, "one").1.is_some());
    assert!(journal.stopped_lanes()[0].reason.contains("message 1 of"));
    block_on(journal.remove_message(MessageId(1), moment_at(4))).unwrap();
    assert_eq!(journal.stopped_lanes(), []);
}

#[test]
fn empty_lane_is_not_remembered() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open_journal(&directory.path().join("state.db"));
    for number in 0..50 {
        let lane = LaneName::new(&format!("lane-{number}")).unwrap();
        let hold = Duration::from_secs(9);
        let none = block_on(journal.lease(&lane, LeaseOrder::Any, 1, hold, moment_at(1)));
        assert_eq!(none, Ok(Vec::new()));
        let receipt = publish_leased(&journal, lane.as_str(), "a");
        block_on(journal.ack(receipt, None, moment_at(2))).unwrap();
    }
    let known = block_on(
        journal.run_on_writer(crate::sqlite::OperationKind::Read, 0, |state| {
            Ok(state.known_lanes())
        }),
    );
    assert_eq!(known, Ok(0));
}

#[test]
fn health_notices_replaced_files_by_itself() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state/state.db");
    let journal = open_journal(&path);
    assert_eq!(journal.health(), JournalHealth::Good);
    std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    assert_eq!(journal.health(), JournalHealth::Replaced);
    let refused = block_on(journal.publish(message_draft("one", "a"), moment_at(1)));
    assert_eq!(refused, Err(JournalError::Replaced));
}
