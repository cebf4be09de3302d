//! Start, stop and restart by an operator.

use std::time::Duration;

use bowline_core::error::{CallError, ExecutionStatus};
use bowline_host::HostLimits;
use bowline_host::supervisor::ServerAction;
use bowline_testkit::{
    GenerationScript, ReleaseGate, ServerScript, SimWorld, reply_body, server_spec, tool_call,
    wait_for_state,
};

use super::{WAIT, healthy_server, spawn_calls, world_with};

#[tokio::test(start_paused = true)]
async fn stop_refuses_later_calls_and_start_serves_again() {
    let (world, host) = world_with(ServerScript::always(healthy_server()), server_spec("s"));
    assert!(wait_for_state(&host, "s", "ready").await);

    let status = host
        .apply_action("s", ServerAction::Stop, WAIT)
        .await
        .unwrap();
    assert_eq!(
        (&*status.state, status.active, status.tools),
        ("stopped", false, 0)
    );
    assert_eq!(world.record().live_count("s"), 0);
    for _ in 0..3 {
        let error = host.call(tool_call("s__do", "{}")).await.unwrap_err();
        assert_eq!(error, CallError::Stopped { server: "s".into() });
        assert_eq!(error.execution_status(), ExecutionStatus::NotStarted);
    }
    assert!(world.record().executions.is_empty());

    let status = host
        .apply_action("s", ServerAction::Start, WAIT)
        .await
        .unwrap();
    assert_eq!((&*status.state, status.generation), ("ready", 2));
    let reply = host.call(tool_call("s__do", "{}")).await.unwrap();
    assert!(reply_body(&reply).contains("s#2"));
}

#[tokio::test(start_paused = true)]
async fn stop_of_unknown_server_names_it() {
    let world = SimWorld::new([("s", ServerScript::always(GenerationScript::with_tools([])))]);
    let host = world.start_host(vec![server_spec("s")], HostLimits::default());
    for order in [
        ServerAction::Start,
        ServerAction::Stop,
        ServerAction::Restart,
        ServerAction::Reload,
    ] {
        let refused = host.apply_action("nobody", order, Duration::ZERO).await;
        let error = refused.err().map(|error| error.to_string());
        assert_eq!(
            error.as_deref(),
            Some("no server named `nobody`"),
            "{order:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn stop_during_start_leaves_no_process() {
    let gate = ReleaseGate::new_closed();
    let (world, host) = world_with(
        ServerScript::always(healthy_server().hang_start(&gate)),
        server_spec("s"),
    );
    world.wait_until(|record| record.starts.len() == 1).await;
    let waiting = spawn_calls(&host, "s__do", 2);

    host.apply_action("s", ServerAction::Stop, WAIT)
        .await
        .unwrap();

    for outcome in waiting.join_all().await {
        let error = outcome.unwrap_err();
        assert_eq!(error, CallError::Stopped { server: "s".into() });
    }
    assert_eq!(world.record().live_count("s"), 0);
    gate.release();
    assert_eq!(host.server_status("s").unwrap().state, "stopped");
}

#[tokio::test(start_paused = true)]
async fn start_action_keeps_running_start() {
    let gate = ReleaseGate::new_closed();
    let (world, host) = world_with(
        ServerScript::always(healthy_server().hang_start(&gate)),
        server_spec("s"),
    );
    world.wait_until(|record| record.starts.len() == 1).await;

    host.apply_action("s", ServerAction::Start, Duration::ZERO)
        .await
        .unwrap();
    gate.release();
    assert!(wait_for_state(&host, "s", "ready").await);
    host.apply_action("s", ServerAction::Start, WAIT)
        .await
        .unwrap();

    assert_eq!(world.record().starts.len(), 1);
    assert_eq!(host.server_status("s").unwrap().generation, 1);
}

#[tokio::test(start_paused = true)]
async fn call_during_restart_waits() {
    let slow = healthy_server().with_end_delay(Duration::from_secs(2));
    let (world, host) = world_with(ServerScript::always(slow), server_spec("s"));
    assert!(wait_for_state(&host, "s", "ready").await);

    let calls = async {
        assert!(wait_for_state(&host, "s", "draining").await);
        host.call(tool_call("s__do", "{}")).await
    };
    let (restarted, reply) =
        tokio::join!(host.apply_action("s", ServerAction::Restart, WAIT), calls);

    assert_eq!(restarted.unwrap().state, "ready");
    assert!(reply_body(&reply.unwrap()).contains("s#2"));
    assert_eq!(world.record().live_count("s"), 1);
}

#[tokio::test(start_paused = true)]
async fn call_during_stop_is_refused() {
    let slow = healthy_server().with_end_delay(Duration::from_secs(2));
    let (world, host) = world_with(ServerScript::always(slow), server_spec("s"));
    assert!(wait_for_state(&host, "s", "ready").await);

    let calls = async {
        assert!(wait_for_state(&host, "s", "draining").await);
        host.call(tool_call("s__do", "{}")).await
    };
    let (_, outcome) = tokio::join!(host.apply_action("s", ServerAction::Stop, WAIT), calls);

    assert_eq!(
        outcome.unwrap_err(),
        CallError::Stopped { server: "s".into() }
    );
    assert!(world.record().executions.is_empty());
}
