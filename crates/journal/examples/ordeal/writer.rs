//! The program that suffers: producers that publish, lease and end messages as fast as they can,
//! and tell what was acknowledged.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use bowline_journal::{
    Delivery, Draft, Expect, Journal, JournalError, MessageId, Order, Pending, Published, Receipt,
};
use tokio::task::JoinSet;

use crate::args::Args;
use crate::open::{self, Clock};
use crate::plan;
use crate::record::{Op, Phase, Teller};

/// Longer than any run: leases end with the process here, not by the clock.
pub(crate) const HOLD: Duration = Duration::from_secs(3_600);

/// Messages that are asked for at once.
const LEASE_MAX: usize = 4;

/// What the producers share.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) journal: Arc<dyn Journal>,
    pub(crate) teller: Teller,
    pub(crate) clock: Clock,
    /// Which run of the writer in this directory.
    pub(crate) run: u64,
    /// Operations that did not take effect.
    refused: AtomicU64,
}

/// Runs the producers until somebody kills us, or until each has sent so many.
pub(crate) fn run(args: &Args) -> Result<()> {
    let teller = Teller::stdout()?;
    let Some(writer) = start(&args.dir()?, teller, args.number("run", 1)?)? else {
        return Ok(());
    };
    let writer = Arc::new(writer);
    if args.has("script") {
        return open::wait(crate::script::run(&writer))?;
    }
    if args.has("commits") {
        return open::wait(crate::bench::commits(&writer, args.number("commits", 0)?))?;
    }
    if args.has("until-full") {
        return open::wait(crate::full::fill(&writer))?;
    }
    if args.has("fill") {
        return open::wait(crate::bench::fill(&writer, args.number("fill", 0)?))?;
    }
    let (producers, seed) = (args.number("producers", 32)?, args.number("seed", 1)?);
    let messages: u64 = args.number("messages", u64::MAX)?;
    open::wait(async move {
        let mut tasks = JoinSet::new();
        for producer in 0..producers {
            let random = fastrand::Rng::with_seed(seed ^ (producer << 32));
            let one = Producer {
                writer: Arc::clone(&writer),
                producer,
                random,
                dead: Vec::new(),
            };
            tasks.spawn(one.run(messages));
        }
        while let Some(ended) = tasks.join_next().await {
            ended.context("a producer panicked")??;
        }
        if args.has("close") {
            writer.journal.close().await;
        }
        writer.teller.tell(Phase::Over, Op::None, 0, 0)?;
        if args.has("linger") {
            std::future::pending::<()>().await;
        }
        Ok(())
    })?
}

/// Opens the journal and says whether that went well.
fn start(dir: &Path, teller: Teller, run: u64) -> Result<Option<Writer>> {
    match open::open(dir) {
        Ok(journal) => {
            teller.tell(Phase::Opened, Op::None, 0, run)?;
            Ok(Some(Writer {
                journal,
                teller,
                clock: Clock::new(),
                run,
                refused: AtomicU64::new(0),
            }))
        }
        Err(error) => {
            use std::io::Write as _;
            let _ = writeln!(std::io::stderr(), "{error:#}");
            teller.tell(Phase::Shut, Op::None, 0, run)?;
            Ok(None)
        }
    }
}

