//! That a message is stored once, and what came of it.

use bowline_core::time::Now;
use bytes::Bytes;

use super::{Maker, Verdict, at, draft, first, holds, ms, same, store};
use crate::engine::{At, DONE_KEPT, Done, Draft, JournalError, Known, Lane, Published};

/// Whoever stores it again is told how it stands.
pub async fn the_same_message_is_stored_once<M: Maker>(maker: &M) -> Verdict {
    let journal = maker.open().await;
    store(&*journal, "box", &["a", "b"], at(1)).await?;
    let again = Draft {
        body: Bytes::from_static(b"other words for the same"),
        ..draft("box", "b")?
    };
    let Published::Known(Known::Waiting { id, position, held }) =
        journal.publish(again, at(2)).await?
    else {
        return holds("that it is known", false);
    };
    same("its position", &(position, held), &(2, false))?;
    let body = journal.entry(id, at(2)).await?.map(|entry| entry.body);
    same(
        "the first body",
        &body,
        &Some(Bytes::from_static(b"body of b")),
    )?;
    store(&*journal, "box/other", &["b"], at(3)).await
}

/// Wherever the first one is by now.
pub async fn the_same_id_with_something_else_is_a_conflict<M: Maker>(maker: &M) -> Verdict {
    let journal = maker.open().await;
    let other = || {
        Ok::<_, JournalError>(Draft {
            digest: [0xEE; 32],
            ..draft("box", "a")?
        })
    };
    store(&*journal, "box", &["a"], at(1)).await?;
    let waiting = journal.publish(other()?, at(2)).await;
    same("while it waits", &waiting, &Err(JournalError::Conflict))?;
    let receipt = first(&*journal, "box", "a", at(3)).await?;
    let held = journal.publish(other()?, at(4)).await;
    same("while it is held", &held, &Err(JournalError::Conflict))?;
    journal.bury(receipt, "no".into(), at(5)).await?;
    let dead = journal.publish(other()?, at(6)).await;
    same("when it is dead", &dead, &Err(JournalError::Conflict))?;
    store(&*journal, "box", &["b"], at(7)).await?;
    let receipt = first(&*journal, "box", "b", at(8)).await?;
    journal.ack(receipt, None, at(9)).await?;
    let done = Draft {
        digest: [0xEE; 32],
        ..draft("box", "b")?
    };
    let done = journal.publish(done, at(10)).await;
    same("when it is done", &done, &Err(JournalError::Conflict))
}

/// A result, or that there was none, by lane and id.
pub async fn what_came_of_a_message_is_remembered<M: Maker>(maker: &M) -> Verdict {
    let journal = maker.open().await;
    let lane = Lane::new("box")?;
    let mut wanted = Vec::new();
    for (name, result) in [("a", Some("all is well")), ("b", None), ("c", Some(""))] {
        store(&*journal, "box", &[name], at(1)).await?;
        let before = journal.result(&lane, name).await?;
        same("the result before", &before, &None)?;
        let receipt = first(&*journal, "box", name, at(2)).await?;
        let result = result.map(|result| Bytes::from_static(result.as_bytes()));
        journal.ack(receipt, result.clone(), at(30)).await?;
        wanted.push((
            name,
            Done {
                id: receipt.id,
                result,
                unix_ms: at(30).unix_ms,
            },
        ));
    }
    for (name, done) in wanted {
        let found = journal.result(&lane, name).await?;
        same("the result", &found, &Some(done.clone()))?;
        let again = journal.publish(draft("box", name)?, at(40)).await?;
        let known = Published::Known(Known::Done(done));
        same("what a repetition is told", &again, &known)?;
    }
    let elsewhere = journal.result(&Lane::new("box/other")?, "a").await?;
    same("the result in another lane", &elsewhere, &None)
}

/// After that the same id is a new message.
pub async fn an_end_is_forgotten_after_its_time<M: Maker>(maker: &M) -> Verdict {
    let journal = maker.open().await;
    store(&*journal, "box", &["a"], at(0)).await?;
    let receipt = first(&*journal, "box", "a", at(0)).await?;
    journal.ack(receipt, None, at(0)).await?;
    let kept = u64::try_from(DONE_KEPT.as_millis()).unwrap_or(u64::MAX);
    let published = journal.publish(draft("box", "a")?, at(kept)).await?;
    let is_known = matches!(published, Published::Known(Known::Done(_)));
    holds("that it is remembered to the end", is_known)?;
    // By elapsed time: a wall clock that jumps forgets nothing.
    let jumped = At {
        now: Now(kept),
        ..at(2 * kept)
    };
    let published = journal.publish(draft("box", "a")?, jumped).await?;
    let is_known = matches!(published, Published::Known(Known::Done(_)));
    holds("that a jump of the wall clock forgets nothing", is_known)?;
    let published = journal.publish(draft("box", "a")?, at(2 * kept)).await?;
    let is_new = matches!(published, Published::Stored { .. });
    holds("that it is forgotten then", is_new)
}

/// Removed, or withdrawn by its holder: it was never to be done.
pub async fn the_id_of_a_removed_message_is_free<M: Maker>(maker: &M) -> Verdict {
    let journal = maker.open().await;
    let published = journal.publish(draft("box", "a")?, at(1)).await?;
    let Published::Stored { id, .. } = published else {
        return holds("a new message is stored", false);
    };
    journal.remove(id, at(2)).await?;
    same("the entry", &journal.entry(id, at(2)).await?, &None)?;
    let held = Draft {
        hold: Some(ms(1000)),
        digest: [9; 32],
        ..draft("box", "a")?
    };
    let published = journal.publish(held, at(3)).await?;
    let Published::Stored {
        held: Some(receipt),
        ..
    } = published
    else {
        return holds("that it is stored and held", false);
    };
    journal.withdraw(receipt, at(4)).await?;
    let twice = journal.withdraw(receipt, at(4)).await;
    same("who withdraws twice", &twice, &Err(JournalError::Lapsed))?;
    same(
        "the result",
        &journal.result(&Lane::new("box")?, "a").await?,
        &None,
    )?;
    store(&*journal, "box", &["a"], at(5)).await
}
