//! Outcomes of calls: exactly one each, with the execution status.
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
use bowline_core::call::{BodyKind, CallReply, CallRequest};
use bowline_core::client_handle::ClientHandle;
use bowline_core::error::{CallError, ExecutionStatus, FailureClass};
use bowline_core::time::TimeLimit;
use bowline_host::spec::ServerSpec;
use bowline_host::{Host, HostLimits};
use bowline_link::LinkExit;
use bowline_testkit::{
    GenerationScript, RecordingClient, ReleaseGate, ServerScript, SimWorld, ToolBehaviour,
    reply_body, server_spec, server_tool_call, tool_call, wait_for_state,
};

fn server_doing(act: ToolBehaviour) -> GenerationScript {
    GenerationScript::with_tools([("do", act), ("other", ToolBehaviour::Respond)])
}

/// A host with the single server `s`, ready.
async fn ready_host(
    script: ServerScript,
    spec: ServerSpec,
    limits: HostLimits,
) -> (SimWorld, Host) {
    let world = SimWorld::new([("s", script)]);
    let host = world.start_host(vec![spec], limits);
    assert!(wait_for_state(&host, "s", "ready").await);
    (world, host)
}

async fn default_host(script: ServerScript) -> (SimWorld, Host) {
    ready_host(script, server_spec("s"), HostLimits::default()).await
}

/// A breaker that opens after two failures, for ten seconds.
fn sensitive_spec() -> ServerSpec {
    let breaker = BreakerPolicy {
        failures_max: 2,
        cooldown: Duration::from_secs(10),
    };
    ServerSpec {
        breaker,
        ..server_spec("s")
    }
}

async fn call_do(host: &Host) -> Result<CallReply, CallError> {
    host.call(tool_call("s__do", "{}")).await
}

