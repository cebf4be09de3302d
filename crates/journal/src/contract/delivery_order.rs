//! Rules for lease order and lease ownership.

use bytes::Bytes;

use super::{
    EngineFactory, RuleResult, dedupe_ids, expect_equal, expect_nothing_leased, expect_true,
    lease_first, lease_messages, message_draft, moment_at, ms, publish_all,
};
use crate::engine::{
    Duplicate, JournalError, LeaseOrder, MessageDraft, MessageStatus, PublishOutcome,
};

/// A leased message carries all fields of its draft.
pub async fn leased_message_equals_published_draft<M: EngineFactory>(factory: &M) -> RuleResult {
    let journal = factory.open_journal().await;
    let stored = MessageDraft {
        body: Bytes::from(vec![0xA5; 70_000]),
        ttl: Some(ms(500)),
        ..message_draft("box", "one")?
    };
    journal.publish(stored.clone(), moment_at(10)).await?;
    let leased = lease_messages(&*journal, "box", LeaseOrder::Strict, 9, moment_at(20)).await?;
    expect_equal("how many", &leased.len(), &1)?;
    for one in leased {
        expect_equal("its id", &one.dedupe, &stored.dedupe)?;
        expect_equal("its body", &one.body, &stored.body)?;
        expect_equal("its attempts", &one.attempts, &1)?;
        expect_equal(
            "when it was stored",
            &one.stored_unix_ms,
            &moment_at(10).unix_ms,
        )?;
        let expires = Some(moment_at(510).unix_ms);
        expect_equal("when it expires", &one.expires_unix_ms, &expires)?;
    }
    Ok(())
}

/// First in, first out; each publication returns its position.
pub async fn messages_lease_in_publish_order<M: EngineFactory>(factory: &M) -> RuleResult {
    let journal = factory.open_journal().await;
    for (before, name) in ["c", "a", "b", "d"].into_iter().enumerate() {
        let published = journal
            .publish(message_draft("box", name)?, moment_at(1))
            .await?;
        let PublishOutcome::Stored {
            position,
            receipt: lease_receipt,
            ..
        } = published
        else {
            return expect_true("a new message is stored", false);
        };
        expect_equal("its position", &position, &(before as u64 + 1))?;
        expect_equal("that nobody holds it", &lease_receipt, &None)?;
    }
    for name in ["c", "a", "b", "d"] {
        let receipt = lease_first(&*journal, "box", name, moment_at(2)).await?;
        journal.ack(receipt, None, moment_at(3)).await?;
    }
    expect_nothing_leased(&*journal, "box", LeaseOrder::Strict, moment_at(4)).await
}

/// The second message is not leased while the first is leased, delayed or expired.
pub async fn strict_lane_waits_for_first_message<M: EngineFactory>(factory: &M) -> RuleResult {
    let journal = factory.open_journal().await;
    let short = MessageDraft {
        ttl: Some(ms(5_000)),
        ..message_draft("box", "first")?
    };
    journal.publish(short, moment_at(1)).await?;
    publish_all(&*journal, "box", &["second"], moment_at(1)).await?;
    let receipt = lease_first(&*journal, "box", "first", moment_at(2)).await?;
    expect_nothing_leased(&*journal, "box", LeaseOrder::Strict, moment_at(3)).await?;
    journal.nak(receipt, ms(100), moment_at(10)).await?;
    expect_nothing_leased(&*journal, "box", LeaseOrder::Strict, moment_at(109)).await?;
    let receipt = lease_first(&*journal, "box", "first", moment_at(110)).await?;
    journal.nak(receipt, ms(0), moment_at(120)).await?;
    expect_nothing_leased(&*journal, "box", LeaseOrder::Strict, moment_at(6_000)).await?;
    journal.expire_messages("box", moment_at(6_000)).await?;
    lease_first(&*journal, "box", "second", moment_at(6_001)).await?;
    Ok(())
}

