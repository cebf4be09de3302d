//! Random operations on the model and on the engine: both must always agree.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::time::MonotonicTime;
use bowline_journal::{
    CompletedMessage, ExpectedRevision, Journal, JournalError, LaneName, LaneStats, LeaseOrder,
    LeaseReceipt, LeasedMessage, MemoryJournal, MessageDraft, MessageFilter, MessageId,
    MessageView, PublishOutcome, SqliteJournal, Timestamps, VersionedValue,
};
use bytes::Bytes;
use fastrand::Rng;

const LANES: &[&str] = &["outbox/a/x", "outbox/a/y", "outbox/b/x", "box"];

/// Both engines, and the state kept by a caller.
struct ModelPair {
    model: MemoryJournal,
    engine: Option<SqliteJournal>,
    at: Timestamps,
    /// Receipts of the model and of the engine.
    receipts: Vec<(LeaseReceipt, LeaseReceipt)>,
    ids: u64,
    revisions: Vec<u64>,
}

fn open_journal(path: &Path) -> SqliteJournal {
    SqliteJournal::open(path).unwrap()
}

/// Result without lease numbers, which differ between engines.
trait WithoutLeases {
    fn plain(&self) -> Self;
}

impl WithoutLeases for PublishOutcome {
    fn plain(&self) -> Self {
        let mut plain = self.clone();
        if let Self::Stored {
            receipt: Some(receipt),
            ..
        } = &mut plain
        {
            receipt.lease = 0;
        }
        plain
    }
}

impl WithoutLeases for Vec<LeasedMessage> {
    fn plain(&self) -> Self {
        let mut plain = self.clone();
        plain.iter_mut().for_each(|one| one.receipt.lease = 0);
        plain
    }
}

macro_rules! plain {
    ($($answer:ty),*) => {
        $(impl WithoutLeases for $answer {
            fn plain(&self) -> Self {
                self.clone()
            }
        })*
    };
}

plain!(
    (),
    u64,
    Vec<MessageView>,
    Vec<LaneStats>,
    Option<MessageView>,
    Option<CompletedMessage>,
    Option<VersionedValue>
);
plain!(Vec<(Arc<str>, VersionedValue)>);

/// Runs an operation on both engines and compares the results.
macro_rules! both {
    ($pair:expr, $operation:ident ( $($argument:expr),* )) => {
        both!($pair, $operation($($argument),*) ($($argument),*))
    };
    ($pair:expr, $operation:ident ( $($one:expr),* ) ( $($other:expr),* )) => {{
        let said = $pair.model.$operation($(Clone::clone(&$one)),*).await;
        let engine = $pair.engine.as_ref().unwrap();
        let says = engine.$operation($(Clone::clone(&$other)),*).await;
        let plain = (
            says.as_ref().map(WithoutLeases::plain),
            said.as_ref().map(WithoutLeases::plain),
        );
        assert_eq!(plain.0, plain.1, "{}{:?}", stringify!($operation), ($(&$one,)*));
        (said, says)
    }};
}

impl ModelPair {
    fn random_draft(rng: &mut Rng) -> MessageDraft {
        let key = rng.u8(..24);
        let digest = if rng.u8(..20) == 0 { 255 } else { key };
        let length = if rng.u8(..50) == 0 {
            20_000
        } else {
            rng.usize(..300)
        };
        let millis = |most| Duration::from_millis(most);
        MessageDraft {
            lane: LaneName::new(rng.choice(LANES).unwrap()).unwrap(),
            dedupe: format!("key-{key}").into(),
            digest: [digest; 32],
            body: Bytes::from(vec![rng.u8(..); length]),
            ttl: rng.bool().then(|| millis(rng.u64(..2_000))),
            lease: rng.bool().then(|| millis(rng.u64(..500))),
        }
    }

    fn random_receipt(&self, rng: &mut Rng) -> (LeaseReceipt, LeaseReceipt) {
        let recent = self.receipts.len().saturating_sub(12);
        let known = self
            .receipts
            .get(recent..)
            .and_then(|some| rng.choice(some));
        let none = LeaseReceipt {
            id: MessageId(rng.u64(..9)),
            lease: u64::MAX,
        };
        known.copied().unwrap_or((none, none))
    }

    fn random_id(&self, rng: &mut Rng) -> MessageId {
        MessageId(rng.u64(self.ids.saturating_sub(30)..self.ids + 2))
    }

