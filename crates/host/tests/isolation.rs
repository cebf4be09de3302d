//! Who shares a link, and when that ends.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::{Call, Principal, Role, Scope, Subject, TaskVerb};
use bowline_core::caller::{CallerEnd, Deaf, SessionKey};
use bowline_core::error::CallError;
use bowline_host::spec::{Isolation, ServerSpec};
use bowline_host::supervisor::Order;
use bowline_host::{Host, HostLimits};
use bowline_link::{Exit, LinkEvent};
use bowline_sim::{Act, Ears, Gate, Generation, Hearer, Script, World, ask, call, reaches, spec};

async fn ready(isolation: Isolation, act: Act) -> (World, Host) {
    let world = World::new([("s", Script::always(Generation::tools([("do", act)])))]);
    let spec = ServerSpec {
        isolation,
        ..spec("s")
    };
    let host = world.host(vec![spec], HostLimits::default());
    assert!(reaches(&host, "s", "ready").await);
    (world, host)
}

fn by(caller: Arc<dyn CallerEnd>) -> Call {
    Call {
        caller: Some(caller),
        ..call("s__do", "{}")
    }
}

fn of(session: u64) -> Call {
    by(Hearer::of(session))
}

async fn calls(host: &Host, sessions: impl IntoIterator<Item = u64>) {
    for session in sessions {
        host.call(of(session)).await.unwrap();
    }
}