/// In a mailbox no message waits for an earlier message.
pub async fn mailbox_leases_messages_concurrently<M: EngineFactory>(factory: &M) -> RuleResult {
    let journal = factory.open_journal().await;
    publish_all(&*journal, "box", &["a", "b", "c", "d"], moment_at(1)).await?;
    let two = lease_messages(&*journal, "box", LeaseOrder::Any, 2, moment_at(2)).await?;
    expect_equal(
        "the first two",
        &dedupe_ids(&two),
        &vec!["a".to_owned(), "b".to_owned()],
    )?;
    let rest = lease_messages(&*journal, "box", LeaseOrder::Any, 9, moment_at(3)).await?;
    expect_equal(
        "the others",
        &dedupe_ids(&rest),
        &vec!["c".to_owned(), "d".to_owned()],
    )?;
    expect_nothing_leased(&*journal, "box", LeaseOrder::Any, moment_at(4)).await?;
    for one in two.iter().take(1) {
        journal.nak(one.receipt, ms(0), moment_at(5)).await?;
    }
    let released = lease_messages(&*journal, "box", LeaseOrder::Any, 9, moment_at(6)).await?;
    expect_equal(
        "the one that came back",
        &dedupe_ids(&released),
        &vec!["a".to_owned()],
    )
}

/// The first holder's receipt stays valid until the message is leased again.
pub async fn expired_lease_goes_to_next_consumer<M: EngineFactory>(factory: &M) -> RuleResult {
    let journal = factory.open_journal().await;
    publish_all(&*journal, "box", &["a", "b"], moment_at(1)).await?;
    let slow = lease_first(&*journal, "box", "a", moment_at(2)).await?;
    expect_nothing_leased(&*journal, "box", LeaseOrder::Strict, moment_at(1_001)).await?;
    let leased = lease_messages(&*journal, "box", LeaseOrder::Strict, 1, moment_at(1_002)).await?;
    let attempts: Vec<_> = leased.iter().map(|one| one.attempts).collect();
    expect_equal("its attempts", &attempts, &vec![2])?;
    let late = journal.ack(slow, None, moment_at(1_003)).await;
    expect_equal("who is late", &late, &Err(JournalError::LeaseLost))?;
    let late = journal.nak(slow, ms(0), moment_at(1_003)).await;
    expect_equal("who is late", &late, &Err(JournalError::LeaseLost))?;
    for one in leased {
        // This lease expired as well, but the message was not leased again.
        journal.ack(one.receipt, None, moment_at(9_000)).await?;
        let twice = journal.ack(one.receipt, None, moment_at(9_001)).await;
        expect_equal("who comes twice", &twice, &Err(JournalError::LeaseLost))?;
    }
    Ok(())
}

/// The message is due again after the delay, at its old place.
pub async fn nak_keeps_message_position<M: EngineFactory>(factory: &M) -> RuleResult {
    let journal = factory.open_journal().await;
    publish_all(&*journal, "box", &["a", "b"], moment_at(1)).await?;
    let receipt = lease_first(&*journal, "box", "a", moment_at(2)).await?;
    journal.nak(receipt, ms(0), moment_at(3)).await?;
    let second_nak = journal.nak(receipt, ms(0), moment_at(3)).await;
    expect_equal(
        "a receipt is good once",
        &second_nak,
        &Err(JournalError::LeaseLost),
    )?;
    lease_first(&*journal, "box", "a", moment_at(3)).await?;
    Ok(())
}

/// A leased message in a lane does not affect any different lane.
pub async fn lanes_do_not_block_each_other<M: EngineFactory>(factory: &M) -> RuleResult {
    let journal = factory.open_journal().await;
    publish_all(&*journal, "box", &["a"], moment_at(1)).await?;
    publish_all(&*journal, "box/other", &["a"], moment_at(1)).await?;
    lease_first(&*journal, "box", "a", moment_at(2)).await?;
    expect_nothing_leased(&*journal, "box", LeaseOrder::Strict, moment_at(3)).await?;
    lease_first(&*journal, "box/other", "a", moment_at(3)).await?;
    expect_nothing_leased(&*journal, "nowhere", LeaseOrder::Strict, moment_at(3)).await
}

