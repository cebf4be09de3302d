//! Rules for refused operations: sizes, counts and closed journals.

use std::sync::Arc;

use bytes::Bytes;
use tokio::task::JoinSet;

use super::{
    EngineFactory, RuleResult, expect_equal, expect_true, lease_first, lease_messages,
    message_draft, moment_at, ms, publish_all,
};
use crate::engine::{
    BODY_BYTES_MAX, ExpectedRevision, JournalError, KEY_BYTES_MAX, LANE_BYTES_MAX,
    LANE_MESSAGES_MAX, LaneName, LeaseOrder, LeaseReceipt, MessageDraft, MessageFilter, MessageId,
    PublishOutcome,
};

/// Applies to lane names, dedupe ids, keys, bodies, results and values.
pub async fn oversized_input_is_refused<M: EngineFactory>(factory: &M) -> RuleResult {
    let journal = factory.open_journal().await;
    let long = "x".repeat(LANE_BYTES_MAX + 1);
    for name in ["", "a\nb", &long] {
        expect_equal(
            "a lane",
            &LaneName::new(name).err(),
            &Some(JournalError::BadName),
        )?;
    }
    let long = "x".repeat(KEY_BYTES_MAX + 1);
    for key in ["", &long] {
        let named = MessageDraft {
            dedupe: key.into(),
            ..message_draft("box", "a")?
        };
        let published = journal.publish(named, moment_at(1)).await;
        expect_equal("an id", &published, &Err(JournalError::BadName))?;
        let put = journal.put_value(key, None, ExpectedRevision::Any).await;
        expect_equal("a key", &put, &Err(JournalError::BadName))?;
    }
    let large = Bytes::from(vec![0; BODY_BYTES_MAX + 1]);
    let refusal = JournalError::TooLarge {
        bytes: BODY_BYTES_MAX + 1,
        bytes_max: BODY_BYTES_MAX,
    };
    let heavy = MessageDraft {
        body: large.clone(),
        ..message_draft("box", "a")?
    };
    let published = journal.publish(heavy, moment_at(1)).await;
    expect_equal("a body", &published, &Err(refusal.clone()))?;
    publish_all(&*journal, "box", &["a"], moment_at(2)).await?;
    let receipt = lease_first(&*journal, "box", "a", moment_at(3)).await?;
    let acked = journal
        .ack(receipt, Some(large.clone()), moment_at(4))
        .await;
    expect_equal("a result", &acked, &Err(refusal.clone()))?;
    let put = journal
        .put_value("k", Some(large), ExpectedRevision::Any)
        .await;
    expect_equal("a value", &put, &Err(refusal))?;
    // A refused operation changed nothing.
    journal.ack(receipt, None, moment_at(5)).await?;
    Ok(())
}

/// The next message is refused, until a message leaves the lane.
pub async fn lane_message_count_is_bounded<M: EngineFactory>(factory: &M) -> RuleResult {
    let journal = factory.open_journal().await;
    let mut tasks = JoinSet::new();
    for number in 0..LANE_MESSAGES_MAX {
        let journal = Arc::clone(&journal);
        let draft = message_draft("box", &number.to_string())?;
        tasks.spawn(async move { journal.publish(draft, moment_at(1)).await.map(drop) });
        while tasks.len() >= 256 {
            if let Some(Ok(stored)) = tasks.join_next().await {
                stored?;
            }
        }
    }
    while let Some(joined) = tasks.join_next().await {
        if let Ok(stored) = joined {
            stored?;
        }
    }
    let full = JournalError::LaneFull {
        limit: LANE_MESSAGES_MAX,
    };
    let more = journal
        .publish(message_draft("box", "more")?, moment_at(2))
        .await;
    expect_equal("one more", &more, &Err(full.clone()))?;
    publish_all(&*journal, "box/other", &["more"], moment_at(2)).await?;
    let leased = lease_messages(&*journal, "box", LeaseOrder::Strict, 1, moment_at(3)).await?;
    for one in leased {
        journal
            .dead_letter(one.receipt, "no".into(), moment_at(4))
            .await?;
        publish_all(&*journal, "box", &["more"], moment_at(5)).await?;
        let back = journal.requeue(one.receipt.id, None, moment_at(6)).await;
        expect_equal("one that comes back", &back, &Err(full.clone()))?;
    }
    Ok(())
}

/// Closing twice has the same effect as closing once.
pub async fn closed_journal_refuses_operations<M: EngineFactory>(factory: &M) -> RuleResult {
    let journal = factory.open_journal().await;
    let draft = MessageDraft {
        lease: Some(ms(1000)),
        ..message_draft("box", "a")?
    };
    let published = journal.publish(draft, moment_at(1)).await?;
    expect_true(
        "that it is stored",
        matches!(published, PublishOutcome::Stored { .. }),
    )?;
    journal.close().await;
    journal.close().await;
    let closed = JournalError::Closed;
    let id = MessageId(1);
    let receipt = LeaseReceipt { id, lease: 1 };
    let lane = LaneName::new("box")?;
    let refused = journal
        .publish(message_draft("box", "b")?, moment_at(2))
        .await;
    expect_equal("publish", &refused.err(), &Some(closed.clone()))?;
    let leased = journal
        .lease(&lane, LeaseOrder::Any, 1, ms(1), moment_at(2))
        .await;
    expect_equal("lease", &leased.err(), &Some(closed.clone()))?;
    let results = [
        journal.ack(receipt, None, moment_at(2)).await,
        journal.nak(receipt, ms(1), moment_at(2)).await,
        journal
            .dead_letter(receipt, "no".into(), moment_at(2))
            .await,
        journal.discard_leased(receipt, moment_at(2)).await,
        journal.requeue(id, None, moment_at(2)).await,
        journal.remove_message(id, moment_at(2)).await,
    ];
    for one in results {
        expect_equal("an end", &one, &Err(closed.clone()))?;
    }
    let listed = journal
        .list_messages(MessageFilter::default(), moment_at(2))
        .await;
    expect_equal("inspect", &listed.err(), &Some(closed.clone()))?;
    let lanes = journal.lane_stats("", moment_at(2)).await;
    expect_equal("lanes", &lanes.err(), &Some(closed.clone()))?;
    let value = journal.get_value("k").await;
    expect_equal("get", &value.err(), &Some(closed.clone()))?;
    let put = journal.put_value("k", None, ExpectedRevision::Any).await;
    expect_equal("put", &put.err(), &Some(closed))
}
