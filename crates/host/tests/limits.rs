//! How much one server takes on at once, who waits, and what does not fit.
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
use bowline_core::call::{Call, Principal, Reply, Role};
use bowline_core::error::{CallError, Class, Execution, Retry};
use bowline_core::load::Outcome;
use bowline_host::spec::{ServerSpec, ToolRule};
use bowline_host::supervisor::Supervisor;
use bowline_host::{Host, HostLimits};
use bowline_sim::{Act, Gate, Generation, Script, World, call, reaches, spec};
use tokio::task::JoinSet;

/// A server that has at most `calls` calls in flight while `queue` wait.
fn narrow(calls: usize, queue: usize) -> ServerSpec {
    ServerSpec {
        calls_max: calls,
        queue_max: queue,
        call_timeout: Duration::from_secs(10),
        ..spec("s")
    }
}

async fn ready(act: Act, spec: ServerSpec) -> (World, Host) {
    let offer = Generation::tools([("do", act), ("other", Act::Answers)]);
    let world = World::new([("s", Script::always(offer))]);
    let host = world.host(vec![spec], HostLimits::default());
    assert!(reaches(&host, "s", "ready").await);
    (world, host)
}

fn server(host: &Host) -> Supervisor {
    host.server("s").unwrap()
}

fn numbered(host: &Host, nth: usize) -> impl Future<Output = Result<Reply, CallError>> + use<> {
    let (host, call) = (host.clone(), call("s__do", &format!("{{\"n\":{nth}}}")));
    async move { host.call(call).await }
}

