//! Values, what they are replaced by, and who sees it.

use bytes::Bytes;

use super::{Maker, Verdict, holds, same};
use crate::engine::{Expect, JournalError, Value};

const fn bytes(text: &'static str) -> Option<Bytes> {
    Some(Bytes::from_static(text.as_bytes()))
}

/// Nothing before, and nothing when it was forgotten.
pub async fn a_value_is_what_was_put_last<M: Maker>(maker: &M) -> Verdict {
    let journal = maker.open().await;
    same("before", &journal.get("k").await?, &None)?;
    let first = journal.put("k", bytes("one"), Expect::Any).await?;
    let second = journal.put("k", bytes(""), Expect::Any).await?;
    holds("that revisions grow", first < second)?;
    let value = Value {
        revision: second,
        bytes: Bytes::new(),
    };
    same("the second", &journal.get("k").await?, &Some(value))?;
    let third = journal.put("k", None, Expect::Any).await?;
    holds("that revisions grow", second < third)?;
    same("after", &journal.get("k").await?, &None)
}

/// Of two that saw the same, one wins.
pub async fn a_value_is_replaced_only_where_it_is_the_expected_one<M: Maker>(maker: &M) -> Verdict {
    let journal = maker.open().await;
    let early = journal.put("k", bytes("x"), Expect::Revision(1)).await;
    same("none is there", &early, &Err(JournalError::Changed))?;
    let first = journal.put("k", bytes("one"), Expect::Absent).await?;
    let late = journal.put("k", bytes("x"), Expect::Absent).await;
    same("one is there", &late, &Err(JournalError::Changed))?;
    let second = journal
        .put("k", bytes("two"), Expect::Revision(first))
        .await?;
    let late = journal.put("k", bytes("x"), Expect::Revision(first)).await;
    same("another is there", &late, &Err(JournalError::Changed))?;
    let late = journal.put("k", None, Expect::Revision(first)).await;
    same("another is there", &late, &Err(JournalError::Changed))?;
    let found = journal.get("k").await?.map(|value| value.bytes);
    same("the winner", &found, &bytes("two"))?;
    journal.put("k", None, Expect::Revision(second)).await?;
    journal.put("k", bytes("new"), Expect::Absent).await?;
    Ok(())
}

/// Those that begin so, as many as were asked for.
pub async fn keys_are_listed_in_order<M: Maker>(maker: &M) -> Verdict {
    let journal = maker.open().await;
    for key in ["b/2", "a/1", "b/10", "b/1", "c", "b"] {
        journal.put(key, bytes("x"), Expect::Any).await?;
    }
    for (prefix, limit, wanted) in [
        ("b/", 9, vec!["b/1", "b/10", "b/2"]),
        ("b/", 2, vec!["b/1", "b/10"]),
        ("", 9, vec!["a/1", "b", "b/1", "b/10", "b/2", "c"]),
        ("d", 9, vec![]),
    ] {
        let listed = journal.list(prefix, limit).await?;
        let keys: Vec<&str> = listed.iter().map(|(key, _)| &**key).collect();
        same("the keys", &keys, &wanted)?;
        for (key, value) in &listed {
            same("the value", &journal.get(key).await?.as_ref(), &Some(value))?;
        }
    }
    Ok(())
}

/// And no others.
pub async fn a_watcher_sees_changes_under_its_prefix<M: Maker>(maker: &M) -> Verdict {
    let journal = maker.open().await;
    journal.put("a/1", bytes("before"), Expect::Any).await?;
    let mut watch = journal.watch("a/");
    let seen = |watch: &crate::Watch| watch.has_changed().unwrap_or(false);
    holds("that the past is no change", !seen(&watch))?;
    journal.put("b/1", bytes("x"), Expect::Any).await?;
    holds("that others are not seen", !seen(&watch))?;
    let refused = journal.put("a/1", bytes("x"), Expect::Absent).await;
    same("what is refused", &refused, &Err(JournalError::Changed))?;
    holds("that what was refused is not seen", !seen(&watch))?;
    let put = journal.put("a/2", bytes("x"), Expect::Any).await?;
    holds("that a change is seen", seen(&watch))?;
    same("its revision", &*watch.borrow_and_update(), &put)?;
    let gone = journal.put("a/2", None, Expect::Any).await?;
    holds("that a key that goes is seen", seen(&watch))?;
    same("its revision", &*watch.borrow_and_update(), &gone)
}
