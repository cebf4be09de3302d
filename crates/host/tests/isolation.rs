//! Sharing and isolation of links.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::{
    CallRequest, CallSubject, EndpointScope, Principal, RequestMessage, Role, TaskOperation,
};
use bowline_core::client_handle::{ClientHandle, NullClient, SessionKey};
use bowline_core::error::CallError;
use bowline_host::spec::{Isolation, ServerSpec};
use bowline_host::supervisor::ServerAction;
use bowline_host::{Host, HostLimits};
use bowline_link::{LinkEvent, LinkExit};
use bowline_testkit::{
    GenerationScript, RecordingClient, RecordingSink, ReleaseGate, ServerScript, SimWorld,
    ToolBehaviour, run_until_idle, server_spec, subject_call, tool_call, wait_for_state,
};

async fn ready_host(isolation: Isolation, act: ToolBehaviour) -> (SimWorld, Host) {
    let world = SimWorld::new([(
        "s",
        ServerScript::always(GenerationScript::with_tools([("do", act)])),
    )]);
    let spec = ServerSpec {
        isolation,
        ..server_spec("s")
    };
    let host = world.start_host(vec![spec], HostLimits::default());
    assert!(wait_for_state(&host, "s", "ready").await);
    (world, host)
}

fn call_from(caller: Arc<dyn ClientHandle>) -> CallRequest {
    let mut call = tool_call("s__do", "{}");
    call.message.client = Some(caller);
    call
}

fn call_of_session(session: u64) -> CallRequest {
    call_from(RecordingClient::new(session))
}

async fn call_from_sessions(host: &Host, sessions: impl IntoIterator<Item = u64>) {
    for session in sessions {
        host.call(call_of_session(session)).await.unwrap();
    }
}

/// The server sends a request that cannot be attributed.
async fn send_unattributed_request(world: &SimWorld, host: &Host) {
    assert!(
        world
            .latest_link("s")
            .unwrap()
            .emit(LinkEvent::UnattributedRequest)
    );
    run_until_idle().await;
    let status = host.server_status("s").unwrap();
    assert!(status.isolated_because.is_some(), "status says why");
}

#[tokio::test(start_paused = true)]
async fn unattributed_request_isolates_sessions() {
    let (world, host) = ready_host(Isolation::Auto, ToolBehaviour::Respond).await;
    call_from_sessions(&host, [1, 2, 1, 2]).await;
    assert_eq!(world.record().start_count("s"), 1);
    assert_eq!(host.server_status("s").unwrap().isolated_because, None);

    send_unattributed_request(&world, &host).await;
    call_from_sessions(&host, [1, 2, 1, 2]).await;
    assert_eq!(
        world.record().start_count("s"),
        3,
        "one more for each session"
    );
    let status = host.server_status("s").unwrap();
    assert_eq!((status.own_links, &*status.isolation), (2, "auto"));
    assert!(
        status
            .isolated_because
            .unwrap()
            .contains("several sessions")
    );

    // A client without capabilities keeps the shared link.
    host.call(call_from(Arc::new(NullClient::new(SessionKey(3)))))
        .await
        .unwrap();
    assert_eq!(world.record().start_count("s"), 3);
}

#[tokio::test(start_paused = true)]
async fn ended_session_closes_only_its_link() {
    let (world, host) = ready_host(Isolation::Session, ToolBehaviour::Respond).await;
    call_from_sessions(&host, [1, 2]).await;
    assert_eq!(world.record().live_count("s"), 3);
    host.end_session(SessionKey(1));
    let record = world.wait_until(|record| record.live_count("s") == 2).await;
    assert_eq!(record.live_count("s"), 2);
    call_from_sessions(&host, [2]).await;
    assert_eq!(world.record().start_count("s"), 3);
    call_from_sessions(&host, [1]).await;
    assert_eq!(world.record().start_count("s"), 4);
}

#[tokio::test(start_paused = true)]
async fn forced_isolation_applies_from_first_call() {
    for (isolation, starts) in [
        (Isolation::Shared, 1),
        (Isolation::Principal, 2),
        (Isolation::Session, 3),
    ] {
        let (world, host) = ready_host(isolation, ToolBehaviour::Respond).await;
        call_from_sessions(&host, [1, 2]).await;
        assert_forced_isolation_stays(&world, isolation).await;
        call_from_sessions(&host, [1, 2]).await;
        assert_eq!(world.record().start_count("s"), starts, "{isolation:?}");
    }
    let (world, host) = ready_host(Isolation::Principal, ToolBehaviour::Respond).await;
    for name in ["one", "two", "one"] {
        let principal = Arc::new(Principal::new(name, Role::Owner));
        let call = CallRequest {
            principal,
            ..call_of_session(1)
        };
        host.call(call).await.unwrap();
    }
    assert_eq!(world.record().start_count("s"), 3, "one for each principal");
}

