//! Concurrency limits and queues of a server.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::sync::Arc;
use std::time::Duration;

use bowline_core::breaker::BreakerPolicy;
use bowline_core::call::{CallReply, CallRequest, Principal, Role};
use bowline_core::error::{CallError, ExecutionStatus, FailureClass, RetryAdvice};
use bowline_core::load::CallOutcome;
use bowline_host::spec::{ServerSpec, ToolRule};
use bowline_host::supervisor::Supervisor;
use bowline_host::{Host, HostLimits};
use bowline_testkit::{
    GenerationScript, ReleaseGate, ServerScript, SimWorld, ToolBehaviour, run_until_idle,
    server_spec, tool_call, wait_for_state,
};
use tokio::task::JoinSet;

/// A server with at most `calls` calls in flight and `queue` queued.
fn limited_spec(calls: usize, queue: usize) -> ServerSpec {
    ServerSpec {
        calls_max: calls,
        queue_max: queue,
        call_timeout: Duration::from_secs(10),
        ..server_spec("s")
    }
}

async fn ready_host(act: ToolBehaviour, spec: ServerSpec) -> (SimWorld, Host) {
    let offer = GenerationScript::with_tools([("do", act), ("other", ToolBehaviour::Respond)]);
    let world = SimWorld::new([("s", ServerScript::always(offer))]);
    let host = world.start_host(vec![spec], HostLimits::default());
    assert!(wait_for_state(&host, "s", "ready").await);
    (world, host)
}

fn supervisor_of(host: &Host) -> Supervisor {
    host.server("s").unwrap()
}

fn numbered_call(
    host: &Host,
    nth: usize,
) -> impl Future<Output = Result<CallReply, CallError>> + use<> {
    let (host, call) = (
        host.clone(),
        tool_call("s__do", &format!("{{\"n\":{nth}}}")),
    );
    async move { host.call(call).await }
}

