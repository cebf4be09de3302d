//! Random operations on the model and on the engine: both must always say the same.
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

use bowline_core::time::Now;
use bowline_journal::{
    At, Delivery, Done, Draft, Entry, Expect, Filter, Journal, JournalError, Lane, LaneView,
    Memory, MessageId, Order, Published, Receipt, Sqlite, Value,
};
use bytes::Bytes;
use fastrand::Rng;

const LANES: &[&str] = &["outbox/a/x", "outbox/a/y", "outbox/b/x", "box"];

/// Both engines, and what a caller would remember.
struct Pair {
    model: Memory,
    engine: Option<Sqlite>,
    at: At,
    /// Those of the model and of the engine.
    receipts: Vec<(Receipt, Receipt)>,
    ids: u64,
    revisions: Vec<u64>,
}

fn open(path: &Path) -> Sqlite {
    Sqlite::open(path).unwrap()
}

/// An answer without the numbers of leases, which each engine gives out as it likes.
trait Plain {
    fn plain(&self) -> Self;
}

impl Plain for Published {
    fn plain(&self) -> Self {
        let mut plain = self.clone();
        if let Self::Stored {
            held: Some(receipt),
            ..
        } = &mut plain
        {
            receipt.lease = 0;
        }
        plain
    }
}

impl Plain for Vec<Delivery> {
    fn plain(&self) -> Self {
        let mut plain = self.clone();
        plain.iter_mut().for_each(|one| one.receipt.lease = 0);
        plain
    }
}

macro_rules! plain {
    ($($answer:ty),*) => {
        $(impl Plain for $answer {
            fn plain(&self) -> Self {
                self.clone()
            }
        })*
    };
}

plain!(
    (),
    u64,
    Vec<Entry>,
    Vec<LaneView>,
    Option<Entry>,
    Option<Done>,
    Option<Value>
);
plain!(Vec<(Arc<str>, Value)>);

/// Asks both, and returns what both say.
macro_rules! both {
    ($pair:expr, $operation:ident ( $($argument:expr),* )) => {
        both!($pair, $operation($($argument),*) ($($argument),*))
    };
    ($pair:expr, $operation:ident ( $($one:expr),* ) ( $($other:expr),* )) => {{
        let said = $pair.model.$operation($(Clone::clone(&$one)),*).await;
        let engine = $pair.engine.as_ref().unwrap();
        let says = engine.$operation($(Clone::clone(&$other)),*).await;
        let plain = (says.as_ref().map(Plain::plain), said.as_ref().map(Plain::plain));
        assert_eq!(plain.0, plain.1, "{}{:?}", stringify!($operation), ($(&$one,)*));
        (said, says)
    }};
}

impl Pair {
    fn draft(rng: &mut Rng) -> Draft {
        let key = rng.u8(..24);
        let digest = if rng.u8(..20) == 0 { 255 } else { key };
        let length = if rng.u8(..50) == 0 {
            20_000
        } else {
            rng.usize(..300)
        };
        let millis = |most| Duration::from_millis(most);
        Draft {
            lane: Lane::new(rng.choice(LANES).unwrap()).unwrap(),
            dedupe: format!("key-{key}").into(),
            digest: [digest; 32],
            body: Bytes::from(vec![rng.u8(..); length]),
            ttl: rng.bool().then(|| millis(rng.u64(..2_000))),
            hold: rng.bool().then(|| millis(rng.u64(..500))),
        }
    }

    fn receipt(&self, rng: &mut Rng) -> (Receipt, Receipt) {
        let recent = self.receipts.len().saturating_sub(12);
        let known = self
            .receipts
            .get(recent..)
            .and_then(|some| rng.choice(some));
        let none = Receipt {
            id: MessageId(rng.u64(..9)),
            lease: u64::MAX,
        };
        known.copied().unwrap_or((none, none))
    }

    fn id(&self, rng: &mut Rng) -> MessageId {
        MessageId(rng.u64(self.ids.saturating_sub(30)..self.ids + 2))
    }

