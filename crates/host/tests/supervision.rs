//! How servers are started, watched, restarted, given up and stopped.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::time::Duration;

use bowline_core::call::Scope;
use bowline_core::error::{CallError, Class, Execution};
use bowline_core::supervision::RestartPolicy;
use bowline_host::catalog::ListKind;
use bowline_host::spec::ServerSpec;
use bowline_host::supervisor::Order;
use bowline_host::{Host, HostLimits};
use bowline_link::Exit;
use bowline_sim::{Act, Gate, Generation, Script, World, body, call, reaches, spec};
use tokio::task::JoinSet;

const WAIT: Duration = Duration::from_secs(60);

fn well() -> Generation {
    Generation::tools([("do", Act::Answers)])
}

fn lazy(server: &str) -> ServerSpec {
    ServerSpec {
        lazy: true,
        ..spec(server)
    }
}

/// A world with the one server `s`, and a host that has it in care.
fn world(script: Script, spec: ServerSpec) -> (World, Host) {
    let world = World::new([("s", script)]);
    let host = world.host(vec![spec], HostLimits::default());
    (world, host)
}

fn calls(host: &Host, tool: &str, count: usize) -> JoinSet<Result<String, CallError>> {
    let mut set = JoinSet::new();
    for _ in 0..count {
        let (host, call) = (host.clone(), call(tool, "{}"));
        set.spawn(async move { host.call(call).await.map(|reply| body(&reply)) });
    }
    set
}

#[tokio::test(start_paused = true)]
async fn a_lazy_server_is_started_by_its_first_call() {
    let (world, host) = world(Script::always(well()), lazy("s"));
    host.settled().await;
    assert_eq!(host.status_of("s").unwrap().state, "idle");
    assert_eq!(host.clock().now().0, 0, "nobody waits for a lazy server");
    assert!(world.record().starts.is_empty());

    let reply = host.call(call("s__do", "{}")).await.unwrap();

    assert!(body(&reply).contains("s#1"));
    assert_eq!(world.record().starts.len(), 1);
    assert_eq!(host.status_of("s").unwrap().state, "ready");
}

#[tokio::test(start_paused = true)]
async fn callers_waiting_for_a_start_share_one_start() {
    let gate = Gate::closed();
    let (world, host) = world(Script::always(well().hangs(&gate)), lazy("s"));
    let mut waiting = calls(&host, "s__do", 10);
    world.until(|record| record.starts.len() == 1).await;
    let late = calls(&host, "s__do", 1);
    gate.release();

    while let Some(outcome) = waiting.join_next().await {
        assert!(outcome.unwrap().is_ok());
    }
    assert!(late.join_all().await[0].is_ok());
    assert_eq!(world.record().starts.len(), 1);
    assert_eq!(world.record().executions.len(), 11);
}

