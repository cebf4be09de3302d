//! Failed starts and lost links.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::error::{CallError, Class, Execution};
use bowline_core::redact::Redactor;
use bowline_core::supervision::RestartPolicy;
use bowline_host::spec::ServerSpec;
use bowline_host::supervisor::Order;
use bowline_link::{ConnectError, Exit, LinkError};
use bowline_sim::{Generation, Script, World, call, reaches, spec};

use super::{OddDial, WAIT, calls, host, pass, remote, states, well, world};

pub(super) fn refused(source: LinkError) -> ConnectError {
    let server = "s".into();
    ConnectError::Refused { server, source }
}

pub(super) fn unauthorized(status: u16) -> ConnectError {
    refused(LinkError::Unauthorized {
        status,
        challenge: Some("Bearer".into()),
    })
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_served_is_retried_slowly_for_ever_within_its_budget() {
    let restart = RestartPolicy {
        restarts_max: 5,
        window: Duration::from_secs(300),
    };
    let spec = ServerSpec {
        restart,
        ..spec("s")
    };
    let (world, host) = world(Script::always(Generation::fails("not yet")), spec);
    let waiting = calls(&host, "s__do", 2);
    let window = Duration::from_secs(300);
    let mut seen = 0;
    for nth in 0..12 {
        pass(window).await;
        let starts = world.record().starts_of("s");
        // The first start is free; each one after it is within the budget of its window.
        let allowed = if nth == 0 { 6 } else { 5 };
        assert!(starts - seen <= allowed, "{} in a window", starts - seen);
        assert!(starts > seen, "it was given up");
        seen = starts;
        assert_eq!(host.status_of("s").unwrap().state, "backoff");
    }
    let error = host.call(call("s__do", "{}")).await.unwrap_err();
    assert!(matches!(error, CallError::StartFailed { .. }), "{error}");
    assert_eq!(error.execution(), Execution::NotStarted);
    let text = error.to_string();
    assert_eq!(text.matches("`s`").count(), 1, "named once: {text}");
    assert!(text.contains("not yet"), "{text}");
    for outcome in waiting.join_all().await {
        assert!(outcome.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn a_first_start_that_works_late_serves() {
    let bad = || Generation::fails("no network yet");
    let script = (0..7).fold(Script::always(bad()), |script, _| script.then(bad()));
    let (world, host) = world(script.then(well()), spec("s"));
    assert!(reaches(&host, "s", "ready").await);
    assert_eq!(world.record().starts_of("s"), 9);
    host.call(call("s__do", "{}")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_a_remote_server_is_no_reason_to_eject_it() {
    let world = World::new([("s", Script::always(well()))]);
    let down = (0..1_000).map(|_| refused(LinkError::Unreachable("refused".into())));
    let dial = OddDial::new(&world, []);
    let host = host(dial.clone(), &Arc::default(), vec![remote("s")]);
    assert!(reaches(&host, "s", "ready").await);
    dial.errors.lock().unwrap().extend(down);
    assert!(world.kill("s", Exit::Gone));
    assert!(reaches(&host, "s", "backoff").await);
    pass(Duration::from_secs(60)).await;
    let status = host.status_of("s").unwrap();
    assert_eq!((status.ejected, status.restart_count), (false, 0));
    assert_eq!(status.last_error.unwrap().class, "connect_failed");
    dial.errors.lock().unwrap().clear();
    let back_ms = host.clock().now().0;
    assert!(
        reaches(&host, "s", "ready").await,
        "it comes back by itself"
    );
    let took_ms = host.clock().now().0 - back_ms;
    assert!(took_ms <= 1_500, "{took_ms}");
}

#[tokio::test(start_paused = true)]
async fn remote_server_hanging_up_is_never_ejected() {
    let world = World::new([("s", Script::always(well()))]);
    let host = host(OddDial::new(&world, []), &Arc::default(), vec![remote("s")]);
    for _ in 0..20 {
        assert!(reaches(&host, "s", "ready").await);
        assert!(world.kill("s", Exit::Gone));
        let mut states = host.server("s").unwrap().state();
        let gone = states.wait_for(|state| state.as_str() != "ready");
        gone.await.unwrap();
    }
    assert!(reaches(&host, "s", "ready").await);
    let status = host.status_of("s").unwrap();
    assert_eq!((status.ejected, status.restart_count), (false, 0));
}

#[tokio::test(start_paused = true)]
async fn wrong_credentials_at_the_start_are_told_as_such() {
    for (status, class) in [(401, Class::AuthRequired), (403, Class::ScopeRequired)] {
        let world = World::new([("s", Script::always(well()))]);
        let errors = (0..20).map(|_| unauthorized(status));
        let mut spec = remote("s");
        spec.backoff.base = Duration::from_secs(10);
        let dial = OddDial::new(&world, errors);
        let host = host(dial, &Arc::default(), vec![spec]);
        assert!(reaches(&host, "s", "backoff").await);
        let error = host.call(call("s__do", "{}")).await.unwrap_err();
        assert_eq!(error.class(), class, "{error}");
        assert_eq!(error.execution(), Execution::NotStarted);
        let last = host.status_of("s").unwrap().last_error.unwrap();
        assert_eq!(last.class, class.as_str());
    }
}

#[tokio::test(start_paused = true)]
async fn an_exit_before_the_handshake_is_told_from_a_crash_in_status_and_events() {
    let world = World::new([("s", Script::always(well()))]);
    let early = ConnectError::ExitedBeforeHandshake {
        server: "s".into(),
        exit: Exit::Status(3),
        stderr_tail: vec!["reading config".into(), "KEY is not set".into()],
    };
    let host = host(
        OddDial::new(&world, [early]),
        &Arc::default(),
        vec![spec("s")],
    );
    let mut events = host.events().watch();
    assert!(reaches(&host, "s", "backoff").await);
    let early = "ended before the handshake: exit code 3: reading config | KEY is not set";
    let last = host.status_of("s").unwrap().last_error.unwrap();
    assert_eq!((last.class, &*last.message), ("connect_failed", early));
    assert!(reaches(&host, "s", "ready").await);
    host.server("s").unwrap().log().push("out of memory");
    assert!(world.kill("s", Exit::Signal(9)));
    assert!(reaches(&host, "s", "backoff").await);
    let late = "killed by signal 9: out of memory";
    let last = host.status_of("s").unwrap().last_error.unwrap();
    assert_eq!((last.class, &*last.message), ("connection_lost", late));
    assert_eq!(
        states(&mut events),
        [
            ("backoff", 1, Some(early.to_owned())),
            ("starting", 2, None),
            ("ready", 2, None),
            ("backoff", 2, Some(late.to_owned())),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_secret_in_a_reason_is_shown_to_nobody() {
    let world = World::new([("s", Script::always(well()))]);
    let early = || ConnectError::ExitedBeforeHandshake {
        server: "s".into(),
        exit: Exit::Status(3),
        stderr_tail: vec!["bad key canary-0123456789".into()],
    };
    let mut spec = ServerSpec {
        secrets: Arc::new(Redactor::new([("KEY", "canary-0123456789")])),
        ..spec("s")
    };
    spec.backoff.base = Duration::from_secs(10);
    let dial = OddDial::new(&world, [early(), early()]);
    let host = host(dial, &Arc::default(), vec![spec]);
    let mut events = host.events().watch();
    assert!(reaches(&host, "s", "backoff").await);
    let error = host.call(call("s__do", "{}")).await.unwrap_err();
    let server = host.server("s").unwrap();
    server.log().push("still canary-0123456789");
    let shown = format!(
        "{error} {:?} {:?} {:?} {:?}",
        host.status_of("s").unwrap(),
        *server.state().borrow(),
        states(&mut events),
        host.logs(None, 0, 10).unwrap(),
    );
    assert!(!shown.contains("canary"), "{shown}");
    assert_eq!(shown.matches("‹KEY›").count(), 5, "{shown}");
}

#[tokio::test(start_paused = true)]
async fn a_secret_that_a_server_itself_says_is_shown_to_nobody() {
    let prompts = r#"{"protocolVersion":"2025-06-18","capabilities":{"tools":{},"prompts":{}},"serverInfo":{"name":"s","version":"1"}}"#;
    let refusal = r#"{"code":1,"message":"no prompts for canary-0123456789"}"#;
    let says = well()
        .introduces(prompts)
        .refuses("prompts/list", "", refusal);
    let spec = ServerSpec {
        secrets: Arc::new(Redactor::new([("KEY", "canary-0123456789")])),
        ..spec("s")
    };
    let (_world, host) = world(Script::always(says), spec);
    assert!(reaches(&host, "s", "ready").await);
    let last = host.status_of("s").unwrap().last_error.unwrap();
    assert!(last.message.contains("no prompts for ‹KEY›"), "{last:?}");
}

#[tokio::test(start_paused = true)]
async fn ejection_withdraws_the_offer_and_holds_until_reload() {
    let (world, host) = world(Script::always(well()), spec("s"));
    for _ in 0..6 {
        assert!(reaches(&host, "s", "ready").await);
        assert!(world.kill("s", Exit::Status(1)));
        let mut states = host.server("s").unwrap().state();
        let gone = states.wait_for(|state| state.as_str() != "ready");
        gone.await.unwrap();
    }
    assert!(reaches(&host, "s", "ejected").await);
    assert!(host.catalog().offer("s").is_none());
    pass(Duration::from_secs(7_200)).await;
    let error = host.call(call("s__do", "{}")).await.unwrap_err();
    assert!(matches!(error, CallError::Ejected { .. }), "{error}");

    let status = host.order("s", Order::Reload, WAIT).await.unwrap();
    assert_eq!((status.state, status.restart_count), ("ready", 0));
    host.call(call("s__do", "{}")).await.unwrap();
}
