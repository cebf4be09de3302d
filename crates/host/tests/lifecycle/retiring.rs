//! Reload, stop and retirement, and their effect on calls.

use std::time::Duration;

use bowline_core::error::{CallError, ExecutionStatus};
use bowline_host::HostLimits;
use bowline_host::spec::ServerSpec;
use bowline_host::supervisor::ServerAction;
use bowline_link::LinkExit;
use bowline_testkit::{
    GenerationScript, ReleaseGate, ServerScript, SimWorld, ToolBehaviour, reply_body, server_spec,
    tool_call, wait_for_state,
};
use tokio::task::JoinSet;

use super::{
    WAIT, advance_clock, healthy_server, lazy_spec, run_until_idle, spawn_calls, state_events,
    world_with,
};

fn hanging_server(gate: &ReleaseGate) -> GenerationScript {
    GenerationScript::with_tools([
        ("do", ToolBehaviour::Respond),
        ("wait", ToolBehaviour::BlockOn(gate.clone())),
    ])
}

#[tokio::test(start_paused = true)]
async fn reload_drains_calls_and_queues_new_ones() {
    let gate = ReleaseGate::new_closed();
    let (world, host) = world_with(
        ServerScript::always(hanging_server(&gate)),
        server_spec("s"),
    );
    assert!(wait_for_state(&host, "s", "ready").await);
    let old = spawn_calls(&host, "s__wait", 3);
    world
        .wait_until(|record| record.executions.len() == 3)
        .await;

    host.apply_action("s", ServerAction::Reload, Duration::ZERO)
        .await
        .unwrap();
    assert!(wait_for_state(&host, "s", "draining").await);
    let new = spawn_calls(&host, "s__do", 2);
    run_until_idle().await;
    assert_eq!(
        world.record().executions.len(),
        3,
        "nobody gets the old link"
    );
    assert_eq!(world.record().start_count("s"), 1);
    gate.release();
    for outcome in old.join_all().await {
        assert!(outcome.unwrap().contains("s#1"), "it ended where it began");
    }
    for outcome in new.join_all().await {
        assert!(outcome.unwrap().contains("s#2"));
    }
    let status = host.server_status("s").unwrap();
    assert_eq!((&*status.state, status.generation), ("ready", 2));
    assert_eq!((status.restart_count, status.errors), (0, 0));
    assert_eq!(world.record().live_count("s"), 1);
}

#[tokio::test(start_paused = true)]
async fn reload_drain_is_bounded() {
    let spec = ServerSpec {
        drain_timeout: Duration::from_secs(7),
        ..server_spec("s")
    };
    let (world, host) = world_with(
        ServerScript::always(hanging_server(&ReleaseGate::new_closed())),
        spec,
    );
    assert!(wait_for_state(&host, "s", "ready").await);
    let old = spawn_calls(&host, "s__wait", 1);
    world
        .wait_until(|record| record.executions.len() == 1)
        .await;
    host.apply_action("s", ServerAction::Reload, WAIT)
        .await
        .unwrap();
    assert_eq!(host.clock().now().0, 7_000);
    let error = old.join_all().await.remove(0).unwrap_err();
    assert_eq!(
        error.execution_status(),
        ExecutionStatus::Unknown,
        "{error}"
    );
    assert_eq!(host.server_status("s").unwrap().generation, 2);
}

