//! Rules for deduplication and kept results.

use bowline_core::time::MonotonicTime;
use bytes::Bytes;

use super::{
    EngineFactory, RuleResult, expect_equal, expect_true, lease_first, message_draft, moment_at,
    ms, publish_all,
};
use crate::engine::{
    COMPLETED_TTL, CompletedMessage, Duplicate, JournalError, LaneName, MessageDraft,
    PublishOutcome, Timestamps,
};

/// A repeated publication returns the status of the stored message.
pub async fn same_message_is_stored_once<M: EngineFactory>(factory: &M) -> RuleResult {
    let journal = factory.open_journal().await;
    publish_all(&*journal, "box", &["a", "b"], moment_at(1)).await?;
    let repeated = MessageDraft {
        body: Bytes::from_static(b"other words for the same"),
        ..message_draft("box", "b")?
    };
    let PublishOutcome::Duplicate(Duplicate::Queued {
        id,
        position,
        is_leased,
    }) = journal.publish(repeated, moment_at(2)).await?
    else {
        return expect_true("that it is known", false);
    };
    expect_equal("its position", &(position, is_leased), &(2, false))?;
    let body = journal
        .get_message(id, moment_at(2))
        .await?
        .map(|entry| entry.body);
    expect_equal(
        "the first body",
        &body,
        &Some(Bytes::from_static(b"body of b")),
    )?;
    publish_all(&*journal, "box/other", &["b"], moment_at(3)).await
}

/// The conflict is reported in every status of the stored message.
pub async fn same_id_other_digest_conflicts<M: EngineFactory>(factory: &M) -> RuleResult {
    let journal = factory.open_journal().await;
    let other = || {
        Ok::<_, JournalError>(MessageDraft {
            digest: [0xEE; 32],
            ..message_draft("box", "a")?
        })
    };
    publish_all(&*journal, "box", &["a"], moment_at(1)).await?;
    let waiting = journal.publish(other()?, moment_at(2)).await;
    expect_equal("while it waits", &waiting, &Err(JournalError::Conflict))?;
    let receipt = lease_first(&*journal, "box", "a", moment_at(3)).await?;
    let leased = journal.publish(other()?, moment_at(4)).await;
    expect_equal("while it is held", &leased, &Err(JournalError::Conflict))?;
    journal
        .dead_letter(receipt, "no".into(), moment_at(5))
        .await?;
    let dead = journal.publish(other()?, moment_at(6)).await;
    expect_equal("when it is dead", &dead, &Err(JournalError::Conflict))?;
    publish_all(&*journal, "box", &["b"], moment_at(7)).await?;
    let receipt = lease_first(&*journal, "box", "b", moment_at(8)).await?;
    journal.ack(receipt, None, moment_at(9)).await?;
    let done = MessageDraft {
        digest: [0xEE; 32],
        ..message_draft("box", "b")?
    };
    let done = journal.publish(done, moment_at(10)).await;
    expect_equal("when it is done", &done, &Err(JournalError::Conflict))
}

/// A result, or its absence, is kept by lane and dedupe id.
pub async fn ack_result_is_remembered<M: EngineFactory>(factory: &M) -> RuleResult {
    let journal = factory.open_journal().await;
    let lane = LaneName::new("box")?;
    let mut expected = Vec::new();
    for (name, result) in [("a", Some("all is well")), ("b", None), ("c", Some(""))] {
        publish_all(&*journal, "box", &[name], moment_at(1)).await?;
        let before = journal.get_result(&lane, name).await?;
        expect_equal("the result before", &before, &None)?;
        let receipt = lease_first(&*journal, "box", name, moment_at(2)).await?;
        let result = result.map(|result| Bytes::from_static(result.as_bytes()));
        journal.ack(receipt, result.clone(), moment_at(30)).await?;
        expected.push((
            name,
            CompletedMessage {
                id: receipt.id,
                result,
                unix_ms: moment_at(30).unix_ms,
            },
        ));
    }
    for (name, done) in expected {
        let stored = journal.get_result(&lane, name).await?;
        expect_equal("the result", &stored, &Some(done.clone()))?;
        let repeated = journal
            .publish(message_draft("box", name)?, moment_at(40))
            .await?;
        let expected_outcome = PublishOutcome::Duplicate(Duplicate::Completed(done));
        expect_equal("what a repetition is told", &repeated, &expected_outcome)?;
    }
    let elsewhere = journal
        .get_result(&LaneName::new("box/other")?, "a")
        .await?;
    expect_equal("the result in another lane", &elsewhere, &None)
}

/// After the TTL the same dedupe id is a new message.
pub async fn completed_message_expires_after_ttl<M: EngineFactory>(factory: &M) -> RuleResult {
    let journal = factory.open_journal().await;
    publish_all(&*journal, "box", &["a"], moment_at(0)).await?;
    let receipt = lease_first(&*journal, "box", "a", moment_at(0)).await?;
    journal.ack(receipt, None, moment_at(0)).await?;
    let ttl_ms = u64::try_from(COMPLETED_TTL.as_millis()).unwrap_or(u64::MAX);
    let published = journal
        .publish(message_draft("box", "a")?, moment_at(ttl_ms))
        .await?;
    let is_known = matches!(
        published,
        PublishOutcome::Duplicate(Duplicate::Completed(_))
    );
    expect_true("that it is remembered to the end", is_known)?;
    // The TTL uses elapsed time: a wall clock jump forgets nothing.
    let jumped = Timestamps {
        now: MonotonicTime(ttl_ms),
        ..moment_at(2 * ttl_ms)
    };
    let published = journal.publish(message_draft("box", "a")?, jumped).await?;
    let is_known = matches!(
        published,
        PublishOutcome::Duplicate(Duplicate::Completed(_))
    );
    expect_true("that a jump of the wall clock forgets nothing", is_known)?;
    let published = journal
        .publish(message_draft("box", "a")?, moment_at(2 * ttl_ms))
        .await?;
    let is_new = matches!(published, PublishOutcome::Stored { .. });
    expect_true("that it is forgotten then", is_new)
}

/// Applies to a removed message and to a message discarded by its lease holder.
pub async fn removed_message_frees_dedupe_id<M: EngineFactory>(factory: &M) -> RuleResult {
    let journal = factory.open_journal().await;
    let published = journal
        .publish(message_draft("box", "a")?, moment_at(1))
        .await?;
    let PublishOutcome::Stored { id, .. } = published else {
        return expect_true("a new message is stored", false);
    };
    journal.remove_message(id, moment_at(2)).await?;
    expect_equal(
        "the entry",
        &journal.get_message(id, moment_at(2)).await?,
        &None,
    )?;
    let draft = MessageDraft {
        lease: Some(ms(1000)),
        digest: [9; 32],
        ..message_draft("box", "a")?
    };
    let published = journal.publish(draft, moment_at(3)).await?;
    let PublishOutcome::Stored {
        receipt: Some(receipt),
        ..
    } = published
    else {
        return expect_true("that it is stored and held", false);
    };
    journal.discard_leased(receipt, moment_at(4)).await?;
    let twice = journal.discard_leased(receipt, moment_at(4)).await;
    expect_equal("who withdraws twice", &twice, &Err(JournalError::LeaseLost))?;
    expect_equal(
        "the result",
        &journal.get_result(&LaneName::new("box")?, "a").await?,
        &None,
    )?;
    publish_all(&*journal, "box", &["a"], moment_at(5)).await
}
