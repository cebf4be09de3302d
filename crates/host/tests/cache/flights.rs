//! Identical concurrent calls, and cancellation of the leader.

use bowline_core::error::{ExecutionStatus, FailureClass};
use bowline_core::time::MonotonicTime;

use super::*;

const HERD: usize = 100;

fn slow_call(nth: u64) -> CallRequest {
    let arguments = format!(r#"{{"ttlMs":60000,"cacheScope":"public","n":{nth}}}"#);
    tool_call("s__slow", &arguments)
}

/// A host that knows `slow` as cacheable.
async fn hinted_host() -> (SimWorld, Host) {
    let (world, host) = ready_host().await;
    assert_eq!(call_ok(&host, slow_call(0)).await, live_outcome(0));
    (world, host)
}

fn spawn_herd(
    host: &Host,
    size: usize,
    make: impl Fn(usize) -> CallRequest,
) -> JoinSet<Result<CallOutcome, CallError>> {
    let mut set = JoinSet::new();
    for nth in 0..size {
        let (host, call) = (host.clone(), make(nth));
        set.spawn(async move { try_call(&host, call).await });
    }
    set
}

#[tokio::test(start_paused = true)]
async fn identical_calls_share_one_execution() {
    let (world, host) = hinted_host().await;
    let came = spawn_herd(&host, HERD, |_| slow_call(1)).join_all().await;
    assert_eq!(world.record().executions.len(), 2);
    let hits = came
        .iter()
        .filter(|came| **came == Ok(cached_outcome(1)))
        .count();
    assert_eq!(hits, HERD - 1);
    assert!(came.contains(&Ok(live_outcome(1))));
    let stats = host.cache_stats();
    assert_eq!((stats.hits, stats.misses), (HERD as u64 - 1, 2));
    assert_eq!(host.calls_in_flight().in_flight, []);
}

#[tokio::test(start_paused = true)]
async fn calls_without_hint_are_not_merged() {
    let (world, host) = ready_host().await;
    let bare = || tool_call("s__slow", "{}");
    spawn_herd(&host, 10, |_| bare()).join_all().await;
    assert_eq!(world.record().executions.len(), 10);
    // A tool that stopped giving hints is not awaited either.
    call_ok(&host, slow_call(1)).await;
    call_ok(&host, bare()).await;
    spawn_herd(&host, 10, |_| slow_call(2)).join_all().await;
    assert_eq!(world.record().executions.len(), 22);
}

#[tokio::test(start_paused = true)]
async fn cancelled_leader_is_replaced() {
    let (world, host) = hinted_host().await;
    let leader = spawn_call(&host, slow_call(1));
    world
        .wait_until(|record| record.executions.len() == 2)
        .await;
    let others = spawn_herd(&host, HERD, |_| slow_call(1));
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
async fn cancelled_follower_is_harmless() {
    let (world, host) = hinted_host().await;
    let mut others = spawn_herd(&host, 3, |_| slow_call(1));
    world
        .wait_until(|record| record.executions.len() == 2)
        .await;
    let follower = spawn_call(&host, slow_call(1));
    tokio::time::advance(SLOW / 2).await;
    drop(follower);
    while let Some(came) = others.join_next().await {
        assert!(matches!(came.unwrap(), Ok((1, _))));
    }
    assert_eq!(world.record().executions.len(), 2);
    assert_eq!(host.calls_in_flight().in_flight, []);
}

#[tokio::test(start_paused = true)]
async fn uncacheable_leader_releases_followers() {
    let (world, host) = hinted_host().await;
    // The leader's response is already expired.
    let short = || tool_call("s__slow", r#"{"ttlMs":10,"cacheScope":"public"}"#);
    let begun = host.clock().now();
    spawn_herd(&host, 10, |_| short()).join_all().await;
    assert_eq!(world.record().executions.len(), 11);
    let took = host.clock().now().millis_since(begun);
    assert_eq!(took, 2_000, "the others went together, not one by one");
}

#[tokio::test(start_paused = true)]
async fn follower_wait_ends_at_deadline() {
    let (world, host) = hinted_host().await;
    let leader = spawn_herd(&host, 1, |_| slow_call(1));
    world
        .wait_until(|record| record.executions.len() == 2)
        .await;
    let begun = host.clock().now();
    let hasty = CallRequest {
        deadline: Some(MonotonicTime(begun.0 + 300)),
        ..slow_call(1)
    };
    let error = try_call(&host, hasty).await.unwrap_err();
    assert_eq!(error.failure_class(), FailureClass::Timeout);
    assert_eq!(error.execution_status(), ExecutionStatus::NotStarted);
    assert_eq!(host.clock().now().millis_since(begun), 300);
    assert_eq!(leader.join_all().await, [Ok(live_outcome(1))]);
}
