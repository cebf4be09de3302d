//! In which order messages are handed out, and to whom.

use bytes::Bytes;

use super::{Maker, Verdict, at, draft, first, holds, lease, ms, names, nothing, same, store};
use crate::engine::{Draft, JournalError, Known, Order, Published, Standing};

/// A delivery has all that the draft had.
pub async fn a_message_is_handed_out_as_it_was_stored<M: Maker>(maker: &M) -> Verdict {
    let journal = maker.open().await;
    let stored = Draft {
        body: Bytes::from(vec![0xA5; 70_000]),
        ttl: Some(ms(500)),
        ..draft("box", "one")?
    };
    journal.publish(stored.clone(), at(10)).await?;
    let given = lease(&*journal, "box", Order::Strict, 9, at(20)).await?;
    same("how many", &given.len(), &1)?;
    for one in given {
        same("its id", &one.dedupe, &stored.dedupe)?;
        same("its body", &one.body, &stored.body)?;
        same("its attempts", &one.attempts, &1)?;
        same("when it was stored", &one.stored_unix_ms, &at(10).unix_ms)?;
        let expires = Some(at(510).unix_ms);
        same("when it expires", &one.expires_unix_ms, &expires)?;
    }
    Ok(())
}

/// First in, first out, and each knows its position.
pub async fn messages_come_in_the_order_in_which_they_were_stored<M: Maker>(maker: &M) -> Verdict {
    let journal = maker.open().await;
    for (before, name) in ["c", "a", "b", "d"].into_iter().enumerate() {
        let published = journal.publish(draft("box", name)?, at(1)).await?;
        let Published::Stored { position, held, .. } = published else {
            return holds("a new message is stored", false);
        };
        same("its position", &position, &(before as u64 + 1))?;
        same("that nobody holds it", &held, &None)?;
    }
    for name in ["c", "a", "b", "d"] {
        let receipt = first(&*journal, "box", name, at(2)).await?;
        journal.ack(receipt, None, at(3)).await?;
    }
    nothing(&*journal, "box", Order::Strict, at(4)).await
}

/// The second is not handed out while the first is held, not due, or past its time.
pub async fn a_strict_lane_waits_for_its_first<M: Maker>(maker: &M) -> Verdict {
    let journal = maker.open().await;
    let short = Draft {
        ttl: Some(ms(5_000)),
        ..draft("box", "first")?
    };
    journal.publish(short, at(1)).await?;
    store(&*journal, "box", &["second"], at(1)).await?;
    let receipt = first(&*journal, "box", "first", at(2)).await?;
    nothing(&*journal, "box", Order::Strict, at(3)).await?;
    journal.nak(receipt, ms(100), at(10)).await?;
    nothing(&*journal, "box", Order::Strict, at(109)).await?;
    let receipt = first(&*journal, "box", "first", at(110)).await?;
    journal.nak(receipt, ms(0), at(120)).await?;
    nothing(&*journal, "box", Order::Strict, at(6_000)).await?;
    journal.expire("box", at(6_000)).await?;
    first(&*journal, "box", "second", at(6_001)).await?;
    Ok(())
}

/// In a mailbox nobody waits for another.
pub async fn a_mailbox_hands_out_side_by_side<M: Maker>(maker: &M) -> Verdict {
    let journal = maker.open().await;
    store(&*journal, "box", &["a", "b", "c", "d"], at(1)).await?;
    let two = lease(&*journal, "box", Order::Any, 2, at(2)).await?;
    same(
        "the first two",
        &names(&two),
        &vec!["a".to_owned(), "b".to_owned()],
    )?;
    let rest = lease(&*journal, "box", Order::Any, 9, at(3)).await?;
    same(
        "the others",
        &names(&rest),
        &vec!["c".to_owned(), "d".to_owned()],
    )?;
    nothing(&*journal, "box", Order::Any, at(4)).await?;
    for one in two.iter().take(1) {
        journal.nak(one.receipt, ms(0), at(5)).await?;
    }
    let again = lease(&*journal, "box", Order::Any, 9, at(6)).await?;
    same(
        "the one that came back",
        &names(&again),
        &vec!["a".to_owned()],
    )
}

/// The first holder has nothing more to say once another was given the message, but until then.
pub async fn a_lease_that_runs_out_is_given_to_another<M: Maker>(maker: &M) -> Verdict {
    let journal = maker.open().await;
    store(&*journal, "box", &["a", "b"], at(1)).await?;
    let slow = first(&*journal, "box", "a", at(2)).await?;
    nothing(&*journal, "box", Order::Strict, at(1_001)).await?;
    let given = lease(&*journal, "box", Order::Strict, 1, at(1_002)).await?;
    let attempts: Vec<_> = given.iter().map(|one| one.attempts).collect();
    same("its attempts", &attempts, &vec![2])?;
    let late = journal.ack(slow, None, at(1_003)).await;
    same("who is late", &late, &Err(JournalError::Lapsed))?;
    let late = journal.nak(slow, ms(0), at(1_003)).await;
    same("who is late", &late, &Err(JournalError::Lapsed))?;
    for one in given {
        // Its lease has run out as well, but nobody else was given the message.
        journal.ack(one.receipt, None, at(9_000)).await?;
        let twice = journal.ack(one.receipt, None, at(9_001)).await;
        same("who comes twice", &twice, &Err(JournalError::Lapsed))?;
    }
    Ok(())
}

