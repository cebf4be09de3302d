//! How calls end: once, in a way that says whether the tool ran.
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
use bowline_core::call::{Body, Call, Reply, TimeLimit};
use bowline_core::caller::CallerEnd;
use bowline_core::error::{CallError, Class, Execution};
use bowline_host::spec::ServerSpec;
use bowline_host::{Host, HostLimits};
use bowline_link::Exit;
use bowline_sim::{
    Act, Gate, Generation, Hearer, Script, World, body, call, call_of, reaches, spec,
};

fn doing(act: Act) -> Generation {
    Generation::tools([("do", act), ("other", Act::Answers)])
}

/// A world with the one server `s`, and a host in which it is ready.
async fn ready(script: Script, spec: ServerSpec, limits: HostLimits) -> (World, Host) {
    let world = World::new([("s", script)]);
    let host = world.host(vec![spec], limits);
    assert!(reaches(&host, "s", "ready").await);
    (world, host)
}

async fn plain(script: Script) -> (World, Host) {
    ready(script, spec("s"), HostLimits::default()).await
}

/// Opens after two failures, for ten seconds.
fn touchy() -> ServerSpec {
    let breaker = BreakerPolicy {
        failures_max: 2,
        rest: Duration::from_secs(10),
    };
    ServerSpec {
        breaker,
        ..spec("s")
    }
}

async fn do_it(host: &Host) -> Result<Reply, CallError> {
    host.call(call("s__do", "{}")).await
}

