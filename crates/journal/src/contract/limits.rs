//! What is refused.

use std::sync::Arc;

use bytes::Bytes;
use tokio::task::JoinSet;

use super::{Maker, Verdict, at, draft, first, holds, lease, ms, same, store};
use crate::engine::{
    BODY_BYTES_MAX, Draft, Expect, Filter, JournalError, KEY_BYTES_MAX, LANE_BYTES_MAX,
    LANE_MESSAGES_MAX, Lane, MessageId, Order, Published, Receipt,
};

/// Names, ids, keys, bodies, results and values.
pub async fn what_is_too_long_is_refused<M: Maker>(maker: &M) -> Verdict {
    let journal = maker.open().await;
    let long = "x".repeat(LANE_BYTES_MAX + 1);
    for name in ["", "a\nb", &long] {
        same(
            "a lane",
            &Lane::new(name).err(),
            &Some(JournalError::BadName),
        )?;
    }
    let long = "x".repeat(KEY_BYTES_MAX + 1);
    for key in ["", &long] {
        let named = Draft {
            dedupe: key.into(),
            ..draft("box", "a")?
        };
        let published = journal.publish(named, at(1)).await;
        same("an id", &published, &Err(JournalError::BadName))?;
        let put = journal.put(key, None, Expect::Any).await;
        same("a key", &put, &Err(JournalError::BadName))?;
    }
    let large = Bytes::from(vec![0; BODY_BYTES_MAX + 1]);
    let refusal = JournalError::TooLarge {
        bytes: BODY_BYTES_MAX + 1,
        bytes_max: BODY_BYTES_MAX,
    };
    let heavy = Draft {
        body: large.clone(),
        ..draft("box", "a")?
    };
    let published = journal.publish(heavy, at(1)).await;
    same("a body", &published, &Err(refusal.clone()))?;
    store(&*journal, "box", &["a"], at(2)).await?;
    let receipt = first(&*journal, "box", "a", at(3)).await?;
    let acked = journal.ack(receipt, Some(large.clone()), at(4)).await;
    same("a result", &acked, &Err(refusal.clone()))?;
    let put = journal.put("k", Some(large), Expect::Any).await;
    same("a value", &put, &Err(refusal))?;
    // What was refused has changed nothing.
    journal.ack(receipt, None, at(5)).await?;
    Ok(())
}

/// The next one is refused; when one has left there is room again.
pub async fn a_lane_holds_only_so_many<M: Maker>(maker: &M) -> Verdict {
    let journal = maker.open().await;
    let mut tasks = JoinSet::new();
    for number in 0..LANE_MESSAGES_MAX {
        let journal = Arc::clone(&journal);
        let draft = draft("box", &number.to_string())?;
        tasks.spawn(async move { journal.publish(draft, at(1)).await.map(drop) });
        while tasks.len() >= 256 {
            if let Some(Ok(stored)) = tasks.join_next().await {
                stored?;
            }
        }
    }
    while let Some(ended) = tasks.join_next().await {
        if let Ok(stored) = ended {
            stored?;
        }
    }
    let full = JournalError::LaneFull {
        limit: LANE_MESSAGES_MAX,
    };
    let more = journal.publish(draft("box", "more")?, at(2)).await;
    same("one more", &more, &Err(full.clone()))?;
    store(&*journal, "box/other", &["more"], at(2)).await?;
    let given = lease(&*journal, "box", Order::Strict, 1, at(3)).await?;
    for one in given {
        journal.bury(one.receipt, "no".into(), at(4)).await?;
        store(&*journal, "box", &["more"], at(5)).await?;
        let back = journal.revive(one.receipt.id, None, at(6)).await;
        same("one that comes back", &back, &Err(full.clone()))?;
    }
    Ok(())
}

/// Closing twice is closing once.
pub async fn a_closed_journal_does_nothing<M: Maker>(maker: &M) -> Verdict {
    let journal = maker.open().await;
    let held = Draft {
        hold: Some(ms(1000)),
        ..draft("box", "a")?
    };
    let published = journal.publish(held, at(1)).await?;
    holds(
        "that it is stored",
        matches!(published, Published::Stored { .. }),
    )?;
    journal.close().await;
    journal.close().await;
    let closed = JournalError::Closed;
    let id = MessageId(1);
    let receipt = Receipt { id, lease: 1 };
    let lane = Lane::new("box")?;
    let again = journal.publish(draft("box", "b")?, at(2)).await;
    same("publish", &again.err(), &Some(closed.clone()))?;
    let given = journal.lease(&lane, Order::Any, 1, ms(1), at(2)).await;
    same("lease", &given.err(), &Some(closed.clone()))?;
    let ended = [
        journal.ack(receipt, None, at(2)).await,
        journal.nak(receipt, ms(1), at(2)).await,
        journal.bury(receipt, "no".into(), at(2)).await,
        journal.withdraw(receipt, at(2)).await,
        journal.revive(id, None, at(2)).await,
        journal.remove(id, at(2)).await,
    ];
    for one in ended {
        same("an end", &one, &Err(closed.clone()))?;
    }
    let shown = journal.inspect(Filter::default(), at(2)).await;
    same("inspect", &shown.err(), &Some(closed.clone()))?;
    let lanes = journal.lanes("", at(2)).await;
    same("lanes", &lanes.err(), &Some(closed.clone()))?;
    let value = journal.get("k").await;
    same("get", &value.err(), &Some(closed.clone()))?;
    let put = journal.put("k", None, Expect::Any).await;
    same("put", &put.err(), &Some(closed))
}
