//! Full disk: new data is refused, and existing messages can be settled.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use bowline_journal::LeaseOrder;
use serde_json::json;
use tokio::task::JoinSet;

use crate::args::Args;
use crate::child::WriterProcess;
use crate::disk::{self, Disk};
use crate::model::{BrokenPromises, ExpectedState, ResultLookup};
use crate::record::{Op, OpPhase};
use crate::writer::{LeaseMode, LoadWriter};
use crate::{PartReport, open, plan};

/// Size of the disk in bytes.
const DISK_BYTES: u64 = 40 * 1024 * 1024;

const PRODUCERS: u64 = 16;

/// Messages per producer at most; the disk is full long before.
const MESSAGES_MAX: u64 = 20_000;

/// How long filling and emptying the disk may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// Fills a small disk.
pub(crate) fn run_full_disk(args: &Args) -> Result<PartReport> {
    if let Some(why) = disk::unavailable_reason() {
        let tally = json!({"part": "full", "left_out": why});
        return Ok(PartReport {
            tally,
            is_passed: true,
        });
    }
    let home = tempfile::tempdir()?;
    let disk = Disk::new(home.path(), "small", DISK_BYTES)?;
    open::create_private_dir(&disk.state_dir())?;
    let mut expected = ExpectedState::default();
    let options = ["--until-full".to_owned()];
    let mut writer = WriterProcess::start(&disk.state_dir(), &options, &[])?;
    writer.wait_finished(&mut expected, PATIENCE)?;
    writer.kill_writer(&mut expected)?;
    let (mut broken, mut shut) = (BrokenPromises::default(), expected.shut);
    match open::open_journal(&disk.state_dir()) {
        Ok(journal) => broken.merge(open::block_on(async {
            let found = expected
                .compare_journal(journal.as_ref(), ResultLookup::All)
                .await;
            journal.close().await;
            found
        })??),
        Err(error) => {
            shut += 1;
            broken.told.push(format!("{error:#}"));
        }
    }
    let mut tally = json!({
        "part": "full", "disk_bytes": DISK_BYTES, "published": expected.published,
        "ended_when_full": expected.ended, "refused": expected.refused,
        "poisoned": expected.poisoned, "reads_failed": expected.misread,
        "published_again": expected.after_room,
        "open_failures": shut, "panics": args.panic_count(),
    });
    crate::merge_objects(&mut tally, broken.to_json());
    let filled = expected.refused > 0 && expected.ended > 0 && expected.after_room > 0;
    let bad = broken.total() + shut + expected.poisoned + expected.misread + args.panic_count();
    Ok(PartReport {
        tally,
        is_passed: filled && bad == 0,
    })
}

/// Publishes until the disk is full, settles all messages, publishes again, and waits.
pub(crate) async fn fill_disk(writer: &Arc<LoadWriter>) -> Result<()> {
    let mut tasks: JoinSet<Result<()>> = JoinSet::new();
    for producer in 0..PRODUCERS {
        let writer = Arc::clone(writer);
        tasks.spawn(async move {
            for nth in 0..MESSAGES_MAX {
                let before = writer.failed_count();
                let number = plan::message_number(writer.run, producer, nth);
                writer.publish(number, LeaseMode::Omit).await?;
                if writer.failed_count() > before {
                    return Ok(());
                }
            }
            Ok(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.context("a producer panicked")??;
    }
    crate::script::check_reads(writer).await?;
    for producer in 0..PRODUCERS {
        for nth in [0, 1] {
            // A number of the producer's own lane, and a number of the shared lane.
            let number = plan::message_number(writer.run, producer, nth);
            loop {
                let given = writer.lease_messages(number, LeaseOrder::Any).await?;
                let before = writer.failed_count();
                for delivery in &given {
                    let number =
                        plan::parse_dedupe_id(&delivery.dedupe).context("a strange message")?;
                    writer.ack(delivery.receipt, number).await?;
                }
                if given.is_empty() || writer.failed_count() > before {
                    break;
                }
            }
        }
    }
    writer
        .records
        .write_record(OpPhase::SpaceFreed, Op::None, 0, 0)?;
    for nth in 0..PRODUCERS {
        let number = plan::message_number(writer.run, PRODUCERS, nth);
        writer.publish(number, LeaseMode::Omit).await?;
    }
    writer
        .records
        .write_record(OpPhase::Finished, Op::None, 0, 0)?;
    std::future::pending().await
}
