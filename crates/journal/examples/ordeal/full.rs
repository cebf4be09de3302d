//! A disk that runs full: what is new is refused, and what is there can be ended.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use bowline_journal::Order;
use serde_json::json;
use tokio::task::JoinSet;

use crate::args::Args;
use crate::child::Suffering;
use crate::disk::{self, Disk};
use crate::model::{Broken, Results, Truth};
use crate::record::{Op, Phase};
use crate::writer::{Hold, Writer};
use crate::{Outcome, open, plan};

/// Bytes of the disk.
const DISK_BYTES: u64 = 40 * 1024 * 1024;

const PRODUCERS: u64 = 16;

/// Messages of a producer at most; the disk is full long before.
const MESSAGES_MAX: u64 = 20_000;

/// How long it may take to fill the disk and to empty it again.
const PATIENCE: Duration = Duration::from_secs(120);

/// Fills a small disk.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    if let Some(why) = disk::missing() {
        let tally = json!({"part": "full", "left_out": why});
        return Ok(Outcome { tally, kept: true });
    }
    let home = tempfile::tempdir()?;
    let disk = Disk::new(home.path(), "small", DISK_BYTES)?;
    open::directory(&disk.state())?;
    let mut truth = Truth::default();
    let options = ["--until-full".to_owned()];
    let mut writer = Suffering::start(&disk.state(), &options, &[])?;
    writer.over(&mut truth, PATIENCE)?;
    writer.kill(&mut truth)?;
    let (mut broken, mut shut) = (Broken::default(), truth.shut);
    match open::open(&disk.state()) {
        Ok(journal) => broken.add(open::wait(async {
            let found = truth.compare(journal.as_ref(), Results::All).await;
            journal.close().await;
            found
        })??),
        Err(error) => {
            shut += 1;
            broken.told.push(format!("{error:#}"));
        }
    }
    let mut tally = json!({
        "part": "full", "disk_bytes": DISK_BYTES, "published": truth.published,
        "ended_when_full": truth.ended, "refused": truth.refused, "poisoned": truth.poisoned,
        "reads_failed": truth.misread, "published_again": truth.after_room,
        "open_failures": shut, "panics": args.panics(),
    });
    crate::merge(&mut tally, broken.json());
    let filled = truth.refused > 0 && truth.ended > 0 && truth.after_room > 0;
    let bad = broken.count() + shut + truth.poisoned + truth.misread + args.panics();
    Ok(Outcome {
        tally,
        kept: filled && bad == 0,
    })
}

/// Publishes until there is no room, ends all that is there, publishes again, and lingers.
pub(crate) async fn fill(writer: &Arc<Writer>) -> Result<()> {
    let mut tasks: JoinSet<Result<()>> = JoinSet::new();
    for producer in 0..PRODUCERS {
        let writer = Arc::clone(writer);
        tasks.spawn(async move {
            for nth in 0..MESSAGES_MAX {
                let before = writer.refused();
                let number = plan::number(writer.run, producer, nth);
                writer.publish(number, Hold::Leave).await?;
                if writer.refused() > before {
                    return Ok(());
                }
            }
            Ok(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.context("a producer panicked")??;
    }
    crate::script::read(writer).await?;
    for producer in 0..PRODUCERS {
        for nth in [0, 1] {
            // One number of the producer's own lane, and one of the lane that all share.
            let number = plan::number(writer.run, producer, nth);
            loop {
                let given = writer.lease(number, Order::Any).await?;
                let before = writer.refused();
                for delivery in &given {
                    let number = plan::number_of(&delivery.dedupe).context("a strange message")?;
                    writer.ack(delivery.receipt, number).await?;
                }
                if given.is_empty() || writer.refused() > before {
                    break;
                }
            }
        }
    }
    writer.teller.tell(Phase::Roomy, Op::None, 0, 0)?;
    for nth in 0..PRODUCERS {
        let number = plan::number(writer.run, PRODUCERS, nth);
        writer.publish(number, Hold::Leave).await?;
    }
    writer.teller.tell(Phase::Over, Op::None, 0, 0)?;
    std::future::pending().await
}
