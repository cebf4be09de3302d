//! The circuit breaker as seen by callers and event subscribers.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::breaker::BreakerPolicy;
use bowline_core::call::{CallReply, CallRequest, EndpointScope, Principal, Role};
use bowline_core::client_handle::ClientHandle;
use bowline_core::error::{CallError, ExecutionStatus, FailureClass};
use bowline_host::events::{EventKind, HostEvent};
use bowline_host::spec::ServerSpec;
use bowline_host::supervisor::ServerAction;
use bowline_host::{Host, HostLimits};
use bowline_link::LinkEvent;
use bowline_testkit::{
    GenerationScript, RecordingClient, ReleaseGate, ServerScript, SimWorld, ToolBehaviour,
    server_spec, tool_call, wait_for_state,
};
use tokio::sync::broadcast;
use tokio::task::JoinSet;

const REST: Duration = Duration::from_secs(10);

fn server_with_act(act: ToolBehaviour) -> GenerationScript {
    GenerationScript::with_tools([("do", act), ("other", ToolBehaviour::Respond)])
}

/// A host with a ready server whose breaker opens after two failures.
async fn sensitive_host(script: ServerScript) -> (SimWorld, Host, broadcast::Receiver<HostEvent>) {
    let world = SimWorld::new([("s", script)]);
    let spec = ServerSpec {
        breaker: BreakerPolicy {
            failures_max: 2,
            cooldown: REST,
        },
        call_timeout: Duration::from_secs(5),
        ..server_spec("s")
    };
    let host = world.start_host(vec![spec], HostLimits::default());
    let events = host.events().subscribe();
    assert!(wait_for_state(&host, "s", "ready").await);
    (world, host, events)
}

async fn call_do(host: &Host) -> Result<CallReply, CallError> {
    host.call(tool_call("s__do", "{}")).await
}

/// Fails two calls, so that the breaker opens.
async fn open_breaker(host: &Host) {
    for _ in 0..2 {
        call_do(host).await.unwrap_err();
    }
    assert_eq!(host.server_status("s").unwrap().circuit, "open");
}

/// The circuit events so far.
fn circuit_events(events: &mut broadcast::Receiver<HostEvent>) -> Vec<Cow<'static, str>> {
    let mut circuits = Vec::new();
    while let Ok(event) = events.try_recv() {
        if let EventKind::Circuit { circuit, .. } = event.kind {
            circuits.push(circuit);
        }
    }
    circuits
}