/// Begins a call and drops it once its tool runs for the `nth` time.
async fn drop_when_running(world: &World, host: &Host, nth: usize) {
    tokio::select! {
        biased;
        outcome = do_it(host) => panic!("the call ended: {outcome:?}"),
        record = world.until(|record| record.executions.len() >= nth) => {
            assert_eq!(record.executions.len(), nth);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_a_closed_link_uses_the_new_generation() {
    for end_takes in [Duration::ZERO, Duration::from_secs(2)] {
        let closing = doing(Act::Closes).end_takes(end_takes);
        let (world, host) = plain(Script::always(closing).then(doing(Act::Answers))).await;

        let reply = do_it(&host).await.unwrap();

        assert!(body(&reply).contains("s#2"));
        let record = world.record();
        assert_eq!(record.executions.len(), 1);
        assert_eq!(record.executions[0].generation, 2);
        assert_eq!(record.starts.len(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_cannot_be_sent_twice_is_given_up_as_not_started() {
    let (world, host) = plain(Script::always(doing(Act::Closes))).await;

    let error = do_it(&host).await.unwrap_err();

    assert_eq!(error.class(), Class::SendFailed, "{error}");
    assert_eq!(error.execution(), Execution::NotStarted);
    assert!(world.record().executions.is_empty());
    assert_eq!(world.record().starts.len(), 2, "one retry, not more");
}

#[tokio::test(start_paused = true)]
async fn a_call_lost_with_its_server_is_reported_as_unknown_and_run_once() {
    for (act, ran) in [(Act::Dies, 1), (Act::DiesUnread, 0)] {
        let (world, host) = plain(Script::always(doing(act)).then(doing(Act::Answers))).await;

        let error = do_it(&host).await.unwrap_err();
        assert_eq!(error.class(), Class::ConnectionLost, "{error}");
        assert_eq!(error.execution(), Execution::Unknown);

        assert!(reaches(&host, "s", "backoff").await);
        assert!(reaches(&host, "s", "ready").await);
        assert_eq!(world.record().executions.len(), ran, "nothing ran again");
        let reply = do_it(&host).await.unwrap();
        assert!(body(&reply).contains("s#2"));
    }
}

#[tokio::test(start_paused = true)]
async fn answers_of_every_kind_are_passed_on_and_counted_as_answers() {
    for (act, kind, text) in [
        (Act::Answers, Body::Result, "s#1"),
        (Act::ToolError, Body::Result, "\"isError\":true"),
        (Act::RpcError, Body::Error, "\"code\":-32000"),
    ] {
        let (world, host) = plain(Script::always(doing(act))).await;
        let reply = do_it(&host).await.unwrap();
        assert_eq!(reply.body, kind);
        assert!(body(&reply).contains(text), "{}", body(&reply));
        let status = host.status_of("s").unwrap();
        assert_eq!((status.calls, status.errors), (1, 0));
        assert_eq!(world.record().executions.len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_none_is_reported_as_completed() {
    let (world, host) = plain(Script::always(doing(Act::Garbles))).await;
    let error = do_it(&host).await.unwrap_err();
    assert_eq!(error.class(), Class::ProtocolError);
    assert_eq!(error.execution(), Execution::Completed);
    assert_eq!(
        error.to_string(),
        "the answer of server `s` is not valid: garbled"
    );
    assert_eq!(world.record().executions.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_breaker_opens_after_repeated_losses_rests_and_lets_one_probe_through() {
    let gate = Gate::closed();
    let script = Script::always(doing(Act::Dies))
        .then(doing(Act::Dies))
        .then(doing(Act::Hangs(gate.clone())));
    let (world, host) = ready(script, touchy(), HostLimits::default()).await;
    for _ in 0..2 {
        assert_eq!(
            do_it(&host).await.unwrap_err().class(),
            Class::ConnectionLost
        );
    }
    assert_eq!(host.status_of("s").unwrap().circuit, "open");
    assert_eq!(host.status_of("s").unwrap().consecutive_failures, 2);
    let opened = host.clock().now();

    let error = do_it(&host).await.unwrap_err();
    let CallError::Resting { rest, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(*rest, Duration::from_secs(10));
    assert_eq!(error.execution(), Execution::NotStarted);
    assert!(reaches(&host, "s", "ready").await);
    tokio::time::advance(Duration::from_secs(5)).await;
    assert_eq!(do_it(&host).await.unwrap_err().class(), Class::Unavailable);
    assert_eq!(world.record().executions.len(), 2, "resting means resting");

    let rested = host
        .clock()
        .now()
        .until(opened.plus(Duration::from_secs(10)));
    tokio::time::advance(rested).await;
    assert_eq!(host.status_of("s").unwrap().circuit, "half_open");
    let probe = do_it(&host);
    let others = async {
        world.until(|record| record.executions.len() == 3).await;
        for _ in 0..3 {
            let error = do_it(&host).await.unwrap_err();
            assert!(matches!(error, CallError::Resting { .. }), "{error}");
        }
        gate.release();
    };
    let (probed, ()) = tokio::join!(probe, others);
    assert!(probed.is_ok());
    assert_eq!(world.record().executions.len(), 3);
    assert_eq!(host.status_of("s").unwrap().circuit, "closed");
    assert!(do_it(&host).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn tool_errors_never_open_the_breaker() {
    for act in [Act::ToolError, Act::RpcError, Act::Garbles] {
        let (world, host) =
            ready(Script::always(doing(act)), touchy(), HostLimits::default()).await;
        for _ in 0..20 {
            match do_it(&host).await {
                Ok(_) => {}
                Err(error) => assert_eq!(error.class(), Class::ProtocolError, "{error}"),
            }
        }
        let status = host.status_of("s").unwrap();
        assert_eq!((status.circuit, status.consecutive_failures), ("closed", 0));
        assert_eq!(world.record().executions.len(), 20);
        assert_eq!(world.record().starts.len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_call_gives_its_seat_back_and_the_server_is_told() {
    let limits = HostLimits {
        principal_calls_max: 1,
        ..HostLimits::default()
    };
    let script = Script::always(doing(Act::Hangs(Gate::closed())));
    let (world, host) = ready(script, spec("s"), limits).await;
    let crowded = async {
        world.until(|record| record.executions.len() == 1).await;
        host.call(call("s__other", "{}")).await
    };
    tokio::select! {
        biased;
        outcome = do_it(&host) => panic!("the call ended: {outcome:?}"),
        refused = crowded => {
            let error = refused.unwrap_err();
            assert_eq!(error.class(), Class::Throttled);
            assert_eq!(error.execution(), Execution::NotStarted);
        }
    }

    let record = world.record();
    assert_eq!(record.cancellations.len(), 1);
    assert_eq!(record.cancellations, record.executions);
    assert_eq!(host.status_of("s").unwrap().in_flight, 0);
    assert!(
        host.call(call("s__other", "{}")).await.is_ok(),
        "the seat is free"
    );
    assert_eq!(
        world.record().cancellations.len(),
        1,
        "answered calls are not taken back"
    );
}

#[tokio::test(start_paused = true)]
async fn a_dropped_probe_does_not_wedge_the_breaker() {
    let script = Script::always(doing(Act::Dies))
        .then(doing(Act::Dies))
        .then(doing(Act::Hangs(Gate::closed())));
    let (world, host) = ready(script, touchy(), HostLimits::default()).await;
    for _ in 0..2 {
        do_it(&host).await.unwrap_err();
    }
    tokio::time::advance(Duration::from_secs(10)).await;

    drop_when_running(&world, &host, 3).await;

    assert_eq!(host.status_of("s").unwrap().circuit, "half_open");
    assert!(host.call(call("s__other", "{}")).await.is_ok());
    assert_eq!(host.status_of("s").unwrap().circuit, "closed");
}

#[tokio::test(start_paused = true)]
async fn a_call_dropped_while_it_waits_for_a_start_runs_nowhere() {
    let gate = Gate::closed();
    let world = World::new([("s", Script::always(doing(Act::Answers).hangs(&gate)))]);
    let host = world.host(vec![spec("s")], HostLimits::default());
    tokio::select! {
        biased;
        outcome = do_it(&host) => panic!("the call ended: {outcome:?}"),
        _ = world.until(|record| record.starts.len() == 1) => {}
    }
    gate.release();
    assert!(reaches(&host, "s", "ready").await);
    assert!(host.call(call("s__other", "{}")).await.is_ok());
    let record = world.record();
    assert_eq!(record.executions.len(), 1);
    assert_eq!(record.executions[0].tool, "other");
    assert!(record.cancellations.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_hung_server_times_out_with_execution_unknown() {
    let script = Script::always(doing(Act::Hangs(Gate::closed())));
    let spec = ServerSpec {
        call_timeout: Duration::from_secs(7),
        ..spec("s")
    };
    let (world, host) = ready(script, spec, HostLimits::default()).await;

    let error = do_it(&host).await.unwrap_err();

    assert_eq!(host.clock().now().0, 7_000);
    let expect = CallError::Timeout {
        server: "s".into(),
        after_ms: 7_000,
        execution: Execution::Unknown,
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
async fn the_callers_own_deadline_holds_when_it_is_earlier() {
    let script = Script::always(doing(Act::Hangs(Gate::closed())));
    let (_world, host) = plain(script).await;
    let hasty = Call {
        deadline: Some(host.clock().now().plus(Duration::from_millis(40))),
        ..call("s__do", "{}")
    };
    let error = host.call(hasty).await.unwrap_err();
    assert_eq!(error.class(), Class::Timeout);
    assert_eq!(host.clock().now().0, 40);
}

#[tokio::test(start_paused = true)]
async fn waiting_for_a_start_counts_towards_the_deadline() {
    let gate = Gate::closed();
    let slow = doing(Act::Hangs(Gate::closed())).hangs(&gate);
    let world = World::new([("s", Script::always(slow))]);
    let spec = ServerSpec {
        call_timeout: Duration::from_secs(10),
        ..spec("s")
    };
    let host = world.host(vec![spec], HostLimits::default());
    let release = async {
        tokio::time::sleep(Duration::from_secs(6)).await;
        gate.release();
    };
    let (outcome, ()) = tokio::join!(do_it(&host), release);
    assert_eq!(outcome.unwrap_err().class(), Class::Timeout);
    assert_eq!(host.clock().now().0, 10_000);
}

#[tokio::test(start_paused = true)]
async fn a_start_that_outlasts_the_deadline_is_reported_as_not_started() {
    let slow = doing(Act::Answers).hangs(&Gate::closed());
    let world = World::new([("s", Script::always(slow))]);
    let spec = ServerSpec {
        call_timeout: Duration::from_secs(10),
        ..spec("s")
    };
    let host = world.host(vec![spec], HostLimits::default());
    for call in [call("s__do", "{}"), call_of("s", "do", "{}")] {
        let begun = host.clock().now();
        let error = host.call(call).await.unwrap_err();
        assert_eq!(error, CallError::StartTimeout { server: "s".into() });
        assert_eq!(error.execution(), Execution::NotStarted);
        assert_eq!(host.clock().now().millis_since(begun), 10_000);
    }
    assert!(world.record().executions.is_empty());
}

#[tokio::test(start_paused = true)]
async fn progress_reaches_the_sink_of_its_own_call() {
    let (_world, host) = plain(Script::always(doing(Act::Progress(3)))).await;
    let with_sink = |token: &str| {
        let params =
            format!(r#"{{"name":"s__do","arguments":{{}},"_meta":{{"progressToken":{token}}}}}"#);
        let at = params.find(token).unwrap();
        let sink = Hearer::of(1);
        let call = Call {
            params: params.into(),
            progress_at: Some(at..at + token.len()),
            caller: Some(Arc::clone(&sink) as Arc<dyn CallerEnd>),
            ..call("s__do", "{}")
        };
        (sink, call)
    };
    let ((one, first), (two, second)) = (with_sink("\"one\""), with_sink("222"));

    let (first, second) = tokio::join!(host.call(first), host.call(second));

    assert!(first.is_ok() && second.is_ok());
    for (sink, token) in [(one, "\"one\""), (two, "222")] {
        let told = sink.told();
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
async fn a_late_loss_from_before_a_restart_does_not_speak_against_the_new_server() {
    let script = Script::always(doing(Act::Hangs(Gate::closed()))).then(doing(Act::Answers));
    let (world, host) = ready(script, touchy(), HostLimits::default()).await;
    let running = async { tokio::join!(do_it(&host), do_it(&host), do_it(&host)) };
    let restart = async {
        world.until(|record| record.executions.len() == 3).await;
        let order = bowline_host::supervisor::Order::Restart;
        host.order("s", order, Duration::from_secs(60))
            .await
            .unwrap();
    };
    let ((one, two, three), ()) = tokio::join!(running, restart);
    for outcome in [one, two, three] {
        assert_eq!(outcome.unwrap_err().execution(), Execution::Unknown);
    }
    assert_eq!(host.status_of("s").unwrap().circuit, "closed");
    assert!(do_it(&host).await.is_ok());
    assert!(world.kill("s", Exit::Status(0)));
}
