//! What is shown of lanes and messages.

use super::{Maker, Verdict, at, first, ms, same, store};
use crate::engine::{Entry, Filter, Lane, LaneView};

/// Those that wait or are held, the dead, and the age of the first.
pub async fn lanes_are_counted<M: Maker>(maker: &M) -> Verdict {
    let journal = maker.open().await;
    store(&*journal, "out/b", &["x"], at(5)).await?;
    for (at_ms, name) in [(10, "a"), (20, "b"), (30, "c"), (40, "d")] {
        store(&*journal, "out/a", &[name], at(at_ms)).await?;
    }
    let a = first(&*journal, "out/a", "a", at(50)).await?;
    journal.bury(a, "no".into(), at(51)).await?;
    let b = first(&*journal, "out/a", "b", at(52)).await?;
    journal.ack(b, None, at(53)).await?;
    first(&*journal, "out/a", "c", at(54)).await?;
    let view = |lane, waiting, dead, oldest: Option<u64>| {
        Ok::<_, crate::JournalError>(LaneView {
            lane: Lane::new(lane)?,
            waiting,
            dead,
            oldest_unix_ms: oldest.map(|oldest| at(oldest).unix_ms),
        })
    };
    let wanted = vec![
        view("out/a", 2, 1, Some(30))?,
        view("out/b", 1, 0, Some(5))?,
    ];
    same("all lanes", &journal.lanes("", at(55)).await?, &wanted)?;
    // The bodies of `store` have nine bytes each.
    let bytes = |lane, bytes| Ok::<_, crate::JournalError>((Lane::new(lane)?, bytes));
    let all = vec![bytes("out/a", 27)?, bytes("out/b", 9)?];
    same("bytes of all", &journal.lane_bytes("").await?, &all)?;
    same(
        "bytes of one",
        &journal.lane_bytes("out/b").await?,
        &vec![bytes("out/b", 9)?],
    )?;
    let one = vec![view("out/b", 1, 0, Some(5))?];
    same("one lane", &journal.lanes("out/b", at(55)).await?, &one)?;
    same("no lane", &journal.lanes("in/", at(55)).await?, &Vec::new())?;
    let x = first(&*journal, "out/b", "x", at(56)).await?;
    journal.ack(x, None, at(57)).await?;
    let left = journal.lanes("out/b", at(58)).await?;
    same("an empty lane", &left, &Vec::new())
}

/// By lane, number and whether they are dead.
pub async fn messages_are_shown_page_by_page<M: Maker>(maker: &M) -> Verdict {
    let journal = maker.open().await;
    store(&*journal, "out/a", &["a", "b"], at(1)).await?;
    store(&*journal, "out/b", &["c"], at(1)).await?;
    store(&*journal, "out/a", &["d"], at(1)).await?;
    let a = first(&*journal, "out/a", "a", at(2)).await?;
    journal.bury(a, "no".into(), at(3)).await?;
    let b = first(&*journal, "out/a", "b", at(4)).await?;
    journal.nak(b, ms(9), at(5)).await?;
    let names = |entries: &[Entry]| {
        let names = entries
            .iter()
            .map(|one| (one.dedupe.to_string(), one.position));
        names.collect::<Vec<_>>()
    };
    let all = Filter {
        lanes: "out/".to_owned(),
        limit: 3,
        ..Filter::default()
    };
    let page = journal.inspect(all.clone(), at(6)).await?;
    let wanted = [("a", 0), ("b", 1), ("c", 1)];
    let wanted = wanted.map(|(name, position)| (name.to_owned(), position));
    same("the first page", &names(&page), &wanted.to_vec())?;
    let next = Filter {
        after: page.last().map(|one| one.id),
        ..all.clone()
    };
    let page = journal.inspect(next, at(6)).await?;
    same("the second page", &names(&page), &vec![("d".to_owned(), 2)])?;
    for (dead, count) in [(true, 1), (false, 3)] {
        let filter = Filter {
            dead: Some(dead),
            limit: 9,
            ..all.clone()
        };
        let shown = journal.inspect(filter, at(6)).await?;
        same("so many of these", &shown.len(), &count)?;
        for entry in shown {
            let alone = journal.entry(entry.id, at(6)).await?;
            same("one by itself", &alone, &Some(entry))?;
        }
    }
    Ok(())
}
