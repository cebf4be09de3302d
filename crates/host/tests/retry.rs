//! A call that failed with its link is retried once if safe.
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
use bowline_core::call::{
    CallReply, CallRequest, CallSubject, Effect, EndpointScope, TaskOperation,
};
use bowline_core::error::{CallError, ExecutionStatus, FailureClass};
use bowline_core::restart_budget::RestartPolicy;
use bowline_host::spec::{ServerSpec, ToolRule};
use bowline_host::supervisor::ServerAction;
use bowline_host::{Host, HostLimits};
use bowline_link::LinkExit;
use bowline_testkit::{
    GenerationScript, ReleaseGate, ServerScript, SimRecord, SimWorld, ToolBehaviour, reply_body,
    server_spec, subject_call, tool_call, wait_for_state,
};
use tokio::task::JoinSet;

/// The tool `do` with these annotations.
fn annotated_server(annotations: &str, act: ToolBehaviour) -> GenerationScript {
    let tool =
        format!(r#"{{"name":"do","inputSchema":{{"type":"object"}},"annotations":{annotations}}}"#);
    let other = r#"{"name":"other","inputSchema":{"type":"object"}}"#.to_owned();
    GenerationScript::with_definitions(&[tool, other]).with_behaviour("do", act)
}

const READ: &str = r#"{"readOnlyHint":true}"#;
const IDEMPOTENT: &str = r#"{"idempotentHint":true}"#;
const NOTHING: &str = "{}";

fn read_only_server(act: ToolBehaviour) -> GenerationScript {
    annotated_server(READ, act)
}

async fn ready_host(script: ServerScript, spec: ServerSpec) -> (SimWorld, Host) {
    let world = SimWorld::new([("s", script)]);
    let host = world.start_host(vec![spec], HostLimits::default());
    assert!(wait_for_state(&host, "s", "ready").await);
    (world, host)
}

async fn call_do(host: &Host) -> Result<CallReply, CallError> {
    host.call(tool_call("s__do", "{}")).await
}

fn retry_count(host: &Host) -> u64 {
    host.server("s").unwrap().totals().retry_count()
}

fn executed_generations(world: &SimWorld) -> Vec<u64> {
    let record = world.record();
    record
        .executions
        .iter()
        .map(|deed| deed.generation)
        .collect()
}

#[tokio::test(start_paused = true)]
async fn lost_safe_call_is_retried() {
    for hint in [READ, IDEMPOTENT] {
        let script = ServerScript::always(annotated_server(hint, ToolBehaviour::Exit))
            .then(annotated_server(hint, ToolBehaviour::Respond));
        let (world, host) = ready_host(script, server_spec("s")).await;

        let reply = call_do(&host).await.unwrap();

        assert!(
            reply_body(&reply).contains("s#2"),
            "{hint}: {}",
            reply_body(&reply)
        );
        assert_eq!(executed_generations(&world), [1, 2], "{hint}");
        assert_eq!(world.record().starts.len(), 2);
        assert_eq!(retry_count(&host), 1);
        let status = host.server_status("s").unwrap();
        assert_eq!((status.calls, status.errors), (1, 0), "one call");
        assert_eq!(
            (&*status.circuit, status.consecutive_failures),
            ("closed", 0)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn lost_unsafe_call_is_not_retried() {
    for hint in [NOTHING, r#"{"readOnlyHint":false}"#] {
        let script = ServerScript::always(annotated_server(hint, ToolBehaviour::Exit))
            .then(annotated_server(hint, ToolBehaviour::Respond));
        let (world, host) = ready_host(script, server_spec("s")).await;
        let error = call_do(&host).await.unwrap_err();
        assert_eq!(
            error.failure_class(),
            FailureClass::ConnectionLost,
            "{hint}: {error}"
        );
        assert_eq!(error.execution_status(), ExecutionStatus::Unknown);
        assert!(wait_for_state(&host, "s", "ready").await);
        assert_eq!(executed_generations(&world), [1], "{hint}");
        assert_eq!(retry_count(&host), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn configured_effect_overrides_annotation() {
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
            ..server_spec("s")
        };
        let script = ServerScript::always(annotated_server(hint, ToolBehaviour::Exit))
            .then(annotated_server(hint, ToolBehaviour::Respond));
        let (world, host) = ready_host(script, spec).await;
        let outcome = call_do(&host).await;
        assert_eq!(outcome.is_ok(), runs == 2, "{hint} {rule:?}: {outcome:?}");
        assert!(wait_for_state(&host, "s", "ready").await);
        assert_eq!(world.record().executions.len(), runs, "{hint} {rule:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn call_is_never_sent_three_times() {
    let (world, host) = ready_host(
        ServerScript::always(read_only_server(ToolBehaviour::Exit)),
        server_spec("s"),
    )
    .await;
    let error = call_do(&host).await.unwrap_err();
    assert_eq!(
        error.failure_class(),
        FailureClass::ConnectionLost,
        "{error}"
    );
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
    assert!(wait_for_state(&host, "s", "ready").await);
    assert_eq!(executed_generations(&world), [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn task_creating_call_is_not_retried() {
    let script = ServerScript::always(read_only_server(ToolBehaviour::Exit))
        .then(read_only_server(ToolBehaviour::Respond));
    let (world, host) = ready_host(script, server_spec("s")).await;
    let task = CallRequest {
        wants_task: true,
        ..tool_call("s__do", "{}")
    };
    let error = host.call(task).await.unwrap_err();
    assert_eq!(error.failure_class(), FailureClass::ConnectionLost);
    assert!(wait_for_state(&host, "s", "ready").await);
    assert_eq!(executed_generations(&world), [1]);
}

#[tokio::test(start_paused = true)]
async fn task_get_is_retried_but_cancel_is_not() {
    for (operation, method, asked) in [
        (TaskOperation::Get, "tasks/get", 2),
        (TaskOperation::Result, "tasks/result", 2),
        (TaskOperation::Cancel, "tasks/cancel", 1),
    ] {
        let made = r#"{"task":{"taskId":"t1","status":"working"}}"#;
        let offer =
            || GenerationScript::with_tools([("do", ToolBehaviour::RespondWith(made.to_owned()))]);
        let script = ServerScript::always(offer().never_respond(method))
            .then(offer().respond_with(method, "", r#"{"taskId":"t1"}"#));
        let (world, host) = ready_host(script, server_spec("s")).await;
        let make = CallRequest {
            wants_task: true,
            ..tool_call("s__do", "{}")
        };
        host.call(make).await.unwrap();
        let id = "t1".into();
        let asking = host.call(subject_call(CallSubject::Task { id, operation }, "taskId"));
        let kill = async {
            world.wait_until(|record| !record.requests.is_empty()).await;
            assert!(world.kill("s", LinkExit::Signal(9)));
        };
        let (outcome, ()) = tokio::join!(asking, kill);
        assert_eq!(outcome.is_ok(), asked == 2, "{method}: {outcome:?}");
        assert!(wait_for_state(&host, "s", "ready").await);
        assert_eq!(world.record().requests.len(), asked, "{method}");
    }
}

#[tokio::test(start_paused = true)]
async fn lost_resource_read_is_retried() {
    let initialize = concat!(
        r#"{"protocolVersion":"2025-06-18","capabilities":{"tools":{},"resources":{}},"#,
        r#""serverInfo":{"name":"s","version":"1"}}"#,
    );
    let offer = || {
        GenerationScript::with_tools([("do", ToolBehaviour::Respond)])
            .with_initialize_result(initialize)
    };
    let script = ServerScript::always(offer().never_respond("resources/read"))
        .then(offer().respond_with("resources/read", "a:b", r#"{"contents":[]}"#));
    let (world, host) = ready_host(script, server_spec("s")).await;
    let read = CallRequest {
        scope: EndpointScope::Server("s".into()),
        ..subject_call(CallSubject::Resource("a:b".into()), "uri")
    };
    let asked = |record: &SimRecord| {
        let own = record.server_requests("s").into_iter();
        own.filter(|said| said.starts_with("resources/read"))
            .count()
    };
    let kill = async {
        world.wait_until(|record| asked(record) == 1).await;
        assert!(world.kill("s", LinkExit::Signal(9)));
    };
    let (outcome, ()) = tokio::join!(host.call(read), kill);
    assert_eq!(reply_body(&outcome.unwrap()), r#"{"contents":[]}"#);
    assert_eq!(asked(&world.record()), 2);
}

#[tokio::test(start_paused = true)]
async fn retry_reuses_both_permits() {
    let script = ServerScript::always(read_only_server(ToolBehaviour::Exit))
        .then(read_only_server(ToolBehaviour::Respond));
    let world = SimWorld::new([("s", script)]);
    let spec = ServerSpec {
        calls_max: 1,
        queue_max: 0,
        ..server_spec("s")
    };
    let limits = HostLimits {
        principal_calls_max: 1,
        ..HostLimits::default()
    };
    let host = world.start_host(vec![spec], limits);
    assert!(wait_for_state(&host, "s", "ready").await);
    call_do(&host).await.unwrap();
    assert_eq!(executed_generations(&world), [1, 2]);
    assert!(host.calls_in_flight().in_flight.is_empty());
    assert_eq!(host.server("s").unwrap().permits_in_use(), 0);
}

#[tokio::test(start_paused = true)]
async fn first_error_is_returned_without_new_link() {
    let fails = GenerationScript::failing_start("broken");
    for (first, class, execution, spec) in [
        // The next start fails, and the one after is far away.
        (
            ToolBehaviour::Exit,
            FailureClass::ConnectionLost,
            ExecutionStatus::Unknown,
            server_spec("s"),
        ),
        (
            ToolBehaviour::CloseLink,
            FailureClass::SendFailed,
            ExecutionStatus::NotStarted,
            server_spec("s"),
        ),
        // Ejected: no further start.
        (
            ToolBehaviour::Exit,
            FailureClass::ConnectionLost,
            ExecutionStatus::Unknown,
            ServerSpec {
                restart: RestartPolicy {
                    restarts_max: 0,
                    window: Duration::from_secs(300),
                },
                ..server_spec("s")
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
        let script = ServerScript::always(read_only_server(first)).then(fails.clone());
        let (world, host) = ready_host(script, spec).await;
        let error = call_do(&host).await.unwrap_err();
        assert_eq!(error.failure_class(), class, "{error}");
        assert_eq!(error.execution_status(), execution, "{error}");
        assert!(world.record().executions.len() <= 1);
        assert_eq!(retry_count(&host), 0, "nothing was sent again");
    }
}

#[tokio::test(start_paused = true)]
async fn unknown_execution_survives_unsent_retry() {
    let script = ServerScript::always(read_only_server(ToolBehaviour::Exit))
        .then(read_only_server(ToolBehaviour::CloseLink));
    let (world, host) = ready_host(script, server_spec("s")).await;
    let error = call_do(&host).await.unwrap_err();
    assert_eq!(
        error.failure_class(),
        FailureClass::ConnectionLost,
        "{error}"
    );
    assert_eq!(
        error.execution_status(),
        ExecutionStatus::Unknown,
        "{error}"
    );
    assert_eq!(executed_generations(&world), [1]);
}

#[tokio::test(start_paused = true)]
async fn retry_wait_ends_at_deadline() {
    let gate = ReleaseGate::new_closed();
    let script = ServerScript::always(read_only_server(ToolBehaviour::Exit))
        .then(read_only_server(ToolBehaviour::Respond).hang_start(&gate));
    let spec = ServerSpec {
        call_timeout: Duration::from_secs(2),
        ..server_spec("s")
    };
    let (world, host) = ready_host(script, spec).await;
    let error = call_do(&host).await.unwrap_err();
    assert_eq!(host.clock().now().0, 2_000);
    assert_eq!(
        error.failure_class(),
        FailureClass::ConnectionLost,
        "{error}"
    );
    assert_eq!(error.execution_status(), ExecutionStatus::Unknown);
    gate.release();
    assert!(wait_for_state(&host, "s", "ready").await);
    assert_eq!(
        executed_generations(&world),
        [1],
        "nothing runs after the deadline"
    );
}

#[tokio::test(start_paused = true)]
async fn dropped_call_is_not_retried() {
    let gate = ReleaseGate::new_closed();
    let script = ServerScript::always(read_only_server(ToolBehaviour::Exit))
        .then(read_only_server(ToolBehaviour::Respond).hang_start(&gate));
    let (world, host) = ready_host(script, server_spec("s")).await;
    tokio::select! {
        biased;
        outcome = call_do(&host) => panic!("the call ended: {outcome:?}"),
        _ = world.wait_until(|record| record.starts.len() == 2) => {}
    }
    gate.release();
    assert!(wait_for_state(&host, "s", "ready").await);
    assert_eq!(executed_generations(&world), [1]);
    let totals = host.server("s").unwrap().totals();
    assert_eq!(
        (totals.call_count(), totals.error_count()),
        (1, 0),
        "counted as cancelled"
    );
    assert_eq!(host.server("s").unwrap().permits_in_use(), 0);
}

#[tokio::test(start_paused = true)]
async fn timed_out_call_is_not_retried() {
    let script = ServerScript::always(read_only_server(ToolBehaviour::BlockOn(
        ReleaseGate::new_closed(),
    )));
    let spec = ServerSpec {
        call_timeout: Duration::from_secs(7),
        ..server_spec("s")
    };
    let (world, host) = ready_host(script, spec).await;
    let error = call_do(&host).await.unwrap_err();
    assert_eq!(error.failure_class(), FailureClass::Timeout);
    assert_eq!(host.clock().now().0, 7_000);
    assert_eq!(executed_generations(&world), [1]);
}

#[tokio::test(start_paused = true)]
async fn many_lost_reads_share_one_restart() {
    let first = read_only_server(ToolBehaviour::BlockOn(ReleaseGate::new_closed()));
    let spec = ServerSpec {
        breaker: BreakerPolicy {
            failures_max: 2,
            cooldown: Duration::from_secs(60),
        },
        restart: RestartPolicy {
            restarts_max: 1,
            window: Duration::from_secs(300),
        },
        ..server_spec("s")
    };
    let (world, host) = ready_host(
        ServerScript::always(first).then(read_only_server(ToolBehaviour::Respond)),
        spec,
    )
    .await;
    let mut calls = JoinSet::new();
    for _ in 0..20 {
        let host = host.clone();
        calls.spawn(async move { call_do(&host).await.map(|reply| reply_body(&reply)) });
    }
    world
        .wait_until(|record| record.executions.len() == 20)
        .await;
    assert!(world.kill("s", LinkExit::Signal(9)));
    while let Some(outcome) = calls.join_next().await {
        let said = outcome.unwrap().unwrap();
        assert!(said.contains("s#2"), "{said}");
    }
    let record = world.record();
    assert_eq!(record.starts.len(), 2, "one restart for all");
    assert_eq!(record.executions.len(), 40);
    assert_eq!(retry_count(&host), 20);
    let status = host.server_status("s").unwrap();
    assert_eq!((status.generation, status.restart_count), (2, 1));
    assert_eq!((&*status.circuit, status.ejected), ("closed", false));
}

#[tokio::test(start_paused = true)]
async fn stopped_server_gets_no_retry() {
    let script = ServerScript::always(read_only_server(ToolBehaviour::BlockOn(
        ReleaseGate::new_closed(),
    )))
    .then(read_only_server(ToolBehaviour::Respond));
    let (world, host) = ready_host(script, server_spec("s")).await;
    let stop = async {
        world
            .wait_until(|record| record.executions.len() == 1)
            .await;
        let wait = Duration::from_secs(60);
        host.apply_action("s", ServerAction::Stop, wait)
            .await
            .unwrap();
    };
    let (outcome, ()) = tokio::join!(call_do(&host), stop);
    let error = outcome.unwrap_err();
    assert_eq!(
        error.execution_status(),
        ExecutionStatus::Unknown,
        "{error}"
    );
    assert_eq!(world.record().starts.len(), 1, "stopped means stopped");
}
