//! Lanes that are longer than what is in memory: segments have four rows here, and a dozen rows
//! are in memory at most.

use fastrand::Rng;

use super::*;
use crate::engine::{Delivery, Filter, Health, MessageId, Order};
use crate::memory::Memory;

const LANES: [&str; 3] = ["out/a", "out/b", "box"];

/// The model, the engine, and the receipts of both.
struct Pair {
    model: Memory,
    engine: Sqlite,
    receipts: Vec<(Receipt, Receipt)>,
    last: u64,
}

/// Deliveries without the numbers of leases, which each engine gives out as it likes.
fn plain(given: &[Delivery]) -> Vec<Delivery> {
    let mut plain = given.to_vec();
    plain.iter_mut().for_each(|one| one.receipt.lease = 0);
    plain
}

impl Pair {
    async fn publish(&mut self, rng: &mut Rng, at: At) {
        let name = format!("key-{}", rng.u16(..300));
        let draft = Draft {
            ttl: rng.bool().then(|| Duration::from_millis(rng.u64(..20_000))),
            ..draft(rng.choice(LANES).unwrap(), &name)
        };
        let was = self.model.publish(draft.clone(), at).await;
        assert_eq!(self.engine.publish(draft, at).await, was);
        if let Ok(Published::Stored { id, .. }) = was {
            self.last = id.0;
        }
    }

    async fn lease(&mut self, rng: &mut Rng, at: At) {
        let lane = Lane::new(rng.choice(LANES).unwrap()).unwrap();
        let order = *rng.choice([Order::Strict, Order::Any].iter()).unwrap();
        let (max, hold) = (rng.usize(..9), Duration::from_millis(rng.u64(..3_000)));
        let was = self.model.lease(&lane, order, max, hold, at).await.unwrap();
        let is = self
            .engine
            .lease(&lane, order, max, hold, at)
            .await
            .unwrap();
        assert_eq!(plain(&is), plain(&was));
        let receipts = was.iter().zip(&is);
        self.receipts
            .extend(receipts.map(|(a, b)| (a.receipt, b.receipt)));
    }

    async fn settle(&mut self, rng: &mut Rng, at: At) {
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
                self.engine.bury(b, "no".into(), at).await,
                self.model.bury(a, "no".into(), at).await
            ),
        }
    }

    async fn look(&self, rng: &mut Rng, at: At) {
        let id = MessageId(rng.u64(..self.last + 2));
        match rng.u8(..5) {
            0 => assert_eq!(
                self.engine
                    .revive(id, Some(Duration::from_secs(9)), at)
                    .await,
                self.model
                    .revive(id, Some(Duration::from_secs(9)), at)
                    .await
            ),
            1 => assert_eq!(
                self.engine.remove(id, at).await,
                self.model.remove(id, at).await
            ),
            2 => assert_eq!(
                self.engine.entry(id, at).await,
                self.model.entry(id, at).await
            ),
            3 => assert_eq!(
                self.engine.expire("out/", at).await,
                self.model.expire("out/", at).await
            ),
            _ => {
                let filter = Filter {
                    lanes: rng.choice(["", "out/", "box"].iter()).unwrap().to_string(),
                    after: rng.bool().then_some(id),
                    dead: rng.bool().then(|| rng.bool()),
                    limit: rng.usize(..50),
                };
                assert_eq!(
                    self.engine.inspect(filter.clone(), at).await,
                    self.model.inspect(filter, at).await
                );
            }
        }
        assert_eq!(
            self.engine.lanes("", at).await,
            self.model.lanes("", at).await
        );
    }
}

#[test]
fn long_lanes_answer_as_model_does() {
    for seed in 0..6 {
        let directory = tempfile::tempdir().unwrap();
        let mut rng = Rng::with_seed(seed);
        let mut pair = Pair {
            model: Memory::default(),
            engine: open(&directory.path().join("state.db")),
            receipts: Vec::new(),
            last: 0,
        };
        wait(async {
            for step in 0..1_200 {
                let at = at(step * 10);
                match rng.u8(..10) {
                    0..5 => pair.publish(&mut rng, at).await,
                    5 | 6 => pair.lease(&mut rng, at).await,
                    7 | 8 => pair.settle(&mut rng, at).await,
                    _ => pair.look(&mut rng, at).await,
                }
            }
        });
        assert_eq!(pair.engine.stopped_lanes(), []);
    }
}