#[tokio::test(start_paused = true)]
async fn reload_clears_breaker_and_budget() {
    let tools = GenerationScript::with_tools([
        ("do", ToolBehaviour::Respond),
        ("hang", ToolBehaviour::BlockOn(ReleaseGate::new_closed())),
    ]);
    let mut spec = ServerSpec {
        call_timeout: Duration::from_secs(1),
        ..server_spec("s")
    };
    spec.breaker.failures_max = 2;
    let (world, host) = world_with(ServerScript::always(tools), spec);
    assert!(wait_for_state(&host, "s", "ready").await);
    assert!(world.kill("s", LinkExit::Status(1)));
    assert!(wait_for_state(&host, "s", "backoff").await);
    assert!(wait_for_state(&host, "s", "ready").await);
    for _ in 0..2 {
        host.call(tool_call("s__hang", "{}")).await.unwrap_err();
    }
    let status = host.server_status("s").unwrap();
    assert_eq!((&*status.circuit, status.restart_count), ("open", 1));
    let error = host.call(tool_call("s__do", "{}")).await.unwrap_err();
    assert!(matches!(error, CallError::CircuitOpen { .. }), "{error}");

    let status = host
        .apply_action("s", ServerAction::Reload, WAIT)
        .await
        .unwrap();
    assert_eq!((&*status.circuit, status.restart_count), ("closed", 0));
    assert_eq!(status.consecutive_failures, 0);
    host.call(tool_call("s__do", "{}")).await.unwrap();
    assert!(world.kill("s", LinkExit::Status(1)));
    assert!(wait_for_state(&host, "s", "backoff").await);
    let status = host.server_status("s").unwrap();
    assert_eq!(status.restart_count, 1, "the whole budget is there again");
}

#[tokio::test(start_paused = true)]
async fn reload_keeps_idle_server_idle() {
    let (world, host) = world_with(ServerScript::always(healthy_server()), lazy_spec("s"));
    let status = host
        .apply_action("s", ServerAction::Reload, WAIT)
        .await
        .unwrap();
    assert_eq!(&*status.state, "idle");
    run_until_idle().await;
    assert_eq!(world.record().start_count("s"), 0);
    host.call(tool_call("s__do", "{}")).await.unwrap();
    assert_eq!(world.record().start_count("s"), 1);
}

#[tokio::test(start_paused = true)]
async fn reload_starts_stopped_server() {
    let (_world, host) = world_with(ServerScript::always(healthy_server()), lazy_spec("s"));
    host.apply_action("s", ServerAction::Stop, WAIT)
        .await
        .unwrap();
    let error = host.call(tool_call("s__do", "{}")).await.unwrap_err();
    assert_eq!(error, CallError::Stopped { server: "s".into() });
    let status = host
        .apply_action("s", ServerAction::Reload, WAIT)
        .await
        .unwrap();
    assert_eq!(&*status.state, "ready");
}

#[tokio::test(start_paused = true)]
async fn stop_during_drain_refuses_waiters() {
    let (world, host) = world_with(
        ServerScript::always(hanging_server(&ReleaseGate::new_closed())),
        server_spec("s"),
    );
    assert!(wait_for_state(&host, "s", "ready").await);
    let old = spawn_calls(&host, "s__wait", 1);
    world
        .wait_until(|record| record.executions.len() == 1)
        .await;
    host.apply_action("s", ServerAction::Reload, Duration::ZERO)
        .await
        .unwrap();
    assert!(wait_for_state(&host, "s", "draining").await);
    let waiting = spawn_calls(&host, "s__do", 2);
    run_until_idle().await;
    let status = host
        .apply_action("s", ServerAction::Stop, WAIT)
        .await
        .unwrap();
    assert_eq!(&*status.state, "stopped");
    assert_eq!(host.clock().now().0, 0, "nothing is waited for");
    for outcome in waiting.join_all().await {
        let stopped = CallError::Stopped { server: "s".into() };
        assert_eq!(outcome.unwrap_err(), stopped);
    }
    assert!(old.join_all().await[0].is_err());
    assert_eq!(world.record().live_count("s"), 0);
    run_until_idle().await;
    assert_eq!(world.record().start_count("s"), 1, "stopped means stopped");
}

