//! Idle stop and pings.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::{CallRequest, EndpointScope, Principal, Role};
use bowline_core::client_handle::ClientHandle;
use bowline_host::Host;
use bowline_host::spec::{Isolation, ServerSpec};
use bowline_link::LinkExit;
use bowline_testkit::{
    GenerationScript, RecordingClient, ReleaseGate, ServerScript, SimRecord, ToolBehaviour,
    server_spec, tool_call, wait_for_state,
};

use super::{advance_clock, healthy_server, run_until_idle, spawn_calls, state_events, world_with};

const IDLE: Duration = Duration::from_secs(80);

fn idle_stop_spec() -> ServerSpec {
    ServerSpec {
        idle_stop: Some(IDLE),
        ..server_spec("s")
    }
}

fn current_state(host: &Host) -> Cow<'static, str> {
    host.server_status("s").unwrap().state
}

#[tokio::test(start_paused = true)]
async fn idle_stop_and_wake_cost_no_restart() {
    let (world, host) = world_with(ServerScript::always(healthy_server()), idle_stop_spec());
    let mut events = host.events().subscribe();
    assert!(wait_for_state(&host, "s", "ready").await);
    advance_clock(IDLE / 2).await;
    host.call(tool_call("s__do", "{}")).await.unwrap();
    advance_clock(IDLE - Duration::from_secs(1)).await;
    assert_eq!(current_state(&host), "ready", "the call counts");
    advance_clock(IDLE / 4).await;
    assert_eq!(current_state(&host), "idle");
    assert_eq!(world.record().live_count("s"), 0);
    assert!(host.catalog().server("s").is_some(), "it is still offered");
    advance_clock(IDLE * 4).await;
    assert_eq!(world.record().start_count("s"), 1, "and stays down");

    host.call(tool_call("s__do", "{}")).await.unwrap();
    let status = host.server_status("s").unwrap();
    assert_eq!((&*status.state, status.generation), ("ready", 2));
    assert_eq!(status.restart_count, 0, "nothing of its budget is spent");
    let seen: Vec<_> = state_events(&mut events)
        .into_iter()
        .map(|(state, ..)| state)
        .collect();
    assert_eq!(seen, ["ready", "draining", "idle", "starting", "ready"]);
    assert!(wait_for_state(&host, "s", "idle").await, "and again");
}

#[tokio::test(start_paused = true)]
async fn concurrent_wakes_start_once() {
    let (world, host) = world_with(ServerScript::always(healthy_server()), idle_stop_spec());
    assert!(wait_for_state(&host, "s", "idle").await);
    for outcome in spawn_calls(&host, "s__do", 10).join_all().await {
        outcome.unwrap();
    }
    assert!(wait_for_state(&host, "s", "idle").await);
    advance_clock(IDLE * 2).await;
    assert_eq!(current_state(&host), "idle");
    assert_eq!(world.record().start_count("s"), 2);
}

#[tokio::test(start_paused = true)]
async fn crash_is_not_taken_for_idle_stop() {
    let slow = healthy_server().with_end_delay(IDLE * 2);
    let (world, host) = world_with(ServerScript::always(slow), idle_stop_spec());
    assert!(wait_for_state(&host, "s", "ready").await);
    assert!(world.kill("s", LinkExit::Signal(9)));
    assert!(wait_for_state(&host, "s", "backoff").await);
    assert_eq!(host.server_status("s").unwrap().restart_count, 1);
    assert_eq!(host.clock().now().0, 160_000);
}

#[tokio::test(start_paused = true)]
async fn call_in_flight_prevents_idle_stop() {
    let gate = ReleaseGate::new_closed();
    let tools = GenerationScript::with_tools([("wait", ToolBehaviour::BlockOn(gate.clone()))]);
    let (_world, host) = world_with(ServerScript::always(tools), idle_stop_spec());
    let waiting = spawn_calls(&host, "s__wait", 1);
    advance_clock(IDLE * 3).await;
    assert_eq!(current_state(&host), "ready");
    gate.release();
    waiting.join_all().await.remove(0).unwrap();
    advance_clock(IDLE / 2).await;
    assert_eq!(current_state(&host), "ready");
    assert!(wait_for_state(&host, "s", "idle").await);
}