    async fn random_step(&mut self, rng: &mut Rng) {
        let elapsed = rng.u64(..40);
        self.at.now = MonotonicTime(self.at.now.0 + elapsed);
        self.at.unix_ms += elapsed;
        let at = self.at;
        match rng.u8(..100) {
            0..35 => {
                let draft = Self::random_draft(rng);
                let published = both!(self, publish(draft, at));
                if let (
                    Ok(PublishOutcome::Stored { id, receipt: a, .. }),
                    Ok(PublishOutcome::Stored { receipt: b, .. }),
                ) = published
                {
                    self.ids = id.0;
                    self.receipts.extend(a.zip(b));
                }
            }
            35..50 => {
                let lane = &LaneName::new(rng.choice(LANES).unwrap()).unwrap();
                let order = *rng.choice(&[LeaseOrder::Strict, LeaseOrder::Any]).unwrap();
                let (max, hold) = (rng.usize(..4), Duration::from_millis(rng.u64(..500)));
                let (a, b) = both!(self, lease(lane, order, max, hold, at));
                let (a, b) = (a.unwrap(), b.unwrap());
                let pairs = a.iter().zip(&b).map(|(a, b)| (a.receipt, b.receipt));
                self.receipts.extend(pairs);
            }
            50..62 => {
                let receipt = self.random_receipt(rng);
                let result = rng.bool().then(|| Bytes::from(vec![7; rng.usize(..200)]));
                let _said = both!(self, ack(receipt.0, result, at)(receipt.1, result, at));
            }
            62..67 => {
                let (receipt, delay) = (
                    self.random_receipt(rng),
                    Duration::from_millis(rng.u64(..300)),
                );
                let _said = both!(self, nak(receipt.0, delay, at)(receipt.1, delay, at));
            }
            67..72 => {
                let (receipt, reason) = (self.random_receipt(rng), Arc::<str>::from("no"));
                let _said = both!(
                    self,
                    dead_letter(receipt.0, reason, at)(receipt.1, reason, at)
                );
            }
            72..75 => {
                let receipt = self.random_receipt(rng);
                let _said = both!(self, discard_leased(receipt.0, at)(receipt.1, at));
            }
            75..78 => {
                let ttl = rng.bool().then(|| Duration::from_millis(rng.u64(..900)));
                let id = self.random_id(rng);
                let _said = both!(self, requeue(id, ttl, at));
            }
            78..81 => {
                let id = self.random_id(rng);
                let _said = both!(self, remove_message(id, at));
            }
            81..84 => {
                let _said = both!(self, expire_messages("outbox/", at));
            }
            other => self.random_query(rng, other).await,
        }
    }

    async fn random_query(&mut self, rng: &mut Rng, which: u8) {
        let at = self.at;
        let lane = &LaneName::new(rng.choice(LANES).unwrap()).unwrap();
        let key = &*format!("v/{}", rng.u8(..6));
        match which {
            84..86 => {
                let _said = both!(self, lane_stats("outbox/a", at));
            }
            86..88 => {
                let filter = MessageFilter {
                    lanes: "outbox/".to_owned(),
                    after: rng.bool().then(|| self.random_id(rng)),
                    dead: rng.bool().then(|| rng.bool()),
                    limit: rng.usize(..20),
                };
                let _said = both!(self, list_messages(filter, at));
            }
            88..90 => {
                let id = self.random_id(rng);
                let _said = both!(self, get_message(id, at));
            }
            90..92 => {
                let dedupe = &*format!("key-{}", rng.u8(..24));
                let _said = both!(self, get_result(lane, dedupe));
            }
            92..94 => {
                let _said = both!(self, get_value(key));
            }
            94..95 => {
                let _said = both!(self, list_values("v/", 4));
            }
            _ => {
                let bytes = (rng.u8(..4) > 0).then(|| Bytes::from(vec![3; rng.usize(..99)]));
                let expect = match rng.u8(..3) {
                    0 => ExpectedRevision::Any,
                    1 => ExpectedRevision::Absent,
                    _ => ExpectedRevision::Revision(self.revisions.last().copied().unwrap_or(1)),
                };
                let put = both!(self, put_value(key, bytes, expect));
                self.revisions.extend(put.0);
            }
        }
    }

    /// Closes and reopens the file. Leases are void then; the model's leases expire by a clock
    /// jump.
    async fn reopen(&mut self, path: &Path) {
        self.engine.as_ref().unwrap().close().await;
        let closed = self.engine.as_ref().unwrap().get_value("v/1").await;
        assert_eq!(closed, Err(JournalError::Closed));
        self.engine = None;
        self.engine = Some(open_journal(path));
        self.at.now = MonotonicTime(self.at.now.0 + 100_000);
        self.at.unix_ms += 100_000;
        // Old receipts are void in the engine, but not in the model.
        self.receipts.clear();
    }
}

fn run_seed(seed: u64, steps: u64) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.db");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let mut rng = Rng::with_seed(seed);
    let mut pair = ModelPair {
        model: MemoryJournal::default(),
        engine: Some(open_journal(&path)),
        at: Timestamps {
            now: MonotonicTime(5),
            unix_ms: 1_000_000,
        },
        receipts: Vec::new(),
        ids: 0,
        revisions: Vec::new(),
    };
    runtime.block_on(async {
        for _ in 0..steps {
            if rng.u16(..400) == 0 {
                pair.reopen(&path).await;
            }
            pair.random_step(&mut rng).await;
        }
    });
}

#[test]
fn model_and_sqlite_always_agree() {
    #[expect(
        clippy::disallowed_methods,
        reason = "a test may be told to run longer"
    )]
    let steps = std::env::var("BOWLINE_MODEL_STEPS");
    let steps = steps.ok().and_then(|steps| steps.parse().ok());
    let steps: u64 = steps.unwrap_or(20_000);
    let seeds = 4;
    for seed in 0..seeds {
        run_seed(seed, steps / seeds);
    }
}