#[tokio::test(start_paused = true)]
async fn retired_server_drains_and_refuses() {
    let gate = ReleaseGate::new_closed();
    let (world, host) = world_with(
        ServerScript::always(hanging_server(&gate)),
        server_spec("s"),
    );
    assert!(wait_for_state(&host, "s", "ready").await);
    let old = spawn_calls(&host, "s__wait", 2);
    world
        .wait_until(|record| record.executions.len() == 2)
        .await;
    let mut events = host.events().subscribe();
    let server = host.server("s").unwrap();
    let retired = {
        let server = server.clone();
        async move { server.retire().await }
    };
    let mut retiring = JoinSet::new();
    retiring.spawn(retired);
    run_until_idle().await;
    assert!(server.is_retired());
    let waiting = spawn_calls(&host, "s__do", 2);
    run_until_idle().await;
    gate.release();
    retiring.join_all().await;
    for outcome in old.join_all().await {
        assert!(outcome.unwrap().contains("s#1"));
    }
    for outcome in waiting.join_all().await {
        let stopped = CallError::Stopped { server: "s".into() };
        assert_eq!(outcome.unwrap_err(), stopped);
    }
    let error = host.call(tool_call("s__do", "{}")).await.unwrap_err();
    assert_eq!(error, CallError::Stopped { server: "s".into() });
    assert_eq!(world.record().live_count("s"), 0);
    assert_eq!(world.record().start_count("s"), 1);
    assert!(
        host.catalog().server("s").is_some(),
        "it may be another's now"
    );
    assert_eq!(state_events(&mut events), [("draining", 1, None)]);
    server.retire().await;
    assert!(
        server.apply_action(ServerAction::Start).await.is_err(),
        "it is gone"
    );
}

#[tokio::test(start_paused = true)]
async fn server_can_be_retired_in_any_state() {
    let world = SimWorld::new([
        (
            "failing",
            ServerScript::always(GenerationScript::failing_start("no")),
        ),
        ("idle", ServerScript::always(healthy_server())),
        (
            "starting",
            ServerScript::always(healthy_server().hang_start(&ReleaseGate::new_closed())),
        ),
        ("stopped", ServerScript::always(healthy_server())),
    ]);
    let specs = vec![
        server_spec("failing"),
        lazy_spec("idle"),
        server_spec("starting"),
        server_spec("stopped"),
    ];
    let host = world.start_host(specs, HostLimits::default());
    host.apply_action("stopped", ServerAction::Stop, WAIT)
        .await
        .unwrap();
    run_until_idle().await;
    for name in ["failing", "idle", "starting", "stopped"] {
        host.server(name).unwrap().retire().await;
        let error = host.call(tool_call(&format!("{name}__do"), "{}")).await;
        let stopped = CallError::Stopped {
            server: name.into(),
        };
        assert_eq!(error.unwrap_err(), stopped, "{name}");
        assert_eq!(world.record().live_count(name), 0, "{name}");
    }
    let starts = world.record().starts.len();
    advance_clock(Duration::from_secs(600)).await;
    assert_eq!(world.record().starts.len(), starts);
}

#[tokio::test(start_paused = true)]
async fn every_state_change_emits_event() {
    let (_world, host) = world_with(ServerScript::always(healthy_server()), server_spec("s"));
    let mut events = host.events().subscribe();
    assert!(wait_for_state(&host, "s", "ready").await);
    host.apply_action("s", ServerAction::Reload, WAIT)
        .await
        .unwrap();
    host.apply_action("s", ServerAction::Stop, WAIT)
        .await
        .unwrap();
    let seen: Vec<_> = state_events(&mut events)
        .into_iter()
        .map(|(state, generation, _)| (state, generation))
        .collect();
    assert_eq!(
        seen,
        [
            ("ready", 1),
            ("draining", 1),
            ("starting", 1),
            ("ready", 2),
            ("draining", 2),
            ("stopped", 2),
        ]
    );
    let reply = host
        .call(tool_call("s__do", "{}"))
        .await
        .map(|reply| reply_body(&reply));
    assert!(reply.is_err());
}