/// Starts a call and drops it once its tool runs for the `nth` time.
async fn drop_when_running(world: &SimWorld, host: &Host, nth: usize) {
    tokio::select! {
        biased;
        outcome = call_do(host) => panic!("the call ended: {outcome:?}"),
        record = world.wait_until(|record| record.executions.len() >= nth) => {
            assert_eq!(record.executions.len(), nth);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn retry_after_closed_link_uses_new_generation() {
    for end_takes in [Duration::ZERO, Duration::from_secs(2)] {
        let closing = server_doing(ToolBehaviour::CloseLink).with_end_delay(end_takes);
        let (world, host) =
            default_host(ServerScript::always(closing).then(server_doing(ToolBehaviour::Respond)))
                .await;

        let reply = call_do(&host).await.unwrap();

        assert!(reply_body(&reply).contains("s#2"));
        let record = world.record();
        assert_eq!(record.executions.len(), 1);
        assert_eq!(record.executions[0].generation, 2);
        assert_eq!(record.starts.len(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn second_send_failure_is_not_started() {
    let (world, host) =
        default_host(ServerScript::always(server_doing(ToolBehaviour::CloseLink))).await;

    let error = call_do(&host).await.unwrap_err();

    assert_eq!(error.failure_class(), FailureClass::SendFailed, "{error}");
    assert_eq!(error.execution_status(), ExecutionStatus::NotStarted);
    assert!(world.record().executions.is_empty());
    assert_eq!(world.record().starts.len(), 2, "one retry, not more");
}

#[tokio::test(start_paused = true)]
async fn lost_call_is_unknown_and_not_repeated() {
    for (act, ran) in [(ToolBehaviour::Exit, 1), (ToolBehaviour::ExitUnread, 0)] {
        let (world, host) = default_host(
            ServerScript::always(server_doing(act)).then(server_doing(ToolBehaviour::Respond)),
        )
        .await;

        let error = call_do(&host).await.unwrap_err();
        assert_eq!(
            error.failure_class(),
            FailureClass::ConnectionLost,
            "{error}"
        );
        assert_eq!(error.execution_status(), ExecutionStatus::Unknown);

        assert!(wait_for_state(&host, "s", "backoff").await);
        assert!(wait_for_state(&host, "s", "ready").await);
        assert_eq!(world.record().executions.len(), ran, "nothing ran again");
        let reply = call_do(&host).await.unwrap();
        assert!(reply_body(&reply).contains("s#2"));
    }
}

#[tokio::test(start_paused = true)]
async fn every_response_kind_counts_as_answered() {
    for (act, kind, text) in [
        (ToolBehaviour::Respond, BodyKind::Result, "s#1"),
        (
            ToolBehaviour::ToolError,
            BodyKind::Result,
            "\"isError\":true",
        ),
        (ToolBehaviour::RpcError, BodyKind::Error, "\"code\":-32000"),
    ] {
        let (world, host) = default_host(ServerScript::always(server_doing(act))).await;
        let reply = call_do(&host).await.unwrap();
        assert_eq!(reply.response.body, kind);
        assert!(reply_body(&reply).contains(text), "{}", reply_body(&reply));
        let status = host.server_status("s").unwrap();
        assert_eq!((status.calls, status.errors), (1, 0));
        assert_eq!(world.record().executions.len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn invalid_response_is_completed() {
    let (world, host) = default_host(ServerScript::always(server_doing(
        ToolBehaviour::RespondGarbage,
    )))
    .await;
    let error = call_do(&host).await.unwrap_err();
    assert_eq!(error.failure_class(), FailureClass::ProtocolError);
    assert_eq!(error.execution_status(), ExecutionStatus::Completed);
    assert_eq!(
        error.to_string(),
        "the answer of server `s` is not valid: garbled"
    );
    assert_eq!(world.record().executions.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn breaker_opens_after_losses_and_probes_once() {
    let gate = ReleaseGate::new_closed();
    let script = ServerScript::always(server_doing(ToolBehaviour::Exit))
        .then(server_doing(ToolBehaviour::Exit))
        .then(server_doing(ToolBehaviour::BlockOn(gate.clone())));
    let (world, host) = ready_host(script, sensitive_spec(), HostLimits::default()).await;
    for _ in 0..2 {
        assert_eq!(
            call_do(&host).await.unwrap_err().failure_class(),
            FailureClass::ConnectionLost
        );
    }
    assert_eq!(host.server_status("s").unwrap().circuit, "open");
    assert_eq!(host.server_status("s").unwrap().consecutive_failures, 2);
    let opened = host.clock().now();

    let error = call_do(&host).await.unwrap_err();
    let CallError::CircuitOpen { cooldown, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(*cooldown, Duration::from_secs(10));
    assert_eq!(error.execution_status(), ExecutionStatus::NotStarted);
    assert!(wait_for_state(&host, "s", "ready").await);
    tokio::time::advance(Duration::from_secs(5)).await;
    assert_eq!(
        call_do(&host).await.unwrap_err().failure_class(),
        FailureClass::Unavailable
    );
    assert_eq!(world.record().executions.len(), 2, "resting means resting");

    let rested = host
        .clock()
        .now()
        .duration_until(opened.plus(Duration::from_secs(10)));
    tokio::time::advance(rested).await;
    assert_eq!(host.server_status("s").unwrap().circuit, "half_open");
    let probe = call_do(&host);
    let others = async {
        world
            .wait_until(|record| record.executions.len() == 3)
            .await;
        for _ in 0..3 {
            let error = call_do(&host).await.unwrap_err();
            assert!(matches!(error, CallError::CircuitOpen { .. }), "{error}");
        }
        gate.release();
    };
    let (probed, ()) = tokio::join!(probe, others);
    assert!(probed.is_ok());
    assert_eq!(world.record().executions.len(), 3);
    assert_eq!(host.server_status("s").unwrap().circuit, "closed");
    assert!(call_do(&host).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn tool_errors_never_open_the_breaker() {
    for act in [
        ToolBehaviour::ToolError,
        ToolBehaviour::RpcError,
        ToolBehaviour::RespondGarbage,
    ] {
        let (world, host) = ready_host(
            ServerScript::always(server_doing(act)),
            sensitive_spec(),
            HostLimits::default(),
        )
        .await;
        for _ in 0..20 {
            match call_do(&host).await {
                Ok(_) => {}
                Err(error) => assert_eq!(
                    error.failure_class(),
                    FailureClass::ProtocolError,
                    "{error}"
                ),
            }
        }
        let status = host.server_status("s").unwrap();
        assert_eq!(
            (&*status.circuit, status.consecutive_failures),
            ("closed", 0)
        );
        assert_eq!(world.record().executions.len(), 20);
        assert_eq!(world.record().starts.len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn dropped_call_releases_permit_and_cancels() {
    let limits = HostLimits {
        principal_calls_max: 1,
        ..HostLimits::default()
    };
    let script = ServerScript::always(server_doing(ToolBehaviour::BlockOn(
        ReleaseGate::new_closed(),
    )));
    let (world, host) = ready_host(script, server_spec("s"), limits).await;
    let crowded = async {
        world
            .wait_until(|record| record.executions.len() == 1)
            .await;
        host.call(tool_call("s__other", "{}")).await
    };
    tokio::select! {
        biased;
        outcome = call_do(&host) => panic!("the call ended: {outcome:?}"),
        refused = crowded => {
            let error = refused.unwrap_err();
            assert_eq!(error.failure_class(), FailureClass::Throttled);
            assert_eq!(error.execution_status(), ExecutionStatus::NotStarted);
        }
    }

    let record = world.record();
    assert_eq!(record.cancellations.len(), 1);
    assert_eq!(record.cancellations, record.executions);
    assert_eq!(host.server_status("s").unwrap().in_flight, 0);
    assert!(
        host.call(tool_call("s__other", "{}")).await.is_ok(),
        "the seat is free"
    );
    assert_eq!(
        world.record().cancellations.len(),
        1,
        "answered calls are not taken back"
    );
}

#[tokio::test(start_paused = true)]
async fn dropped_probe_does_not_wedge_breaker() {
    let script = ServerScript::always(server_doing(ToolBehaviour::Exit))
        .then(server_doing(ToolBehaviour::Exit))
        .then(server_doing(ToolBehaviour::BlockOn(
            ReleaseGate::new_closed(),
        )));
    let (world, host) = ready_host(script, sensitive_spec(), HostLimits::default()).await;
    for _ in 0..2 {
        call_do(&host).await.unwrap_err();
    }
    tokio::time::advance(Duration::from_secs(10)).await;

    drop_when_running(&world, &host, 3).await;

    assert_eq!(host.server_status("s").unwrap().circuit, "half_open");
    assert!(host.call(tool_call("s__other", "{}")).await.is_ok());
    assert_eq!(host.server_status("s").unwrap().circuit, "closed");
}

#[tokio::test(start_paused = true)]
async fn call_dropped_during_start_never_runs() {
    let gate = ReleaseGate::new_closed();
    let world = SimWorld::new([(
        "s",
        ServerScript::always(server_doing(ToolBehaviour::Respond).hang_start(&gate)),
    )]);
    let host = world.start_host(vec![server_spec("s")], HostLimits::default());
    tokio::select! {
        biased;
        outcome = call_do(&host) => panic!("the call ended: {outcome:?}"),
        _ = world.wait_until(|record| record.starts.len() == 1) => {}
    }
    gate.release();
    assert!(wait_for_state(&host, "s", "ready").await);
    assert!(host.call(tool_call("s__other", "{}")).await.is_ok());
    let record = world.record();
    assert_eq!(record.executions.len(), 1);
    assert_eq!(record.executions[0].tool, "other");
    assert!(record.cancellations.is_empty());
}

#[tokio::test(start_paused = true)]
async fn hung_server_times_out_as_unknown() {
    let script = ServerScript::always(server_doing(ToolBehaviour::BlockOn(
        ReleaseGate::new_closed(),
    )));
    let spec = ServerSpec {
        call_timeout: Duration::from_secs(7),
        ..server_spec("s")
    };
    let (world, host) = ready_host(script, spec, HostLimits::default()).await;

    let error = call_do(&host).await.unwrap_err();

    assert_eq!(host.clock().now().0, 7_000);
    let expect = CallError::Timeout {
        server: "s".into(),
        after_ms: 7_000,
        execution: ExecutionStatus::Unknown,
        limit: TimeLimit::Server,
    };
    assert_eq!(error, expect);
    let record = world.record();
    assert_eq!(
        (record.executions.len(), record.cancellations.len()),
        (1, 1)
    );
    assert_eq!(record.starts.len(), 1, "slow is not dead");
}

#[tokio::test(start_paused = true)]
async fn earlier_caller_deadline_applies() {
    let script = ServerScript::always(server_doing(ToolBehaviour::BlockOn(
        ReleaseGate::new_closed(),
    )));
    let (_world, host) = default_host(script).await;
    let hasty = CallRequest {
        deadline: Some(host.clock().now().plus(Duration::from_millis(40))),
        ..tool_call("s__do", "{}")
    };
    let error = host.call(hasty).await.unwrap_err();
    assert_eq!(error.failure_class(), FailureClass::Timeout);
    assert_eq!(host.clock().now().0, 40);
}

#[tokio::test(start_paused = true)]
async fn start_wait_counts_towards_deadline() {
    let gate = ReleaseGate::new_closed();
    let slow = server_doing(ToolBehaviour::BlockOn(ReleaseGate::new_closed())).hang_start(&gate);
    let world = SimWorld::new([("s", ServerScript::always(slow))]);
    let spec = ServerSpec {
        call_timeout: Duration::from_secs(10),
        ..server_spec("s")
    };
    let host = world.start_host(vec![spec], HostLimits::default());
    let release = async {
        tokio::time::sleep(Duration::from_secs(6)).await;
        gate.release();
    };
    let (outcome, ()) = tokio::join!(call_do(&host), release);
    assert_eq!(outcome.unwrap_err().failure_class(), FailureClass::Timeout);
    assert_eq!(host.clock().now().0, 10_000);
}

#[tokio::test(start_paused = true)]
async fn start_beyond_deadline_is_not_started() {
    let slow = server_doing(ToolBehaviour::Respond).hang_start(&ReleaseGate::new_closed());
    let world = SimWorld::new([("s", ServerScript::always(slow))]);
    let spec = ServerSpec {
        call_timeout: Duration::from_secs(10),
        ..server_spec("s")
    };
    let host = world.start_host(vec![spec], HostLimits::default());
    for call in [tool_call("s__do", "{}"), server_tool_call("s", "do", "{}")] {
        let begun = host.clock().now();
        let error = host.call(call).await.unwrap_err();
        assert_eq!(error, CallError::StartTimeout { server: "s".into() });
        assert_eq!(error.execution_status(), ExecutionStatus::NotStarted);
        assert_eq!(host.clock().now().millis_since(begun), 10_000);
    }
    assert!(world.record().executions.is_empty());
}

#[tokio::test(start_paused = true)]
async fn progress_reaches_its_own_call() {
    let (_world, host) = default_host(ServerScript::always(server_doing(ToolBehaviour::Progress(
        3,
    ))))
    .await;
    let with_sink = |token: &str| {
        let params =
            format!(r#"{{"name":"s__do","arguments":{{}},"_meta":{{"progressToken":{token}}}}}"#);
        let at = params.find(token).unwrap();
        let sink = RecordingClient::new(1);
        let mut call = tool_call("s__do", "{}");
        call.message.params = params.into();
        call.message.progress_at = Some(at..at + token.len());
        call.message.client = Some(Arc::clone(&sink) as Arc<dyn ClientHandle>);

        (sink, call)
    };
    let ((one, first), (two, second)) = (with_sink("\"one\""), with_sink("222"));

    let (first, second) = tokio::join!(host.call(first), host.call(second));

    assert!(first.is_ok() && second.is_ok());
    for (sink, token) in [(one, "\"one\""), (two, "222")] {
        let told = sink.notifications();
        assert_eq!(told.len(), 3);
        for notification in told.iter() {
            let text = String::from_utf8_lossy(notification);
            assert!(
                text.contains(&format!("\"progressToken\":{token},")),
                "{text}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn late_loss_does_not_count_after_restart() {
    let script = ServerScript::always(server_doing(ToolBehaviour::BlockOn(
        ReleaseGate::new_closed(),
    )))
    .then(server_doing(ToolBehaviour::Respond));
    let (world, host) = ready_host(script, sensitive_spec(), HostLimits::default()).await;
    let running = async { tokio::join!(call_do(&host), call_do(&host), call_do(&host)) };
    let restart = async {
        world
            .wait_until(|record| record.executions.len() == 3)
            .await;
        let order = bowline_host::supervisor::ServerAction::Restart;
        host.apply_action("s", order, Duration::from_secs(60))
            .await
            .unwrap();
    };
    let ((one, two, three), ()) = tokio::join!(running, restart);
    for outcome in [one, two, three] {
        assert_eq!(
            outcome.unwrap_err().execution_status(),
            ExecutionStatus::Unknown
        );
    }
    assert_eq!(host.server_status("s").unwrap().circuit, "closed");
    assert!(call_do(&host).await.is_ok());
    assert!(world.kill("s", LinkExit::Status(0)));
}
