//! Program under test: producers publish, lease and settle messages at full speed and record
//! acknowledgements.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use bowline_journal::{
    ExpectedRevision, Journal, JournalError, JournalFuture, LeaseOrder, LeaseReceipt,
    LeasedMessage, MessageDraft, MessageId, PublishOutcome,
};
use tokio::task::JoinSet;

use crate::args::Args;
use crate::open::{self, Clock};
use crate::plan;
use crate::record::{Op, OpPhase, RecordWriter};

/// Lease time beyond any run: leases end with the process, not by the clock.
pub(crate) const LEASE_TIME: Duration = Duration::from_secs(3_600);

/// Messages per lease.
const LEASE_MAX: usize = 4;

/// State shared by the producers.
#[derive(Debug)]
pub(crate) struct LoadWriter {
    pub(crate) journal: Arc<dyn Journal>,
    pub(crate) records: RecordWriter,
    pub(crate) clock: Clock,
    /// Run number of the writer in this directory.
    pub(crate) run: u64,
    /// Failed operations.
    refused: AtomicU64,
}

/// Runs the producers until killed, or until each published `--messages` messages.
pub(crate) fn run_writer(args: &Args) -> Result<()> {
    let records = RecordWriter::stdout()?;
    let Some(writer) = open_writer(
        &args.required_dir()?,
        records,
        args.number_option("run", 1)?,
    )?
    else {
        return Ok(());
    };
    let writer = Arc::new(writer);
    if args.has_option("script") {
        return open::block_on(crate::script::run_script(&writer))?;
    }
    if args.has_option("commits") {
        return open::block_on(crate::bench::publish_commits(
            &writer,
            args.number_option("commits", 0)?,
        ))?;
    }
    if args.has_option("until-full") {
        return open::block_on(crate::full::fill_disk(&writer))?;
    }
    if args.has_option("fill") {
        return open::block_on(crate::bench::fill_journal(
            &writer,
            args.number_option("fill", 0)?,
        ))?;
    }
    let (producers, seed) = (
        args.number_option("producers", 32)?,
        args.number_option("seed", 1)?,
    );
    let messages: u64 = args.number_option("messages", u64::MAX)?;
    open::block_on(async move {
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
        if args.has_option("close") {
            writer.journal.close().await;
        }
        writer
            .records
            .write_record(OpPhase::Finished, Op::None, 0, 0)?;
        if args.has_option("linger") {
            std::future::pending::<()>().await;
        }
        Ok(())
    })?
}

/// Opens the journal and records the outcome.
fn open_writer(dir: &Path, records: RecordWriter, run: u64) -> Result<Option<LoadWriter>> {
    match open::open_journal(dir) {
        Ok(journal) => {
            records.write_record(OpPhase::Opened, Op::None, 0, run)?;
            Ok(Some(LoadWriter {
                journal,
                records,
                clock: Clock::new(),
                run,
                refused: AtomicU64::new(0),
            }))
        }
        Err(error) => {
            use std::io::Write as _;
            let _ = writeln!(std::io::stderr(), "{error:#}");
            records.write_record(OpPhase::OpenFailed, Op::None, 0, run)?;
            Ok(None)
        }
    }
}