#[tokio::test(start_paused = true)]
async fn each_circuit_change_emits_one_event() {
    let gate = ReleaseGate::new_closed();
    let (world, host, mut events) = sensitive_host(ServerScript::always(server_with_act(
        ToolBehaviour::BlockOn(gate.clone()),
    )))
    .await;
    assert!(circuit_events(&mut events).is_empty());
    open_breaker(&host).await;
    for _ in 0..5 {
        call_do(&host).await.unwrap_err();
    }
    assert_eq!(circuit_events(&mut events), ["open"]);

    tokio::time::advance(REST).await;
    call_do(&host).await.unwrap_err();
    assert_eq!(
        circuit_events(&mut events),
        ["half_open", "open"],
        "the probe failed"
    );

    tokio::time::advance(REST).await;
    gate.release();
    for _ in 0..3 {
        call_do(&host).await.unwrap();
    }
    assert_eq!(circuit_events(&mut events), ["half_open", "closed"]);
    assert_eq!(world.record().starts.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn operator_restart_closes_breaker_with_event() {
    let (_world, host, mut events) = sensitive_host(
        ServerScript::always(server_with_act(ToolBehaviour::BlockOn(
            ReleaseGate::new_closed(),
        )))
        .then(server_with_act(ToolBehaviour::Respond)),
    )
    .await;
    open_breaker(&host).await;
    let wait = Duration::from_secs(60);
    host.apply_action("s", ServerAction::Restart, wait)
        .await
        .unwrap();
    assert_eq!(circuit_events(&mut events), ["open", "closed"]);
    call_do(&host).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn half_open_breaker_admits_one_call() {
    let script = ServerScript::always(server_with_act(ToolBehaviour::BlockOn(
        ReleaseGate::new_closed(),
    )));
    let (world, host, _) = sensitive_host(script).await;
    open_breaker(&host).await;
    tokio::time::advance(REST).await;
    let mut calls = JoinSet::new();
    for _ in 0..20 {
        let host = host.clone();
        calls.spawn(async move { call_do(&host).await.unwrap_err() });
    }
    let errors = calls.join_all().await;
    let resting = errors
        .iter()
        .filter(|error| matches!(error, CallError::CircuitOpen { .. }));
    assert_eq!(resting.count(), 19);
    assert_eq!(
        world.record().executions.len(),
        3,
        "two failures and a probe"
    );
}

#[tokio::test(start_paused = true)]
async fn dropped_probe_frees_half_open_breaker() {
    // Dropped while the tool runs.
    let script = ServerScript::always(server_with_act(ToolBehaviour::BlockOn(
        ReleaseGate::new_closed(),
    )));
    let (world, host, mut events) = sensitive_host(script).await;
    open_breaker(&host).await;
    tokio::time::advance(REST).await;
    for nth in 3..6 {
        tokio::select! {
            biased;
            outcome = call_do(&host) => panic!("the call ended: {outcome:?}"),
            _ = world.wait_until(|record| record.executions.len() >= nth) => {}
        }
        assert_eq!(host.server_status("s").unwrap().circuit, "half_open");
    }
    assert_eq!(
        circuit_events(&mut events),
        ["open", "half_open"],
        "still half open"
    );
    host.call(tool_call("s__other", "{}")).await.unwrap();
    assert_eq!(circuit_events(&mut events), ["closed"]);

    // Dropped while the server starts.
    let gate = ReleaseGate::new_closed();
    let script = ServerScript::always(server_with_act(ToolBehaviour::Exit))
        .then(server_with_act(ToolBehaviour::Exit))
        .then(server_with_act(ToolBehaviour::Respond).hang_start(&gate));
    let (world, host, _) = sensitive_host(script).await;
    open_breaker(&host).await;
    tokio::time::advance(REST).await;
    world.wait_until(|record| record.starts.len() == 3).await;
    let probe = tokio::time::timeout(Duration::from_secs(1), call_do(&host));
    assert!(probe.await.is_err(), "it waits for the start");
    gate.release();
    assert!(wait_for_state(&host, "s", "ready").await);
    call_do(&host).await.unwrap();
    assert_eq!(host.server_status("s").unwrap().circuit, "closed");
}

#[tokio::test(start_paused = true)]
async fn tasks_and_subscriptions_pass_breaker() {
    let initialize = concat!(
        r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"tasks":{"list":{}},"#,
        r#""resources":{"subscribe":true}},"serverInfo":{"name":"s","version":"1"}}"#,
    );
    let made = r#"{"task":{"taskId":"t1","status":"working"}}"#;
    let offer = GenerationScript::with_tools([
        ("do", ToolBehaviour::BlockOn(ReleaseGate::new_closed())),
        ("make", ToolBehaviour::RespondWith(made.to_owned())),
    ])
    .with_initialize_result(initialize)
    .respond_with(
        "resources/list",
        "",
        r#"{"resources":[{"uri":"a:b","name":"b"}]}"#,
    )
    .respond_with("tasks/list", "", r#"{"tasks":[{"taskId":"t1"}]}"#);
    let (world, host, _) = sensitive_host(ServerScript::always(offer)).await;
    let make = CallRequest {
        wants_task: true,
        ..tool_call("s__make", "{}")
    };
    host.call(make).await.unwrap();
    open_breaker(&host).await;
    let before = world.record().requests.len();

    let owner = Principal::new("owner", Role::Owner);
    let listed = host.list_tasks(&owner, &EndpointScope::All).await;
    assert!(
        matches!(listed, Err(CallError::CircuitOpen { .. })),
        "{listed:?}"
    );
    let hearer: Arc<dyn ClientHandle> = RecordingClient::new(1);
    let subscribed = host
        .subscribe(&owner, &EndpointScope::All, &hearer, "a:b")
        .await;
    assert!(
        matches!(subscribed, Err(CallError::CircuitOpen { .. })),
        "{subscribed:?}"
    );
    assert_eq!(
        world.record().requests.len(),
        before,
        "resting means resting"
    );

    tokio::time::advance(REST).await;
    let listed = host.list_tasks(&owner, &EndpointScope::All).await.unwrap();
    assert!(listed.starts_with(b"{\"tasks\":[{"), "{listed:?}");
    assert_eq!(host.server_status("s").unwrap().circuit, "closed");
}

#[tokio::test(start_paused = true)]
async fn short_deadlines_of_callers_leave_breaker_closed() {
    let (world, host, mut events) = sensitive_host(ServerScript::always(server_with_act(
        ToolBehaviour::BlockOn(ReleaseGate::new_closed()),
    )))
    .await;
    let hasty = |ms| CallRequest {
        principal: Arc::new(Principal::new("low", Role::OwnersAgent)),
        deadline: Some(host.clock().now().plus(Duration::from_millis(ms))),
        ..tool_call("s__do", "{}")
    };
    for nth in 1..=5 {
        let error = host.call(hasty(60)).await.unwrap_err();
        assert_eq!(error.failure_class(), FailureClass::Timeout);
        assert_eq!(error.execution_status(), ExecutionStatus::Unknown);
        assert_eq!(world.record().executions.len(), nth);
    }
    let status = host.server_status("s").unwrap();
    assert_eq!(
        (&*status.circuit, status.consecutive_failures),
        ("closed", 0)
    );
    assert!(circuit_events(&mut events).is_empty());
    host.call(tool_call("s__other", "{}")).await.unwrap();

    // The server's own timeout counts, even if the caller's deadline is equal or later.
    for ms in [5_000, 60_000] {
        host.call(hasty(ms)).await.unwrap_err();
    }
    assert_eq!(circuit_events(&mut events), ["open"]);
}

#[tokio::test(start_paused = true)]
async fn internal_requests_never_count() {
    let slow = server_with_act(ToolBehaviour::Respond).with_list_delay(Duration::from_secs(3_600));
    let (world, host, mut events) = sensitive_host(ServerScript::always(server_with_act(
        ToolBehaviour::Respond,
    )))
    .await;
    world.latest_link("s").unwrap().set_script(slow);
    for _ in 0..5 {
        assert!(world.emit("s", LinkEvent::ToolsChanged));
        let silence = std::future::pending::<()>();
        let _over = tokio::time::timeout(Duration::from_secs(120), silence).await;
    }
    let status = host.server_status("s").unwrap();
    assert_eq!(
        (&*status.circuit, status.consecutive_failures),
        ("closed", 0)
    );
    assert!(circuit_events(&mut events).is_empty());
    assert_eq!(host.server("s").unwrap().totals().call_count(), 0);
    call_do(&host).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn slow_call_does_not_delay_others() {
    let (_world, host, _) = sensitive_host(ServerScript::always(server_with_act(
        ToolBehaviour::BlockOn(ReleaseGate::new_closed()),
    )))
    .await;
    let quick = async {
        for _ in 0..100 {
            host.call(tool_call("s__other", "{}")).await.unwrap();
        }
        host.clock().now().0
    };
    let (slow, ended_ms) = tokio::join!(call_do(&host), quick);
    assert_eq!(slow.unwrap_err().failure_class(), FailureClass::Timeout);
    assert_eq!(ended_ms, 0);
}
