//! Failed starts and lost links.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::error::{CallError, ExecutionStatus, FailureClass};
use bowline_core::redact::Redactor;
use bowline_core::restart_budget::RestartPolicy;
use bowline_host::spec::ServerSpec;
use bowline_host::supervisor::ServerAction;
use bowline_link::{LinkConnectError, LinkError, LinkExit};
use bowline_testkit::{
    GenerationScript, ServerScript, SimWorld, server_spec, tool_call, wait_for_state,
};

use super::{
    OddDial, WAIT, advance_clock, healthy_server, http_spec, spawn_calls, start_host, state_events,
    world_with,
};

pub(super) fn refused_connect(source: LinkError) -> LinkConnectError {
    let server = "s".into();
    LinkConnectError::Refused { server, source }
}

pub(super) fn unauthorized_connect(status: u16) -> LinkConnectError {
    refused_connect(LinkError::Unauthorized {
        status,
        challenge: Some("Bearer".into()),
    })
}

#[tokio::test(start_paused = true)]
async fn never_ready_server_is_retried_within_budget() {
    let restart = RestartPolicy {
        restarts_max: 5,
        window: Duration::from_secs(300),
    };
    let spec = ServerSpec {
        restart,
        ..server_spec("s")
    };
    let (world, host) = world_with(
        ServerScript::always(GenerationScript::failing_start("not yet")),
        spec,
    );
    let waiting = spawn_calls(&host, "s__do", 2);
    let window = Duration::from_secs(300);
    let mut seen = 0;
    for nth in 0..12 {
        advance_clock(window).await;
        let starts = world.record().start_count("s");
        // The first start is free; each later start is within the budget.
        let allowed = if nth == 0 { 6 } else { 5 };
        assert!(starts - seen <= allowed, "{} in a window", starts - seen);
        assert!(starts > seen, "it was given up");
        seen = starts;
        assert_eq!(host.server_status("s").unwrap().state, "backoff");
    }
    let error = host.call(tool_call("s__do", "{}")).await.unwrap_err();
    assert!(matches!(error, CallError::StartFailed { .. }), "{error}");
    assert_eq!(error.execution_status(), ExecutionStatus::NotStarted);
    let text = error.to_string();
    assert_eq!(text.matches("`s`").count(), 1, "named once: {text}");
    assert!(text.contains("not yet"), "{text}");
    for outcome in waiting.join_all().await {
        assert!(outcome.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn late_first_start_succeeds() {
    let bad = || GenerationScript::failing_start("no network yet");
    let script = (0..7).fold(ServerScript::always(bad()), |script, _| script.then(bad()));
    let (world, host) = world_with(script.then(healthy_server()), server_spec("s"));
    assert!(wait_for_state(&host, "s", "ready").await);
    assert_eq!(world.record().start_count("s"), 9);
    host.call(tool_call("s__do", "{}")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn remote_outage_never_ejects() {
    let world = SimWorld::new([("s", ServerScript::always(healthy_server()))]);
    let down = (0..1_000).map(|_| refused_connect(LinkError::Unreachable("refused".into())));
    let dial = OddDial::new(&world, []);
    let host = start_host(dial.clone(), &Arc::default(), vec![http_spec("s")]);
    assert!(wait_for_state(&host, "s", "ready").await);
    dial.errors.lock().unwrap().extend(down);
    assert!(world.kill("s", LinkExit::Gone));
    assert!(wait_for_state(&host, "s", "backoff").await);
    advance_clock(Duration::from_secs(60)).await;
    let status = host.server_status("s").unwrap();
    assert_eq!((status.ejected, status.restart_count), (false, 0));
    assert_eq!(status.last_error.unwrap().class, "connect_failed");
    dial.errors.lock().unwrap().clear();
    let back_ms = host.clock().now().0;
    assert!(
        wait_for_state(&host, "s", "ready").await,
        "it comes back by itself"
    );
    let took_ms = host.clock().now().0 - back_ms;
    assert!(took_ms <= 1_500, "{took_ms}");
}

#[tokio::test(start_paused = true)]
async fn remote_server_hanging_up_is_never_ejected() {
    let world = SimWorld::new([("s", ServerScript::always(healthy_server()))]);
    let host = start_host(
        OddDial::new(&world, []),
        &Arc::default(),
        vec![http_spec("s")],
    );
    for _ in 0..20 {
        assert!(wait_for_state(&host, "s", "ready").await);
        assert!(world.kill("s", LinkExit::Gone));
        let mut states = host.server("s").unwrap().subscribe_state();
        let gone = states.wait_for(|state| state.as_str() != "ready");
        gone.await.unwrap();
    }
    assert!(wait_for_state(&host, "s", "ready").await);
    let status = host.server_status("s").unwrap();
    assert_eq!((status.ejected, status.restart_count), (false, 0));
}

#[tokio::test(start_paused = true)]
async fn wrong_credentials_fail_with_auth_error() {
    for (status, class) in [
        (401, FailureClass::AuthRequired),
        (403, FailureClass::ScopeRequired),
    ] {
        let world = SimWorld::new([("s", ServerScript::always(healthy_server()))]);
        let errors = (0..20).map(|_| unauthorized_connect(status));
        let mut spec = http_spec("s");
        spec.backoff.base = Duration::from_secs(10);
        let dial = OddDial::new(&world, errors);
        let host = start_host(dial, &Arc::default(), vec![spec]);
        assert!(wait_for_state(&host, "s", "backoff").await);
        let error = host.call(tool_call("s__do", "{}")).await.unwrap_err();
        assert_eq!(error.failure_class(), class, "{error}");
        assert_eq!(error.execution_status(), ExecutionStatus::NotStarted);
        let last = host.server_status("s").unwrap().last_error.unwrap();
        assert_eq!(&*last.class, class.as_str());
    }
}

#[tokio::test(start_paused = true)]
async fn exit_before_handshake_differs_from_crash() {
    let world = SimWorld::new([("s", ServerScript::always(healthy_server()))]);
    let early = LinkConnectError::ExitedBeforeHandshake {
        server: "s".into(),
        exit: LinkExit::Status(3),
        stderr_tail: vec!["reading config".into(), "KEY is not set".into()],
    };
    let host = start_host(
        OddDial::new(&world, [early]),
        &Arc::default(),
        vec![server_spec("s")],
    );
    let mut events = host.events().subscribe();
    assert!(wait_for_state(&host, "s", "backoff").await);
    let early = "ended before the handshake: exit code 3: reading config | KEY is not set";
    let last = host.server_status("s").unwrap().last_error.unwrap();
    assert_eq!((&*last.class, &*last.message), ("connect_failed", early));
    assert!(wait_for_state(&host, "s", "ready").await);
    host.server("s").unwrap().log().push_line("out of memory");
    assert!(world.kill("s", LinkExit::Signal(9)));
    assert!(wait_for_state(&host, "s", "backoff").await);
    let late = "killed by signal 9: out of memory";
    let last = host.server_status("s").unwrap().last_error.unwrap();
    assert_eq!((&*last.class, &*last.message), ("connection_lost", late));
    assert_eq!(
        state_events(&mut events),
        [
            ("backoff", 1, Some(early.to_owned())),
            ("starting", 2, None),
            ("ready", 2, None),
            ("backoff", 2, Some(late.to_owned())),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn secret_in_reason_is_redacted() {
    let world = SimWorld::new([("s", ServerScript::always(healthy_server()))]);
    let early = || LinkConnectError::ExitedBeforeHandshake {
        server: "s".into(),
        exit: LinkExit::Status(3),
        stderr_tail: vec!["bad key canary-0123456789".into()],
    };
    let mut spec = ServerSpec {
        secrets: Arc::new(Redactor::new([("KEY", "canary-0123456789")])),
        ..server_spec("s")
    };
    spec.backoff.base = Duration::from_secs(10);
    let dial = OddDial::new(&world, [early(), early()]);
    let host = start_host(dial, &Arc::default(), vec![spec]);
    let mut events = host.events().subscribe();
    assert!(wait_for_state(&host, "s", "backoff").await);
    let error = host.call(tool_call("s__do", "{}")).await.unwrap_err();
    let server = host.server("s").unwrap();
    server.log().push_line("still canary-0123456789");
    let shown = format!(
        "{error} {:?} {:?} {:?} {:?}",
        host.server_status("s").unwrap(),
        *server.subscribe_state().borrow(),
        state_events(&mut events),
        host.logs(None, 0, 10).unwrap(),
    );
    assert!(!shown.contains("canary"), "{shown}");
    assert_eq!(shown.matches("‹KEY›").count(), 5, "{shown}");
}

#[tokio::test(start_paused = true)]
async fn secret_in_server_error_is_redacted() {
    let prompts = r#"{"protocolVersion":"2025-06-18","capabilities":{"tools":{},"prompts":{}},"serverInfo":{"name":"s","version":"1"}}"#;
    let refusal = r#"{"code":1,"message":"no prompts for canary-0123456789"}"#;
    let says = healthy_server()
        .with_initialize_result(prompts)
        .respond_with_error("prompts/list", "", refusal);
    let spec = ServerSpec {
        secrets: Arc::new(Redactor::new([("KEY", "canary-0123456789")])),
        ..server_spec("s")
    };
    let (_world, host) = world_with(ServerScript::always(says), spec);
    assert!(wait_for_state(&host, "s", "ready").await);
    let last = host.server_status("s").unwrap().last_error.unwrap();
    assert!(last.message.contains("no prompts for ‹KEY›"), "{last:?}");
}

#[tokio::test(start_paused = true)]
async fn ejection_withdraws_tools_until_reload() {
    let (world, host) = world_with(ServerScript::always(healthy_server()), server_spec("s"));
    for _ in 0..6 {
        assert!(wait_for_state(&host, "s", "ready").await);
        assert!(world.kill("s", LinkExit::Status(1)));
        let mut states = host.server("s").unwrap().subscribe_state();
        let gone = states.wait_for(|state| state.as_str() != "ready");
        gone.await.unwrap();
    }
    assert!(wait_for_state(&host, "s", "ejected").await);
    assert!(host.catalog().server("s").is_none());
    advance_clock(Duration::from_secs(7_200)).await;
    let error = host.call(tool_call("s__do", "{}")).await.unwrap_err();
    assert!(matches!(error, CallError::Ejected { .. }), "{error}");

    let status = host
        .apply_action("s", ServerAction::Reload, WAIT)
        .await
        .unwrap();
    assert_eq!((&*status.state, status.restart_count), ("ready", 0));
    host.call(tool_call("s__do", "{}")).await.unwrap();
}
