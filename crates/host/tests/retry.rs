//! A call that failed with its link is sent once more where that can do no harm.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::time::Duration;

use bowline_core::backoff::Backoff;
use bowline_core::breaker::BreakerPolicy;
use bowline_core::call::{Call, Effect, Reply, Scope, Subject, TaskVerb};
use bowline_core::error::{CallError, Class, Execution};
use bowline_core::supervision::RestartPolicy;
use bowline_host::spec::{ServerSpec, ToolRule};
use bowline_host::supervisor::Order;
use bowline_host::{Host, HostLimits};
use bowline_link::Exit;
use bowline_sim::{Act, Gate, Generation, Record, Script, World, ask, body, call, reaches, spec};
use tokio::task::JoinSet;

/// The tool `do` with these annotations.
fn hinted(annotations: &str, act: Act) -> Generation {
    let tool =
        format!(r#"{{"name":"do","inputSchema":{{"type":"object"}},"annotations":{annotations}}}"#);
    let other = r#"{"name":"other","inputSchema":{"type":"object"}}"#.to_owned();
    Generation::definitions(&[tool, other]).act("do", act)
}

const READ: &str = r#"{"readOnlyHint":true}"#;
const IDEMPOTENT: &str = r#"{"idempotentHint":true}"#;
const NOTHING: &str = "{}";

fn read(act: Act) -> Generation {
    hinted(READ, act)
}

async fn ready(script: Script, spec: ServerSpec) -> (World, Host) {
    let world = World::new([("s", script)]);
    let host = world.host(vec![spec], HostLimits::default());
    assert!(reaches(&host, "s", "ready").await);
    (world, host)
}

async fn do_it(host: &Host) -> Result<Reply, CallError> {
    host.call(call("s__do", "{}")).await
}

fn retries(host: &Host) -> u64 {
    host.server("s").unwrap().totals().retries()
}

fn generations(world: &World) -> Vec<u64> {
    let record = world.record();
    record
        .executions
        .iter()
        .map(|deed| deed.generation)
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_lost_call_is_repeated_where_its_tool_is_known_to_be_harmless() {
    for hint in [READ, IDEMPOTENT] {
        let script = Script::always(hinted(hint, Act::Dies)).then(hinted(hint, Act::Answers));
        let (world, host) = ready(script, spec("s")).await;

        let reply = do_it(&host).await.unwrap();

        assert!(body(&reply).contains("s#2"), "{hint}: {}", body(&reply));
        assert_eq!(generations(&world), [1, 2], "{hint}");
        assert_eq!(world.record().starts.len(), 2);
        assert_eq!(retries(&host), 1);
        let status = host.status_of("s").unwrap();
        assert_eq!((status.calls, status.errors), (1, 0), "one call");
        assert_eq!((status.circuit, status.consecutive_failures), ("closed", 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_call_is_not_repeated_where_nobody_said_that_it_may_be() {
    for hint in [NOTHING, r#"{"readOnlyHint":false}"#] {
        let script = Script::always(hinted(hint, Act::Dies)).then(hinted(hint, Act::Answers));
        let (world, host) = ready(script, spec("s")).await;
        let error = do_it(&host).await.unwrap_err();
        assert_eq!(error.class(), Class::ConnectionLost, "{hint}: {error}");
        assert_eq!(error.execution(), Execution::Unknown);
        assert!(reaches(&host, "s", "ready").await);
        assert_eq!(generations(&world), [1], "{hint}");
        assert_eq!(retries(&host), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_person_says_of_a_tool_counts_more_than_the_servers_hint() {
    let says = |effect, idempotent| ToolRule {
        effect,
        idempotent,
        ..ToolRule::default()
    };
    for (hint, rule, runs) in [
        (READ, says(Some(Effect::Write), None), 1),
        (IDEMPOTENT, says(None, Some(false)), 1),
        (NOTHING, says(Some(Effect::Read), None), 2),
        (NOTHING, says(None, Some(true)), 2),
    ] {
        let spec = ServerSpec {
            tools: [("do".to_owned(), rule.clone())].into(),
            ..spec("s")
        };
        let script = Script::always(hinted(hint, Act::Dies)).then(hinted(hint, Act::Answers));
        let (world, host) = ready(script, spec).await;
        let outcome = do_it(&host).await;
        assert_eq!(outcome.is_ok(), runs == 2, "{hint} {rule:?}: {outcome:?}");
        assert!(reaches(&host, "s", "ready").await);
        assert_eq!(world.record().executions.len(), runs, "{hint} {rule:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn there_is_never_a_third_attempt() {
    let (world, host) = ready(Script::always(read(Act::Dies)), spec("s")).await;
    let error = do_it(&host).await.unwrap_err();
    assert_eq!(error.class(), Class::ConnectionLost, "{error}");
    assert!(
        matches!(
            error,
            CallError::ConnectionLost {
                generation: Some(2),
                ..
            }
        ),
        "the second failure is told: {error:?}"
    );
    assert!(reaches(&host, "s", "ready").await);
    assert_eq!(generations(&world), [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_asks_for_a_task_is_not_repeated() {
    let script = Script::always(read(Act::Dies)).then(read(Act::Answers));
    let (world, host) = ready(script, spec("s")).await;
    let task = Call {
        makes_task: true,
        ..call("s__do", "{}")
    };
    let error = host.call(task).await.unwrap_err();
    assert_eq!(error.class(), Class::ConnectionLost);
    assert!(reaches(&host, "s", "ready").await);
    assert_eq!(generations(&world), [1]);
}

#[tokio::test(start_paused = true)]
async fn a_task_is_asked_for_again_but_not_ended_again() {
    for (verb, method, asked) in [
        (TaskVerb::Get, "tasks/get", 2),
        (TaskVerb::Result, "tasks/result", 2),
        (TaskVerb::Cancel, "tasks/cancel", 1),
    ] {
        let made = r#"{"task":{"taskId":"t1","status":"working"}}"#;
        let offer = || Generation::tools([("do", Act::Says(made.to_owned()))]);
        let script = Script::always(offer().ignores(method)).then(offer().answers(
            method,
            "",
            r#"{"taskId":"t1"}"#,
        ));
        let (world, host) = ready(script, spec("s")).await;
        let make = Call {
            makes_task: true,
            ..call("s__do", "{}")
        };
        host.call(make).await.unwrap();
        let id = "t1".into();
        let asking = host.call(ask(Subject::Task { id, verb }, "taskId"));
        let kill = async {
            world.until(|record| !record.requests.is_empty()).await;
            assert!(world.kill("s", Exit::Signal(9)));
        };
        let (outcome, ()) = tokio::join!(asking, kill);
        assert_eq!(outcome.is_ok(), asked == 2, "{method}: {outcome:?}");
        assert!(reaches(&host, "s", "ready").await);
        assert_eq!(world.record().requests.len(), asked, "{method}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_read_of_a_resource_is_repeated() {
    let initialize = concat!(
        r#"{"protocolVersion":"2025-06-18","capabilities":{"tools":{},"resources":{}},"#,
        r#""serverInfo":{"name":"s","version":"1"}}"#,
    );
    let offer = || Generation::tools([("do", Act::Answers)]).introduces(initialize);
    let script = Script::always(offer().ignores("resources/read")).then(offer().answers(
        "resources/read",
        "a:b",
        r#"{"contents":[]}"#,
    ));
    let (world, host) = ready(script, spec("s")).await;
    let read = Call {
        scope: Scope::Server("s".into()),
        ..ask(Subject::Resource("a:b".into()), "uri")
    };
    let asked = |record: &Record| {
        let own = record.requests_of("s").into_iter();
        own.filter(|said| said.starts_with("resources/read"))
            .count()
    };
    let kill = async {
        world.until(|record| asked(record) == 1).await;
        assert!(world.kill("s", Exit::Signal(9)));
    };
    let (outcome, ()) = tokio::join!(host.call(read), kill);
    assert_eq!(body(&outcome.unwrap()), r#"{"contents":[]}"#);
    assert_eq!(asked(&world.record()), 2);
}

#[tokio::test(start_paused = true)]
async fn a_retry_takes_no_second_seat_and_no_second_place() {
    let script = Script::always(read(Act::Dies)).then(read(Act::Answers));
    let world = World::new([("s", script)]);
    let spec = ServerSpec {
        calls_max: 1,
        queue_max: 0,
        ..spec("s")
    };
    let limits = HostLimits {
        principal_calls_max: 1,
        ..HostLimits::default()
    };
    let host = world.host(vec![spec], limits);
    assert!(reaches(&host, "s", "ready").await);
    do_it(&host).await.unwrap();
    assert_eq!(generations(&world), [1, 2]);
    assert!(host.seats().taken.is_empty());
    assert_eq!(host.server("s").unwrap().turns_taken(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_first_failure_is_told_where_no_other_link_can_be_had() {
    let fails = Generation::fails("broken");
    for (first, class, execution, spec) in [
        // The next start fails, and the one after it is not near.
        (
            Act::Dies,
            Class::ConnectionLost,
            Execution::Unknown,
            spec("s"),
        ),
        (
            Act::Closes,
            Class::SendFailed,
            Execution::NotStarted,
            spec("s"),
        ),
        // It may not be started again.
        (
            Act::Dies,
            Class::ConnectionLost,
            Execution::Unknown,
            ServerSpec {
                restart: RestartPolicy {
                    restarts_max: 0,
                    window: Duration::from_secs(300),
                },
                ..spec("s")
            },
        ),
    ] {
        let spec = ServerSpec {
            backoff: Backoff {
                base: Duration::from_secs(3),
                cap: Duration::from_secs(5),
            },
            ..spec
        };
        let script = Script::always(read(first)).then(fails.clone());
        let (world, host) = ready(script, spec).await;
        let error = do_it(&host).await.unwrap_err();
        assert_eq!(error.class(), class, "{error}");
        assert_eq!(error.execution(), execution, "{error}");
        assert!(world.record().executions.len() <= 1);
        assert_eq!(retries(&host), 0, "nothing was sent again");
    }
}

#[tokio::test(start_paused = true)]
async fn what_may_have_run_stays_so_when_the_second_attempt_never_leaves() {
    let script = Script::always(read(Act::Dies)).then(read(Act::Closes));
    let (world, host) = ready(script, spec("s")).await;
    let error = do_it(&host).await.unwrap_err();
    assert_eq!(error.class(), Class::ConnectionLost, "{error}");
    assert_eq!(error.execution(), Execution::Unknown, "{error}");
    assert_eq!(generations(&world), [1]);
}

#[tokio::test(start_paused = true)]
async fn a_retry_waits_for_its_link_only_until_the_calls_deadline() {
    let gate = Gate::closed();
    let script = Script::always(read(Act::Dies)).then(read(Act::Answers).hangs(&gate));
    let spec = ServerSpec {
        call_timeout: Duration::from_secs(2),
        ..spec("s")
    };
    let (world, host) = ready(script, spec).await;
    let error = do_it(&host).await.unwrap_err();
    assert_eq!(host.clock().now().0, 2_000);
    assert_eq!(error.class(), Class::ConnectionLost, "{error}");
    assert_eq!(error.execution(), Execution::Unknown);
    gate.release();
    assert!(reaches(&host, "s", "ready").await);
    assert_eq!(generations(&world), [1], "nothing runs after the deadline");
}

#[tokio::test(start_paused = true)]
async fn a_call_is_not_repeated_after_its_caller_left() {
    let gate = Gate::closed();
    let script = Script::always(read(Act::Dies)).then(read(Act::Answers).hangs(&gate));
    let (world, host) = ready(script, spec("s")).await;
    tokio::select! {
        biased;
        outcome = do_it(&host) => panic!("the call ended: {outcome:?}"),
        _ = world.until(|record| record.starts.len() == 2) => {}
    }
    gate.release();
    assert!(reaches(&host, "s", "ready").await);
    assert_eq!(generations(&world), [1]);
    let totals = host.server("s").unwrap().totals();
    assert_eq!(
        (totals.calls(), totals.errors()),
        (1, 0),
        "counted as cancelled"
    );
    assert_eq!(host.server("s").unwrap().turns_taken(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_silent_until_its_deadline_is_not_repeated() {
    let script = Script::always(read(Act::Hangs(Gate::closed())));
    let spec = ServerSpec {
        call_timeout: Duration::from_secs(7),
        ..spec("s")
    };
    let (world, host) = ready(script, spec).await;
    let error = do_it(&host).await.unwrap_err();
    assert_eq!(error.class(), Class::Timeout);
    assert_eq!(host.clock().now().0, 7_000);
    assert_eq!(generations(&world), [1]);
}

#[tokio::test(start_paused = true)]
async fn many_reads_lost_with_one_link_cause_one_restart_and_all_end_well_on_it() {
    let first = read(Act::Hangs(Gate::closed()));
    let spec = ServerSpec {
        breaker: BreakerPolicy {
            failures_max: 2,
            rest: Duration::from_secs(60),
        },
        restart: RestartPolicy {
            restarts_max: 1,
            window: Duration::from_secs(300),
        },
        ..spec("s")
    };
    let (world, host) = ready(Script::always(first).then(read(Act::Answers)), spec).await;
    let mut calls = JoinSet::new();
    for _ in 0..20 {
        let host = host.clone();
        calls.spawn(async move { do_it(&host).await.map(|reply| body(&reply)) });
    }
    world.until(|record| record.executions.len() == 20).await;
    assert!(world.kill("s", Exit::Signal(9)));
    while let Some(outcome) = calls.join_next().await {
        let said = outcome.unwrap().unwrap();
        assert!(said.contains("s#2"), "{said}");
    }
    let record = world.record();
    assert_eq!(record.starts.len(), 2, "one restart for all");
    assert_eq!(record.executions.len(), 40);
    assert_eq!(retries(&host), 20);
    let status = host.status_of("s").unwrap();
    assert_eq!((status.generation, status.restart_count), (2, 1));
    assert_eq!((status.circuit, status.ejected), ("closed", false));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_a_person_stops_is_not_called_again() {
    let script = Script::always(read(Act::Hangs(Gate::closed()))).then(read(Act::Answers));
    let (world, host) = ready(script, spec("s")).await;
    let stop = async {
        world.until(|record| record.executions.len() == 1).await;
        let wait = Duration::from_secs(60);
        host.order("s", Order::Stop, wait).await.unwrap();
    };
    let (outcome, ()) = tokio::join!(do_it(&host), stop);
    let error = outcome.unwrap_err();
    assert_eq!(error.execution(), Execution::Unknown, "{error}");
    assert_eq!(world.record().starts.len(), 1, "stopped means stopped");
}
