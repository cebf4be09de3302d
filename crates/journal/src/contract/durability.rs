//! Rules for state after a reopen; skipped for engines without durable storage.

use bytes::Bytes;

use super::{
    ContractViolation, EngineFactory, RuleResult, expect_equal, expect_true, lease_first,
    lease_messages, message_draft, moment_at, ms, publish_all,
};
use crate::engine::{
    Duplicate, ExpectedRevision, Journal, JournalError, LaneName, LeaseOrder, MessageDraft,
    MessageFilter, MessageId, MessageStatus, PublishOutcome, Timestamps,
};

/// Messages in order, dead letters, results and values survive.
pub async fn acknowledged_state_survives_reopen<M: EngineFactory>(factory: &M) -> RuleResult {
    if !factory.is_durable() {
        return Ok(());
    }
    let journal = factory.open_journal().await;
    let dead = write_mixed_state(&*journal).await?;
    let all = MessageFilter {
        limit: 99,
        ..MessageFilter::default()
    };
    let entries = journal.list_messages(all.clone(), moment_at(9)).await?;
    let views = journal.lane_stats("", moment_at(9)).await?;
    let value = journal.get_value("k").await?;
    let result = journal.get_result(&LaneName::new("box")?, "done").await?;
    journal.close().await;
    drop(journal);
    let journal = factory.open_journal().await;
    expect_equal(
        "the messages",
        &journal.list_messages(all, moment_at(10)).await?,
        &entries,
    )?;
    expect_equal(
        "the lanes",
        &journal.lane_stats("", moment_at(10)).await?,
        &views,
    )?;
    expect_equal("the value", &journal.get_value("k").await?, &value)?;
    expect_equal(
        "a value that was forgotten",
        &journal.get_value("gone").await?,
        &None,
    )?;
    let stored_result = journal.get_result(&LaneName::new("box")?, "done").await?;
    expect_equal("the result", &stored_result, &result)?;
    let repeated = journal
        .publish(message_draft("box", "dead")?, moment_at(11))
        .await?;
    expect_equal(
        "the dead",
        &repeated,
        &PublishOutcome::Duplicate(Duplicate::DeadLetter(dead)),
    )?;
    for name in ["a", "b", "revived"] {
        let receipt = lease_first(&*journal, "box", name, moment_at(12)).await?;
        journal.ack(receipt, None, moment_at(13)).await?;
    }
    Ok(())
}

/// Writes messages in every status, a result and values; returns the id of the dead letter.
async fn write_mixed_state(journal: &dyn Journal) -> Result<MessageId, ContractViolation> {
    let names = ["dead", "done", "revived", "a", "b"];
    publish_all(journal, "box", &names, moment_at(1)).await?;
    let dead = lease_first(journal, "box", "dead", moment_at(2)).await?;
    journal.dead_letter(dead, "no".into(), moment_at(3)).await?;
    let done = lease_first(journal, "box", "done", moment_at(4)).await?;
    journal
        .ack(done, Some(Bytes::from_static(b"yes")), moment_at(5))
        .await?;
    let revived = lease_first(journal, "box", "revived", moment_at(6)).await?;
    journal
        .dead_letter(revived, "no".into(), moment_at(7))
        .await?;
    journal
        .requeue(revived.id, Some(ms(90_000)), moment_at(8))
        .await?;
    journal
        .put_value("k", Some(Bytes::from_static(b"v")), ExpectedRevision::Any)
        .await?;
    journal
        .put_value("gone", Some(Bytes::new()), ExpectedRevision::Any)
        .await?;
    journal
        .put_value("gone", None, ExpectedRevision::Any)
        .await?;
    Ok(dead.id)
}

/// Leased and delayed messages are due at once, at their place; old receipts are void.
pub async fn leases_are_void_after_reopen<M: EngineFactory>(factory: &M) -> RuleResult {
    if !factory.is_durable() {
        return Ok(());
    }
    let journal = factory.open_journal().await;
    let intent = MessageDraft {
        lease: Some(ms(60_000)),
        ..message_draft("box", "intent")?
    };
    let published = journal.publish(intent, moment_at(1)).await?;
    let PublishOutcome::Stored {
        id,
        receipt: Some(old_receipt),
        ..
    } = published
    else {
        return expect_true("that it is stored and held", false);
    };
    publish_all(&*journal, "box", &["b"], moment_at(1)).await?;
    publish_all(&*journal, "late", &["c"], moment_at(1)).await?;
    let receipt = lease_first(&*journal, "late", "c", moment_at(2)).await?;
    journal.nak(receipt, ms(60_000), moment_at(3)).await?;
    journal.close().await;
    drop(journal);
    let journal = factory.open_journal().await;
    // The monotonic clock of a new process starts anywhere.
    let now = Timestamps {
        now: bowline_core::time::MonotonicTime(0),
        ..moment_at(100)
    };
    let status = journal
        .get_message(id, now)
        .await?
        .map(|entry| entry.status);
    expect_equal(
        "how the intent stands",
        &status,
        &Some(MessageStatus::Queued),
    )?;
    let acked = journal.ack(old_receipt, None, now).await;
    expect_equal("an old receipt", &acked, &Err(JournalError::LeaseLost))?;
    let leased = lease_messages(&*journal, "box", LeaseOrder::Strict, 1, now).await?;
    let leased: Vec<_> = leased
        .iter()
        .map(|one| (&*one.dedupe, one.attempts))
        .collect();
    expect_equal("the first", &leased, &vec![("intent", 2)])?;
    let acked = journal.ack(old_receipt, None, now).await;
    expect_equal("an old receipt", &acked, &Err(JournalError::LeaseLost))?;
    let leased = lease_messages(&*journal, "late", LeaseOrder::Strict, 1, now).await?;
    let leased: Vec<_> = leased
        .iter()
        .map(|one| (&*one.dedupe, one.attempts))
        .collect();
    expect_equal("what was delayed", &leased, &vec![("c", 2)])
}

/// Message numbers and revisions continue, even if the last message or value was removed.
pub async fn ids_continue_after_reopen<M: EngineFactory>(factory: &M) -> RuleResult {
    if !factory.is_durable() {
        return Ok(());
    }
    let mut last = None;
    for _ in 0..3 {
        let journal = factory.open_journal().await;
        let published = journal
            .publish(message_draft("box", "a")?, moment_at(1))
            .await?;
        let PublishOutcome::Stored { id, .. } = published else {
            return expect_true("a new message is stored", false);
        };
        journal.remove_message(id, moment_at(2)).await?;
        let revision = journal.put_value("k", None, ExpectedRevision::Any).await?;
        expect_true("that numbers grow", last < Some((id, revision)))?;
        let watched = *journal.watch_prefix("k").borrow();
        expect_equal("what a watcher begins with", &watched, &revision)?;
        last = Some((id, revision));
        journal.close().await;
        drop(journal);
    }
    Ok(())
}