impl LoadWriter {
    /// Returns the number of failed operations.
    pub(crate) fn failed_count(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Runs an operation and records its start and its outcome.
    pub(crate) async fn run_operation<'a, T>(
        &self,
        op: Op,
        detail: u16,
        number: u64,
        act: impl FnOnce() -> JournalFuture<'a, T>,
    ) -> Result<Option<T>> {
        self.records
            .write_record(OpPhase::Begun, op, detail, number)?;
        let (phase, given) = match act().await {
            Ok(given) => (OpPhase::Ended, Some(given)),
            Err(JournalError::Poisoned { .. }) => (OpPhase::Poisoned, None),
            Err(_) => (OpPhase::Refused, None),
        };
        if given.is_none() {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        self.records.write_record(phase, op, detail, number)?;
        Ok(given)
    }

    pub(crate) async fn publish(
        &self,
        number: u64,
        hold: LeaseMode,
    ) -> Result<Option<LeaseReceipt>> {
        let draft = MessageDraft {
            lane: plan::number_lane(number)?,
            dedupe: plan::number_dedupe_id(number),
            digest: plan::number_digest(number),
            body: plan::number_body(number),
            ttl: None,
            lease: match hold {
                LeaseMode::Request => Some(LEASE_TIME),
                LeaseMode::Omit => None,
            },
        };
        let act = || self.journal.publish(draft, self.clock.timestamps());
        let given = self.run_operation(Op::Publish, 0, number, act).await?;
        Ok(match given {
            Some(PublishOutcome::Stored { receipt, .. }) => receipt,
            Some(PublishOutcome::Duplicate(_)) | None => None,
        })
    }

    pub(crate) async fn ack(&self, receipt: LeaseReceipt, number: u64) -> Result<()> {
        let act = || {
            self.journal.ack(
                receipt,
                Some(plan::number_result(number)),
                self.clock.timestamps(),
            )
        };
        self.run_operation(Op::Ack, 0, number, act).await.map(drop)
    }

    pub(crate) async fn nak(&self, receipt: LeaseReceipt, number: u64) -> Result<()> {
        let act = || {
            self.journal
                .nak(receipt, Duration::ZERO, self.clock.timestamps())
        };
        self.run_operation(Op::Nak, 0, number, act).await.map(drop)
    }

    pub(crate) async fn dead_letter(&self, receipt: LeaseReceipt, number: u64) -> Result<()> {
        let act = || {
            self.journal.dead_letter(
                receipt,
                plan::number_reason(number),
                self.clock.timestamps(),
            )
        };
        self.run_operation(Op::Bury, 0, number, act).await.map(drop)
    }

    pub(crate) async fn discard_leased(&self, receipt: LeaseReceipt, number: u64) -> Result<()> {
        let act = || {
            self.journal
                .discard_leased(receipt, self.clock.timestamps())
        };
        self.run_operation(Op::Withdraw, 0, number, act)
            .await
            .map(drop)
    }

    pub(crate) async fn requeue(&self, id: MessageId, number: u64) -> Result<()> {
        let act = || self.journal.requeue(id, None, self.clock.timestamps());
        self.run_operation(Op::Revive, 0, number, act)
            .await
            .map(drop)
    }

    pub(crate) async fn remove_message(&self, id: MessageId, number: u64) -> Result<()> {
        let act = || self.journal.remove_message(id, self.clock.timestamps());
        self.run_operation(Op::Remove, 0, number, act)
            .await
            .map(drop)
    }

    /// Sets the next value of a producer by compare-and-set.
    pub(crate) async fn put_next_value(&self, producer: u64) -> Result<()> {
        let key = plan::value_key(producer);
        let Ok(before) = self.journal.get_value(&key).await else {
            return Ok(());
        };
        let nth = before
            .as_ref()
            .and_then(|value| value.bytes.first_chunk().copied());
        let nth = nth.map_or(0, u64::from_le_bytes) + 1;
        let expect = before.map_or(ExpectedRevision::Absent, |value| {
            ExpectedRevision::Revision(value.revision)
        });
        let bytes = Some(plan::value_bytes(producer, nth));
        let act = || self.journal.put_value(&key, bytes, expect);
        let detail = u16::try_from(producer)?;
        self.run_operation(Op::Put, detail, nth, act)
            .await
            .map(drop)
    }

    pub(crate) async fn lease_messages(
        &self,
        number: u64,
        order: LeaseOrder,
    ) -> Result<Vec<LeasedMessage>> {
        let lane = plan::number_lane(number)?;
        let at = self.clock.timestamps();
        let given = self
            .journal
            .lease(&lane, order, LEASE_MAX, LEASE_TIME, at)
            .await;
        Ok(given.unwrap_or_default())
    }
}

/// Whether a publication requests a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseMode {
    Request,
    Omit,
}

struct Producer {
    writer: Arc<LoadWriter>,
    producer: u64,
    random: fastrand::Rng,
    /// Dead letters of this producer.
    dead: Vec<(MessageId, u64)>,
}

impl Producer {
    async fn run(mut self, messages: u64) -> Result<()> {
        for nth in 0..messages {
            let number = plan::message_number(self.writer.run, self.producer, nth);
            let hold = if self.random.u8(..8) == 0 {
                LeaseMode::Request
            } else {
                LeaseMode::Omit
            };
            if let Some(receipt) = self.writer.publish(number, hold).await? {
                self.settle_first_attempt(receipt, number).await?;
            }
            let order = if self.random.bool() {
                LeaseOrder::Strict
            } else {
                LeaseOrder::Any
            };
            for delivery in self.writer.lease_messages(number, order).await? {
                self.settle_message(&delivery).await?;
            }
            if self.random.u8(..16) == 0 {
                self.writer.put_next_value(self.producer).await?;
            }
            if self.random.u8(..8) == 0 {
                self.handle_dead_letter().await?;
            }
        }
        Ok(())
    }

    /// Settles a message leased on publication: done, queued or discarded.
    async fn settle_first_attempt(&mut self, receipt: LeaseReceipt, number: u64) -> Result<()> {
        match self.random.u8(..4) {
            0 => self.writer.nak(receipt, number).await,
            1 => self.writer.discard_leased(receipt, number).await,
            _ => self.writer.ack(receipt, number).await,
        }
    }

    /// Settles a leased message, mostly by ack; a few stay leased and are due after the kill.
    async fn settle_message(&mut self, delivery: &LeasedMessage) -> Result<()> {
        let number = plan::parse_dedupe_id(&delivery.dedupe).context("a strange message")?;
        let receipt = delivery.receipt;
        match self.random.u8(..64) {
            0 => Ok(()),
            1..5 => self.writer.nak(receipt, number).await,
            5..8 => {
                self.dead.push((receipt.id, number));
                self.writer.dead_letter(receipt, number).await
            }
            _ => self.writer.ack(receipt, number).await,
        }
    }

    /// Requeues or removes a dead letter.
    async fn handle_dead_letter(&mut self) -> Result<()> {
        match (self.dead.pop(), self.random.bool()) {
            (Some((id, number)), true) => self.writer.requeue(id, number).await,
            (Some((id, number)), false) => self.writer.remove_message(id, number).await,
            (None, _) => Ok(()),
        }
    }
}
