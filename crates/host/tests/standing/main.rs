//! Session state between calls: subscriptions, log level, and tasks.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod tasks;

use std::sync::Arc;

use bowline_core::call::{EndpointScope, Principal, Role};
use bowline_core::client_handle::{ClientHandle, SessionKey};
use bowline_core::error::CallError;
use bowline_core::log_level::LogLevel;
use bowline_core::subscriptions::SUBSCRIPTIONS_MAX;
use bowline_host::spec::{Isolation, ServerSpec};
use bowline_host::{Host, HostLimits};
use bowline_link::{LinkEvent, LinkExit};
use bowline_testkit::{
    GenerationScript, RecordingClient, RecordingSink, ServerScript, SimWorld, ToolBehaviour,
    run_until_idle, server_spec, tool_call, wait_for_state,
};

const INITIALIZE: &str = concat!(
    r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"#,
    r#""resources":{"subscribe":true},"logging":{},"tasks":{"list":{},"cancel":{}}}}"#,
);

/// A server with a resource, subscriptions, log levels, and the task `1`.
fn sync_server() -> GenerationScript {
    let task = r#"{"task":{"taskId":"1","status":"working"}}"#;
    GenerationScript::with_tools([
        ("make", ToolBehaviour::RespondWith(task.to_owned())),
        ("t", ToolBehaviour::Respond),
    ])
    .with_initialize_result(INITIALIZE)
    .respond_with("resources/list", "", r#"{"resources":[{"uri":"x:1"}]}"#)
    .respond_with_error(
        "resources/subscribe",
        "x:no",
        r#"{"code":-32002,"message":"mine"}"#,
    )
    .respond_with("resources/subscribe", "", "{}")
    .respond_with("resources/unsubscribe", "", "{}")
    .respond_with("logging/setLevel", "", "{}")
    .respond_with("tasks/get", "", r#"{"taskId":"1","status":"working"}"#)
    .respond_with(
        "tasks/list",
        "cursor",
        r#"{"tasks":[{"taskId":"9"},{ "taskId" : "1" }]}"#,
    )
    .respond_with(
        "tasks/list",
        "",
        r#"{"tasks":[{"taskId":"8"}],"nextCursor":"c"}"#,
    )
}

/// Like `sync_server`, but without responses to subscriptions and log levels.
fn silent_server() -> GenerationScript {
    GenerationScript::with_tools([("t", ToolBehaviour::Respond)])
        .with_initialize_result(INITIALIZE)
        .respond_with("resources/list", "", r#"{"resources":[{"uri":"x:1"}]}"#)
        .never_respond("resources/subscribe")
        .never_respond("logging/setLevel")
}

struct SubscriptionStage {
    world: SimWorld,
    host: Host,
    ears: Arc<RecordingSink>,
}

async fn start_stage(names: &[&str]) -> SubscriptionStage {
    let world = SimWorld::new(
        names
            .iter()
            .map(|name| (*name, ServerScript::always(sync_server()))),
    );
    let ears = Arc::new(RecordingSink::default());
    let specs = names.iter().map(|name| server_spec(name)).collect();
    let audience = Arc::clone(&ears);
    let host = world.start_host_with_sink(specs, HostLimits::default(), audience);
    for name in names {
        assert!(wait_for_state(&host, name, "ready").await);
    }
    SubscriptionStage { world, host, ears }
}

fn owner_principal() -> Principal {
    Principal::new("owner", Role::Owner)
}

impl SubscriptionStage {
    async fn subscribe(
        &self,
        session: u64,
        scope: &EndpointScope,
        uri: &str,
    ) -> Result<(), CallError> {
        let caller: Arc<dyn ClientHandle> = RecordingClient::new(session);
        self.host
            .subscribe(&owner_principal(), scope, &caller, uri)
            .await
    }

    async fn unsubscribe(&self, session: u64, uri: &str) {
        let (who, session) = (owner_principal(), SessionKey(session));
        let ended = self
            .host
            .unsubscribe(&who, &EndpointScope::All, session, uri);
        ended.await.unwrap();
    }

    /// Waits until a server received `count` requests with this prefix, and returns them.
    async fn wait_requests(&self, server: &str, start: &str, count: usize) -> Vec<String> {
        let of = |record: &bowline_testkit::SimRecord| -> Vec<String> {
            let own = record.server_requests(server).into_iter();
            own.filter(|text| text.starts_with(start))
                .map(str::to_owned)
                .collect()
        };
        let record = self.world.wait_until(|record| of(record).len() >= count);
        of(&record.await)
    }

    fn send_update(&self, server: &str, uri: &str) {
        let notification = format!(r#"{{"method":"m", "params":{{"x":1,"uri":"{uri}"}}}}"#);
        assert!(self.world.emit(
            server,
            LinkEvent::ResourceUpdated {
                uri: uri.into(),
                notification: notification.into(),
            }
        ));
    }
}

fn server_scope(server: &str) -> EndpointScope {
    EndpointScope::Server(server.into())
}

#[tokio::test(start_paused = true)]
async fn session_reset_resends_state() {
    let stage = start_stage(&["s"]).await;
    stage
        .subscribe(1, &EndpointScope::All, "x:1")
        .await
        .unwrap();
    stage.subscribe(2, &server_scope("s"), "x:2").await.unwrap();
    let (scope, session) = (server_scope("s"), SessionKey(2));
    let owner = owner_principal();
    let level = stage
        .host
        .set_log_level(&owner, &scope, session, LogLevel::Debug);
    level.await.unwrap();
    for round in 2..4 {
        assert!(stage.world.emit("s", LinkEvent::SessionReset));
        let told = stage
            .wait_requests("s", "resources/subscribe", 2 * round)
            .await;
        assert_eq!(told.len(), 2 * round, "{told:?}");
        let mut last = told[2 * round - 2..].to_vec();
        last.sort();
        assert!(
            last[0].contains("x:1") && last[1].contains("x:2"),
            "{last:?}"
        );
        let levels = stage.wait_requests("s", "logging/setLevel", round).await;
        assert_eq!(levels.len(), round, "{levels:?}");
    }
    // The link is the same.
    assert_eq!(stage.world.record().start_count("s"), 1);
}

#[tokio::test(start_paused = true)]
async fn unanswered_subscription_is_retried() {
    let stage = start_stage(&["s"]).await;
    stage
        .subscribe(1, &EndpointScope::All, "x:1")
        .await
        .unwrap();
    // The session is reset, and the server does not respond.
    assert!(stage.world.change_script("s", silent_server()));
    assert!(stage.world.emit("s", LinkEvent::SessionReset));
    assert_eq!(
        stage
            .wait_requests("s", "resources/subscribe", 2)
            .await
            .len(),
        2
    );
    assert!(stage.world.change_script("s", sync_server()));
    let hour = std::time::Duration::from_secs(3_600);
    let again =
        tokio::time::timeout(hour, stage.wait_requests("s", "resources/subscribe", 3)).await;
    assert_eq!(again.expect("it is told again").len(), 3);
    // The server responds; a refusal is not repeated.
    stage
        .subscribe(1, &server_scope("s"), "x:no")
        .await
        .unwrap_err();
    let _ = tokio::time::timeout(hour, std::future::pending::<()>()).await;
    assert_eq!(
        stage
            .wait_requests("s", "resources/subscribe", 4)
            .await
            .len(),
        4
    );
}

#[tokio::test(start_paused = true)]
async fn only_first_and_last_subscriber_reach_upstream() {
    let stage = start_stage(&["s"]).await;
    stage
        .subscribe(1, &EndpointScope::All, "x:1")
        .await
        .unwrap();
    stage.subscribe(2, &server_scope("s"), "x:1").await.unwrap();
    stage.subscribe(2, &server_scope("s"), "x:1").await.unwrap();
    stage.unsubscribe(1, "x:1").await;
    stage.send_update("s", "x:1");
    let told = stage.ears.wait_for_notifications(1).await;
    assert_eq!(
        told,
        [(
            2,
            r#"{"method":"m", "params":{"x":1,"uri":"x:1"}}"#.to_owned()
        )]
    );
    stage.host.end_session(SessionKey(2));
    let asked = stage.wait_requests("s", "resources/un", 1).await;
    assert_eq!(asked, [r#"resources/unsubscribe {"uri":"x:1"}"#]);
    let subscribed = stage.wait_requests("s", "resources/subscribe", 1).await;
    assert_eq!(subscribed, [r#"resources/subscribe {"uri":"x:1"}"#]);
    stage
        .subscribe(3, &EndpointScope::All, "x:1")
        .await
        .unwrap();
    assert_eq!(
        stage
            .wait_requests("s", "resources/subscribe", 2)
            .await
            .len(),
        2
    );
}

#[tokio::test(start_paused = true)]
async fn update_uses_uri_of_session() {
    let stage = start_stage(&["a", "b"]).await;
    assert!(
        stage
            .subscribe(1, &EndpointScope::All, "x:1")
            .await
            .is_err(),
        "two servers have it"
    );
    stage
        .subscribe(1, &EndpointScope::All, "bowline://b/x%3A1")
        .await
        .unwrap();
    stage.subscribe(2, &server_scope("b"), "x:1").await.unwrap();
    stage.send_update("a", "x:1");
    stage.send_update("b", "x:1");
    let told = stage.ears.wait_for_notifications(2).await;
    let text = |uri: &str| format!(r#"{{"method":"m", "params":{{"x":1,"uri":"{uri}"}}}}"#);
    assert_eq!(told, [(1, text("bowline://b/x%3A1")), (2, text("x:1"))]);
    assert_eq!(
        stage.wait_requests("a", "resources/subscribe", 0).await,
        [""; 0]
    );
}

#[tokio::test(start_paused = true)]
async fn refused_subscription_returns_server_error() {
    let stage = start_stage(&["s"]).await;
    for _ in 0..2 {
        let error = stage
            .subscribe(1, &server_scope("s"), "x:no")
            .await
            .unwrap_err();
        let CallError::Refused { error, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(error, r#"{"code":-32002,"message":"mine"}"#);
    }
    assert_eq!(
        stage
            .wait_requests("s", "resources/subscribe", 2)
            .await
            .len(),
        2,
        "each was asked for"
    );
    stage.send_update("s", "x:no");
    stage.subscribe(1, &server_scope("s"), "x:1").await.unwrap();
    stage.send_update("s", "x:1");
    let told = stage.ears.wait_for_notifications(1).await;
    assert!(told.len() == 1 && told[0].1.contains("x:1"), "{told:?}");
    assert_eq!(
        stage.wait_requests("s", "resources/un", 0).await,
        [""; 0],
        "nothing to take back"
    );
}

#[tokio::test(start_paused = true)]
async fn restarted_server_gets_state_again() {
    let stage = start_stage(&["s"]).await;
    stage
        .subscribe(1, &EndpointScope::All, "x:1")
        .await
        .unwrap();
    stage
        .host
        .set_log_level(
            &owner_principal(),
            &EndpointScope::All,
            SessionKey(1),
            LogLevel::Info,
        )
        .await
        .unwrap();
    assert!(stage.world.kill("s", LinkExit::Signal(9)));
    let again = |record: &bowline_testkit::SimRecord| {
        let second = record.requests.iter().filter(|(_, life, _)| *life == 2);
        let texts: Vec<_> = second.map(|(.., text)| text.as_str()).collect();
        texts.contains(&r#"resources/subscribe {"uri":"x:1"}"#)
            && texts.contains(&r#"logging/setLevel {"level":"info"}"#)
    };
    assert!(again(&stage.world.wait_until(again).await));
    stage.send_update("s", "x:1");
    assert_eq!(stage.ears.wait_for_notifications(1).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn subscriptions_per_session_are_limited() {
    let stage = start_stage(&["s"]).await;
    for nth in 0..SUBSCRIPTIONS_MAX {
        stage
            .subscribe(1, &server_scope("s"), &format!("y:{nth}"))
            .await
            .unwrap();
    }
    let error = stage
        .subscribe(1, &server_scope("s"), "y:more")
        .await
        .unwrap_err();
    assert_eq!(
        error,
        CallError::TooManySubscriptions {
            limit: SUBSCRIPTIONS_MAX
        }
    );
    stage
        .subscribe(2, &server_scope("s"), "y:more")
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn most_verbose_level_is_sent() {
    let stage = start_stage(&["s", "t"]).await;
    let set = async |session, scope: &EndpointScope, level| {
        stage
            .host
            .set_log_level(&owner_principal(), scope, SessionKey(session), level)
            .await
            .unwrap();
    };
    set(1, &EndpointScope::All, LogLevel::Warning).await;
    set(2, &server_scope("s"), LogLevel::Debug).await;
    set(3, &server_scope("s"), LogLevel::Error).await;
    assert_eq!(
        stage.wait_requests("s", "logging", 2).await,
        [
            r#"logging/setLevel {"level":"warning"}"#,
            r#"logging/setLevel {"level":"debug"}"#
        ]
    );
    assert_eq!(
        stage.wait_requests("t", "logging", 1).await,
        [r#"logging/setLevel {"level":"warning"}"#]
    );
    set(2, &server_scope("s"), LogLevel::Alert).await;
    assert_eq!(
        stage.wait_requests("s", "logging", 3).await[2],
        r#"logging/setLevel {"level":"warning"}"#
    );
    let unknown = stage
        .host
        .set_log_level(
            &owner_principal(),
            &server_scope("none"),
            SessionKey(1),
            LogLevel::Info,
        )
        .await;
    assert!(matches!(unknown, Err(CallError::UnknownServer { .. })));
}

#[tokio::test(start_paused = true)]
async fn unaccepted_level_delays_briefly() {
    let stage = start_stage(&["s", "t"]).await;
    assert!(stage.world.change_script("s", silent_server()));
    let since = stage.host.clock().now();
    let session = SessionKey(1);
    let owner = owner_principal();
    let told = stage
        .host
        .set_log_level(&owner, &EndpointScope::All, session, LogLevel::Info);
    told.await.unwrap();
    let took_ms = stage.host.clock().now().millis_since(since);
    assert!(took_ms < 1_000, "{took_ms} ms");
    assert_eq!(stage.wait_requests("t", "logging", 1).await.len(), 1);
    assert_eq!(stage.wait_requests("s", "logging", 1).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn shutdown_ends_all_syncs() {
    let stage = start_stage(&["s"]).await;
    stage
        .subscribe(1, &EndpointScope::All, "x:1")
        .await
        .unwrap();
    stage.host.shutdown().await;
    let tasks = stage.host.tasks().clone();
    drop(stage.host);
    let finished = tokio::time::timeout(std::time::Duration::from_secs(60), tasks.wait_finished());
    assert!(finished.await.is_ok(), "a task lives on");
}

#[tokio::test(start_paused = true)]
async fn changed_server_gets_state_again() {
    let stage = start_stage(&["s"]).await;
    stage
        .subscribe(1, &EndpointScope::All, "x:1")
        .await
        .unwrap();
    stage.wait_requests("s", "resources/subscribe", 1).await;
    stage.host.apply_config(vec![ServerSpec {
        call_timeout: std::time::Duration::from_secs(7),
        ..server_spec("s")
    }]);
    let asked = stage.wait_requests("s", "resources/subscribe", 2).await;
    assert_eq!(asked.len(), 2, "{asked:?}");
    stage
        .world
        .wait_until(|record| record.live_count("s") == 1)
        .await;
}

#[tokio::test(start_paused = true)]
async fn stateless_server_gets_no_levels_or_roots() {
    let modern = r#"{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{},"logging":{}}}"#;
    for (initialize, told) in [
        (
            INITIALIZE,
            &[
                r#"logging/setLevel {"level":"info"}"#,
                "notifications/roots/list_changed",
            ][..],
        ),
        (modern, &[]),
    ] {
        let script = ServerScript::always(sync_server().with_initialize_result(initialize));
        let world = SimWorld::new([("s", script)]);
        let spec = ServerSpec {
            isolation: Isolation::Session,
            ..server_spec("s")
        };
        let host = world.start_host(vec![spec], HostLimits::default());
        assert!(wait_for_state(&host, "s", "ready").await);
        let mut call = tool_call("s__t", "{}");
        call.message.client = Some(RecordingClient::new(1));

        let scope = server_scope("s");
        let owner = owner_principal();
        let level = host.set_log_level(&owner, &scope, SessionKey(1), LogLevel::Info);
        level.await.unwrap();
        host.call(call).await.unwrap();
        host.notify_roots_changed(SessionKey(1));
        // Pending notifications arrive.
        run_until_idle().await;
        let record = world.record();
        let own = record.requests.iter().filter(|(_, life, _)| *life > 1);
        let heard: Vec<_> = own
            .map(|(_, _, text)| text.as_str())
            .filter(|text| !text.starts_with("tools/"))
            .collect();
        assert_eq!(heard, told);
    }
}