#[tokio::test(start_paused = true)]
async fn call_limit_holds_and_queue_is_ordered() {
    let (world, host) = ready_host(
        ToolBehaviour::RespondAfter(Duration::from_secs(1)),
        limited_spec(2, 10),
    )
    .await;
    let mut calls = JoinSet::new();
    for nth in 0..8 {
        calls.spawn(numbered_call(&host, nth));
        run_until_idle().await;
    }
    assert_eq!(world.record().executions.len(), 2);
    assert_eq!(host.server_status("s").unwrap().in_flight, 2);
    assert_eq!(
        (
            supervisor_of(&host).permits_in_use(),
            supervisor_of(&host).queued_calls()
        ),
        (2, 6)
    );

    while let Some(outcome) = calls.join_next().await {
        outcome.unwrap().unwrap();
        assert!(host.server_status("s").unwrap().in_flight <= 2);
    }
    assert_eq!(host.clock().now().0, 4_000, "two at a time");
    let ran = world.record().executions;
    let ran: Vec<_> = ran.iter().map(|deed| deed.arguments.clone()).collect();
    let expect: Vec<_> = (0..8).map(|nth| format!("{{\"n\":{nth}}}")).collect();
    assert_eq!(ran, expect, "first come, first served");
    assert_eq!(
        (
            supervisor_of(&host).permits_in_use(),
            supervisor_of(&host).queued_calls()
        ),
        (0, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn full_queue_refuses_and_counts() {
    let gate = ReleaseGate::new_closed();
    let (world, host) = ready_host(ToolBehaviour::BlockOn(gate.clone()), limited_spec(1, 1)).await;
    let mut calls = JoinSet::new();
    calls.spawn(numbered_call(&host, 0));
    calls.spawn(numbered_call(&host, 1));
    run_until_idle().await;

    let error = numbered_call(&host, 2).await.unwrap_err();

    let expect = CallError::ServerBusy {
        server: "s".into(),
        limit: 1,
    };
    assert_eq!(error, expect);
    assert_eq!(host.clock().now().0, 0, "at once");
    assert_eq!(error.failure_class(), FailureClass::Throttled);
    assert_eq!(error.execution_status(), ExecutionStatus::NotStarted);
    assert_eq!(error.retry_advice(), RetryAdvice::Safe);
    assert_eq!(supervisor_of(&host).totals().shed_count(), 1);
    gate.release();
    while let Some(outcome) = calls.join_next().await {
        outcome.unwrap().unwrap();
    }
    assert_eq!(world.record().executions.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn queue_timeout_is_not_started_and_neutral() {
    let touchy = ServerSpec {
        breaker: BreakerPolicy {
            failures_max: 2,
            cooldown: Duration::from_secs(60),
        },
        ..limited_spec(1, 10)
    };
    let (world, host) = ready_host(ToolBehaviour::BlockOn(ReleaseGate::new_closed()), touchy).await;
    let hold = CallRequest {
        deadline: Some(host.clock().now().plus(Duration::from_secs(9))),
        ..tool_call("s__do", "{}")
    };
    let patient = |nth| {
        let deadline = Some(host.clock().now().plus(Duration::from_secs(3)));
        let call = CallRequest {
            deadline,
            ..tool_call("s__do", &format!("{{\"n\":{nth}}}"))
        };
        let host = host.clone();
        async move { host.call(call).await }
    };
    let waiting = async { tokio::join!(patient(1), patient(2), patient(3)) };
    let (held, (one, two, three)) = tokio::join!(host.call(hold), waiting);
    assert_eq!(held.unwrap_err().failure_class(), FailureClass::Timeout);
    for outcome in [one, two, three] {
        let error = outcome.unwrap_err();
        let expect = CallError::QueuedTooLong {
            server: "s".into(),
            limit: 1,
            waited_ms: 3_000,
        };
        assert_eq!(error, expect);
        assert_eq!(error.failure_class(), FailureClass::Throttled);
        assert_eq!(error.execution_status(), ExecutionStatus::NotStarted);
        assert_eq!(error.retry_advice(), RetryAdvice::Safe);
    }
    assert_eq!(
        world.record().executions.len(),
        1,
        "those that waited never ran"
    );
    assert_eq!(supervisor_of(&host).queued_calls(), 0);
    let status = host.server_status("s").unwrap();
    assert_eq!(
        (&*status.circuit, status.consecutive_failures),
        ("closed", 0)
    );
    let totals = supervisor_of(&host).totals();
    assert_eq!((totals.shed_count(), totals.error_count()), (3, 4));
}

#[tokio::test(start_paused = true)]
async fn dropped_queued_call_frees_place() {
    let gate = ReleaseGate::new_closed();
    let (world, host) = ready_host(ToolBehaviour::BlockOn(gate.clone()), limited_spec(1, 1)).await;
    let mut held = JoinSet::new();
    held.spawn(numbered_call(&host, 0));
    run_until_idle().await;
    let mut left = JoinSet::new();
    left.spawn(numbered_call(&host, 1));
    run_until_idle().await;
    assert_eq!(supervisor_of(&host).queued_calls(), 1);
    left.shutdown().await;
    assert_eq!(supervisor_of(&host).queued_calls(), 0);

    let mut next = JoinSet::new();
    next.spawn(numbered_call(&host, 2));
    run_until_idle().await;
    gate.release();
    assert!(held.join_next().await.unwrap().unwrap().is_ok());
    assert!(next.join_next().await.unwrap().unwrap().is_ok());
    let ran = world.record();
    assert_eq!(ran.execution_count("{\"n\":1}"), 0, "who left never ran");
    assert_eq!(ran.executions.len(), 2);
    assert_eq!(
        supervisor_of(&host)
            .totals()
            .outcome_count(CallOutcome::Cancelled),
        1
    );
}

#[tokio::test(start_paused = true)]
async fn busy_server_does_not_affect_others() {
    let hung =
        GenerationScript::with_tools([("do", ToolBehaviour::BlockOn(ReleaseGate::new_closed()))]);
    let well = GenerationScript::with_tools([("do", ToolBehaviour::Respond)]);
    let scripts = [
        ("s", ServerScript::always(hung)),
        ("t", ServerScript::always(well)),
    ];
    let world = SimWorld::new(scripts);
    let host = world.start_host(
        vec![limited_spec(1, 1), server_spec("t")],
        HostLimits::default(),
    );
    assert!(wait_for_state(&host, "s", "ready").await && wait_for_state(&host, "t", "ready").await);
    let mut calls = JoinSet::new();
    calls.spawn(numbered_call(&host, 0));
    calls.spawn(numbered_call(&host, 1));
    run_until_idle().await;
    for _ in 0..50 {
        host.call(tool_call("t__do", "{}")).await.unwrap();
    }
    assert_eq!(host.clock().now().0, 0);
}

#[tokio::test(start_paused = true)]
async fn tool_timeout_overrides_server_timeout() {
    let rule = ToolRule {
        timeout: Some(Duration::from_secs(2)),
        ..ToolRule::default()
    };
    for (rules, ends_ms) in [(vec![("do".to_owned(), rule)], 2_000), (vec![], 10_000)] {
        let spec = ServerSpec {
            tools: rules.into_iter().collect(),
            ..limited_spec(8, 8)
        };
        let (_world, host) =
            ready_host(ToolBehaviour::BlockOn(ReleaseGate::new_closed()), spec).await;
        let error = numbered_call(&host, 0).await.unwrap_err();
        assert_eq!(error.failure_class(), FailureClass::Timeout);
        assert_eq!(host.clock().now().0, ends_ms);
    }
    let longer = ToolRule {
        timeout: Some(Duration::from_secs(60)),
        ..ToolRule::default()
    };
    let spec = ServerSpec {
        tools: [("do".to_owned(), longer)].into(),
        ..limited_spec(8, 8)
    };
    let (_world, host) = ready_host(ToolBehaviour::BlockOn(ReleaseGate::new_closed()), spec).await;
    numbered_call(&host, 0).await.unwrap_err();
    assert_eq!(
        host.clock().now().0,
        60_000,
        "a person may give a tool more"
    );
}

#[tokio::test(start_paused = true)]
async fn call_permits_are_per_principal() {
    let world = SimWorld::new([(
        "s",
        ServerScript::always(GenerationScript::with_tools([(
            "do",
            ToolBehaviour::BlockOn(ReleaseGate::new_closed()),
        )])),
    )]);
    let limits = HostLimits {
        principal_calls_max: 2,
        ..HostLimits::default()
    };
    let host = world.start_host(vec![server_spec("s")], limits);
    assert!(wait_for_state(&host, "s", "ready").await);
    let by = |name: &str| CallRequest {
        principal: Arc::new(Principal::new(name, Role::Owner)),
        ..tool_call("s__do", "{}")
    };
    let mut calls = JoinSet::new();
    for name in ["ann", "ann", "bob"] {
        let (host, call) = (host.clone(), by(name));
        calls.spawn(async move { host.call(call).await });
    }
    run_until_idle().await;
    let error = host.call(by("ann")).await.unwrap_err();
    assert!(
        matches!(error, CallError::TooManyCalls { limit: 2, .. }),
        "{error}"
    );
    let view = host.calls_in_flight();
    let taken: Vec<_> = view
        .in_flight
        .iter()
        .map(|(who, n)| (who.as_ref(), *n))
        .collect();
    assert_eq!(taken, [("ann", 2), ("bob", 1)]);
    assert_eq!((view.limit, view.refused_calls), (2, 1));
    calls.shutdown().await;
    assert!(host.calls_in_flight().in_flight.is_empty());
}

#[tokio::test(start_paused = true)]
async fn refusals_follow_stage_order() {
    let busy = ServerSpec {
        breaker: BreakerPolicy {
            failures_max: 1,
            cooldown: Duration::from_secs(60),
        },
        call_timeout: Duration::from_secs(60),
        ..limited_spec(1, 0)
    };
    let world = SimWorld::new([(
        "s",
        ServerScript::always(GenerationScript::with_tools([
            ("do", ToolBehaviour::BlockOn(ReleaseGate::new_closed())),
            ("other", ToolBehaviour::Respond),
        ])),
    )]);
    let limits = HostLimits {
        principal_calls_max: 1,
        ..HostLimits::default()
    };
    let host = world.start_host(vec![busy], limits);
    assert!(wait_for_state(&host, "s", "ready").await);
    let by = |name: &str, role, tool: &str| CallRequest {
        principal: Arc::new(Principal::new(name, role)),
        ..tool_call(tool, "{}")
    };
    let mut held = JoinSet::new();
    let (holder, hold) = (host.clone(), by("ann", Role::Owner, "s__do"));
    held.spawn(async move { holder.call(hold).await });
    run_until_idle().await;

    let refused = |who, role, tool| {
        let (host, call) = (host.clone(), by(who, role, tool));
        async move { host.call(call).await.unwrap_err() }
    };
    // The server is full, Ann has no permit, Eve has no rights, and tool `none` does not exist.
    let busy = refused("bob", Role::Owner, "s__do").await;
    assert!(matches!(busy, CallError::ServerBusy { .. }), "{busy}");
    let seatless = refused("ann", Role::Owner, "s__do").await;
    assert!(
        matches!(seatless, CallError::TooManyCalls { .. }),
        "{seatless}"
    );
    let denied = refused("eve", Role::None, "s__do").await;
    assert!(matches!(denied, CallError::Denied { .. }), "{denied}");
    let unknown = refused("eve", Role::None, "s__none").await;
    assert!(
        matches!(unknown, CallError::UnknownTool { .. }),
        "{unknown}"
    );

    // The breaker opens when its call ends: it is checked before the queue.
    assert!(held.join_next().await.unwrap().unwrap().is_err());
    let resting = refused("bob", Role::Owner, "s__do").await;
    assert!(
        matches!(resting, CallError::CircuitOpen { .. }),
        "{resting}"
    );
    let denied = refused("eve", Role::None, "s__do").await;
    assert!(matches!(denied, CallError::Denied { .. }), "{denied}");
}

#[tokio::test(start_paused = true)]
async fn load_reports_outcomes_and_durations() {
    let (_world, host) = ready_host(
        ToolBehaviour::RespondAfter(Duration::from_millis(80)),
        limited_spec(8, 8),
    )
    .await;
    for _ in 0..99 {
        host.call(tool_call("s__other", "{}")).await.unwrap();
    }
    numbered_call(&host, 0).await.unwrap();
    numbered_call(&host, 1).await.unwrap();
    let load = supervisor_of(&host).load();
    assert_eq!((load.calls, load.errors), (101, 0));
    assert_eq!(load.p50_us, Some(0));
    let p99 = load.p99_us.unwrap();
    assert!((72_000..=88_000).contains(&p99), "{p99}");

    let hasty = CallRequest {
        deadline: Some(host.clock().now().plus(Duration::from_millis(10))),
        ..tool_call("s__do", "{}")
    };
    host.call(hasty).await.unwrap_err();
    let load = supervisor_of(&host).load();
    assert_eq!((load.calls, load.errors), (102, 1));
    assert!((load.error_rate - 1.0 / 102.0).abs() < 1e-9);
    let totals = supervisor_of(&host).totals();
    assert_eq!(totals.outcome_count(CallOutcome::Succeeded), 101);
    assert_eq!(
        totals.outcome_count(CallOutcome::Failed(FailureClass::Timeout)),
        1
    );
    assert_eq!(totals.timed_sum_us(), 2 * 80_000 + 10_000);
    assert_eq!(totals.latency_buckets().last(), Some((60.0, 102)));

    tokio::time::advance(Duration::from_secs(1_200)).await;
    assert_eq!(supervisor_of(&host).load().calls, 0, "long ago");
    assert_eq!(supervisor_of(&host).totals().call_count(), 102);
}
