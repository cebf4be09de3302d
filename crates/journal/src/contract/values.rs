//! Rules for values: compare-and-set, listing and watches.

use bytes::Bytes;

use super::{EngineFactory, RuleResult, expect_equal, expect_true};
use crate::engine::{ExpectedRevision, JournalError, VersionedValue};

const fn static_bytes(text: &'static str) -> Option<Bytes> {
    Some(Bytes::from_static(text.as_bytes()))
}

/// A value is absent before the first put and after a deletion.
pub async fn value_is_last_put<M: EngineFactory>(factory: &M) -> RuleResult {
    let journal = factory.open_journal().await;
    expect_equal("before", &journal.get_value("k").await?, &None)?;
    let first = journal
        .put_value("k", static_bytes("one"), ExpectedRevision::Any)
        .await?;
    let second = journal
        .put_value("k", static_bytes(""), ExpectedRevision::Any)
        .await?;
    expect_true("that revisions grow", first < second)?;
    let value = VersionedValue {
        revision: second,
        bytes: Bytes::new(),
    };
    expect_equal("the second", &journal.get_value("k").await?, &Some(value))?;
    let third = journal.put_value("k", None, ExpectedRevision::Any).await?;
    expect_true("that revisions grow", second < third)?;
    expect_equal("after", &journal.get_value("k").await?, &None)
}

/// Of two writers with the same expected revision, exactly one wins.
pub async fn put_requires_expected_revision<M: EngineFactory>(factory: &M) -> RuleResult {
    let journal = factory.open_journal().await;
    let early = journal
        .put_value("k", static_bytes("x"), ExpectedRevision::Revision(1))
        .await;
    expect_equal(
        "none is there",
        &early,
        &Err(JournalError::RevisionMismatch),
    )?;
    let first = journal
        .put_value("k", static_bytes("one"), ExpectedRevision::Absent)
        .await?;
    let late = journal
        .put_value("k", static_bytes("x"), ExpectedRevision::Absent)
        .await;
    expect_equal("one is there", &late, &Err(JournalError::RevisionMismatch))?;
    let second = journal
        .put_value("k", static_bytes("two"), ExpectedRevision::Revision(first))
        .await?;
    let late = journal
        .put_value("k", static_bytes("x"), ExpectedRevision::Revision(first))
        .await;
    expect_equal(
        "another is there",
        &late,
        &Err(JournalError::RevisionMismatch),
    )?;
    let late = journal
        .put_value("k", None, ExpectedRevision::Revision(first))
        .await;
    expect_equal(
        "another is there",
        &late,
        &Err(JournalError::RevisionMismatch),
    )?;
    let stored = journal.get_value("k").await?.map(|value| value.bytes);
    expect_equal("the winner", &stored, &static_bytes("two"))?;
    journal
        .put_value("k", None, ExpectedRevision::Revision(second))
        .await?;
    journal
        .put_value("k", static_bytes("new"), ExpectedRevision::Absent)
        .await?;
    Ok(())
}

/// Returns keys with the prefix, up to the limit.
pub async fn keys_are_listed_in_order<M: EngineFactory>(factory: &M) -> RuleResult {
    let journal = factory.open_journal().await;
    for key in ["b/2", "a/1", "b/10", "b/1", "c", "b"] {
        journal
            .put_value(key, static_bytes("x"), ExpectedRevision::Any)
            .await?;
    }
    for (prefix, limit, wanted) in [
        ("b/", 9, vec!["b/1", "b/10", "b/2"]),
        ("b/", 2, vec!["b/1", "b/10"]),
        ("", 9, vec!["a/1", "b", "b/1", "b/10", "b/2", "c"]),
        ("d", 9, vec![]),
    ] {
        let listed = journal.list_values(prefix, limit).await?;
        let keys: Vec<&str> = listed.iter().map(|(key, _)| &**key).collect();
        expect_equal("the keys", &keys, &wanted)?;
        for (key, value) in &listed {
            expect_equal(
                "the value",
                &journal.get_value(key).await?.as_ref(),
                &Some(value),
            )?;
        }
    }
    Ok(())
}

/// Changes outside the prefix are not seen.
pub async fn watch_sees_changes_under_prefix<M: EngineFactory>(factory: &M) -> RuleResult {
    let journal = factory.open_journal().await;
    journal
        .put_value("a/1", static_bytes("before"), ExpectedRevision::Any)
        .await?;
    let mut watch = journal.watch_prefix("a/");
    let is_changed = |watch: &crate::RevisionWatch| watch.has_changed().unwrap_or(false);
    expect_true("that the past is no change", !is_changed(&watch))?;
    journal
        .put_value("b/1", static_bytes("x"), ExpectedRevision::Any)
        .await?;
    expect_true("that others are not seen", !is_changed(&watch))?;
    let refused = journal
        .put_value("a/1", static_bytes("x"), ExpectedRevision::Absent)
        .await;
    expect_equal(
        "what is refused",
        &refused,
        &Err(JournalError::RevisionMismatch),
    )?;
    expect_true("that what was refused is not seen", !is_changed(&watch))?;
    let put = journal
        .put_value("a/2", static_bytes("x"), ExpectedRevision::Any)
        .await?;
    expect_true("that a change is seen", is_changed(&watch))?;
    expect_equal("its revision", &*watch.borrow_and_update(), &put)?;
    let removed = journal
        .put_value("a/2", None, ExpectedRevision::Any)
        .await?;
    expect_true("that a key that goes is seen", is_changed(&watch))?;
    expect_equal("its revision", &*watch.borrow_and_update(), &removed)
}