/// Lets everything that can go on go on.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_never_has_more_calls_than_it_may_and_the_others_wait_in_order() {
    let (world, host) = ready(Act::AnswersAfter(Duration::from_secs(1)), narrow(2, 10)).await;
    let mut calls = JoinSet::new();
    for nth in 0..8 {
        calls.spawn(numbered(&host, nth));
        settle().await;
    }
    assert_eq!(world.record().executions.len(), 2);
    assert_eq!(host.status_of("s").unwrap().in_flight, 2);
    assert_eq!(
        (server(&host).turns_taken(), server(&host).queued()),
        (2, 6)
    );

    while let Some(outcome) = calls.join_next().await {
        outcome.unwrap().unwrap();
        assert!(host.status_of("s").unwrap().in_flight <= 2);
    }
    assert_eq!(host.clock().now().0, 4_000, "two at a time");
    let ran = world.record().executions;
    let ran: Vec<_> = ran.iter().map(|deed| deed.arguments.clone()).collect();
    let expect: Vec<_> = (0..8).map(|nth| format!("{{\"n\":{nth}}}")).collect();
    assert_eq!(ran, expect, "first come, first served");
    assert_eq!(
        (server(&host).turns_taken(), server(&host).queued()),
        (0, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn what_does_not_fit_the_queue_is_refused_at_once_and_counted() {
    let gate = Gate::closed();
    let (world, host) = ready(Act::Hangs(gate.clone()), narrow(1, 1)).await;
    let mut calls = JoinSet::new();
    calls.spawn(numbered(&host, 0));
    calls.spawn(numbered(&host, 1));
    settle().await;

    let error = numbered(&host, 2).await.unwrap_err();

    let expect = CallError::ServerBusy {
        server: "s".into(),
        limit: 1,
    };
    assert_eq!(error, expect);
    assert_eq!(host.clock().now().0, 0, "at once");
    assert_eq!(error.class(), Class::Throttled);
    assert_eq!(error.execution(), Execution::NotStarted);
    assert_eq!(error.retry(), Retry::Safe);
    assert_eq!(server(&host).totals().sheds(), 1);
    gate.release();
    while let Some(outcome) = calls.join_next().await {
        outcome.unwrap().unwrap();
    }
    assert_eq!(world.record().executions.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn who_waits_until_the_deadline_did_not_run_and_says_nothing_against_the_server() {
    let touchy = ServerSpec {
        breaker: BreakerPolicy {
            failures_max: 2,
            rest: Duration::from_secs(60),
        },
        ..narrow(1, 10)
    };
    let (world, host) = ready(Act::Hangs(Gate::closed()), touchy).await;
    let hold = Call {
        deadline: Some(host.clock().now().plus(Duration::from_secs(9))),
        ..call("s__do", "{}")
    };
    let patient = |nth| {
        let deadline = Some(host.clock().now().plus(Duration::from_secs(3)));
        let call = Call {
            deadline,
            ..call("s__do", &format!("{{\"n\":{nth}}}"))
        };
        let host = host.clone();
        async move { host.call(call).await }
    };
    let waiting = async { tokio::join!(patient(1), patient(2), patient(3)) };
    let (held, (one, two, three)) = tokio::join!(host.call(hold), waiting);
    assert_eq!(held.unwrap_err().class(), Class::Timeout);
    for outcome in [one, two, three] {
        let error = outcome.unwrap_err();
        let expect = CallError::QueuedTooLong {
            server: "s".into(),
            limit: 1,
            waited_ms: 3_000,
        };
        assert_eq!(error, expect);
        assert_eq!(error.class(), Class::Throttled);
        assert_eq!(error.execution(), Execution::NotStarted);
        assert_eq!(error.retry(), Retry::Safe);
    }
    assert_eq!(
        world.record().executions.len(),
        1,
        "those that waited never ran"
    );
    assert_eq!(server(&host).queued(), 0);
    let status = host.status_of("s").unwrap();
    assert_eq!((status.circuit, status.consecutive_failures), ("closed", 0));
    let totals = server(&host).totals();
    assert_eq!((totals.sheds(), totals.errors()), (3, 4));
}

#[tokio::test(start_paused = true)]
async fn who_leaves_the_queue_frees_the_place_in_it() {
    let gate = Gate::closed();
    let (world, host) = ready(Act::Hangs(gate.clone()), narrow(1, 1)).await;
    let mut held = JoinSet::new();
    held.spawn(numbered(&host, 0));
    settle().await;
    let mut left = JoinSet::new();
    left.spawn(numbered(&host, 1));
    settle().await;
    assert_eq!(server(&host).queued(), 1);
    left.shutdown().await;
    assert_eq!(server(&host).queued(), 0);

    let mut next = JoinSet::new();
    next.spawn(numbered(&host, 2));
    settle().await;
    gate.release();
    assert!(held.join_next().await.unwrap().unwrap().is_ok());
    assert!(next.join_next().await.unwrap().unwrap().is_ok());
    let ran = world.record();
    assert_eq!(ran.executions_with("{\"n\":1}"), 0, "who left never ran");
    assert_eq!(ran.executions.len(), 2);
    assert_eq!(server(&host).totals().ended(Outcome::Cancelled), 1);
}

#[tokio::test(start_paused = true)]
async fn a_busy_server_keeps_nobody_from_another() {
    let hung = Generation::tools([("do", Act::Hangs(Gate::closed()))]);
    let well = Generation::tools([("do", Act::Answers)]);
    let scripts = [("s", Script::always(hung)), ("t", Script::always(well))];
    let world = World::new(scripts);
    let host = world.host(vec![narrow(1, 1), spec("t")], HostLimits::default());
    assert!(reaches(&host, "s", "ready").await && reaches(&host, "t", "ready").await);
    let mut calls = JoinSet::new();
    calls.spawn(numbered(&host, 0));
    calls.spawn(numbered(&host, 1));
    settle().await;
    for _ in 0..50 {
        host.call(call("t__do", "{}")).await.unwrap();
    }
    assert_eq!(host.clock().now().0, 0);
}

#[tokio::test(start_paused = true)]
async fn a_tool_has_a_deadline_of_its_own() {
    let rule = ToolRule {
        timeout: Some(Duration::from_secs(2)),
        ..ToolRule::default()
    };
    for (rules, ends_ms) in [(vec![("do".to_owned(), rule)], 2_000), (vec![], 10_000)] {
        let spec = ServerSpec {
            tools: rules.into_iter().collect(),
            ..narrow(8, 8)
        };
        let (_world, host) = ready(Act::Hangs(Gate::closed()), spec).await;
        let error = numbered(&host, 0).await.unwrap_err();
        assert_eq!(error.class(), Class::Timeout);
        assert_eq!(host.clock().now().0, ends_ms);
    }
    let longer = ToolRule {
        timeout: Some(Duration::from_secs(60)),
        ..ToolRule::default()
    };
    let spec = ServerSpec {
        tools: [("do".to_owned(), longer)].into(),
        ..narrow(8, 8)
    };
    let (_world, host) = ready(Act::Hangs(Gate::closed()), spec).await;
    numbered(&host, 0).await.unwrap_err();
    assert_eq!(
        host.clock().now().0,
        60_000,
        "a person may give a tool more"
    );
}

#[tokio::test(start_paused = true)]
async fn one_principal_cannot_use_up_the_seats_of_another_and_both_are_seen() {
    let world = World::new([(
        "s",
        Script::always(Generation::tools([("do", Act::Hangs(Gate::closed()))])),
    )]);
    let limits = HostLimits {
        principal_calls_max: 2,
        ..HostLimits::default()
    };
    let host = world.host(vec![spec("s")], limits);
    assert!(reaches(&host, "s", "ready").await);
    let by = |name: &str| Call {
        principal: Arc::new(Principal::new(name, Role::Owner)),
        ..call("s__do", "{}")
    };
    let mut calls = JoinSet::new();
    for name in ["ann", "ann", "bob"] {
        let (host, call) = (host.clone(), by(name));
        calls.spawn(async move { host.call(call).await });
    }
    settle().await;
    let error = host.call(by("ann")).await.unwrap_err();
    assert!(
        matches!(error, CallError::TooManyCalls { limit: 2, .. }),
        "{error}"
    );
    let view = host.seats();
    let taken: Vec<_> = view
        .taken
        .iter()
        .map(|(who, n)| (who.as_ref(), *n))
        .collect();
    assert_eq!(taken, [("ann", 2), ("bob", 1)]);
    assert_eq!((view.limit, view.refused), (2, 1));
    calls.shutdown().await;
    assert!(host.seats().taken.is_empty());
}

#[tokio::test(start_paused = true)]
async fn refusals_come_in_the_order_of_the_road() {
    let busy = ServerSpec {
        breaker: BreakerPolicy {
            failures_max: 1,
            rest: Duration::from_secs(60),
        },
        call_timeout: Duration::from_secs(60),
        ..narrow(1, 0)
    };
    let world = World::new([(
        "s",
        Script::always(Generation::tools([
            ("do", Act::Hangs(Gate::closed())),
            ("other", Act::Answers),
        ])),
    )]);
    let limits = HostLimits {
        principal_calls_max: 1,
        ..HostLimits::default()
    };
    let host = world.host(vec![busy], limits);
    assert!(reaches(&host, "s", "ready").await);
    let by = |name: &str, role, tool: &str| Call {
        principal: Arc::new(Principal::new(name, role)),
        ..call(tool, "{}")
    };
    let mut held = JoinSet::new();
    let (holder, hold) = (host.clone(), by("ann", Role::Owner, "s__do"));
    held.spawn(async move { holder.call(hold).await });
    settle().await;

    let refused = |who, role, tool| {
        let (host, call) = (host.clone(), by(who, role, tool));
        async move { host.call(call).await.unwrap_err() }
    };
    // The server has no place, Ann has no seat, Eve may nothing, and there is no tool `none`.
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

    // Its breaker opens as the call that held it ends: the rest comes before the places.
    assert!(held.join_next().await.unwrap().unwrap().is_err());
    let resting = refused("bob", Role::Owner, "s__do").await;
    assert!(matches!(resting, CallError::Resting { .. }), "{resting}");
    let denied = refused("eve", Role::None, "s__do").await;
    assert!(matches!(denied, CallError::Denied { .. }), "{denied}");
}

#[tokio::test(start_paused = true)]
async fn the_load_of_a_server_tells_how_its_calls_ended_and_how_long_they_took() {
    let (_world, host) = ready(Act::AnswersAfter(Duration::from_millis(80)), narrow(8, 8)).await;
    for _ in 0..99 {
        host.call(call("s__other", "{}")).await.unwrap();
    }
    numbered(&host, 0).await.unwrap();
    numbered(&host, 1).await.unwrap();
    let load = server(&host).load();
    assert_eq!((load.calls, load.errors), (101, 0));
    assert_eq!(load.p50_us, Some(0));
    let p99 = load.p99_us.unwrap();
    assert!((72_000..=88_000).contains(&p99), "{p99}");

    let hasty = Call {
        deadline: Some(host.clock().now().plus(Duration::from_millis(10))),
        ..call("s__do", "{}")
    };
    host.call(hasty).await.unwrap_err();
    let load = server(&host).load();
    assert_eq!((load.calls, load.errors), (102, 1));
    assert!((load.error_rate - 1.0 / 102.0).abs() < 1e-9);
    let totals = server(&host).totals();
    assert_eq!(totals.ended(Outcome::Answered), 101);
    assert_eq!(totals.ended(Outcome::Failed(Class::Timeout)), 1);
    assert_eq!(totals.timed_us(), 2 * 80_000 + 10_000);
    assert_eq!(totals.buckets().last(), Some((60.0, 102)));

    tokio::time::advance(Duration::from_secs(1_200)).await;
    assert_eq!(server(&host).load().calls, 0, "long ago");
    assert_eq!(server(&host).totals().calls(), 102);
}
