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

use bowline_core::call::{Call, Principal, Role};
use bowline_core::caller::{CallerEnd, Deaf, SessionKey};
use bowline_core::error::CallError;
use bowline_host::spec::{Isolation, ServerSpec};
use bowline_host::supervisor::Order;
use bowline_host::{Host, HostLimits};
use bowline_link::{Exit, LinkEvent};
use bowline_sim::{Act, Gate, Generation, Hearer, Script, World, call, reaches, spec};

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
    host.call(by(Arc::new(Deaf(SessionKey(3))))).await.unwrap();
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
