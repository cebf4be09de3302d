//! Start, monitoring, restart, ejection and stop of servers.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::time::Duration;

use bowline_core::call::EndpointScope;
use bowline_core::error::{CallError, ExecutionStatus, FailureClass};
use bowline_core::restart_budget::RestartPolicy;
use bowline_host::catalog::ListKind;
use bowline_host::spec::ServerSpec;
use bowline_host::supervisor::ServerAction;
use bowline_host::{Host, HostLimits};
use bowline_link::LinkExit;
use bowline_testkit::{
    GenerationScript, ReleaseGate, ServerScript, SimWorld, ToolBehaviour, reply_body, server_spec,
    tool_call, wait_for_state,
};
use tokio::task::JoinSet;

const WAIT: Duration = Duration::from_secs(60);

fn healthy_server() -> GenerationScript {
    GenerationScript::with_tools([("do", ToolBehaviour::Respond)])
}

fn lazy_spec(server: &str) -> ServerSpec {
    ServerSpec {
        lazy: true,
        ..server_spec(server)
    }
}

/// A host with the single server `s`.
fn world_with(script: ServerScript, spec: ServerSpec) -> (SimWorld, Host) {
    let world = SimWorld::new([("s", script)]);
    let host = world.start_host(vec![spec], HostLimits::default());
    (world, host)
}

fn spawn_calls(host: &Host, tool: &str, count: usize) -> JoinSet<Result<String, CallError>> {
    let mut set = JoinSet::new();
    for _ in 0..count {
        let (host, call) = (host.clone(), tool_call(tool, "{}"));
        set.spawn(async move { host.call(call).await.map(|reply| reply_body(&reply)) });
    }
    set
}

#[tokio::test(start_paused = true)]
async fn lazy_server_starts_on_first_call() {
    let (world, host) = world_with(ServerScript::always(healthy_server()), lazy_spec("s"));
    host.wait_settled().await;
    assert_eq!(host.server_status("s").unwrap().state, "idle");
    assert_eq!(host.clock().now().0, 0, "nobody waits for a lazy server");
    assert!(world.record().starts.is_empty());

    let reply = host.call(tool_call("s__do", "{}")).await.unwrap();

    assert!(reply_body(&reply).contains("s#1"));
    assert_eq!(world.record().starts.len(), 1);
    assert_eq!(host.server_status("s").unwrap().state, "ready");
}

#[tokio::test(start_paused = true)]
async fn waiting_callers_share_one_start() {
    let gate = ReleaseGate::new_closed();
    let (world, host) = world_with(
        ServerScript::always(healthy_server().hang_start(&gate)),
        lazy_spec("s"),
    );
    let mut waiting = spawn_calls(&host, "s__do", 10);
    world.wait_until(|record| record.starts.len() == 1).await;
    let late = spawn_calls(&host, "s__do", 1);
    gate.release();

    while let Some(outcome) = waiting.join_next().await {
        assert!(outcome.unwrap().is_ok());
    }
    assert!(late.join_all().await[0].is_ok());
    assert_eq!(world.record().starts.len(), 1);
    assert_eq!(world.record().executions.len(), 11);
}