/// With forced sharing, an unattributed request changes nothing.
async fn assert_forced_isolation_stays(world: &SimWorld, isolation: Isolation) {
    if isolation == Isolation::Shared {
        assert!(
            world
                .latest_link("s")
                .unwrap()
                .emit(LinkEvent::UnattributedRequest)
        );
        run_until_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn concurrent_calls_of_session_connect_once() {
    let (world, host) = ready_host(Isolation::Session, ToolBehaviour::Respond).await;
    let (one, two, three) = tokio::join!(
        host.call(call_of_session(1)),
        host.call(call_of_session(1)),
        host.call(call_of_session(1))
    );
    assert!(one.is_ok() && two.is_ok() && three.is_ok());
    assert_eq!(world.record().start_count("s"), 2);
}

#[tokio::test(start_paused = true)]
async fn lost_dedicated_link_is_reconnected() {
    let (world, host) = ready_host(Isolation::Session, ToolBehaviour::Respond).await;
    call_from_sessions(&host, [1]).await;
    // The latest link is the session's dedicated link.
    assert!(world.kill("s", LinkExit::Signal(9)));
    call_from_sessions(&host, [1]).await;
    let record = world.wait_until(|record| record.live_count("s") == 2).await;
    assert_eq!((record.start_count("s"), record.live_count("s")), (3, 2));
    assert_eq!(
        host.server_status("s").unwrap().generation,
        1,
        "the shared one lives"
    );
}

#[tokio::test(start_paused = true)]
async fn dedicated_links_are_capped_with_idle_eviction() {
    let (world, host) = ready_host(Isolation::Session, ToolBehaviour::Respond).await;
    call_from_sessions(&host, 1..=40).await;
    let record = world
        .wait_until(|record| record.live_count("s") == 33)
        .await;
    assert_eq!((record.start_count("s"), record.live_count("s")), (41, 33));
    assert_eq!(host.server_status("s").unwrap().own_links, 32);

    // With all links busy the call is refused.
    let gate = ReleaseGate::new_closed();
    let (world, host) = ready_host(Isolation::Session, ToolBehaviour::BlockOn(gate.clone())).await;
    let mut running = tokio::task::JoinSet::new();
    for session in 1..=32 {
        let host = host.clone();
        running.spawn(async move { host.call(call_of_session(session)).await });
    }
    world
        .wait_until(|record| record.executions.len() == 32)
        .await;
    let error = host.call(call_of_session(33)).await.unwrap_err();
    assert!(
        matches!(error, CallError::ServerBusy { limit: 32, .. }),
        "{error:?}"
    );
    running.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn stop_closes_every_link() {
    let (world, host) = ready_host(Isolation::Session, ToolBehaviour::Respond).await;
    call_from_sessions(&host, [1, 2, 3]).await;
    assert_eq!(world.record().live_count("s"), 4);
    host.apply_action("s", ServerAction::Stop, Duration::from_secs(5))
        .await
        .unwrap();
    assert_eq!(
        world
            .wait_until(|record| record.live_count("s") == 0)
            .await
            .live_count("s"),
        0
    );
    let error = host.call(call_of_session(1)).await.unwrap_err();
    assert_eq!(error, CallError::Stopped { server: "s".into() });
}

#[tokio::test(start_paused = true)]
async fn unused_dedicated_link_is_closed() {
    let (world, host) = ready_host(Isolation::Session, ToolBehaviour::Respond).await;
    call_from_sessions(&host, [1]).await;
    let record = world.wait_until(|record| record.live_count("s") == 1).await;
    assert_eq!(record.live_count("s"), 1, "only the shared one is left");
    call_from_sessions(&host, [1]).await;
    assert_eq!(world.record().live_count("s"), 2);
}

const TASKS: &str = concat!(
    r#"{"protocolVersion":"2025-11-25","#,
    r#""capabilities":{"tools":{},"tasks":{"list":{},"cancel":{}}}}"#,
);

/// Two calls of `who` in a session: the first creates a task, the second gets it.
fn task_calls(who: &str, session: u64) -> [CallRequest; 2] {
    let principal = Arc::new(Principal::new(who, Role::Owner));
    let (id, operation) = ("1".into(), TaskOperation::Get);
    let get = {
        let call = subject_call(CallSubject::Task { id, operation }, "taskId");
        CallRequest {
            principal: Arc::clone(&principal),
            message: RequestMessage {
                client: Some(RecordingClient::new(session)),
                ..call.message
            },
            ..call
        }
    };
    let make = CallRequest {
        principal,
        wants_task: true,
        ..call_of_session(session)
    };
    [make, get]
}

/// The generations that received this request, in order.
fn requested_generations(world: &SimWorld, method: &str) -> Vec<u64> {
    let requests = world.record().requests.into_iter();
    let own = requests.filter(|(.., text)| text.starts_with(method));
    own.map(|(_, life, _)| life).collect()
}

#[tokio::test(start_paused = true)]
async fn task_requests_use_link_of_task() {
    // Every process of this server numbers its tasks from 1.
    let made = r#"{"task":{"taskId":"1","status":"working"}}"#;
    let server =
        GenerationScript::with_tools([("do", ToolBehaviour::RespondWith(made.to_owned()))])
            .with_initialize_result(TASKS)
            .respond_with("tasks/get", "", r#"{"taskId":"1"}"#)
            .respond_with("tasks/list", "", r#"{"tasks":[{"taskId":"1"}]}"#);
    let world = SimWorld::new([("s", ServerScript::always(server))]);
    let ears = Arc::new(RecordingSink::default());
    let host =
        world.start_host_with_sink(vec![server_spec("s")], HostLimits::default(), ears.clone());
    assert!(wait_for_state(&host, "s", "ready").await);
    let [make_1, get_1] = task_calls("ann", 1);
    host.call(make_1).await.unwrap();
    send_unattributed_request(&world, &host).await;
    let [make_2, get_2] = task_calls("bob", 2);
    let [make_3, get_3] = task_calls("ann", 3);
    host.call(make_2).await.unwrap();
    host.call(make_3).await.unwrap();
    for get in [get_3, get_1.clone(), get_2] {
        host.call(get).await.unwrap();
    }
    assert_eq!(requested_generations(&world, "tasks/get"), [3, 1, 2]);

    let tasks = async |who| {
        let who = Principal::new(who, Role::Owner);
        host.list_tasks(&who, &EndpointScope::All).await.unwrap()
    };
    assert_eq!(
        tasks("ann").await,
        r#"{"tasks":[{"taskId":"1"},{"taskId":"1"}]}"#
    );
    assert_eq!(tasks("bob").await, r#"{"tasks":[{"taskId":"1"}]}"#);
    assert_eq!(requested_generations(&world, "tasks/list"), [1, 3, 2]);
    // The newest link belongs to session 3.
    let (task, notification) = ("1".into(), "news".into());
    assert!(world.emit("s", LinkEvent::TaskStatus { task, notification }));
    assert_eq!(
        ears.wait_for_notifications(1).await,
        [(3, "news".to_owned())]
    );

    // Idle links stay open, since their tasks may run.
    for _ in 0..8 {
        tokio::time::advance(Duration::from_secs(600)).await;
        host.call(task_calls("ann", 1)[1].clone()).await.unwrap();
    }
    assert_eq!(world.record().live_count("s"), 3);

    // A task of a closed link is never looked up on another link.
    host.end_session(SessionKey(2));
    let [_, mut get] = task_calls("bob", 2);
    get.message.client = None;
    let error = host.call(get).await.unwrap_err();
    assert!(matches!(error, CallError::UnknownTask { .. }), "{error}");
    assert_eq!(tasks("bob").await, r#"{"tasks":[]}"#);
    host.call(get_1).await.unwrap();
    assert_eq!(requested_generations(&world, "tasks/get").last(), Some(&1));
}

#[tokio::test(start_paused = true)]
async fn dedicated_links_obey_restart_budget() {
    let script = ServerScript::always(GenerationScript::with_tools([("do", ToolBehaviour::Exit)]));
    let world = SimWorld::new([("s", script)]);
    let breaker = bowline_core::breaker::BreakerPolicy {
        failures_max: 1_000,
        ..server_spec("s").breaker
    };
    let spec = ServerSpec {
        isolation: Isolation::Session,
        breaker,
        ..server_spec("s")
    };
    let host = world.start_host(vec![spec], HostLimits::default());
    assert!(wait_for_state(&host, "s", "ready").await);
    let mut refused = 0;
    for _ in 0..20 {
        match host.call(call_of_session(1)).await {
            Err(CallError::StartFailed { retry_after, .. }) => {
                assert!(retry_after > Duration::from_secs(60), "{retry_after:?}");
                refused += 1;
            }
            ended => assert!(ended.is_err(), "{ended:?}"),
        }
    }
    // The shared link, the session's first link, and five replacements of crashed processes.
    assert_eq!(world.record().start_count("s"), 7);
    assert_eq!(refused, 14);
    host.apply_action("s", ServerAction::Restart, Duration::from_secs(60))
        .await
        .unwrap();
    assert!(host.call(call_of_session(1)).await.is_err());
    assert_eq!(
        world.record().start_count("s"),
        9,
        "a person asked for more"
    );
}
