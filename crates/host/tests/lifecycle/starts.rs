//! Start timeouts and concurrent starts.

use std::sync::Arc;
use std::time::Duration;

use bowline_host::HostLimits;
use bowline_host::spec::{Isolation, ServerSpec};
use bowline_host::supervisor::ServerAction;
use bowline_link::LinkExit;
use bowline_testkit::{
    RecordingClient, ReleaseGate, ServerScript, SimWorld, server_spec, tool_call, wait_for_state,
};
use tokio::task::JoinSet;

use super::{
    MemoryManifests, OddDial, WAIT, advance_clock, healthy_server, run_until_idle, start_host,
};

#[tokio::test(start_paused = true)]
async fn install_timeout_applies_until_first_ready() {
    let kept = Arc::new(MemoryManifests::default());
    let world = SimWorld::new([("s", ServerScript::always(healthy_server()))]);
    let installed = ServerSpec {
        install_timeout: Some(Duration::from_secs(300)),
        ..server_spec("s")
    };
    let (install, start) = (Duration::from_secs(300), Duration::from_secs(30));
    let dial = OddDial::new(&world, []);
    let first = start_host(dial.clone(), &kept, vec![installed.clone()]);
    assert!(wait_for_state(&first, "s", "ready").await);
    assert!(world.kill("s", LinkExit::Status(1)));
    assert!(wait_for_state(&first, "s", "backoff").await);
    assert!(wait_for_state(&first, "s", "ready").await);
    first
        .apply_action("s", ServerAction::Reload, WAIT)
        .await
        .unwrap();
    assert_eq!(*dial.allowed.lock().unwrap(), [install, start, start]);
    first.shutdown().await;

    let dial = OddDial::new(&world, []);
    let second = start_host(dial.clone(), &kept, vec![installed]);
    assert!(wait_for_state(&second, "s", "ready").await);
    assert_eq!(*dial.allowed.lock().unwrap(), [start], "it was seen before");
}

#[tokio::test(start_paused = true)]
async fn concurrent_starts_are_limited() {
    let names = ["a", "b", "c", "d", "e"];
    let gate = ReleaseGate::new_closed();
    let world = SimWorld::new(names.map(|name| {
        (
            name,
            ServerScript::always(healthy_server().hang_start(&gate)),
        )
    }));
    let limits = HostLimits {
        starts_max: 2,
        ..HostLimits::default()
    };
    let host = world.start_host(names.map(server_spec).to_vec(), limits);
    run_until_idle().await;
    assert_eq!(world.record().starts.len(), 2);
    advance_clock(Duration::from_millis(1_900)).await;
    assert_eq!(world.record().starts.len(), 2);
    advance_clock(Duration::from_millis(200)).await;
    assert_eq!(world.record().starts.len(), 4, "those that hang give way");
    gate.release();
    run_until_idle().await;
    assert_eq!(
        world.record().starts.len(),
        5,
        "those that are done as well"
    );
    for name in names {
        assert!(wait_for_state(&host, name, "ready").await);
    }
}

#[tokio::test(start_paused = true)]
async fn server_waiting_to_start_can_be_stopped() {
    let world = SimWorld::new([
        (
            "a",
            ServerScript::always(healthy_server().hang_start(&ReleaseGate::new_closed())),
        ),
        (
            "b",
            ServerScript::always(healthy_server().hang_start(&ReleaseGate::new_closed())),
        ),
    ]);
    let limits = HostLimits {
        starts_max: 1,
        ..HostLimits::default()
    };
    let host = world.start_host(vec![server_spec("a"), server_spec("b")], limits);
    run_until_idle().await;
    assert_eq!(world.record().starts.len(), 1);
    let waits = if world.record().start_count("a") == 1 {
        "b"
    } else {
        "a"
    };
    let status = host
        .apply_action(waits, ServerAction::Stop, WAIT)
        .await
        .unwrap();
    assert_eq!(&*status.state, "stopped");
    advance_clock(Duration::from_secs(5)).await;
    assert_eq!(world.record().start_count(waits), 0);
}

#[tokio::test(start_paused = true)]
async fn dedicated_links_share_start_limit() {
    let gate = ReleaseGate::new_closed();
    let script = ServerScript::always(healthy_server()).then(healthy_server().hang_start(&gate));
    let world = SimWorld::new([("s", script)]);
    let limits = HostLimits {
        starts_max: 1,
        ..HostLimits::default()
    };
    let spec = ServerSpec {
        isolation: Isolation::Session,
        ..server_spec("s")
    };
    let host = world.start_host(vec![spec], limits);
    assert!(wait_for_state(&host, "s", "ready").await);
    let mut calls = JoinSet::new();
    for session in [1, 2] {
        let mut own = tool_call("s__do", "{}");
        own.message.client = Some(RecordingClient::new(session));

        let host = host.clone();
        calls.spawn(async move { host.call(own).await.is_ok() });
    }
    run_until_idle().await;
    assert_eq!(world.record().start_count("s"), 2, "one of the two waits");
    advance_clock(Duration::from_millis(2_100)).await;
    assert_eq!(world.record().start_count("s"), 3);
    gate.release();
    assert_eq!(calls.join_all().await, [true, true]);
}