impl Writer {
    /// How many operations did not take effect so far.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Does one thing and tells how it went, before and after.
    pub(crate) async fn step<'a, T>(
        &self,
        (op, detail, number): (Op, u16, u64),
        act: impl FnOnce() -> Pending<'a, T>,
    ) -> Result<Option<T>> {
        self.teller.tell(Phase::Begun, op, detail, number)?;
        let (phase, given) = match act().await {
            Ok(given) => (Phase::Ended, Some(given)),
            Err(JournalError::Poisoned { .. }) => (Phase::Poisoned, None),
            Err(_) => (Phase::Refused, None),
        };
        if given.is_none() {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        self.teller.tell(phase, op, detail, number)?;
        Ok(given)
    }

    pub(crate) async fn publish(&self, number: u64, hold: Hold) -> Result<Option<Receipt>> {
        let draft = Draft {
            lane: plan::lane(number)?,
            dedupe: plan::dedupe(number),
            digest: plan::digest(number),
            body: plan::body(number),
            ttl: None,
            hold: match hold {
                Hold::Ask => Some(HOLD),
                Hold::Leave => None,
            },
        };
        let act = || self.journal.publish(draft, self.clock.at());
        let given = self.step((Op::Publish, 0, number), act).await?;
        Ok(match given {
            Some(Published::Stored { held, .. }) => held,
            Some(Published::Known(_)) | None => None,
        })
    }

    pub(crate) async fn ack(&self, receipt: Receipt, number: u64) -> Result<()> {
        let act = || {
            self.journal
                .ack(receipt, Some(plan::result(number)), self.clock.at())
        };
        self.step((Op::Ack, 0, number), act).await.map(drop)
    }

    pub(crate) async fn nak(&self, receipt: Receipt, number: u64) -> Result<()> {
        let act = || self.journal.nak(receipt, Duration::ZERO, self.clock.at());
        self.step((Op::Nak, 0, number), act).await.map(drop)
    }

    pub(crate) async fn bury(&self, receipt: Receipt, number: u64) -> Result<()> {
        let act = || {
            self.journal
                .bury(receipt, plan::reason(number), self.clock.at())
        };
        self.step((Op::Bury, 0, number), act).await.map(drop)
    }

    pub(crate) async fn withdraw(&self, receipt: Receipt, number: u64) -> Result<()> {
        let act = || self.journal.withdraw(receipt, self.clock.at());
        self.step((Op::Withdraw, 0, number), act).await.map(drop)
    }

    pub(crate) async fn revive(&self, id: MessageId, number: u64) -> Result<()> {
        let act = || self.journal.revive(id, None, self.clock.at());
        self.step((Op::Revive, 0, number), act).await.map(drop)
    }

    pub(crate) async fn remove(&self, id: MessageId, number: u64) -> Result<()> {
        let act = || self.journal.remove(id, self.clock.at());
        self.step((Op::Remove, 0, number), act).await.map(drop)
    }

    /// Sets the next value of a producer, by comparing with the one that is there.
    pub(crate) async fn put(&self, producer: u64) -> Result<()> {
        let key = plan::key(producer);
        let Ok(before) = self.journal.get(&key).await else {
            return Ok(());
        };
        let nth = before
            .as_ref()
            .and_then(|value| value.bytes.first_chunk().copied());
        let nth = nth.map_or(0, u64::from_le_bytes) + 1;
        let expect = before.map_or(Expect::Absent, |value| Expect::Revision(value.revision));
        let bytes = Some(plan::value(producer, nth));
        let act = || self.journal.put(&key, bytes, expect);
        let detail = u16::try_from(producer)?;
        self.step((Op::Put, detail, nth), act).await.map(drop)
    }

    pub(crate) async fn lease(&self, number: u64, order: Order) -> Result<Vec<Delivery>> {
        let lane = plan::lane(number)?;
        let at = self.clock.at();
        let given = self.journal.lease(&lane, order, LEASE_MAX, HOLD, at).await;
        Ok(given.unwrap_or_default())
    }
}

/// Whether a message is published as one that is held already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    Ask,
    Leave,
}

struct Producer {
    writer: Arc<Writer>,
    producer: u64,
    random: fastrand::Rng,
    /// Dead letters that this producer made.
    dead: Vec<(MessageId, u64)>,
}

impl Producer {
    async fn run(mut self, messages: u64) -> Result<()> {
        for nth in 0..messages {
            let number = plan::number(self.writer.run, self.producer, nth);
            let hold = if self.random.u8(..8) == 0 {
                Hold::Ask
            } else {
                Hold::Leave
            };
            if let Some(receipt) = self.writer.publish(number, hold).await? {
                self.first_try(receipt, number).await?;
            }
            let order = if self.random.bool() {
                Order::Strict
            } else {
                Order::Any
            };
            for delivery in self.writer.lease(number, order).await? {
                self.settle(&delivery).await?;
            }
            if self.random.u8(..16) == 0 {
                self.writer.put(self.producer).await?;
            }
            if self.random.u8(..8) == 0 {
                self.dig().await?;
            }
        }
        Ok(())
    }

    /// A write that was tried at once: it was done, it must wait, or it was taken back.
    async fn first_try(&mut self, receipt: Receipt, number: u64) -> Result<()> {
        match self.random.u8(..4) {
            0 => self.writer.nak(receipt, number).await,
            1 => self.writer.withdraw(receipt, number).await,
            _ => self.writer.ack(receipt, number).await,
        }
    }

    /// Ends a message that was handed out, mostly well; a few stay held and are due after the
    /// kill.
    async fn settle(&mut self, delivery: &Delivery) -> Result<()> {
        let number = plan::number_of(&delivery.dedupe).context("a strange message")?;
        let receipt = delivery.receipt;
        match self.random.u8(..64) {
            0 => Ok(()),
            1..5 => self.writer.nak(receipt, number).await,
            5..8 => {
                self.dead.push((receipt.id, number));
                self.writer.bury(receipt, number).await
            }
            _ => self.writer.ack(receipt, number).await,
        }
    }

    /// Gives a dead letter another chance, or forgets it.
    async fn dig(&mut self) -> Result<()> {
        match (self.dead.pop(), self.random.bool()) {
            (Some((id, number)), true) => self.writer.revive(id, number).await,
            (Some((id, number)), false) => self.writer.remove(id, number).await,
            (None, _) => Ok(()),
        }
    }
}
