//! The breaker as callers and watchers meet it.
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
use bowline_core::call::{Call, Principal, Reply, Role, Scope};
use bowline_core::caller::CallerEnd;
use bowline_core::error::{CallError, Class, Execution};
use bowline_host::events::{Event, What};
use bowline_host::spec::ServerSpec;
use bowline_host::supervisor::Order;
use bowline_host::{Host, HostLimits};
use bowline_link::LinkEvent;
use bowline_sim::{Act, Gate, Generation, Hearer, Script, World, call, reaches, spec};
use tokio::sync::broadcast;
use tokio::task::JoinSet;

const REST: Duration = Duration::from_secs(10);

fn offer(act: Act) -> Generation {
    Generation::tools([("do", act), ("other", Act::Answers)])
}

/// A server whose breaker opens after two failures, and a host in which it is ready.
async fn touchy(script: Script) -> (World, Host, broadcast::Receiver<Event>) {
    let world = World::new([("s", script)]);
    let spec = ServerSpec {
        breaker: BreakerPolicy {
            failures_max: 2,
            rest: REST,
        },
        call_timeout: Duration::from_secs(5),
        ..spec("s")
    };
    let host = world.host(vec![spec], HostLimits::default());
    let events = host.events().watch();
    assert!(reaches(&host, "s", "ready").await);
    (world, host, events)
}

async fn do_it(host: &Host) -> Result<Reply, CallError> {
    host.call(call("s__do", "{}")).await
}

/// Calls twice in vain, so that the breaker opens.
async fn open(host: &Host) {
    for _ in 0..2 {
        do_it(host).await.unwrap_err();
    }
    assert_eq!(host.status_of("s").unwrap().circuit, "open");
}

/// What was told of the circuit so far.
fn told(events: &mut broadcast::Receiver<Event>) -> Vec<&'static str> {
    let mut circuits = Vec::new();
    while let Ok(event) = events.try_recv() {
        if let What::Circuit { circuit, .. } = event.what {
            circuits.push(circuit);
        }
    }
    circuits
}

