//! What sessions want between calls: news of resources, a log level, and their tasks.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod tasks;

use std::sync::Arc;

use bowline_core::call::{Call, Principal, Role, Scope};
use bowline_core::caller::{CallerEnd, SessionKey};
use bowline_core::error::CallError;
use bowline_core::level::Level;
use bowline_core::subscriptions::SUBSCRIPTIONS_MAX;
use bowline_host::spec::{Isolation, ServerSpec};
use bowline_host::{Host, HostLimits};
use bowline_link::{Exit, LinkEvent};
use bowline_sim::{Act, Ears, Generation, Hearer, Script, World, call, reaches, spec};

const INITIALIZE: &str = concat!(
    r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"#,
    r#""resources":{"subscribe":true},"logging":{},"tasks":{"list":{},"cancel":{}}}}"#,
);

/// A server with a resource that takes subscriptions and levels, and makes the task `1`.
fn server() -> Generation {
    let task = r#"{"task":{"taskId":"1","status":"working"}}"#;
    Generation::tools([("make", Act::Says(task.to_owned())), ("t", Act::Answers)])
        .introduces(INITIALIZE)
        .answers("resources/list", "", r#"{"resources":[{"uri":"x:1"}]}"#)
        .refuses(
            "resources/subscribe",
            "x:no",
            r#"{"code":-32002,"message":"mine"}"#,
        )
        .answers("resources/subscribe", "", "{}")
        .answers("resources/unsubscribe", "", "{}")
        .answers("logging/setLevel", "", "{}")
        .answers("tasks/get", "", r#"{"taskId":"1","status":"working"}"#)
        .answers(
            "tasks/list",
            "cursor",
            r#"{"tasks":[{"taskId":"9"},{ "taskId" : "1" }]}"#,
        )
        .answers(
            "tasks/list",
            "",
            r#"{"tasks":[{"taskId":"8"}],"nextCursor":"c"}"#,
        )
}

/// The same, where it does not answer who subscribes or sets a level.
fn silent() -> Generation {
    Generation::tools([("t", Act::Answers)])
        .introduces(INITIALIZE)
        .answers("resources/list", "", r#"{"resources":[{"uri":"x:1"}]}"#)
        .ignores("resources/subscribe")
        .ignores("logging/setLevel")
}

struct Stage {
    world: World,
    host: Host,
    ears: Arc<Ears>,
}

async fn stage(names: &[&str]) -> Stage {
    let world = World::new(names.iter().map(|name| (*name, Script::always(server()))));
    let ears = Arc::new(Ears::default());
    let specs = names.iter().map(|name| spec(name)).collect();
    let audience = Arc::clone(&ears);
    let host = world.host_for(specs, HostLimits::default(), audience);
    for name in names {
        assert!(reaches(&host, name, "ready").await);
    }
    Stage { world, host, ears }
}

fn owner() -> Principal {
    Principal::new("owner", Role::Owner)
}

impl Stage {
    async fn subscribe(&self, session: u64, scope: &Scope, uri: &str) -> Result<(), CallError> {
        let caller: Arc<dyn CallerEnd> = Hearer::of(session);
        self.host.subscribe(&owner(), scope, &caller, uri).await
    }

    async fn unsubscribe(&self, session: u64, uri: &str) {
        let (who, session) = (owner(), SessionKey(session));
        let ended = self.host.unsubscribe(&who, &Scope::All, session, uri);
        ended.await.unwrap();
    }

    /// Waits until a server was asked this often for what begins so, and returns those requests.
    async fn asked(&self, server: &str, start: &str, count: usize) -> Vec<String> {
        let of = |record: &bowline_sim::Record| -> Vec<String> {
            let own = record.requests_of(server).into_iter();
            own.filter(|text| text.starts_with(start))
                .map(str::to_owned)
                .collect()
        };
        let record = self.world.until(|record| of(record).len() >= count);
        of(&record.await)
    }

    fn updated(&self, server: &str, uri: &str) {
        let notification = format!(r#"{{"method":"m", "params":{{"x":1,"uri":"{uri}"}}}}"#);
        assert!(self.world.say(
            server,
            LinkEvent::ResourceUpdated {
                uri: uri.into(),
                notification: notification.into(),
            }
        ));
    }
}

fn single(server: &str) -> Scope {
    Scope::Server(server.into())
}

#[tokio::test(start_paused = true)]
async fn a_server_that_forgot_us_is_told_again() {
    let stage = stage(&["s"]).await;
    stage.subscribe(1, &Scope::All, "x:1").await.unwrap();
    stage.subscribe(2, &single("s"), "x:2").await.unwrap();
    let (scope, session) = (single("s"), SessionKey(2));
    let owner = owner();
    let level = stage.host.set_level(&owner, &scope, session, Level::Debug);
    level.await.unwrap();
    for round in 2..4 {
        assert!(stage.world.say("s", LinkEvent::Renewed));
        let told = stage.asked("s", "resources/subscribe", 2 * round).await;
        assert_eq!(told.len(), 2 * round, "{told:?}");
        let mut last = told[2 * round - 2..].to_vec();
        last.sort();
        assert!(
            last[0].contains("x:1") && last[1].contains("x:2"),
            "{last:?}"
        );
        let levels = stage.asked("s", "logging/setLevel", round).await;
        assert_eq!(levels.len(), round, "{levels:?}");
    }
    // It is the same link.
    assert_eq!(stage.world.record().starts_of("s"), 1);
}

#[tokio::test(start_paused = true)]
async fn what_a_server_did_not_answer_is_said_again_after_a_while() {
    let stage = stage(&["s"]).await;
    stage.subscribe(1, &Scope::All, "x:1").await.unwrap();
    // It forgets us, and is too busy to be told again.
    assert!(stage.world.change("s", silent()));
    assert!(stage.world.say("s", LinkEvent::Renewed));
    assert_eq!(stage.asked("s", "resources/subscribe", 2).await.len(), 2);
    assert!(stage.world.change("s", server()));
    let hour = std::time::Duration::from_secs(3_600);
    let again = tokio::time::timeout(hour, stage.asked("s", "resources/subscribe", 3)).await;
    assert_eq!(again.expect("it is told again").len(), 3);
    // Then it knows, and what it refuses is not said again.
    stage.subscribe(1, &single("s"), "x:no").await.unwrap_err();
    let _ = tokio::time::timeout(hour, std::future::pending::<()>()).await;
    assert_eq!(stage.asked("s", "resources/subscribe", 4).await.len(), 4);
}

#[tokio::test(start_paused = true)]
async fn the_first_subscriber_is_told_upstream_and_so_is_the_last_to_leave() {
    let stage = stage(&["s"]).await;
    stage.subscribe(1, &Scope::All, "x:1").await.unwrap();
    stage.subscribe(2, &single("s"), "x:1").await.unwrap();
    stage.subscribe(2, &single("s"), "x:1").await.unwrap();
    stage.unsubscribe(1, "x:1").await;
    stage.updated("s", "x:1");
    let told = stage.ears.heard(1).await;
    assert_eq!(
        told,
        [(
            2,
            r#"{"method":"m", "params":{"x":1,"uri":"x:1"}}"#.to_owned()
        )]
    );
    stage.host.session_ended(SessionKey(2));
    let asked = stage.asked("s", "resources/un", 1).await;
    assert_eq!(asked, [r#"resources/unsubscribe {"uri":"x:1"}"#]);
    let subscribed = stage.asked("s", "resources/subscribe", 1).await;
    assert_eq!(subscribed, [r#"resources/subscribe {"uri":"x:1"}"#]);
    stage.subscribe(3, &Scope::All, "x:1").await.unwrap();
    assert_eq!(stage.asked("s", "resources/subscribe", 2).await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn each_session_hears_the_uri_that_it_used() {
    let stage = stage(&["a", "b"]).await;
    assert!(
        stage.subscribe(1, &Scope::All, "x:1").await.is_err(),
        "two servers have it"
    );
    stage
        .subscribe(1, &Scope::All, "bowline://b/x%3A1")
        .await
        .unwrap();
    stage.subscribe(2, &single("b"), "x:1").await.unwrap();
    stage.updated("a", "x:1");
    stage.updated("b", "x:1");
    let told = stage.ears.heard(2).await;
    let text = |uri: &str| format!(r#"{{"method":"m", "params":{{"x":1,"uri":"{uri}"}}}}"#);
    assert_eq!(told, [(1, text("bowline://b/x%3A1")), (2, text("x:1"))]);
    assert_eq!(stage.asked("a", "resources/subscribe", 0).await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_refused_subscription_is_the_servers_own_error_and_is_not_kept() {
    let stage = stage(&["s"]).await;
    for _ in 0..2 {
        let error = stage.subscribe(1, &single("s"), "x:no").await.unwrap_err();
        let CallError::Refused { error, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(error, r#"{"code":-32002,"message":"mine"}"#);
    }
    assert_eq!(
        stage.asked("s", "resources/subscribe", 2).await.len(),
        2,
        "each was asked for"
    );
    stage.updated("s", "x:no");
    stage.subscribe(1, &single("s"), "x:1").await.unwrap();
    stage.updated("s", "x:1");
    let told = stage.ears.heard(1).await;
    assert!(told.len() == 1 && told[0].1.contains("x:1"), "{told:?}");
    assert_eq!(
        stage.asked("s", "resources/un", 0).await,
        [""; 0],
        "nothing to take back"
    );
}

#[tokio::test(start_paused = true)]
async fn a_server_that_was_started_anew_hears_what_is_wanted_again() {
    let stage = stage(&["s"]).await;
    stage.subscribe(1, &Scope::All, "x:1").await.unwrap();
    stage
        .host
        .set_level(&owner(), &Scope::All, SessionKey(1), Level::Info)
        .await
        .unwrap();
    assert!(stage.world.kill("s", Exit::Signal(9)));
    let again = |record: &bowline_sim::Record| {
        let second = record.requests.iter().filter(|(_, life, _)| *life == 2);
        let texts: Vec<_> = second.map(|(.., text)| text.as_str()).collect();
        texts.contains(&r#"resources/subscribe {"uri":"x:1"}"#)
            && texts.contains(&r#"logging/setLevel {"level":"info"}"#)
    };
    assert!(again(&stage.world.until(again).await));
    stage.updated("s", "x:1");
    assert_eq!(stage.ears.heard(1).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_session_cannot_subscribe_without_end() {
    let stage = stage(&["s"]).await;
    for nth in 0..SUBSCRIPTIONS_MAX {
        stage
            .subscribe(1, &single("s"), &format!("y:{nth}"))
            .await
            .unwrap();
    }
    let error = stage
        .subscribe(1, &single("s"), "y:more")
        .await
        .unwrap_err();
    assert_eq!(
        error,
        CallError::TooManySubscriptions {
            limit: SUBSCRIPTIONS_MAX
        }
    );
    stage.subscribe(2, &single("s"), "y:more").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_most_verbose_level_of_all_sessions_goes_to_the_server() {
    let stage = stage(&["s", "t"]).await;
    let set = async |session, scope: &Scope, level| {
        stage
            .host
            .set_level(&owner(), scope, SessionKey(session), level)
            .await
            .unwrap();
    };
    set(1, &Scope::All, Level::Warning).await;
    set(2, &single("s"), Level::Debug).await;
    set(3, &single("s"), Level::Error).await;
    assert_eq!(
        stage.asked("s", "logging", 2).await,
        [
            r#"logging/setLevel {"level":"warning"}"#,
            r#"logging/setLevel {"level":"debug"}"#
        ]
    );
    assert_eq!(
        stage.asked("t", "logging", 1).await,
        [r#"logging/setLevel {"level":"warning"}"#]
    );
    set(2, &single("s"), Level::Alert).await;
    assert_eq!(
        stage.asked("s", "logging", 3).await[2],
        r#"logging/setLevel {"level":"warning"}"#
    );
    let unknown = stage
        .host
        .set_level(&owner(), &single("none"), SessionKey(1), Level::Info)
        .await;
    assert!(matches!(unknown, Err(CallError::UnknownServer { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_take_a_level_holds_nobody_up_for_long() {
    let stage = stage(&["s", "t"]).await;
    assert!(stage.world.change("s", silent()));
    let since = stage.host.clock().now();
    let session = SessionKey(1);
    let owner = owner();
    let told = stage
        .host
        .set_level(&owner, &Scope::All, session, Level::Info);
    told.await.unwrap();
    let took_ms = stage.host.clock().now().millis_since(since);
    assert!(took_ms < 1_000, "{took_ms} ms");
    assert_eq!(stage.asked("t", "logging", 1).await.len(), 1);
    assert_eq!(stage.asked("s", "logging", 1).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_left_running_when_the_host_goes_down() {
    let stage = stage(&["s"]).await;
    stage.subscribe(1, &Scope::All, "x:1").await.unwrap();
    stage.host.shutdown().await;
    let tasks = stage.host.tasks().clone();
    drop(stage.host);
    let finished = tokio::time::timeout(std::time::Duration::from_secs(60), tasks.finished());
    assert!(finished.await.is_ok(), "a task lives on");
}

#[tokio::test(start_paused = true)]
async fn a_server_whose_entry_changed_is_told_what_is_wanted_of_it_again() {
    let stage = stage(&["s"]).await;
    stage.subscribe(1, &Scope::All, "x:1").await.unwrap();
    stage.asked("s", "resources/subscribe", 1).await;
    stage.host.apply(vec![ServerSpec {
        call_timeout: std::time::Duration::from_secs(7),
        ..spec("s")
    }]);
    let asked = stage.asked("s", "resources/subscribe", 2).await;
    assert_eq!(asked.len(), 2, "{asked:?}");
    stage.world.until(|record| record.alive("s") == 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_server_without_sessions_hears_neither_levels_nor_of_roots_on_links_of_their_own() {
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
        let script = Script::always(server().introduces(initialize));
        let world = World::new([("s", script)]);
        let spec = ServerSpec {
            isolation: Isolation::Session,
            ..spec("s")
        };
        let host = world.host(vec![spec], HostLimits::default());
        assert!(reaches(&host, "s", "ready").await);
        let call = Call {
            caller: Some(Hearer::of(1)),
            ..call("s__t", "{}")
        };
        let scope = single("s");
        let owner = owner();
        let level = host.set_level(&owner, &scope, SessionKey(1), Level::Info);
        level.await.unwrap();
        host.call(call).await.unwrap();
        host.roots_changed(SessionKey(1));
        // Whoever has something to say has time for it.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        let record = world.record();
        let own = record.requests.iter().filter(|(_, life, _)| *life > 1);
        let heard: Vec<_> = own
            .map(|(_, _, text)| text.as_str())
            .filter(|text| !text.starts_with("tools/"))
            .collect();
        assert_eq!(heard, told);
    }
}