/// The publisher holds the lease; when the lease expires, the message is queued.
pub async fn publish_with_lease_holds_message<M: EngineFactory>(factory: &M) -> RuleResult {
    let journal = factory.open_journal().await;
    let held = |name| {
        Ok::<_, JournalError>(MessageDraft {
            lease: Some(ms(100)),
            ..message_draft("box", name)?
        })
    };
    let mut receipts = Vec::new();
    for name in ["a", "b"] {
        let published = journal.publish(held(name)?, moment_at(1)).await?;
        let PublishOutcome::Stored {
            id, receipt: held, ..
        } = published
        else {
            return expect_true("a new message is stored", false);
        };
        // The second too: every message in the lane is leased, so nothing is queued.
        expect_equal("what is held", &held.map(|held| held.id), &Some(id))?;
        receipts.extend(held);
    }
    expect_nothing_leased(&*journal, "box", LeaseOrder::Any, moment_at(100)).await?;
    let repeated = journal.publish(held("a")?, moment_at(2)).await?;
    let is_held = matches!(
        repeated,
        PublishOutcome::Duplicate(Duplicate::Queued {
            is_leased: true,
            position: 1,
            ..
        })
    );
    expect_true("that it is known as held", is_held)?;
    for receipt in receipts.iter().take(1) {
        journal.ack(*receipt, None, moment_at(50)).await?;
    }
    let leased = lease_messages(&*journal, "box", LeaseOrder::Strict, 1, moment_at(101)).await?;
    let attempts: Vec<_> = leased
        .iter()
        .map(|one| (&*one.dedupe, one.attempts))
        .collect();
    expect_equal("what is queued now", &attempts, &vec![("b", 2)])
}

/// A new message gets no lease while an older message is queued.
pub async fn publish_with_lease_never_overtakes_queued<M: EngineFactory>(
    factory: &M,
) -> RuleResult {
    let journal = factory.open_journal().await;
    publish_all(&*journal, "box", &["old"], moment_at(1)).await?;
    let hold = Some(ms(100));
    let new = MessageDraft {
        lease: hold,
        ..message_draft("box", "new")?
    };
    let published = journal.publish(new, moment_at(2)).await?;
    let PublishOutcome::Stored {
        id,
        position,
        receipt: lease_receipt,
    } = published
    else {
        return expect_true("a new message is stored", false);
    };
    expect_equal("its position", &position, &2)?;
    expect_equal("that it is not held", &lease_receipt, &None)?;
    let entry = journal.get_message(id, moment_at(3)).await?;
    let status = entry.as_ref().map(|entry| &entry.status);
    expect_equal("how it stands", &status, &Some(&MessageStatus::Queued))?;
    // The same holds while the older message is delayed after a nak.
    let receipt = lease_first(&*journal, "box", "old", moment_at(4)).await?;
    journal.nak(receipt, ms(1000), moment_at(5)).await?;
    let newer = MessageDraft {
        lease: hold,
        ..message_draft("box", "newer")?
    };
    let published = journal.publish(newer, moment_at(6)).await?;
    let is_free = matches!(published, PublishOutcome::Stored { receipt: None, .. });
    expect_true("that it waits too", is_free)
}

/// The number of a removed message is never assigned again.
pub async fn message_ids_are_never_reused<M: EngineFactory>(factory: &M) -> RuleResult {
    let journal = factory.open_journal().await;
    let mut last = None;
    for _ in 0..3 {
        let published = journal
            .publish(message_draft("box", "a")?, moment_at(1))
            .await?;
        let PublishOutcome::Stored { id, .. } = published else {
            return expect_true("a new message is stored", false);
        };
        expect_true("that numbers grow", last < Some(id))?;
        journal.remove_message(id, moment_at(2)).await?;
        last = Some(id);
    }
    Ok(())
}
