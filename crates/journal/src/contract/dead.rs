//! Dead letters: buried, expired, revived, removed.

use std::sync::Arc;

use super::{Maker, Verdict, at, draft, first, holds, ms, nothing, same, store};
use crate::engine::{
    Draft, EXPIRE_MAX, Filter, JournalError, Known, MessageId, Order, Published, Standing,
};

/// It is kept, is known, and the next one is first.
pub async fn a_dead_letter_stands_in_nobodys_way<M: Maker>(maker: &M) -> Verdict {
    let journal = maker.open().await;
    store(&*journal, "box", &["a", "b"], at(1)).await?;
    let receipt = first(&*journal, "box", "a", at(2)).await?;
    let reason: Arc<str> = "the server said no".into();
    journal.bury(receipt, Arc::clone(&reason), at(3)).await?;
    let twice = journal.bury(receipt, Arc::clone(&reason), at(3)).await;
    same("who buries twice", &twice, &Err(JournalError::Lapsed))?;
    let entry = journal.entry(receipt.id, at(4)).await?;
    let entry = entry.map(|entry| (entry.standing, entry.position, entry.attempts));
    same(
        "how it stands",
        &entry,
        &Some((Standing::Dead(reason), 0, 1)),
    )?;
    let again = journal.publish(draft("box", "a")?, at(5)).await?;
    let known = Published::Known(Known::Dead(receipt.id));
    same("what a repetition is told", &again, &known)?;
    first(&*journal, "box", "b", at(6)).await?;
    Ok(())
}

/// With a new time of its own.
pub async fn a_revived_letter_goes_behind_all_others<M: Maker>(maker: &M) -> Verdict {
    let journal = maker.open().await;
    store(&*journal, "box", &["a", "b"], at(1)).await?;
    let receipt = first(&*journal, "box", "a", at(2)).await?;
    let alive = journal.revive(receipt.id, None, at(2)).await;
    same("one that lives", &alive, &Err(JournalError::Unknown))?;
    let nobody = journal.revive(MessageId(99), None, at(2)).await;
    same(
        "one that is not there",
        &nobody,
        &Err(JournalError::Unknown),
    )?;
    journal.bury(receipt, "no".into(), at(3)).await?;
    journal.revive(receipt.id, Some(ms(500)), at(4)).await?;
    let entry = journal.entry(receipt.id, at(5)).await?;
    let entry = entry.map(|one| (one.standing, one.position, one.expires_unix_ms));
    let wanted = (Standing::Waiting, 2, Some(at(504).unix_ms));
    same("how it stands", &entry, &Some(wanted))?;
    let b = first(&*journal, "box", "b", at(6)).await?;
    journal.ack(b, None, at(7)).await?;
    first(&*journal, "box", "a", at(8)).await?;
    Ok(())
}

/// By the wall clock, and only what nobody holds.
pub async fn what_is_past_its_time_becomes_a_dead_letter<M: Maker>(maker: &M) -> Verdict {
    let journal = maker.open().await;
    for (lane, name, ttl) in [
        ("out/a", "held", Some(100)),
        ("out/a", "short", Some(100)),
        ("out/a", "long", Some(10_000)),
        ("out/b", "short", Some(100)),
        ("out/b", "for ever", None),
        ("elsewhere", "short", Some(100)),
    ] {
        let ttl = ttl.map(ms);
        let draft = Draft {
            ttl,
            ..draft(lane, name)?
        };
        journal.publish(draft, at(0)).await?;
    }
    let held = first(&*journal, "out/a", "held", at(1)).await?;
    same(
        "before",
        &journal.expire("out/", at(99)).await?,
        &Vec::new(),
    )?;
    let expired = journal.expire("out/", at(100)).await?;
    let names: Vec<_> = expired
        .iter()
        .map(|one| (one.lane.as_str(), &*one.dedupe, one.standing.clone()))
        .collect();
    let dead = || Standing::Dead("expired".into());
    let wanted = vec![("out/a", "short", dead()), ("out/b", "short", dead())];
    same("what expired", &names, &wanted)?;
    same(
        "again",
        &journal.expire("out/", at(100)).await?,
        &Vec::new(),
    )?;
    journal.nak(held, ms(0), at(101)).await?;
    nothing(&*journal, "out/a", Order::Strict, at(102)).await?;
    same("then", &journal.expire("out/", at(103)).await?.len(), &1)?;
    first(&*journal, "out/a", "long", at(104)).await?;
    first(&*journal, "out/b", "for ever", at(104)).await?;
    Ok(())
}

/// Oldest first; the rest the next time.
pub async fn only_so_many_expire_at_a_time<M: Maker>(maker: &M) -> Verdict {
    let journal = maker.open().await;
    let more = 5;
    for number in 0..EXPIRE_MAX + more {
        let draft = Draft {
            ttl: Some(ms(1)),
            ..draft("box", &number.to_string())?
        };
        journal.publish(draft, at(0)).await?;
    }
    let expired = journal.expire("", at(10)).await?;
    same("at first", &expired.len(), &EXPIRE_MAX)?;
    let is_sorted = expired.is_sorted_by_key(|one| one.id);
    holds("oldest first", is_sorted)?;
    same("then", &journal.expire("", at(10)).await?.len(), &more)
}

/// Its holder may withdraw it; nobody else takes it away.
pub async fn a_held_message_is_not_removed<M: Maker>(maker: &M) -> Verdict {
    let journal = maker.open().await;
    store(&*journal, "box", &["a"], at(1)).await?;
    let receipt = first(&*journal, "box", "a", at(2)).await?;
    let held = journal.remove(receipt.id, at(3)).await;
    same("one that is held", &held, &Err(JournalError::Lapsed))?;
    journal.bury(receipt, "no".into(), at(4)).await?;
    journal.remove(receipt.id, at(5)).await?;
    let gone = journal.remove(receipt.id, at(6)).await;
    same("one that is gone", &gone, &Err(JournalError::Unknown))?;
    let all = Filter {
        limit: 9,
        ..Filter::default()
    };
    same(
        "what is left",
        &journal.inspect(all, at(7)).await?,
        &Vec::new(),
    )
}