#[tokio::test(start_paused = true)]
async fn slow_server_does_not_delay_others() {
    let gate = ReleaseGate::new_closed();
    let world = SimWorld::new([
        (
            "broken",
            ServerScript::always(GenerationScript::failing_start("broken")),
        ),
        ("good", ServerScript::always(healthy_server())),
        (
            "slow",
            ServerScript::always(healthy_server().hang_start(&gate)),
        ),
    ]);
    let specs = ["broken", "good", "slow"].map(server_spec).to_vec();
    let host = world.start_host(specs, HostLimits::default());

    host.call(tool_call("good__do", "{}")).await.unwrap();
    assert_eq!(host.clock().now().0, 0);
    host.wait_settled().await;
    assert_eq!(
        host.clock().now().0,
        1_500,
        "the first list waits, but not long"
    );
    host.wait_settled().await;
    assert_eq!(host.clock().now().0, 1_500, "later ones do not wait");
    let list = host
        .catalog()
        .list(&EndpointScope::All, ListKind::Tools)
        .result;
    assert!(String::from_utf8_lossy(&list).contains("good__do"));
    assert_eq!(host.server_status("slow").unwrap().state, "starting");

    gate.release();
    assert!(wait_for_state(&host, "slow", "ready").await);
    assert!(host.call(tool_call("slow__do", "{}")).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn six_parallel_failures_cause_one_restart() {
    let gate = ReleaseGate::new_closed();
    let first = GenerationScript::with_tools([("do", ToolBehaviour::BlockOn(gate))]);
    let (world, host) = world_with(
        ServerScript::always(first).then(healthy_server()),
        server_spec("s"),
    );
    let failing = spawn_calls(&host, "s__do", 6);
    world
        .wait_until(|record| record.executions.len() == 6)
        .await;

    assert!(world.kill("s", LinkExit::Signal(9)));

    for outcome in failing.join_all().await {
        let error = outcome.unwrap_err();
        assert!(matches!(error, CallError::ConnectionLost { .. }), "{error}");
    }
    assert!(wait_for_state(&host, "s", "ready").await);
    assert_eq!(world.record().starts.len(), 2);
    let status = host.server_status("s").unwrap();
    assert_eq!((status.generation, status.restart_count), (2, 1));
    assert_eq!(world.record().executions.len(), 6, "nothing ran again");
}

#[tokio::test(start_paused = true)]
async fn exit_is_detected_without_a_call() {
    let (world, host) = world_with(ServerScript::always(healthy_server()), server_spec("s"));
    assert!(wait_for_state(&host, "s", "ready").await);

    assert!(world.kill("s", LinkExit::Status(3)));
    assert!(wait_for_state(&host, "s", "backoff").await);

    let status = host.server_status("s").unwrap();
    assert_eq!(host.clock().now().0, 0);
    assert!(!status.active);
    assert_eq!((status.pid, status.uptime_ms), (None, None));
    let wait = status.retry_after_ms.unwrap();
    assert!((75..=100).contains(&wait), "{wait}");
    let error = status.last_error.unwrap();
    assert_eq!(&*error.message, "exit code 3");
    assert_eq!(error.class, FailureClass::ConnectionLost.as_str());
    assert!(wait_for_state(&host, "s", "ready").await);
    assert_eq!(host.server_status("s").unwrap().generation, 2);
    assert!(world.record().executions.is_empty());
}

#[tokio::test(start_paused = true)]
async fn failing_restarts_eject_until_operator_restart() {
    let budget = 3;
    let bad = || GenerationScript::failing_start("no luck");
    let script = ServerScript::always(healthy_server())
        .then(bad())
        .then(bad())
        .then(bad())
        .then(healthy_server());
    let restart = RestartPolicy {
        restarts_max: budget,
        window: Duration::from_secs(24 * 3_600),
    };
    let spec = ServerSpec {
        restart,
        ..server_spec("s")
    };
    let (world, host) = world_with(script, spec);
    assert!(wait_for_state(&host, "s", "ready").await);
    assert!(world.kill("s", LinkExit::Status(1)));
    assert!(wait_for_state(&host, "s", "backoff").await);
    let waiting = spawn_calls(&host, "s__do", 3);

    assert!(wait_for_state(&host, "s", "ejected").await);
    assert_eq!(
        host.server_status("s").unwrap().tools,
        0,
        "nothing is offered"
    );
    for outcome in waiting.join_all().await {
        let error = outcome.unwrap_err();
        assert_eq!(
            error.execution_status(),
            ExecutionStatus::NotStarted,
            "{error}"
        );
    }
    // No call and no waiting causes a further start.
    tokio::time::advance(Duration::from_secs(3_600)).await;
    let error = host.call(tool_call("s__do", "{}")).await.unwrap_err();
    assert!(matches!(error, CallError::Ejected { .. }), "{error}");
    assert_eq!(world.record().starts.len(), budget as usize + 1);
    let status = host.server_status("s").unwrap();
    assert!(status.ejected && !status.active);
    assert_eq!(status.restart_count, u64::from(budget));
    assert_eq!(status.generation, u64::from(budget) + 1);
    let reason = status.last_error.unwrap().message;
    assert!(reason.ends_with("handshake: no luck"), "{reason}");

    let status = host
        .apply_action("s", ServerAction::Restart, WAIT)
        .await
        .unwrap();
    assert_eq!((&*status.state, status.ejected), ("ready", false));
    assert_eq!((status.restart_count, status.generation), (0, 5));
    assert!(host.call(tool_call("s__do", "{}")).await.is_ok());
    // The complete budget is available again.
    assert!(world.kill("s", LinkExit::Status(1)));
    assert!(wait_for_state(&host, "s", "backoff").await);
    assert_eq!(host.server_status("s").unwrap().restart_count, 1);
    assert!(wait_for_state(&host, "s", "ready").await);
}

#[tokio::test(start_paused = true)]
async fn crashing_server_is_ejected_with_reason() {
    let (world, host) = world_with(ServerScript::always(healthy_server()), server_spec("s"));
    let budget = server_spec("s").restart.restarts_max as usize;
    for _ in 0..=budget {
        assert!(wait_for_state(&host, "s", "ready").await);
        assert!(world.kill("s", LinkExit::Status(1)));
        let mut states = host.server("s").unwrap().subscribe_state();
        states
            .wait_for(|state| state.as_str() != "ready")
            .await
            .unwrap();
    }

    assert!(wait_for_state(&host, "s", "ejected").await);
    let error = host.call(tool_call("s__do", "{}")).await.unwrap_err();
    assert!(matches!(error, CallError::Ejected { .. }), "{error}");
    assert_eq!(world.record().starts.len(), budget + 1);
    let status = host.server_status("s").unwrap();
    assert_eq!(
        &*status.last_error.unwrap().message,
        "exit code 1",
        "a refusal is no failure"
    );
}

#[tokio::test(start_paused = true)]
async fn long_backoff_fails_calls_at_once() {
    let mut spec = server_spec("s");
    spec.backoff.base = Duration::from_secs(4);
    let (world, host) = world_with(
        ServerScript::always(GenerationScript::failing_start("no")).then(healthy_server()),
        spec,
    );
    assert!(wait_for_state(&host, "s", "backoff").await);

    let error = host.call(tool_call("s__do", "{}")).await.unwrap_err();

    let CallError::StartFailed {
        retry_after,
        reason,
        ..
    } = &error
    else {
        panic!("{error}");
    };
    assert!(*retry_after > Duration::from_secs(2), "{retry_after:?}");
    assert!(reason.ends_with(": no"), "{reason}");
    assert_eq!(error.execution_status(), ExecutionStatus::NotStarted);
    assert!(wait_for_state(&host, "s", "ready").await);
    assert!(host.call(tool_call("s__do", "{}")).await.is_ok());
    assert_eq!(world.record().starts.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn hanging_start_ends_at_timeout() {
    let script = ServerScript::always(healthy_server().hang_start(&ReleaseGate::new_closed()))
        .then(healthy_server());
    let (world, host) = world_with(script, server_spec("s"));
    let reply = host.call(tool_call("s__do", "{}")).await.unwrap();
    assert!(reply_body(&reply).contains("s#2"));
    assert!(host.clock().now().0 >= 30_000);
    assert_eq!(world.record().live_count("s"), 1);
}

#[tokio::test(start_paused = true)]
async fn status_has_operator_fields() {
    let gate = ReleaseGate::new_closed();
    let tools = [
        ("do", ToolBehaviour::Respond),
        ("wait", ToolBehaviour::BlockOn(gate.clone())),
        ("die", ToolBehaviour::Exit),
    ];
    let (world, host) = world_with(
        ServerScript::always(GenerationScript::with_tools(tools)),
        server_spec("s"),
    );
    let status = host.server_status("s").unwrap();
    assert_eq!(
        (&*status.state, status.active, status.tools),
        ("starting", false, 0)
    );
    assert!(wait_for_state(&host, "s", "ready").await);

    host.call(tool_call("s__do", "{}")).await.unwrap();
    let waiting = spawn_calls(&host, "s__wait", 2);
    world
        .wait_until(|record| record.executions.len() == 3)
        .await;
    tokio::time::advance(Duration::from_millis(250)).await;
    let status = host.server_status("s").unwrap();
    assert_eq!(
        (&*status.name, &*status.state, status.active),
        ("s", "ready", true)
    );
    assert_eq!((status.generation, status.restart_count), (1, 0));
    assert_eq!((status.tools, status.in_flight), (3, 2));
    assert_eq!((status.calls, status.errors), (1, 0));
    assert_eq!((status.pid, status.uptime_ms), (Some(1_001), Some(250)));
    assert_eq!(
        (&*status.circuit, status.consecutive_failures),
        ("closed", 0)
    );
    assert!(status.last_error.is_none() && status.retry_after_ms.is_none());
    gate.release();
    waiting.join_all().await;

    host.call(tool_call("s__die", "{}")).await.unwrap_err();
    assert!(wait_for_state(&host, "s", "backoff").await);
    let status = host.server_status("s").unwrap();
    assert_eq!((status.calls, status.errors, status.in_flight), (4, 1, 0));
    assert_eq!(
        (&*status.circuit, status.consecutive_failures),
        ("closed", 1)
    );
    assert_eq!(status.restart_count, 1);
    assert!(status.last_error.unwrap().message.contains("signal 9"));
    assert!(status.retry_after_ms.is_some());
    assert!(wait_for_state(&host, "s", "ready").await);
    let status = host.server_status("s").unwrap();
    assert_eq!((status.generation, status.pid), (2, Some(1_002)));
    let age = status.last_error.unwrap().age_ms;
    assert!((75..=100).contains(&age), "{age}");
}

#[tokio::test(start_paused = true)]
async fn shutdown_stops_servers_and_tasks() {
    let tool = ToolBehaviour::BlockOn(ReleaseGate::new_closed());
    let slow =
        GenerationScript::with_tools([("wait", tool)]).with_end_delay(Duration::from_secs(1));
    let world = SimWorld::new([
        ("busy", ServerScript::always(slow)),
        (
            "failing",
            ServerScript::always(GenerationScript::failing_start("no")),
        ),
        ("idle", ServerScript::always(healthy_server())),
        (
            "starting",
            ServerScript::always(healthy_server().hang_start(&ReleaseGate::new_closed())),
        ),
    ]);
    let specs = vec![
        server_spec("busy"),
        server_spec("failing"),
        lazy_spec("idle"),
        server_spec("starting"),
    ];
    let host = world.start_host(specs, HostLimits::default());
    assert!(wait_for_state(&host, "busy", "ready").await);
    let running = spawn_calls(&host, "busy__wait", 2);
    let waiting = spawn_calls(&host, "starting__do", 1);
    world
        .wait_until(|record| record.executions.len() == 2)
        .await;

    host.shutdown().await;

    let record = world.record();
    for server in ["busy", "failing", "idle", "starting"] {
        assert_eq!(record.live_count(server), 0, "{server}");
    }
    for outcome in running.join_all().await {
        assert_eq!(
            outcome.unwrap_err().execution_status(),
            ExecutionStatus::Unknown
        );
    }
    for outcome in waiting.join_all().await {
        assert_eq!(
            outcome.unwrap_err().execution_status(),
            ExecutionStatus::NotStarted
        );
    }
    let error = host.call(tool_call("busy__wait", "{}")).await.unwrap_err();
    assert_eq!(error, CallError::ShuttingDown);
    let tasks = host.tasks().clone();
    drop(host);
    let finished = tokio::time::timeout(WAIT, tasks.wait_finished()).await;
    assert!(finished.is_ok(), "a task lives on");
    assert_eq!(world.record().starts.len(), record.starts.len());
}
