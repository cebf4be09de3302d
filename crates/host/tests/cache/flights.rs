//! Many who ask the same at once, and what becomes of them when one goes away.

use bowline_core::error::{Class, Execution};
use bowline_core::time::Now;

use super::*;

const HERD: usize = 100;

fn asks(nth: u64) -> Call {
    let arguments = format!(r#"{{"ttlMs":60000,"cacheScope":"public","n":{nth}}}"#);
    call("s__slow", &arguments)
}

/// A host that knows of `slow` that its answers can be kept.
async fn hinted() -> (World, Host) {
    let (world, host) = ready().await;
    assert_eq!(get(&host, asks(0)).await, live(0));
    (world, host)
}

fn herd(
    host: &Host,
    size: usize,
    make: impl Fn(usize) -> Call,
) -> JoinSet<Result<Came, CallError>> {
    let mut set = JoinSet::new();
    for nth in 0..size {
        let (host, call) = (host.clone(), make(nth));
        set.spawn(async move { try_it(&host, call).await });
    }
    set
}

#[tokio::test(start_paused = true)]
async fn a_herd_of_equal_calls_is_one_execution() {
    let (world, host) = hinted().await;
    let came = herd(&host, HERD, |_| asks(1)).join_all().await;
    assert_eq!(world.record().executions.len(), 2);
    let hits = came.iter().filter(|came| **came == Ok(cached(1))).count();
    assert_eq!(hits, HERD - 1);
    assert!(came.contains(&Ok(live(1))));
    let stats = host.cache_stats();
    assert_eq!((stats.hits, stats.misses), (HERD as u64 - 1, 2));
    assert_eq!(host.seats().taken, []);
}

#[tokio::test(start_paused = true)]
async fn calls_of_a_tool_that_gave_no_hint_are_never_merged() {
    let (world, host) = ready().await;
    let bare = || call("s__slow", "{}");
    herd(&host, 10, |_| bare()).join_all().await;
    assert_eq!(world.record().executions.len(), 10);
    // One that gives hints no more is not waited for either.
    get(&host, asks(1)).await;
    get(&host, bare()).await;
    herd(&host, 10, |_| asks(2)).join_all().await;
    assert_eq!(world.record().executions.len(), 22);
}

#[tokio::test(start_paused = true)]
async fn when_the_leader_is_cancelled_the_next_leads() {
    let (world, host) = hinted().await;
    let leader = begin(&host, asks(1));
    world.until(|record| record.executions.len() == 2).await;
    let others = herd(&host, HERD, |_| asks(1));
    tokio::time::advance(SLOW / 2).await;
    drop(leader);
    let came = others.join_all().await;
    assert!(came.iter().all(|came| matches!(came, Ok((2, _)))));
    let record = world.record();
    assert_eq!(
        (record.executions.len(), record.cancellations.len()),
        (3, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_follower_disturbs_nobody() {
    let (world, host) = hinted().await;
    let mut others = herd(&host, 3, |_| asks(1));
    world.until(|record| record.executions.len() == 2).await;
    let follower = begin(&host, asks(1));
    tokio::time::advance(SLOW / 2).await;
    drop(follower);
    while let Some(came) = others.join_next().await {
        assert!(matches!(came.unwrap(), Ok((1, _))));
    }
    assert_eq!(world.record().executions.len(), 2);
    assert_eq!(host.seats().taken, []);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_comes_to_nothing_lets_all_go_themselves_at_once() {
    let (world, host) = hinted().await;
    // What the leader brings may not be kept: its time is over when it comes.
    let short = || call("s__slow", r#"{"ttlMs":10,"cacheScope":"public"}"#);
    let begun = host.clock().now();
    herd(&host, 10, |_| short()).join_all().await;
    assert_eq!(world.record().executions.len(), 11);
    let took = host.clock().now().millis_since(begun);
    assert_eq!(took, 2_000, "the others went together, not one by one");
}

#[tokio::test(start_paused = true)]
async fn a_follower_waits_no_longer_than_it_may() {
    let (world, host) = hinted().await;
    let leader = herd(&host, 1, |_| asks(1));
    world.until(|record| record.executions.len() == 2).await;
    let begun = host.clock().now();
    let hasty = Call {
        deadline: Some(Now(begun.0 + 300)),
        ..asks(1)
    };
    let error = try_it(&host, hasty).await.unwrap_err();
    assert_eq!(error.class(), Class::Timeout);
    assert_eq!(error.execution(), Execution::NotStarted);
    assert_eq!(host.clock().now().millis_since(begun), 300);
    assert_eq!(leader.join_all().await, [Ok(live(1))]);
}