#[tokio::test(start_paused = true)]
async fn each_change_of_the_circuit_is_told_once() {
    let gate = Gate::closed();
    let (world, host, mut events) = touchy(Script::always(offer(Act::Hangs(gate.clone())))).await;
    assert!(told(&mut events).is_empty());
    open(&host).await;
    for _ in 0..5 {
        do_it(&host).await.unwrap_err();
    }
    assert_eq!(told(&mut events), ["open"]);

    tokio::time::advance(REST).await;
    do_it(&host).await.unwrap_err();
    assert_eq!(told(&mut events), ["half_open", "open"], "the probe failed");

    tokio::time::advance(REST).await;
    gate.release();
    for _ in 0..3 {
        do_it(&host).await.unwrap();
    }
    assert_eq!(told(&mut events), ["half_open", "closed"]);
    assert_eq!(world.record().starts.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_order_of_a_person_closes_the_breaker_and_that_is_told() {
    let (_world, host, mut events) =
        touchy(Script::always(offer(Act::Hangs(Gate::closed()))).then(offer(Act::Answers))).await;
    open(&host).await;
    let wait = Duration::from_secs(60);
    host.order("s", Order::Restart, wait).await.unwrap();
    assert_eq!(told(&mut events), ["open", "closed"]);
    do_it(&host).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn of_many_callers_at_a_half_open_breaker_one_goes_through() {
    let script = Script::always(offer(Act::Hangs(Gate::closed())));
    let (world, host, _) = touchy(script).await;
    open(&host).await;
    tokio::time::advance(REST).await;
    let mut calls = JoinSet::new();
    for _ in 0..20 {
        let host = host.clone();
        calls.spawn(async move { do_it(&host).await.unwrap_err() });
    }
    let errors = calls.join_all().await;
    let resting = errors
        .iter()
        .filter(|error| matches!(error, CallError::Resting { .. }));
    assert_eq!(resting.count(), 19);
    assert_eq!(
        world.record().executions.len(),
        3,
        "two failures and a probe"
    );
}

#[tokio::test(start_paused = true)]
async fn a_probe_whose_caller_leaves_makes_room_for_the_next_at_every_stage() {
    // Left while the tool runs.
    let script = Script::always(offer(Act::Hangs(Gate::closed())));
    let (world, host, mut events) = touchy(script).await;
    open(&host).await;
    tokio::time::advance(REST).await;
    for nth in 3..6 {
        tokio::select! {
            biased;
            outcome = do_it(&host) => panic!("the call ended: {outcome:?}"),
            _ = world.until(|record| record.executions.len() >= nth) => {}
        }
        assert_eq!(host.status_of("s").unwrap().circuit, "half_open");
    }
    assert_eq!(told(&mut events), ["open", "half_open"], "still half open");
    host.call(call("s__other", "{}")).await.unwrap();
    assert_eq!(told(&mut events), ["closed"]);

    // Left while the server starts.
    let gate = Gate::closed();
    let script = Script::always(offer(Act::Dies))
        .then(offer(Act::Dies))
        .then(offer(Act::Answers).hangs(&gate));
    let (world, host, _) = touchy(script).await;
    open(&host).await;
    tokio::time::advance(REST).await;
    world.until(|record| record.starts.len() == 3).await;
    let probe = tokio::time::timeout(Duration::from_secs(1), do_it(&host));
    assert!(probe.await.is_err(), "it waits for the start");
    gate.release();
    assert!(reaches(&host, "s", "ready").await);
    do_it(&host).await.unwrap();
    assert_eq!(host.status_of("s").unwrap().circuit, "closed");
}

#[tokio::test(start_paused = true)]
async fn tasks_and_subscriptions_pass_the_same_gate() {
    let initialize = concat!(
        r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"tasks":{"list":{}},"#,
        r#""resources":{"subscribe":true}},"serverInfo":{"name":"s","version":"1"}}"#,
    );
    let made = r#"{"task":{"taskId":"t1","status":"working"}}"#;
    let offer = Generation::tools([
        ("do", Act::Hangs(Gate::closed())),
        ("make", Act::Says(made.to_owned())),
    ])
    .introduces(initialize)
    .answers(
        "resources/list",
        "",
        r#"{"resources":[{"uri":"a:b","name":"b"}]}"#,
    )
    .answers("tasks/list", "", r#"{"tasks":[{"taskId":"t1"}]}"#);
    let (world, host, _) = touchy(Script::always(offer)).await;
    let make = Call {
        makes_task: true,
        ..call("s__make", "{}")
    };
    host.call(make).await.unwrap();
    open(&host).await;
    let before = world.record().requests.len();

    let owner = Principal::new("owner", Role::Owner);
    let listed = host.tasks_of(&owner, &Scope::All).await;
    assert!(
        matches!(listed, Err(CallError::Resting { .. })),
        "{listed:?}"
    );
    let hearer: Arc<dyn CallerEnd> = Hearer::of(1);
    let subscribed = host.subscribe(&owner, &Scope::All, &hearer, "a:b").await;
    assert!(
        matches!(subscribed, Err(CallError::Resting { .. })),
        "{subscribed:?}"
    );
    assert_eq!(
        world.record().requests.len(),
        before,
        "resting means resting"
    );

    tokio::time::advance(REST).await;
    let listed = host.tasks_of(&owner, &Scope::All).await.unwrap();
    assert!(listed.starts_with(b"{\"tasks\":[{"), "{listed:?}");
    assert_eq!(host.status_of("s").unwrap().circuit, "closed");
}

#[tokio::test(start_paused = true)]
async fn short_deadlines_of_callers_leave_breaker_closed() {
    let (world, host, mut events) = touchy(Script::always(offer(Act::Hangs(Gate::closed())))).await;
    let hasty = |ms| Call {
        principal: Arc::new(Principal::new("low", Role::OwnersAgent)),
        deadline: Some(host.clock().now().plus(Duration::from_millis(ms))),
        ..call("s__do", "{}")
    };
    for nth in 1..=5 {
        let error = host.call(hasty(60)).await.unwrap_err();
        assert_eq!(error.class(), Class::Timeout);
        assert_eq!(error.execution(), Execution::Unknown);
        assert_eq!(world.record().executions.len(), nth);
    }
    let status = host.status_of("s").unwrap();
    assert_eq!((status.circuit, status.consecutive_failures), ("closed", 0));
    assert!(told(&mut events).is_empty());
    host.call(call("s__other", "{}")).await.unwrap();

    // The server's own timeout counts, also for a caller that would have waited as long or longer.
    for ms in [5_000, 60_000] {
        host.call(hasty(ms)).await.unwrap_err();
    }
    assert_eq!(told(&mut events), ["open"]);
}

#[tokio::test(start_paused = true)]
async fn what_the_gateway_asks_for_itself_never_counts() {
    let slow = offer(Act::Answers).list_takes(Duration::from_secs(3_600));
    let (world, host, mut events) = touchy(Script::always(offer(Act::Answers))).await;
    world.link("s").unwrap().follow(slow);
    for _ in 0..5 {
        assert!(world.say("s", LinkEvent::ToolsChanged));
        let silence = std::future::pending::<()>();
        let _over = tokio::time::timeout(Duration::from_secs(120), silence).await;
    }
    let status = host.status_of("s").unwrap();
    assert_eq!((status.circuit, status.consecutive_failures), ("closed", 0));
    assert!(told(&mut events).is_empty());
    assert_eq!(host.server("s").unwrap().totals().calls(), 0);
    do_it(&host).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn calls_run_beside_each_other_and_a_slow_one_holds_up_nobody() {
    let (_world, host, _) = touchy(Script::always(offer(Act::Hangs(Gate::closed())))).await;
    let quick = async {
        for _ in 0..100 {
            host.call(call("s__other", "{}")).await.unwrap();
        }
        host.clock().now().0
    };
    let (slow, ended_ms) = tokio::join!(do_it(&host), quick);
    assert_eq!(slow.unwrap_err().class(), Class::Timeout);
    assert_eq!(ended_ms, 0);
}
