//! Rules for queries: lane counters and message pages.

use super::{EngineFactory, RuleResult, expect_equal, lease_first, moment_at, ms, publish_all};
use crate::engine::{LaneName, LaneStats, MessageFilter, MessageView};

/// Counts queued, leased and dead messages, and the age of the first message.
pub async fn lane_stats_count_messages<M: EngineFactory>(factory: &M) -> RuleResult {
    let journal = factory.open_journal().await;
    publish_all(&*journal, "out/b", &["x"], moment_at(5)).await?;
    for (at_ms, name) in [(10, "a"), (20, "b"), (30, "c"), (40, "d")] {
        publish_all(&*journal, "out/a", &[name], moment_at(at_ms)).await?;
    }
    let a = lease_first(&*journal, "out/a", "a", moment_at(50)).await?;
    journal.dead_letter(a, "no".into(), moment_at(51)).await?;
    let b = lease_first(&*journal, "out/a", "b", moment_at(52)).await?;
    journal.ack(b, None, moment_at(53)).await?;
    lease_first(&*journal, "out/a", "c", moment_at(54)).await?;
    let view = |lane, waiting, dead, oldest: Option<u64>| {
        Ok::<_, crate::JournalError>(LaneStats {
            lane: LaneName::new(lane)?,
            queued: waiting,
            dead_letters: dead,
            oldest_unix_ms: oldest.map(|oldest| moment_at(oldest).unix_ms),
        })
    };
    let expected = vec![
        view("out/a", 2, 1, Some(30))?,
        view("out/b", 1, 0, Some(5))?,
    ];
    expect_equal(
        "all lanes",
        &journal.lane_stats("", moment_at(55)).await?,
        &expected,
    )?;
    // Bodies published by `publish_all` have nine bytes each.
    let bytes = |lane, bytes| Ok::<_, crate::JournalError>((LaneName::new(lane)?, bytes));
    let all = vec![bytes("out/a", 27)?, bytes("out/b", 9)?];
    expect_equal("bytes of all", &journal.lane_bytes("").await?, &all)?;
    expect_equal(
        "bytes of one",
        &journal.lane_bytes("out/b").await?,
        &vec![bytes("out/b", 9)?],
    )?;
    let one = vec![view("out/b", 1, 0, Some(5))?];
    expect_equal(
        "one lane",
        &journal.lane_stats("out/b", moment_at(55)).await?,
        &one,
    )?;
    expect_equal(
        "no lane",
        &journal.lane_stats("in/", moment_at(55)).await?,
        &Vec::new(),
    )?;
    let x = lease_first(&*journal, "out/b", "x", moment_at(56)).await?;
    journal.ack(x, None, moment_at(57)).await?;
    let left = journal.lane_stats("out/b", moment_at(58)).await?;
    expect_equal("an empty lane", &left, &Vec::new())
}

/// Filters by lane prefix, number and dead-letter status.
pub async fn messages_are_listed_by_page<M: EngineFactory>(factory: &M) -> RuleResult {
    let journal = factory.open_journal().await;
    publish_all(&*journal, "out/a", &["a", "b"], moment_at(1)).await?;
    publish_all(&*journal, "out/b", &["c"], moment_at(1)).await?;
    publish_all(&*journal, "out/a", &["d"], moment_at(1)).await?;
    let a = lease_first(&*journal, "out/a", "a", moment_at(2)).await?;
    journal.dead_letter(a, "no".into(), moment_at(3)).await?;
    let b = lease_first(&*journal, "out/a", "b", moment_at(4)).await?;
    journal.nak(b, ms(9), moment_at(5)).await?;
    let names = |entries: &[MessageView]| {
        let names = entries
            .iter()
            .map(|one| (one.dedupe.to_string(), one.position));
        names.collect::<Vec<_>>()
    };
    let all = MessageFilter {
        lanes: "out/".to_owned(),
        limit: 3,
        ..MessageFilter::default()
    };
    let page = journal.list_messages(all.clone(), moment_at(6)).await?;
    let expected = [("a", 0), ("b", 1), ("c", 1)];
    let expected = expected.map(|(name, position)| (name.to_owned(), position));
    expect_equal("the first page", &names(&page), &expected.to_vec())?;
    let next = MessageFilter {
        after: page.last().map(|one| one.id),
        ..all.clone()
    };
    let page = journal.list_messages(next, moment_at(6)).await?;
    expect_equal("the second page", &names(&page), &vec![("d".to_owned(), 2)])?;
    for (dead, count) in [(true, 1), (false, 3)] {
        let filter = MessageFilter {
            dead: Some(dead),
            limit: 9,
            ..all.clone()
        };
        let listed = journal.list_messages(filter, moment_at(6)).await?;
        expect_equal("so many of these", &listed.len(), &count)?;
        for entry in listed {
            let alone = journal.get_message(entry.id, moment_at(6)).await?;
            expect_equal("one by itself", &alone, &Some(entry))?;
        }
    }
    Ok(())
}