/// It is due again after the delay, at its old place.
pub async fn a_message_that_was_given_back_keeps_its_place<M: Maker>(maker: &M) -> Verdict {
    let journal = maker.open().await;
    store(&*journal, "box", &["a", "b"], at(1)).await?;
    let receipt = first(&*journal, "box", "a", at(2)).await?;
    journal.nak(receipt, ms(0), at(3)).await?;
    let again = journal.nak(receipt, ms(0), at(3)).await;
    same("a receipt is good once", &again, &Err(JournalError::Lapsed))?;
    first(&*journal, "box", "a", at(3)).await?;
    Ok(())
}

/// What is held in one lane does not matter in another.
pub async fn lanes_do_not_block_each_other<M: Maker>(maker: &M) -> Verdict {
    let journal = maker.open().await;
    store(&*journal, "box", &["a"], at(1)).await?;
    store(&*journal, "box/other", &["a"], at(1)).await?;
    first(&*journal, "box", "a", at(2)).await?;
    nothing(&*journal, "box", Order::Strict, at(3)).await?;
    first(&*journal, "box/other", "a", at(3)).await?;
    nothing(&*journal, "nowhere", Order::Strict, at(3)).await
}

/// An intent: held by whoever stored it, and queued by itself when the hold runs out.
pub async fn a_message_may_be_held_from_the_start<M: Maker>(maker: &M) -> Verdict {
    let journal = maker.open().await;
    let held = |name| {
        Ok::<_, JournalError>(Draft {
            hold: Some(ms(100)),
            ..draft("box", name)?
        })
    };
    let mut receipts = Vec::new();
    for name in ["a", "b"] {
        let published = journal.publish(held(name)?, at(1)).await?;
        let Published::Stored { id, held, .. } = published else {
            return holds("a new message is stored", false);
        };
        // The second too: all that is there is held, so nothing waits.
        same("what is held", &held.map(|held| held.id), &Some(id))?;
        receipts.extend(held);
    }
    nothing(&*journal, "box", Order::Any, at(100)).await?;
    let again = journal.publish(held("a")?, at(2)).await?;
    let is_held = matches!(
        again,
        Published::Known(Known::Waiting {
            held: true,
            position: 1,
            ..
        })
    );
    holds("that it is known as held", is_held)?;
    for receipt in receipts.iter().take(1) {
        journal.ack(*receipt, None, at(50)).await?;
    }
    let given = lease(&*journal, "box", Order::Strict, 1, at(101)).await?;
    let attempts: Vec<_> = given
        .iter()
        .map(|one| (&*one.dedupe, one.attempts))
        .collect();
    same("what is queued now", &attempts, &vec![("b", 2)])
}

/// A new message is not held where an older one waits.
pub async fn nobody_overtakes_what_waits<M: Maker>(maker: &M) -> Verdict {
    let journal = maker.open().await;
    store(&*journal, "box", &["old"], at(1)).await?;
    let hold = Some(ms(100));
    let new = Draft {
        hold,
        ..draft("box", "new")?
    };
    let published = journal.publish(new, at(2)).await?;
    let Published::Stored { id, position, held } = published else {
        return holds("a new message is stored", false);
    };
    same("its position", &position, &2)?;
    same("that it is not held", &held, &None)?;
    let entry = journal.entry(id, at(3)).await?;
    let standing = entry.as_ref().map(|entry| &entry.standing);
    same("how it stands", &standing, &Some(&Standing::Waiting))?;
    // Neither where the older one was given back and is not due yet.
    let receipt = first(&*journal, "box", "old", at(4)).await?;
    journal.nak(receipt, ms(1000), at(5)).await?;
    let newer = Draft {
        hold,
        ..draft("box", "newer")?
    };
    let published = journal.publish(newer, at(6)).await?;
    let is_free = matches!(published, Published::Stored { held: None, .. });
    holds("that it waits too", is_free)
}

/// The number of a message that is gone is nobody else's.
pub async fn numbers_are_never_used_again<M: Maker>(maker: &M) -> Verdict {
    let journal = maker.open().await;
    let mut last = None;
    for _ in 0..3 {
        let published = journal.publish(draft("box", "a")?, at(1)).await?;
        let Published::Stored { id, .. } = published else {
            return holds("a new message is stored", false);
        };
        holds("that numbers grow", last < Some(id))?;
        journal.remove(id, at(2)).await?;
        last = Some(id);
    }
    Ok(())
}