/// The server asks while nobody can say whom.
async fn asks_ambiguously(world: &World, host: &Host) {
    assert!(world.link("s").unwrap().say(LinkEvent::Ambiguous));
    let seen = async {
        while host.status_of("s").unwrap().isolated_because.is_none() {
            tokio::task::yield_now().await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(60), seen).await;
    waited.expect("status says why");
}

#[tokio::test(start_paused = true)]
async fn all_share_a_link_until_the_server_asks_and_then_each_session_has_its_own() {
    let (world, host) = ready(Isolation::Auto, Act::Answers).await;
    calls(&host, [1, 2, 1, 2]).await;
    assert_eq!(world.record().starts_of("s"), 1);
    assert_eq!(host.status_of("s").unwrap().isolated_because, None);

    asks_ambiguously(&world, &host).await;
    calls(&host, [1, 2, 1, 2]).await;
    assert_eq!(
        world.record().starts_of("s"),
        3,
        "one more for each session"
    );
    let status = host.status_of("s").unwrap();
    assert_eq!((status.own_links, status.isolation), (2, "auto"));
    assert!(
        status
            .isolated_because
            .unwrap()
            .contains("several sessions")
    );

    // Who can answer nothing can share on.
    host.call(by(Arc::new(Deaf::new(SessionKey(3)))))
        .await
        .unwrap();
    assert_eq!(world.record().starts_of("s"), 3);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_ends_closes_its_link_and_leaves_the_others() {
    let (world, host) = ready(Isolation::Session, Act::Answers).await;
    calls(&host, [1, 2]).await;
    assert_eq!(world.record().alive("s"), 3);
    host.session_ended(SessionKey(1));
    let record = world.until(|record| record.alive("s") == 2).await;
    assert_eq!(record.alive("s"), 2);
    calls(&host, [2]).await;
    assert_eq!(world.record().starts_of("s"), 3);
    calls(&host, [1]).await;
    assert_eq!(world.record().starts_of("s"), 4);
}

#[tokio::test(start_paused = true)]
async fn a_forced_isolation_holds_from_the_first_call() {
    for (isolation, starts) in [
        (Isolation::Shared, 1),
        (Isolation::Principal, 2),
        (Isolation::Session, 3),
    ] {
        let (world, host) = ready(isolation, Act::Answers).await;
        calls(&host, [1, 2]).await;
        asks_ambiguously_is_no_news(&world, isolation).await;
        calls(&host, [1, 2]).await;
        assert_eq!(world.record().starts_of("s"), starts, "{isolation:?}");
    }
    let (world, host) = ready(Isolation::Principal, Act::Answers).await;
    for name in ["one", "two", "one"] {
        let principal = Arc::new(Principal::new(name, Role::Owner));
        let call = Call { principal, ..of(1) };
        host.call(call).await.unwrap();
    }
    assert_eq!(world.record().starts_of("s"), 3, "one for each principal");
}

/// Told to share, a server stays shared whatever it asks.
async fn asks_ambiguously_is_no_news(world: &World, isolation: Isolation) {
    if isolation == Isolation::Shared {
        assert!(world.link("s").unwrap().say(LinkEvent::Ambiguous));
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn calls_at_once_of_one_session_connect_once() {
    let (world, host) = ready(Isolation::Session, Act::Answers).await;
    let (one, two, three) = tokio::join!(host.call(of(1)), host.call(of(1)), host.call(of(1)));
    assert!(one.is_ok() && two.is_ok() && three.is_ok());
    assert_eq!(world.record().starts_of("s"), 2);
}

#[tokio::test(start_paused = true)]
async fn an_own_link_that_died_is_made_again_by_the_next_call() {
    let (world, host) = ready(Isolation::Session, Act::Answers).await;
    calls(&host, [1]).await;
    // The latest link is the session's own.
    assert!(world.kill("s", Exit::Signal(9)));
    calls(&host, [1]).await;
    let record = world.until(|record| record.alive("s") == 2).await;
    assert_eq!((record.starts_of("s"), record.alive("s")), (3, 2));
    assert_eq!(
        host.status_of("s").unwrap().generation,
        1,
        "the shared one lives"
    );
}

#[tokio::test(start_paused = true)]
async fn own_links_are_capped_and_an_idle_one_makes_room() {
    let (world, host) = ready(Isolation::Session, Act::Answers).await;
    calls(&host, 1..=40).await;
    let record = world.until(|record| record.alive("s") == 33).await;
    assert_eq!((record.starts_of("s"), record.alive("s")), (41, 33));
    assert_eq!(host.status_of("s").unwrap().own_links, 32);

    // With all of them busy there is no room, and the call is told so.
    let gate = Gate::closed();
    let (world, host) = ready(Isolation::Session, Act::Hangs(gate.clone())).await;
    let mut running = tokio::task::JoinSet::new();
    for session in 1..=32 {
        let host = host.clone();
        running.spawn(async move { host.call(of(session)).await });
    }
    world.until(|record| record.executions.len() == 32).await;
    let error = host.call(of(33)).await.unwrap_err();
    assert!(
        matches!(error, CallError::ServerBusy { limit: 32, .. }),
        "{error:?}"
    );
    running.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_stop_closes_every_link() {
    let (world, host) = ready(Isolation::Session, Act::Answers).await;
    calls(&host, [1, 2, 3]).await;
    assert_eq!(world.record().alive("s"), 4);
    host.order("s", Order::Stop, Duration::from_secs(5))
        .await
        .unwrap();
    assert_eq!(
        world
            .until(|record| record.alive("s") == 0)
            .await
            .alive("s"),
        0
    );
    let error = host.call(of(1)).await.unwrap_err();
    assert_eq!(error, CallError::Stopped { server: "s".into() });
}

#[tokio::test(start_paused = true)]
async fn a_link_that_nobody_uses_is_closed_after_a_while() {
    let (world, host) = ready(Isolation::Session, Act::Answers).await;
    calls(&host, [1]).await;
    let record = world.until(|record| record.alive("s") == 1).await;
    assert_eq!(record.alive("s"), 1, "only the shared one is left");
    calls(&host, [1]).await;
    assert_eq!(world.record().alive("s"), 2);
}

const TASKS: &str = concat!(
    r#"{"protocolVersion":"2025-11-25","#,
    r#""capabilities":{"tools":{},"tasks":{"list":{},"cancel":{}}}}"#,
);

/// Calls of `who` in a session: one that makes a task, one that asks for it.
fn task_calls(who: &str, session: u64) -> [Call; 2] {
    let principal = Arc::new(Principal::new(who, Role::Owner));
    let (id, verb) = ("1".into(), TaskVerb::Get);
    let get = Call {
        principal: Arc::clone(&principal),
        caller: Some(Hearer::of(session)),
        ..ask(Subject::Task { id, verb }, "taskId")
    };
    let make = Call {
        principal,
        makes_task: true,
        ..of(session)
    };
    [make, get]
}

/// Which lives of the server were asked this, in order.
fn asked(world: &World, method: &str) -> Vec<u64> {
    let requests = world.record().requests.into_iter();
    let own = requests.filter(|(.., text)| text.starts_with(method));
    own.map(|(_, life, _)| life).collect()
}

#[tokio::test(start_paused = true)]
async fn what_is_asked_of_a_task_goes_where_the_task_lives() {
    // Every process of this server counts its tasks from 1.
    let made = r#"{"task":{"taskId":"1","status":"working"}}"#;
    let server = Generation::tools([("do", Act::Says(made.to_owned()))])
        .introduces(TASKS)
        .answers("tasks/get", "", r#"{"taskId":"1"}"#)
        .answers("tasks/list", "", r#"{"tasks":[{"taskId":"1"}]}"#);
    let world = World::new([("s", Script::always(server))]);
    let ears = Arc::new(Ears::default());
    let host = world.host_for(vec![spec("s")], HostLimits::default(), ears.clone());
    assert!(reaches(&host, "s", "ready").await);
    let [make_1, get_1] = task_calls("ann", 1);
    host.call(make_1).await.unwrap();
    asks_ambiguously(&world, &host).await;
    let [make_2, get_2] = task_calls("bob", 2);
    let [make_3, get_3] = task_calls("ann", 3);
    host.call(make_2).await.unwrap();
    host.call(make_3).await.unwrap();
    for get in [get_3, get_1.clone(), get_2] {
        host.call(get).await.unwrap();
    }
    assert_eq!(asked(&world, "tasks/get"), [3, 1, 2]);

    let tasks = async |who| {
        let who = Principal::new(who, Role::Owner);
        host.tasks_of(&who, &Scope::All).await.unwrap()
    };
    assert_eq!(
        tasks("ann").await,
        r#"{"tasks":[{"taskId":"1"},{"taskId":"1"}]}"#
    );
    assert_eq!(tasks("bob").await, r#"{"tasks":[{"taskId":"1"}]}"#);
    assert_eq!(asked(&world, "tasks/list"), [1, 3, 2]);
    // The newest link is that of session 3.
    let (task, notification) = ("1".into(), "news".into());
    assert!(world.say("s", LinkEvent::TaskStatus { task, notification }));
    assert_eq!(ears.heard(1).await, [(3, "news".to_owned())]);

    // Nobody uses the links for long, but their tasks may be at work.
    for _ in 0..8 {
        tokio::time::advance(Duration::from_secs(600)).await;
        host.call(task_calls("ann", 1)[1].clone()).await.unwrap();
    }
    assert_eq!(world.record().alive("s"), 3);

    // What lived on a link that is gone is never looked for among the tasks of others.
    host.session_ended(SessionKey(2));
    let [_, mut get] = task_calls("bob", 2);
    get.caller = None;
    let error = host.call(get).await.unwrap_err();
    assert!(matches!(error, CallError::UnknownTask { .. }), "{error}");
    assert_eq!(tasks("bob").await, r#"{"tasks":[]}"#);
    host.call(get_1).await.unwrap();
    assert_eq!(asked(&world, "tasks/get").last(), Some(&1));
}

#[tokio::test(start_paused = true)]
async fn own_links_stay_within_restart_budget() {
    let script = Script::always(Generation::tools([("do", Act::Dies)]));
    let world = World::new([("s", script)]);
    let breaker = bowline_core::breaker::BreakerPolicy {
        failures_max: 1_000,
        ..spec("s").breaker
    };
    let spec = ServerSpec {
        isolation: Isolation::Session,
        breaker,
        ..spec("s")
    };
    let host = world.host(vec![spec], HostLimits::default());
    assert!(reaches(&host, "s", "ready").await);
    let mut refused = 0;
    for _ in 0..20 {
        match host.call(of(1)).await {
            Err(CallError::StartFailed { next, .. }) => {
                assert!(next > Duration::from_secs(60), "{next:?}");
                refused += 1;
            }
            ended => assert!(ended.is_err(), "{ended:?}"),
        }
    }
    // The shared link, the first of the session, and five in place of those that crashed.
    assert_eq!(world.record().starts_of("s"), 7);
    assert_eq!(refused, 14);
    host.order("s", Order::Restart, Duration::from_secs(60))
        .await
        .unwrap();
    assert!(host.call(of(1)).await.is_err());
    assert_eq!(world.record().starts_of("s"), 9, "a person asked for more");
}
