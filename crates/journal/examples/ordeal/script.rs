//! A short life of a journal, the same each time, for disks that fail at one call of it.

use anyhow::Result;
use bowline_journal::{Delivery, Filter, Order};

use crate::plan;
use crate::record::{Op, Phase};
use crate::writer::{Hold, Writer};

/// Messages of the script.
const MESSAGES: u64 = 8;

/// Goes through the script whatever fails, reading all the while, and closes the journal.
pub(crate) async fn run(writer: &Writer) -> Result<()> {
    let number = |nth: u64| plan::number(writer.run, 1, nth * 2 + 1);
    if let Some(receipt) = writer.publish(number(0), Hold::Ask).await? {
        writer.ack(receipt, number(0)).await?;
    }
    if let Some(receipt) = writer.publish(number(1), Hold::Ask).await? {
        writer.withdraw(receipt, number(1)).await?;
    }
    for nth in 2..MESSAGES {
        writer.publish(number(nth), Hold::Leave).await?;
        read(writer).await?;
    }
    writer.put(1).await?;
    for (nth, delivery) in writer
        .lease(number(2), Order::Any)
        .await?
        .iter()
        .enumerate()
    {
        settle(writer, nth, delivery).await?;
        read(writer).await?;
    }
    writer.put(1).await?;
    for delivery in writer.lease(number(2), Order::Strict).await? {
        settle(writer, 0, &delivery).await?;
    }
    writer.publish(number(MESSAGES), Hold::Leave).await?;
    read(writer).await?;
    writer.journal.close().await;
    writer.teller.tell(Phase::Over, Op::None, 0, 0)?;
    Ok(())
}

async fn settle(writer: &Writer, nth: usize, delivery: &Delivery) -> Result<()> {
    let Some(number) = plan::number_of(&delivery.dedupe) else {
        writer.teller.tell(Phase::Misread, Op::None, 0, 0)?;
        return Ok(());
    };
    match nth {
        0 | 3 => writer.ack(delivery.receipt, number).await,
        1 => writer.nak(delivery.receipt, number).await,
        _ => {
            writer.bury(delivery.receipt, number).await?;
            writer.revive(delivery.receipt.id, number).await
        }
    }
}

/// Reads must go on whatever became of writing.
pub(crate) async fn read(writer: &Writer) -> Result<()> {
    let at = writer.clock.at();
    let filter = Filter {
        lanes: plan::PREFIX.to_owned(),
        limit: 100,
        ..Filter::default()
    };
    let read = async {
        for entry in writer.journal.inspect(filter, at).await.ok()? {
            let number = plan::number_of(&entry.dedupe)?;
            let whole = entry.body == plan::body(number);
            whole.then_some(())?;
        }
        writer.journal.lanes(plan::PREFIX, at).await.ok()?;
        writer.journal.list(plan::PREFIX, 100).await.ok()?;
        let first = plan::number(writer.run, 1, 1);
        let lane = plan::lane(first).ok()?;
        let done = writer
            .journal
            .result(&lane, &plan::dedupe(first))
            .await
            .ok()?;
        let right = done.is_none_or(|done| done.result == Some(plan::result(first)));
        right.then_some(())
    };
    if read.await.is_none() {
        writer.teller.tell(Phase::Misread, Op::None, 0, 0)?;
    }
    Ok(())
}
