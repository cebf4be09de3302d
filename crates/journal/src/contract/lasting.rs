//! What is there when the journal is opened again; kept by engines that keep anything.

use bytes::Bytes;

use super::{Maker, Verdict, at, draft, first, holds, lease, ms, same, store};
use crate::engine::{
    At, Draft, Expect, Filter, JournalError, Known, Lane, Order, Published, Standing,
};

/// Messages in their order, dead letters, results and values.
pub async fn what_was_acknowledged_is_there_after_reopening<M: Maker>(maker: &M) -> Verdict {
    if !maker.is_kept() {
        return Ok(());
    }
    let journal = maker.open().await;
    store(
        &*journal,
        "box",
        &["dead", "done", "revived", "a", "b"],
        at(1),
    )
    .await?;
    let dead = first(&*journal, "box", "dead", at(2)).await?;
    journal.bury(dead, "no".into(), at(3)).await?;
    let done = first(&*journal, "box", "done", at(4)).await?;
    journal
        .ack(done, Some(Bytes::from_static(b"yes")), at(5))
        .await?;
    let revived = first(&*journal, "box", "revived", at(6)).await?;
    journal.bury(revived, "no".into(), at(7)).await?;
    journal.revive(revived.id, Some(ms(90_000)), at(8)).await?;
    journal
        .put("k", Some(Bytes::from_static(b"v")), Expect::Any)
        .await?;
    journal.put("gone", Some(Bytes::new()), Expect::Any).await?;
    journal.put("gone", None, Expect::Any).await?;
    let all = Filter {
        limit: 99,
        ..Filter::default()
    };
    let entries = journal.inspect(all.clone(), at(9)).await?;
    let views = journal.lanes("", at(9)).await?;
    let value = journal.get("k").await?;
    let result = journal.result(&Lane::new("box")?, "done").await?;
    journal.close().await;
    drop(journal);
    let journal = maker.open().await;
    same(
        "the messages",
        &journal.inspect(all, at(10)).await?,
        &entries,
    )?;
    same("the lanes", &journal.lanes("", at(10)).await?, &views)?;
    same("the value", &journal.get("k").await?, &value)?;
    same(
        "a value that was forgotten",
        &journal.get("gone").await?,
        &None,
    )?;
    let found = journal.result(&Lane::new("box")?, "done").await?;
    same("the result", &found, &result)?;
    let again = journal.publish(draft("box", "dead")?, at(11)).await?;
    same("the dead", &again, &Published::Known(Known::Dead(dead.id)))?;
    for name in ["a", "b", "revived"] {
        let receipt = first(&*journal, "box", name, at(12)).await?;
        journal.ack(receipt, None, at(13)).await?;
    }
    Ok(())
}

/// Whatever was held or delayed is due at once, at its place; old receipts are worth nothing.
pub async fn leases_are_void_after_reopening<M: Maker>(maker: &M) -> Verdict {
    if !maker.is_kept() {
        return Ok(());
    }
    let journal = maker.open().await;
    let intent = Draft {
        hold: Some(ms(60_000)),
        ..draft("box", "intent")?
    };
    let published = journal.publish(intent, at(1)).await?;
    let Published::Stored {
        id,
        held: Some(held),
        ..
    } = published
    else {
        return holds("that it is stored and held", false);
    };
    store(&*journal, "box", &["b"], at(1)).await?;
    store(&*journal, "late", &["c"], at(1)).await?;
    let receipt = first(&*journal, "late", "c", at(2)).await?;
    journal.nak(receipt, ms(60_000), at(3)).await?;
    journal.close().await;
    drop(journal);
    let journal = maker.open().await;
    // The clock of another process begins anywhere.
    let now = At {
        now: bowline_core::time::Now(0),
        ..at(100)
    };
    let standing = journal.entry(id, now).await?.map(|entry| entry.standing);
    same("how the intent stands", &standing, &Some(Standing::Waiting))?;
    let acked = journal.ack(held, None, now).await;
    same("an old receipt", &acked, &Err(JournalError::Lapsed))?;
    let given = lease(&*journal, "box", Order::Strict, 1, now).await?;
    let given: Vec<_> = given
        .iter()
        .map(|one| (&*one.dedupe, one.attempts))
        .collect();
    same("the first", &given, &vec![("intent", 2)])?;
    let acked = journal.ack(held, None, now).await;
    same("an old receipt", &acked, &Err(JournalError::Lapsed))?;
    let given = lease(&*journal, "late", Order::Strict, 1, now).await?;
    let given: Vec<_> = given
        .iter()
        .map(|one| (&*one.dedupe, one.attempts))
        .collect();
    same("what was delayed", &given, &vec![("c", 2)])
}

/// Of messages and of values, also where the last ones are gone.
pub async fn numbers_go_on_after_reopening<M: Maker>(maker: &M) -> Verdict {
    if !maker.is_kept() {
        return Ok(());
    }
    let mut last = None;
    for _ in 0..3 {
        let journal = maker.open().await;
        let published = journal.publish(draft("box", "a")?, at(1)).await?;
        let Published::Stored { id, .. } = published else {
            return holds("a new message is stored", false);
        };
        journal.remove(id, at(2)).await?;
        let revision = journal.put("k", None, Expect::Any).await?;
        holds("that numbers grow", last < Some((id, revision)))?;
        let watched = *journal.watch("k").borrow();
        same("what a watcher begins with", &watched, &revision)?;
        last = Some((id, revision));
        journal.close().await;
        drop(journal);
    }
    Ok(())
}
