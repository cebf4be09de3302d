//! Reload, stop and retirement: what becomes of calls.

use std::time::Duration;

use bowline_core::error::{CallError, Execution};
use bowline_host::HostLimits;
use bowline_host::spec::ServerSpec;
use bowline_host::supervisor::Order;
use bowline_link::Exit;
use bowline_sim::{Act, Gate, Generation, Script, World, body, call, reaches, spec};
use tokio::task::JoinSet;

use super::{WAIT, calls, lazy, pass, settle, states, well, world};

fn hanging(gate: &Gate) -> Generation {
    Generation::tools([("do", Act::Answers), ("wait", Act::Hangs(gate.clone()))])
}

#[tokio::test(start_paused = true)]
async fn reload_lets_calls_in_flight_end_and_new_ones_wait_for_the_new_link() {
    let gate = Gate::closed();
    let (world, host) = world(Script::always(hanging(&gate)), spec("s"));
    assert!(reaches(&host, "s", "ready").await);
    let old = calls(&host, "s__wait", 3);
    world.until(|record| record.executions.len() == 3).await;

    host.order("s", Order::Reload, Duration::ZERO)
        .await
        .unwrap();
    assert!(reaches(&host, "s", "draining").await);
    let new = calls(&host, "s__do", 2);
    settle().await;
    assert_eq!(
        world.record().executions.len(),
        3,
        "nobody gets the old link"
    );
    assert_eq!(world.record().starts_of("s"), 1);
    gate.release();
    for outcome in old.join_all().await {
        assert!(outcome.unwrap().contains("s#1"), "it ended where it began");
    }
    for outcome in new.join_all().await {
        assert!(outcome.unwrap().contains("s#2"));
    }
    let status = host.status_of("s").unwrap();
    assert_eq!((status.state, status.generation), ("ready", 2));
    assert_eq!((status.restart_count, status.errors), (0, 0));
    assert_eq!(world.record().alive("s"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_reload_waits_no_longer_than_it_may() {
    let spec = ServerSpec {
        drain_timeout: Duration::from_secs(7),
        ..spec("s")
    };
    let (world, host) = world(Script::always(hanging(&Gate::closed())), spec);
    assert!(reaches(&host, "s", "ready").await);
    let old = calls(&host, "s__wait", 1);
    world.until(|record| record.executions.len() == 1).await;
    host.order("s", Order::Reload, WAIT).await.unwrap();
    assert_eq!(host.clock().now().0, 7_000);
    let error = old.join_all().await.remove(0).unwrap_err();
    assert_eq!(error.execution(), Execution::Unknown, "{error}");
    assert_eq!(host.status_of("s").unwrap().generation, 2);
}

#[tokio::test(start_paused = true)]
async fn reload_clears_the_breaker_the_budget_and_the_failures() {
    let tools = Generation::tools([("do", Act::Answers), ("hang", Act::Hangs(Gate::closed()))]);
    let mut spec = ServerSpec {
        call_timeout: Duration::from_secs(1),
        ..spec("s")
    };
    spec.breaker.failures_max = 2;
    let (world, host) = world(Script::always(tools), spec);
    assert!(reaches(&host, "s", "ready").await);
    assert!(world.kill("s", Exit::Status(1)));
    assert!(reaches(&host, "s", "backoff").await);
    assert!(reaches(&host, "s", "ready").await);
    for _ in 0..2 {
        host.call(call("s__hang", "{}")).await.unwrap_err();
    }
    let status = host.status_of("s").unwrap();
    assert_eq!((status.circuit, status.restart_count), ("open", 1));
    let error = host.call(call("s__do", "{}")).await.unwrap_err();
    assert!(matches!(error, CallError::Resting { .. }), "{error}");

    let status = host.order("s", Order::Reload, WAIT).await.unwrap();
    assert_eq!((status.circuit, status.restart_count), ("closed", 0));
    assert_eq!(status.consecutive_failures, 0);
    host.call(call("s__do", "{}")).await.unwrap();
    assert!(world.kill("s", Exit::Status(1)));
    assert!(reaches(&host, "s", "backoff").await);
    let status = host.status_of("s").unwrap();
    assert_eq!(status.restart_count, 1, "the whole budget is there again");
}

#[tokio::test(start_paused = true)]
async fn reload_of_an_idle_server_leaves_it_idle_until_the_next_call() {
    let (world, host) = world(Script::always(well()), lazy("s"));
    let status = host.order("s", Order::Reload, WAIT).await.unwrap();
    assert_eq!(status.state, "idle");
    settle().await;
    assert_eq!(world.record().starts_of("s"), 0);
    host.call(call("s__do", "{}")).await.unwrap();
    assert_eq!(world.record().starts_of("s"), 1);
}

#[tokio::test(start_paused = true)]
async fn reload_starts_a_stopped_server() {
    let (_world, host) = world(Script::always(well()), lazy("s"));
    host.order("s", Order::Stop, WAIT).await.unwrap();
    let error = host.call(call("s__do", "{}")).await.unwrap_err();
    assert_eq!(error, CallError::Stopped { server: "s".into() });
    let status = host.order("s", Order::Reload, WAIT).await.unwrap();
    assert_eq!(status.state, "ready");
}

#[tokio::test(start_paused = true)]
async fn a_stop_during_a_drain_stops_at_once_and_refuses_who_waits() {
    let (world, host) = world(Script::always(hanging(&Gate::closed())), spec("s"));
    assert!(reaches(&host, "s", "ready").await);
    let old = calls(&host, "s__wait", 1);
    world.until(|record| record.executions.len() == 1).await;
    host.order("s", Order::Reload, Duration::ZERO)
        .await
        .unwrap();
    assert!(reaches(&host, "s", "draining").await);
    let waiting = calls(&host, "s__do", 2);
    settle().await;
    let status = host.order("s", Order::Stop, WAIT).await.unwrap();
    assert_eq!(status.state, "stopped");
    assert_eq!(host.clock().now().0, 0, "nothing is waited for");
    for outcome in waiting.join_all().await {
        let stopped = CallError::Stopped { server: "s".into() };
        assert_eq!(outcome.unwrap_err(), stopped);
    }
    assert!(old.join_all().await[0].is_err());
    assert_eq!(world.record().alive("s"), 0);
    settle().await;
    assert_eq!(world.record().starts_of("s"), 1, "stopped means stopped");
}

#[tokio::test(start_paused = true)]
async fn a_retired_server_ends_its_calls_and_refuses_who_waits_and_who_comes() {
    let gate = Gate::closed();
    let (world, host) = world(Script::always(hanging(&gate)), spec("s"));
    assert!(reaches(&host, "s", "ready").await);
    let old = calls(&host, "s__wait", 2);
    world.until(|record| record.executions.len() == 2).await;
    let mut events = host.events().watch();
    let server = host.server("s").unwrap();
    let retired = {
        let server = server.clone();
        async move { server.retire().await }
    };
    let mut retiring = JoinSet::new();
    retiring.spawn(retired);
    settle().await;
    assert!(server.is_retired());
    let waiting = calls(&host, "s__do", 2);
    settle().await;
    gate.release();
    retiring.join_all().await;
    for outcome in old.join_all().await {
        assert!(outcome.unwrap().contains("s#1"));
    }
    for outcome in waiting.join_all().await {
        let stopped = CallError::Stopped { server: "s".into() };
        assert_eq!(outcome.unwrap_err(), stopped);
    }
    let error = host.call(call("s__do", "{}")).await.unwrap_err();
    assert_eq!(error, CallError::Stopped { server: "s".into() });
    assert_eq!(world.record().alive("s"), 0);
    assert_eq!(world.record().starts_of("s"), 1);
    assert!(
        host.catalog().offer("s").is_some(),
        "it may be another's now"
    );
    assert_eq!(states(&mut events), [("draining", 1, None)]);
    server.retire().await;
    assert!(server.order(Order::Start).await.is_err(), "it is gone");
}

#[tokio::test(start_paused = true)]
async fn a_server_can_be_retired_in_any_state() {
    let world = World::new([
        ("failing", Script::always(Generation::fails("no"))),
        ("idle", Script::always(well())),
        ("starting", Script::always(well().hangs(&Gate::closed()))),
        ("stopped", Script::always(well())),
    ]);
    let specs = vec![
        spec("failing"),
        lazy("idle"),
        spec("starting"),
        spec("stopped"),
    ];
    let host = world.host(specs, HostLimits::default());
    host.order("stopped", Order::Stop, WAIT).await.unwrap();
    settle().await;
    for name in ["failing", "idle", "starting", "stopped"] {
        host.server(name).unwrap().retire().await;
        let error = host.call(call(&format!("{name}__do"), "{}")).await;
        let stopped = CallError::Stopped {
            server: name.into(),
        };
        assert_eq!(error.unwrap_err(), stopped, "{name}");
        assert_eq!(world.record().alive(name), 0, "{name}");
    }
    let starts = world.record().starts.len();
    pass(Duration::from_secs(600)).await;
    assert_eq!(world.record().starts.len(), starts);
}

#[tokio::test(start_paused = true)]
async fn every_change_of_state_is_an_event() {
    let (_world, host) = world(Script::always(well()), spec("s"));
    let mut events = host.events().watch();
    assert!(reaches(&host, "s", "ready").await);
    host.order("s", Order::Reload, WAIT).await.unwrap();
    host.order("s", Order::Stop, WAIT).await.unwrap();
    let seen: Vec<_> = states(&mut events)
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
        .call(call("s__do", "{}"))
        .await
        .map(|reply| body(&reply));
    assert!(reply.is_err());
}
