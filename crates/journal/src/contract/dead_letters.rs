//! Rules for dead letters: dead-lettering, expiry, requeueing and removal.

use std::sync::Arc;

use super::{
    EngineFactory, RuleResult, expect_equal, expect_nothing_leased, expect_true, lease_first,
    message_draft, moment_at, ms, publish_all,
};
use crate::engine::{
    Duplicate, EXPIRE_MAX, JournalError, LeaseOrder, MessageDraft, MessageFilter, MessageId,
    MessageStatus, PublishOutcome,
};

/// A dead letter is kept and deduplicated, and the next message is leased.
pub async fn dead_letter_does_not_block_lane<M: EngineFactory>(factory: &M) -> RuleResult {
    let journal = factory.open_journal().await;
    publish_all(&*journal, "box", &["a", "b"], moment_at(1)).await?;
    let receipt = lease_first(&*journal, "box", "a", moment_at(2)).await?;
    let reason: Arc<str> = "the server said no".into();
    journal
        .dead_letter(receipt, Arc::clone(&reason), moment_at(3))
        .await?;
    let twice = journal
        .dead_letter(receipt, Arc::clone(&reason), moment_at(3))
        .await;
    expect_equal("who buries twice", &twice, &Err(JournalError::LeaseLost))?;
    let entry = journal.get_message(receipt.id, moment_at(4)).await?;
    let entry = entry.map(|entry| (entry.status, entry.position, entry.attempts));
    expect_equal(
        "how it stands",
        &entry,
        &Some((MessageStatus::DeadLetter(reason), 0, 1)),
    )?;
    let repeated = journal
        .publish(message_draft("box", "a")?, moment_at(5))
        .await?;
    let expected = PublishOutcome::Duplicate(Duplicate::DeadLetter(receipt.id));
    expect_equal("what a repetition is told", &repeated, &expected)?;
    lease_first(&*journal, "box", "b", moment_at(6)).await?;
    Ok(())
}

/// The requeued message gets a new expiry.
pub async fn requeued_dead_letter_goes_last<M: EngineFactory>(factory: &M) -> RuleResult {
    let journal = factory.open_journal().await;
    publish_all(&*journal, "box", &["a", "b"], moment_at(1)).await?;
    let receipt = lease_first(&*journal, "box", "a", moment_at(2)).await?;
    let alive = journal.requeue(receipt.id, None, moment_at(2)).await;
    expect_equal("one that lives", &alive, &Err(JournalError::NotFound))?;
    let nobody = journal.requeue(MessageId(99), None, moment_at(2)).await;
    expect_equal(
        "one that is not there",
        &nobody,
        &Err(JournalError::NotFound),
    )?;
    journal
        .dead_letter(receipt, "no".into(), moment_at(3))
        .await?;
    journal
        .requeue(receipt.id, Some(ms(500)), moment_at(4))
        .await?;
    let entry = journal.get_message(receipt.id, moment_at(5)).await?;
    let entry = entry.map(|one| (one.status, one.position, one.expires_unix_ms));
    let expected = (MessageStatus::Queued, 2, Some(moment_at(504).unix_ms));
    expect_equal("how it stands", &entry, &Some(expected))?;
    let b = lease_first(&*journal, "box", "b", moment_at(6)).await?;
    journal.ack(b, None, moment_at(7)).await?;
    lease_first(&*journal, "box", "a", moment_at(8)).await?;
    Ok(())
}

/// Expiry uses the wall clock and skips leased messages.
pub async fn expired_message_becomes_dead_letter<M: EngineFactory>(factory: &M) -> RuleResult {
    let journal = factory.open_journal().await;
    for (lane, name, ttl) in [
        ("out/a", "held", Some(100)),
        ("out/a", "short", Some(100)),
        ("out/a", "long", Some(10_000)),
        ("out/b", "short", Some(100)),
        ("out/b", "for ever", None),
        ("elsewhere", "short", Some(100)),
    ] {
        let ttl = ttl.map(ms);
        let draft = MessageDraft {
            ttl,
            ..message_draft(lane, name)?
        };
        journal.publish(draft, moment_at(0)).await?;
    }
    let receipt = lease_first(&*journal, "out/a", "held", moment_at(1)).await?;
    expect_equal(
        "before",
        &journal.expire_messages("out/", moment_at(99)).await?,
        &Vec::new(),
    )?;
    let expired = journal.expire_messages("out/", moment_at(100)).await?;
    let names: Vec<_> = expired
        .iter()
        .map(|one| (one.lane.as_str(), &*one.dedupe, one.status.clone()))
        .collect();
    let dead = || MessageStatus::DeadLetter("expired".into());
    let expected = vec![("out/a", "short", dead()), ("out/b", "short", dead())];
    expect_equal("what expired", &names, &expected)?;
    expect_equal(
        "again",
        &journal.expire_messages("out/", moment_at(100)).await?,
        &Vec::new(),
    )?;
    journal.nak(receipt, ms(0), moment_at(101)).await?;
    expect_nothing_leased(&*journal, "out/a", LeaseOrder::Strict, moment_at(102)).await?;
    expect_equal(
        "then",
        &journal.expire_messages("out/", moment_at(103)).await?.len(),
        &1,
    )?;
    lease_first(&*journal, "out/a", "long", moment_at(104)).await?;
    lease_first(&*journal, "out/b", "for ever", moment_at(104)).await?;
    Ok(())
}

/// The oldest messages expire first; the rest expire in the next call.
pub async fn expire_is_bounded_per_call<M: EngineFactory>(factory: &M) -> RuleResult {
    let journal = factory.open_journal().await;
    let more = 5;
    for number in 0..EXPIRE_MAX + more {
        let draft = MessageDraft {
            ttl: Some(ms(1)),
            ..message_draft("box", &number.to_string())?
        };
        journal.publish(draft, moment_at(0)).await?;
    }
    let expired = journal.expire_messages("", moment_at(10)).await?;
    expect_equal("at first", &expired.len(), &EXPIRE_MAX)?;
    let is_sorted = expired.is_sorted_by_key(|one| one.id);
    expect_true("oldest first", is_sorted)?;
    expect_equal(
        "then",
        &journal.expire_messages("", moment_at(10)).await?.len(),
        &more,
    )
}

/// Only the lease holder may discard a leased message.
pub async fn leased_message_is_not_removed<M: EngineFactory>(factory: &M) -> RuleResult {
    let journal = factory.open_journal().await;
    publish_all(&*journal, "box", &["a"], moment_at(1)).await?;
    let receipt = lease_first(&*journal, "box", "a", moment_at(2)).await?;
    let refused = journal.remove_message(receipt.id, moment_at(3)).await;
    expect_equal("one that is held", &refused, &Err(JournalError::LeaseLost))?;
    journal
        .dead_letter(receipt, "no".into(), moment_at(4))
        .await?;
    journal.remove_message(receipt.id, moment_at(5)).await?;
    let missing = journal.remove_message(receipt.id, moment_at(6)).await;
    expect_equal("one that is gone", &missing, &Err(JournalError::NotFound))?;
    let all = MessageFilter {
        limit: 9,
        ..MessageFilter::default()
    };
    expect_equal(
        "what is left",
        &journal.list_messages(all, moment_at(7)).await?,
        &Vec::new(),
    )
}