#[tokio::test(start_paused = true)]
async fn a_slow_or_broken_server_delays_nobody() {
    let gate = Gate::closed();
    let world = World::new([
        ("broken", Script::always(Generation::fails("broken"))),
        ("good", Script::always(well())),
        ("slow", Script::always(well().hangs(&gate))),
    ]);
    let specs = ["broken", "good", "slow"].map(spec).to_vec();
    let host = world.host(specs, HostLimits::default());

    host.call(call("good__do", "{}")).await.unwrap();
    assert_eq!(host.clock().now().0, 0);
    host.settled().await;
    assert_eq!(
        host.clock().now().0,
        1_500,
        "the first list waits, but not long"
    );
    host.settled().await;
    assert_eq!(host.clock().now().0, 1_500, "later ones do not wait");
    let list = host.catalog().listing(&Scope::All, ListKind::Tools).result;
    assert!(String::from_utf8_lossy(&list).contains("good__do"));
    assert_eq!(host.status_of("slow").unwrap().state, "starting");

    gate.release();
    assert!(reaches(&host, "slow", "ready").await);
    assert!(host.call(call("slow__do", "{}")).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn six_parallel_failures_cause_one_restart() {
    let gate = Gate::closed();
    let first = Generation::tools([("do", Act::Hangs(gate))]);
    let (world, host) = world(Script::always(first).then(well()), spec("s"));
    let failing = calls(&host, "s__do", 6);
    world.until(|record| record.executions.len() == 6).await;

    assert!(world.kill("s", Exit::Signal(9)));

    for outcome in failing.join_all().await {
        let error = outcome.unwrap_err();
        assert!(matches!(error, CallError::ConnectionLost { .. }), "{error}");
    }
    assert!(reaches(&host, "s", "ready").await);
    assert_eq!(world.record().starts.len(), 2);
    let status = host.status_of("s").unwrap();
    assert_eq!((status.generation, status.restart_count), (2, 1));
    assert_eq!(world.record().executions.len(), 6, "nothing ran again");
}

#[tokio::test(start_paused = true)]
async fn an_exit_is_noticed_at_once_and_not_by_the_next_caller() {
    let (world, host) = world(Script::always(well()), spec("s"));
    assert!(reaches(&host, "s", "ready").await);

    assert!(world.kill("s", Exit::Status(3)));
    assert!(reaches(&host, "s", "backoff").await);

    let status = host.status_of("s").unwrap();
    assert_eq!(host.clock().now().0, 0);
    assert!(!status.active);
    assert_eq!((status.pid, status.uptime_ms), (None, None));
    let wait = status.retry_after_ms.unwrap();
    assert!((75..=100).contains(&wait), "{wait}");
    let error = status.last_error.unwrap();
    assert_eq!(&*error.message, "exit code 3");
    assert_eq!(error.class, Class::ConnectionLost.as_str());
    assert!(reaches(&host, "s", "ready").await);
    assert_eq!(host.status_of("s").unwrap().generation, 2);
    assert!(world.record().executions.is_empty());
}

#[tokio::test(start_paused = true)]
async fn stop_refuses_later_calls_and_start_serves_again() {
    let (world, host) = world(Script::always(well()), spec("s"));
    assert!(reaches(&host, "s", "ready").await);

    let status = host.order("s", Order::Stop, WAIT).await.unwrap();
    assert_eq!(
        (status.state, status.active, status.tools),
        ("stopped", false, 0)
    );
    assert_eq!(world.record().alive("s"), 0);
    for _ in 0..3 {
        let error = host.call(call("s__do", "{}")).await.unwrap_err();
        assert_eq!(error, CallError::Stopped { server: "s".into() });
        assert_eq!(error.execution(), Execution::NotStarted);
    }
    assert!(world.record().executions.is_empty());

    let status = host.order("s", Order::Start, WAIT).await.unwrap();
    assert_eq!((status.state, status.generation), ("ready", 2));
    let reply = host.call(call("s__do", "{}")).await.unwrap();
    assert!(body(&reply).contains("s#2"));
}

#[tokio::test(start_paused = true)]
async fn stop_of_an_unknown_server_names_it() {
    let world = World::new([("s", Script::always(Generation::tools([])))]);
    let host = world.host(vec![spec("s")], HostLimits::default());
    for order in [Order::Start, Order::Stop, Order::Restart, Order::Reload] {
        let refused = host.order("nobody", order, Duration::ZERO).await;
        let error = refused.err().map(|error| error.to_string());
        assert_eq!(
            error.as_deref(),
            Some("no server named `nobody`"),
            "{order:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_during_a_start_leaves_nothing_behind() {
    let gate = Gate::closed();
    let (world, host) = world(Script::always(well().hangs(&gate)), spec("s"));
    world.until(|record| record.starts.len() == 1).await;
    let waiting = calls(&host, "s__do", 2);

    host.order("s", Order::Stop, WAIT).await.unwrap();

    for outcome in waiting.join_all().await {
        let error = outcome.unwrap_err();
        assert_eq!(error, CallError::Stopped { server: "s".into() });
    }
    assert_eq!(world.record().alive("s"), 0);
    gate.release();
    assert_eq!(host.status_of("s").unwrap().state, "stopped");
}

#[tokio::test(start_paused = true)]
async fn an_order_to_start_does_not_disturb_a_start_under_way() {
    let gate = Gate::closed();
    let (world, host) = world(Script::always(well().hangs(&gate)), spec("s"));
    world.until(|record| record.starts.len() == 1).await;

    host.order("s", Order::Start, Duration::ZERO).await.unwrap();
    gate.release();
    assert!(reaches(&host, "s", "ready").await);
    host.order("s", Order::Start, WAIT).await.unwrap();

    assert_eq!(world.record().starts.len(), 1);
    assert_eq!(host.status_of("s").unwrap().generation, 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_during_a_restart_waits_for_it() {
    let slow = well().end_takes(Duration::from_secs(2));
    let (world, host) = world(Script::always(slow), spec("s"));
    assert!(reaches(&host, "s", "ready").await);

    let calls = async {
        assert!(reaches(&host, "s", "draining").await);
        host.call(call("s__do", "{}")).await
    };
    let (restarted, reply) = tokio::join!(host.order("s", Order::Restart, WAIT), calls);

    assert_eq!(restarted.unwrap().state, "ready");
    assert!(body(&reply.unwrap()).contains("s#2"));
    assert_eq!(world.record().alive("s"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_during_a_stop_is_refused_as_stopped() {
    let slow = well().end_takes(Duration::from_secs(2));
    let (world, host) = world(Script::always(slow), spec("s"));
    assert!(reaches(&host, "s", "ready").await);

    let calls = async {
        assert!(reaches(&host, "s", "draining").await);
        host.call(call("s__do", "{}")).await
    };
    let (_, outcome) = tokio::join!(host.order("s", Order::Stop, WAIT), calls);

    assert_eq!(
        outcome.unwrap_err(),
        CallError::Stopped { server: "s".into() }
    );
    assert!(world.record().executions.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_served_and_cannot_be_started_again_is_ejected_and_restart_clears_it() {
    let budget = 3;
    let bad = || Generation::fails("no luck");
    let script = Script::always(well())
        .then(bad())
        .then(bad())
        .then(bad())
        .then(well());
    let restart = RestartPolicy {
        restarts_max: budget,
        window: Duration::from_secs(24 * 3_600),
    };
    let spec = ServerSpec {
        restart,
        ..spec("s")
    };
    let (world, host) = world(script, spec);
    assert!(reaches(&host, "s", "ready").await);
    assert!(world.kill("s", Exit::Status(1)));
    assert!(reaches(&host, "s", "backoff").await);
    let waiting = calls(&host, "s__do", 3);

    assert!(reaches(&host, "s", "ejected").await);
    assert_eq!(host.status_of("s").unwrap().tools, 0, "nothing is offered");
    for outcome in waiting.join_all().await {
        let error = outcome.unwrap_err();
        assert_eq!(error.execution(), Execution::NotStarted, "{error}");
    }
    // However long one waits, and whoever calls, it is not tried again.
    tokio::time::advance(Duration::from_secs(3_600)).await;
    let error = host.call(call("s__do", "{}")).await.unwrap_err();
    assert!(matches!(error, CallError::Ejected { .. }), "{error}");
    assert_eq!(world.record().starts.len(), budget as usize + 1);
    let status = host.status_of("s").unwrap();
    assert!(status.ejected && !status.active);
    assert_eq!(status.restart_count, u64::from(budget));
    assert_eq!(status.generation, u64::from(budget) + 1);
    let reason = status.last_error.unwrap().message;
    assert!(reason.ends_with("handshake: no luck"), "{reason}");

    let status = host.order("s", Order::Restart, WAIT).await.unwrap();
    assert_eq!((status.state, status.ejected), ("ready", false));
    assert_eq!((status.restart_count, status.generation), (0, 5));
    assert!(host.call(call("s__do", "{}")).await.is_ok());
    // The whole budget is there again.
    assert!(world.kill("s", Exit::Status(1)));
    assert!(reaches(&host, "s", "backoff").await);
    assert_eq!(host.status_of("s").unwrap().restart_count, 1);
    assert!(reaches(&host, "s", "ready").await);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_keeps_dying_is_ejected_too_and_keeps_its_reason() {
    let (world, host) = world(Script::always(well()), spec("s"));
    let budget = spec("s").restart.restarts_max as usize;
    for _ in 0..=budget {
        assert!(reaches(&host, "s", "ready").await);
        assert!(world.kill("s", Exit::Status(1)));
        let mut states = host.server("s").unwrap().state();
        states
            .wait_for(|state| state.as_str() != "ready")
            .await
            .unwrap();
    }

    assert!(reaches(&host, "s", "ejected").await);
    let error = host.call(call("s__do", "{}")).await.unwrap_err();
    assert!(matches!(error, CallError::Ejected { .. }), "{error}");
    assert_eq!(world.record().starts.len(), budget + 1);
    let status = host.status_of("s").unwrap();
    assert_eq!(
        &*status.last_error.unwrap().message,
        "exit code 1",
        "a refusal is no failure"
    );
}

#[tokio::test(start_paused = true)]
async fn callers_are_told_when_the_next_start_is_not_near() {
    let mut spec = spec("s");
    spec.backoff.base = Duration::from_secs(4);
    let (world, host) = world(Script::always(Generation::fails("no")).then(well()), spec);
    assert!(reaches(&host, "s", "backoff").await);

    let error = host.call(call("s__do", "{}")).await.unwrap_err();

    let CallError::StartFailed { next, reason, .. } = &error else {
        panic!("{error}");
    };
    assert!(*next > Duration::from_secs(2), "{next:?}");
    assert!(reason.ends_with(": no"), "{reason}");
    assert_eq!(error.execution(), Execution::NotStarted);
    assert!(reaches(&host, "s", "ready").await);
    assert!(host.call(call("s__do", "{}")).await.is_ok());
    assert_eq!(world.record().starts.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_start_that_hangs_ends_at_its_timeout() {
    let script = Script::always(well().hangs(&Gate::closed())).then(well());
    let (world, host) = world(script, spec("s"));
    let reply = host.call(call("s__do", "{}")).await.unwrap();
    assert!(body(&reply).contains("s#2"));
    assert!(host.clock().now().0 >= 30_000);
    assert_eq!(world.record().alive("s"), 1);
}

#[tokio::test(start_paused = true)]
async fn status_tells_what_a_person_needs() {
    let gate = Gate::closed();
    let tools = [
        ("do", Act::Answers),
        ("wait", Act::Hangs(gate.clone())),
        ("die", Act::Dies),
    ];
    let (world, host) = world(Script::always(Generation::tools(tools)), spec("s"));
    let status = host.status_of("s").unwrap();
    assert_eq!(
        (status.state, status.active, status.tools),
        ("starting", false, 0)
    );
    assert!(reaches(&host, "s", "ready").await);

    host.call(call("s__do", "{}")).await.unwrap();
    let waiting = calls(&host, "s__wait", 2);
    world.until(|record| record.executions.len() == 3).await;
    tokio::time::advance(Duration::from_millis(250)).await;
    let status = host.status_of("s").unwrap();
    assert_eq!(
        (&*status.name, status.state, status.active),
        ("s", "ready", true)
    );
    assert_eq!((status.generation, status.restart_count), (1, 0));
    assert_eq!((status.tools, status.in_flight), (3, 2));
    assert_eq!((status.calls, status.errors), (1, 0));
    assert_eq!((status.pid, status.uptime_ms), (Some(1_001), Some(250)));
    assert_eq!((status.circuit, status.consecutive_failures), ("closed", 0));
    assert!(status.last_error.is_none() && status.retry_after_ms.is_none());
    gate.release();
    waiting.join_all().await;

    host.call(call("s__die", "{}")).await.unwrap_err();
    assert!(reaches(&host, "s", "backoff").await);
    let status = host.status_of("s").unwrap();
    assert_eq!((status.calls, status.errors, status.in_flight), (4, 1, 0));
    assert_eq!((status.circuit, status.consecutive_failures), ("closed", 1));
    assert_eq!(status.restart_count, 1);
    assert!(status.last_error.unwrap().message.contains("signal 9"));
    assert!(status.retry_after_ms.is_some());
    assert!(reaches(&host, "s", "ready").await);
    let status = host.status_of("s").unwrap();
    assert_eq!((status.generation, status.pid), (2, Some(1_002)));
    let age = status.last_error.unwrap().age_ms;
    assert!((75..=100).contains(&age), "{age}");
}

#[tokio::test(start_paused = true)]
async fn shutdown_stops_all_servers_and_ends_every_task() {
    let tool = Act::Hangs(Gate::closed());
    let slow = Generation::tools([("wait", tool)]).end_takes(Duration::from_secs(1));
    let world = World::new([
        ("busy", Script::always(slow)),
        ("failing", Script::always(Generation::fails("no"))),
        ("idle", Script::always(well())),
        ("starting", Script::always(well().hangs(&Gate::closed()))),
    ]);
    let specs = vec![
        spec("busy"),
        spec("failing"),
        lazy("idle"),
        spec("starting"),
    ];
    let host = world.host(specs, HostLimits::default());
    assert!(reaches(&host, "busy", "ready").await);
    let running = calls(&host, "busy__wait", 2);
    let waiting = calls(&host, "starting__do", 1);
    world.until(|record| record.executions.len() == 2).await;

    host.shutdown().await;

    let record = world.record();
    for server in ["busy", "failing", "idle", "starting"] {
        assert_eq!(record.alive(server), 0, "{server}");
    }
    for outcome in running.join_all().await {
        assert_eq!(outcome.unwrap_err().execution(), Execution::Unknown);
    }
    for outcome in waiting.join_all().await {
        assert_eq!(outcome.unwrap_err().execution(), Execution::NotStarted);
    }
    let error = host.call(call("busy__wait", "{}")).await.unwrap_err();
    assert_eq!(error, CallError::ShuttingDown);
    let tasks = host.tasks().clone();
    drop(host);
    let finished = tokio::time::timeout(WAIT, tasks.finished()).await;
    assert!(finished.is_ok(), "a task lives on");
    assert_eq!(world.record().starts.len(), record.starts.len());
}
