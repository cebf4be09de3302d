//! Short deterministic run of a journal, for faults at a single call.

use anyhow::Result;
use bowline_journal::{LeaseOrder, LeasedMessage, MessageFilter};

use crate::plan;
use crate::record::{Op, OpPhase};
use crate::writer::{LeaseMode, LoadWriter};

/// Messages of the script.
const MESSAGES: u64 = 8;

/// Runs the script despite failures, with reads in between, and closes the journal.
pub(crate) async fn run_script(writer: &LoadWriter) -> Result<()> {
    let number = |nth: u64| plan::message_number(writer.run, 1, nth * 2 + 1);
    if let Some(receipt) = writer.publish(number(0), LeaseMode::Request).await? {
        writer.ack(receipt, number(0)).await?;
    }
    if let Some(receipt) = writer.publish(number(1), LeaseMode::Request).await? {
        writer.discard_leased(receipt, number(1)).await?;
    }
    for nth in 2..MESSAGES {
        writer.publish(number(nth), LeaseMode::Omit).await?;
        check_reads(writer).await?;
    }
    writer.put_next_value(1).await?;
    for (nth, delivery) in writer
        .lease_messages(number(2), LeaseOrder::Any)
        .await?
        .iter()
        .enumerate()
    {
        settle_message(writer, nth, delivery).await?;
        check_reads(writer).await?;
    }
    writer.put_next_value(1).await?;
    for delivery in writer.lease_messages(number(2), LeaseOrder::Strict).await? {
        settle_message(writer, 0, &delivery).await?;
    }
    writer.publish(number(MESSAGES), LeaseMode::Omit).await?;
    check_reads(writer).await?;
    writer.journal.close().await;
    writer
        .records
        .write_record(OpPhase::Finished, Op::None, 0, 0)?;
    Ok(())
}

async fn settle_message(writer: &LoadWriter, nth: usize, delivery: &LeasedMessage) -> Result<()> {
    let Some(number) = plan::parse_dedupe_id(&delivery.dedupe) else {
        writer
            .records
            .write_record(OpPhase::ReadFailed, Op::None, 0, 0)?;
        return Ok(());
    };
    match nth {
        0 | 3 => writer.ack(delivery.receipt, number).await,
        1 => writer.nak(delivery.receipt, number).await,
        _ => {
            writer.dead_letter(delivery.receipt, number).await?;
            writer.requeue(delivery.receipt.id, number).await
        }
    }
}

/// Checks that reads succeed regardless of failed writes.
pub(crate) async fn check_reads(writer: &LoadWriter) -> Result<()> {
    let at = writer.clock.timestamps();
    let filter = MessageFilter {
        lanes: plan::PREFIX.to_owned(),
        limit: 100,
        ..MessageFilter::default()
    };
    let read = async {
        for entry in writer.journal.list_messages(filter, at).await.ok()? {
            let number = plan::parse_dedupe_id(&entry.dedupe)?;
            let whole = entry.body == plan::number_body(number);
            whole.then_some(())?;
        }
        writer.journal.lane_stats(plan::PREFIX, at).await.ok()?;
        writer.journal.list_values(plan::PREFIX, 100).await.ok()?;
        let first = plan::message_number(writer.run, 1, 1);
        let lane = plan::number_lane(first).ok()?;
        let done = writer
            .journal
            .get_result(&lane, &plan::number_dedupe_id(first))
            .await
            .ok()?;
        let right = done.is_none_or(|done| done.result == Some(plan::number_result(first)));
        right.then_some(())
    };
    if read.await.is_none() {
        writer
            .records
            .write_record(OpPhase::ReadFailed, Op::None, 0, 0)?;
    }
    Ok(())
}