#[tokio::test(start_paused = true)]
async fn subscription_or_task_prevents_idle_stop() {
    let resources = r#"{"protocolVersion":"2025-06-18","capabilities":{"tools":{},"resources":{"subscribe":true}},"serverInfo":{"name":"s","version":"1"}}"#;
    let answers = healthy_server()
        .with_initialize_result(resources)
        .respond_with("resources/list", "", r#"{"resources":[]}"#)
        .respond_with(
            "resources/templates/list",
            "",
            r#"{"resourceTemplates":[]}"#,
        )
        .respond_with("resources/subscribe", "", "{}")
        .respond_with("resources/unsubscribe", "", "{}");
    let (_world, host) = world_with(ServerScript::always(answers), idle_stop_spec());
    assert!(wait_for_state(&host, "s", "ready").await);
    let owner = Principal::new("owner", Role::Owner);
    let scope = EndpointScope::Server("s".into());
    let caller: Arc<dyn ClientHandle> = RecordingClient::new(1);
    host.subscribe(&owner, &scope, &caller, "x://a")
        .await
        .unwrap();
    advance_clock(IDLE * 3).await;
    assert_eq!(current_state(&host), "ready");
    host.end_session(caller.session());
    assert!(wait_for_state(&host, "s", "idle").await);

    let task = r#"{"task":{"taskId":"t1","status":"working"}}"#.to_owned();
    let tools = GenerationScript::with_tools([("job", ToolBehaviour::RespondWith(task))]);
    let (_world, host) = world_with(ServerScript::always(tools), idle_stop_spec());
    let made = CallRequest {
        wants_task: true,
        ..tool_call("s__job", "{}")
    };
    host.call(made).await.unwrap();
    advance_clock(IDLE * 3).await;
    assert_eq!(current_state(&host), "ready", "the task would go with it");
}

#[tokio::test(start_paused = true)]
async fn dedicated_link_prevents_idle_stop() {
    let spec = ServerSpec {
        isolation: Isolation::Session,
        ..idle_stop_spec()
    };
    let (world, host) = world_with(ServerScript::always(healthy_server()), spec);
    let caller: Arc<dyn ClientHandle> = RecordingClient::new(1);
    let session = caller.session();
    let mut own = tool_call("s__do", "{}");
    own.message.client = Some(caller);

    host.call(own).await.unwrap();
    advance_clock(IDLE * 2).await;
    assert_eq!(
        (&*current_state(&host), world.record().live_count("s")),
        ("ready", 2)
    );
    host.end_session(session);
    assert!(wait_for_state(&host, "s", "idle").await);
    assert_eq!(world.record().live_count("s"), 0);
}

fn ping_count(record: &SimRecord) -> usize {
    let requests = record.server_requests("s").into_iter();
    requests
        .filter(|request| request.starts_with("ping"))
        .count()
}

#[tokio::test(start_paused = true)]
async fn only_quiet_server_is_pinged() {
    let tools = GenerationScript::with_tools([
        ("do", ToolBehaviour::Respond),
        (
            "slow",
            ToolBehaviour::RespondAfter(Duration::from_secs(200)),
        ),
    ]);
    let (world, host) = world_with(ServerScript::always(tools), server_spec("s"));
    assert!(wait_for_state(&host, "s", "ready").await);
    advance_clock(Duration::from_secs(29)).await;
    assert_eq!(ping_count(&world.record()), 0);
    advance_clock(Duration::from_secs(2)).await;
    assert_eq!(ping_count(&world.record()), 1);
    advance_clock(Duration::from_secs(10)).await;
    host.call(tool_call("s__do", "{}")).await.unwrap();
    advance_clock(Duration::from_secs(20)).await;
    assert_eq!(
        ping_count(&world.record()),
        1,
        "an answer is as good as a pong"
    );
    advance_clock(Duration::from_secs(30)).await;
    assert_eq!(ping_count(&world.record()), 2);
    host.call(tool_call("s__slow", "{}")).await.unwrap();
    assert_eq!(ping_count(&world.record()), 2, "it has something to do");
}

#[tokio::test(start_paused = true)]
async fn missed_pings_restart_server() {
    let (world, host) = world_with(ServerScript::always(healthy_server()), server_spec("s"));
    assert!(wait_for_state(&host, "s", "ready").await);
    advance_clock(Duration::from_secs(31)).await;
    world
        .latest_link("s")
        .unwrap()
        .set_script(healthy_server().never_respond("ping"));
    advance_clock(Duration::from_secs(110)).await;
    assert_eq!(host.server_status("s").unwrap().generation, 1, "two misses");
    assert!(wait_for_state(&host, "s", "backoff").await);
    let status = host.server_status("s").unwrap();
    assert_eq!(status.restart_count, 1);
    assert_eq!(
        &*status.last_error.unwrap().message,
        "does not answer pings"
    );
    let now = host.clock().now().0;
    assert!((149_000..=152_000).contains(&now), "{now}");
    assert!(wait_for_state(&host, "s", "ready").await);
    assert_eq!(world.record().live_count("s"), 1);
}

#[tokio::test(start_paused = true)]
async fn server_without_ping_support_is_kept() {
    let (world, host) = world_with(
        ServerScript::always(healthy_server().never_respond("ping")),
        server_spec("s"),
    );
    assert!(wait_for_state(&host, "s", "ready").await);
    advance_clock(Duration::from_secs(1_200)).await;
    assert!(ping_count(&world.record()) > 10);
    assert_eq!(host.server_status("s").unwrap().generation, 1);
    host.call(tool_call("s__do", "{}")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn answered_call_resets_missed_pings() {
    let (world, host) = world_with(ServerScript::always(healthy_server()), server_spec("s"));
    assert!(wait_for_state(&host, "s", "ready").await);
    advance_clock(Duration::from_secs(31)).await;
    world
        .latest_link("s")
        .unwrap()
        .set_script(healthy_server().never_respond("ping"));
    for _ in 0..5 {
        let before = ping_count(&world.record());
        world.wait_until(|record| ping_count(record) > before).await;
        advance_clock(Duration::from_secs(11)).await;
        // A missed ping; the server answers a call before the next ping.
        host.call(tool_call("s__do", "{}")).await.unwrap();
    }
    assert_eq!(host.server_status("s").unwrap().generation, 1);
}

#[tokio::test(start_paused = true)]
async fn ping_missed_during_call_is_ignored() {
    let gate = ReleaseGate::new_closed();
    let busy = || {
        GenerationScript::with_tools([("wait", ToolBehaviour::BlockOn(gate.clone()))])
            .never_respond("ping")
    };
    let tools = GenerationScript::with_tools([("wait", ToolBehaviour::BlockOn(gate.clone()))]);
    let (world, host) = world_with(ServerScript::always(tools), server_spec("s"));
    assert!(wait_for_state(&host, "s", "ready").await);
    advance_clock(Duration::from_secs(31)).await;
    world.latest_link("s").unwrap().set_script(busy());
    for nth in 1..=4 {
        let before = ping_count(&world.record());
        world.wait_until(|record| ping_count(record) > before).await;
        // The call starts during the ping and ends after its timeout.
        let waiting = spawn_calls(&host, "s__wait", 1);
        world
            .wait_until(|record| record.executions.len() == nth)
            .await;
        advance_clock(Duration::from_secs(11)).await;
        drop(waiting);
        run_until_idle().await;
    }
    assert_eq!(host.server_status("s").unwrap().generation, 1);
}

#[tokio::test(start_paused = true)]
async fn pings_can_be_disabled() {
    let spec = ServerSpec {
        ping: None,
        ..server_spec("s")
    };
    let (world, host) = world_with(ServerScript::always(healthy_server()), spec);
    assert!(wait_for_state(&host, "s", "ready").await);
    advance_clock(Duration::from_secs(300)).await;
    assert_eq!(ping_count(&world.record()), 0);
}