    async fn step(&mut self, rng: &mut Rng) {
        let elapsed = rng.u64(..40);
        self.at.now = Now(self.at.now.0 + elapsed);
        self.at.unix_ms += elapsed;
        let at = self.at;
        match rng.u8(..100) {
            0..35 => {
                let draft = Self::draft(rng);
                let published = both!(self, publish(draft, at));
                if let (
                    Ok(Published::Stored { id, held: a, .. }),
                    Ok(Published::Stored { held: b, .. }),
                ) = published
                {
                    self.ids = id.0;
                    self.receipts.extend(a.zip(b));
                }
            }
            35..50 => {
                let lane = &Lane::new(rng.choice(LANES).unwrap()).unwrap();
                let order = *rng.choice(&[Order::Strict, Order::Any]).unwrap();
                let (max, hold) = (rng.usize(..4), Duration::from_millis(rng.u64(..500)));
                let (a, b) = both!(self, lease(lane, order, max, hold, at));
                let (a, b) = (a.unwrap(), b.unwrap());
                let pairs = a.iter().zip(&b).map(|(a, b)| (a.receipt, b.receipt));
                self.receipts.extend(pairs);
            }
            50..62 => {
                let receipt = self.receipt(rng);
                let result = rng.bool().then(|| Bytes::from(vec![7; rng.usize(..200)]));
                let _said = both!(self, ack(receipt.0, result, at)(receipt.1, result, at));
            }
            62..67 => {
                let (receipt, delay) = (self.receipt(rng), Duration::from_millis(rng.u64(..300)));
                let _said = both!(self, nak(receipt.0, delay, at)(receipt.1, delay, at));
            }
            67..72 => {
                let (receipt, reason) = (self.receipt(rng), Arc::<str>::from("no"));
                let _said = both!(self, bury(receipt.0, reason, at)(receipt.1, reason, at));
            }
            72..75 => {
                let receipt = self.receipt(rng);
                let _said = both!(self, withdraw(receipt.0, at)(receipt.1, at));
            }
            75..78 => {
                let ttl = rng.bool().then(|| Duration::from_millis(rng.u64(..900)));
                let id = self.id(rng);
                let _said = both!(self, revive(id, ttl, at));
            }
            78..81 => {
                let id = self.id(rng);
                let _said = both!(self, remove(id, at));
            }
            81..84 => {
                let _said = both!(self, expire("outbox/", at));
            }
            other => self.look(rng, other).await,
        }
    }

    async fn look(&mut self, rng: &mut Rng, which: u8) {
        let at = self.at;
        let lane = &Lane::new(rng.choice(LANES).unwrap()).unwrap();
        let key = &*format!("v/{}", rng.u8(..6));
        match which {
            84..86 => {
                let _said = both!(self, lanes("outbox/a", at));
            }
            86..88 => {
                let filter = Filter {
                    lanes: "outbox/".to_owned(),
                    after: rng.bool().then(|| self.id(rng)),
                    dead: rng.bool().then(|| rng.bool()),
                    limit: rng.usize(..20),
                };
                let _said = both!(self, inspect(filter, at));
            }
            88..90 => {
                let id = self.id(rng);
                let _said = both!(self, entry(id, at));
            }
            90..92 => {
                let dedupe = &*format!("key-{}", rng.u8(..24));
                let _said = both!(self, result(lane, dedupe));
            }
            92..94 => {
                let _said = both!(self, get(key));
            }
            94..95 => {
                let _said = both!(self, list("v/", 4));
            }
            _ => {
                let bytes = (rng.u8(..4) > 0).then(|| Bytes::from(vec![3; rng.usize(..99)]));
                let expect = match rng.u8(..3) {
                    0 => Expect::Any,
                    1 => Expect::Absent,
                    _ => Expect::Revision(self.revisions.last().copied().unwrap_or(1)),
                };
                let put = both!(self, put(key, bytes, expect));
                self.revisions.extend(put.0);
            }
        }
    }

    /// Closes and opens the file. What was leased is nobody's then, in the model by a jump of the
    /// clock.
    async fn reopen(&mut self, path: &Path) {
        self.engine.as_ref().unwrap().close().await;
        let closed = self.engine.as_ref().unwrap().get("v/1").await;
        assert_eq!(closed, Err(JournalError::Closed));
        self.engine = None;
        self.engine = Some(open(path));
        self.at.now = Now(self.at.now.0 + 100_000);
        self.at.unix_ms += 100_000;
        // A receipt from before means nothing to the engine; to the model it would.
        self.receipts.clear();
    }
}

fn run(seed: u64, steps: u64) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.db");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let mut rng = Rng::with_seed(seed);
    let mut pair = Pair {
        model: Memory::default(),
        engine: Some(open(&path)),
        at: At {
            now: Now(5),
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
            pair.step(&mut rng).await;
        }
    });
}

#[test]
fn the_model_and_the_file_always_say_the_same() {
    #[expect(
        clippy::disallowed_methods,
        reason = "a test may be told to run longer"
    )]
    let steps = std::env::var("BOWLINE_MODEL_STEPS");
    let steps = steps.ok().and_then(|steps| steps.parse().ok());
    let steps: u64 = steps.unwrap_or(20_000);
    let seeds = 4;
    for seed in 0..seeds {
        run(seed, steps / seeds);
    }
}