/// Twenty messages in a lane of a journal that is open, of which one row then changes.
fn meddled(sql: &str) -> (tempfile::TempDir, Sqlite) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.db");
    let journal = open(&path);
    for number in 0..20 {
        let name = format!("m{number:02}");
        wait(journal.publish(draft("one", &name), at(1))).unwrap();
        wait(journal.publish(draft("two", &name), at(1))).unwrap();
    }
    let conn = rusqlite::Connection::open(&path).unwrap();
    conn.execute_batch(sql).unwrap();
    (directory, journal)
}

/// Hands out and ends the first of a lane until that fails, and returns which there were.
fn drain(journal: &Sqlite, lane: &str) -> (Vec<String>, Option<JournalError>) {
    let lane = Lane::new(lane).unwrap();
    let mut names = Vec::new();
    loop {
        let hold = Duration::from_secs(9);
        match wait(journal.lease(&lane, Order::Strict, 1, hold, at(2))) {
            Err(error) => return (names, Some(error)),
            Ok(given) if given.is_empty() => return (names, None),
            Ok(given) => {
                names.push(given[0].dedupe.to_string());
                wait(journal.ack(given[0].receipt, None, at(3))).unwrap();
            }
        }
    }
}

#[test]
fn row_deleted_while_open_stops_its_lane() {
    let (_directory, journal) =
        meddled("DELETE FROM message WHERE lane = 'one' AND dedupe = 'm10'");
    let (names, error) = drain(&journal, "one");
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
    let (names, error) = drain(&journal, "two");
    assert_eq!((names.len(), error), (20, None));
    // Whether it is the one that comes again nobody can tell.
    assert!(is_damaged(&wait(
        journal.publish(draft("one", "m10"), at(4))
    )));
}

#[test]
fn row_changed_while_open_stops_its_lane_until_removed() {
    let (_directory, journal) =
        meddled("UPDATE message SET place = place + 500 WHERE lane = 'one' AND dedupe = 'm10'");
    let (names, error) = drain(&journal, "one");
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
    assert_eq!(journal.health(), Health::Good, "other lanes are served");
    wait(journal.remove(MessageId(21), at(4))).unwrap();
    assert_eq!(journal.stopped_lanes(), []);
    let (rest, error) = drain(&journal, "one");
    assert_eq!((names.len() + rest.len(), error), (19, None));
}

#[test]
fn damaged_body_of_first_shows_stopped_lane() {
    let (_directory, journal) = meddled("UPDATE body SET bytes = zeroblob(9) WHERE id = 1");
    assert!(drain(&journal, "one").1.is_some());
    assert!(journal.stopped_lanes()[0].reason.contains("message 1 of"));
    wait(journal.remove(MessageId(1), at(4))).unwrap();
    assert_eq!(journal.stopped_lanes(), []);
}

#[test]
fn empty_lane_is_not_remembered() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(&directory.path().join("state.db"));
    for number in 0..50 {
        let lane = Lane::new(&format!("lane-{number}")).unwrap();
        let hold = Duration::from_secs(9);
        let none = wait(journal.lease(&lane, Order::Any, 1, hold, at(1)));
        assert_eq!(none, Ok(Vec::new()));
        let receipt = super::hold(&journal, lane.as_str(), "a");
        wait(journal.ack(receipt, None, at(2))).unwrap();
    }
    let known = wait(journal.ask(crate::sqlite::Kind::Read, 0, |book| Ok(book.known_lanes())));
    assert_eq!(known, Ok(0));
}

#[test]
fn health_notices_replaced_files_by_itself() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state/state.db");
    let journal = open(&path);
    assert_eq!(journal.health(), Health::Good);
    std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    assert_eq!(journal.health(), Health::Replaced);
    let refused = wait(journal.publish(draft("one", "a"), at(1)));
    assert_eq!(refused, Err(JournalError::Replaced));
}
