//! Lists that could not be had: when they are asked for again, and what goes on meanwhile.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::time::Duration;

use bowline_core::call::Scope;
use bowline_host::catalog::ListKind;
use bowline_host::{Host, HostLimits};
use bowline_link::LinkEvent;
use bowline_sim::{Act, Generation, Script, World, call, reaches, spec};

const CAPABILITIES: &str = concat!(
    r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"prompts":{}},"#,
    r#""serverInfo":{"name":"n","version":"1"}}"#,
);

const PROMPTS: &str = r#"{"prompts":[{"name":"p"}]}"#;

fn server(tool: &str) -> Generation {
    Generation::tools([(tool, Act::Answers)]).introduces(CAPABILITIES)
}

async fn world(generation: Generation) -> (World, Host) {
    let world = World::new([("s", Script::always(generation))]);
    let host = world.host(vec![spec("s")], HostLimits::default());
    assert!(reaches(&host, "s", "ready").await);
    (world, host)
}

fn listed(host: &Host, kind: ListKind) -> String {
    let listing = host.catalog().listing(&Scope::Server("s".into()), kind);
    String::from_utf8_lossy(&listing.result).into_owned()
}

fn asked(world: &World) -> usize {
    let record = world.record();
    let requests = record.requests_of("s");
    let lists = requests
        .iter()
        .filter(|one| one.starts_with("prompts/list"));
    lists.count()
}

/// Lets the host do what it does by itself for a while.
async fn pass(seconds: u64) {
    for _ in 0..seconds {
        tokio::time::advance(Duration::from_secs(1)).await;
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_that_could_not_be_had_is_asked_for_until_it_is_there() {
    let error = r#"{"code":-32603,"message":"not yet"}"#;
    for missing in [
        server("t").ignores("prompts/list"),
        server("t").refuses("prompts/list", "", error),
    ] {
        let (world, host) = world(missing).await;
        let mut changes = host.catalog_changes();
        changes.borrow_and_update();
        assert!(host.call(call("s__t", "{}")).await.is_ok());
        assert_eq!(asked(&world), 1);
        assert!(!listed(&host, ListKind::Prompts).contains("\"p\""));
        let record = world.until(|record| record.requests_of("s").len() == 4);
        record.await;
        assert_eq!(asked(&world), 4, "it is asked for again and again");

        // It says nothing of a change: from its side there was none.
        let link = world.link("s").unwrap();
        link.follow(server("t").answers("prompts/list", "", PROMPTS));
        changes.changed().await.unwrap();
        assert!(listed(&host, ListKind::Prompts).contains("\"p\""));

        let before = asked(&world);
        pass(3_600).await;
        assert_eq!(asked(&world), before, "what is there is not asked for");
        assert_eq!(world.record().starts_of("s"), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn the_waits_between_tries_grow_to_a_minute() {
    let error = r#"{"code":-32603,"message":"not yet"}"#;
    let (world, _host) = world(server("t").refuses("prompts/list", "", error)).await;
    pass(60).await;
    let first = asked(&world);
    assert!((6..=9).contains(&first), "{first} times in a minute");
    pass(3_600).await;
    let later = asked(&world) - first;
    assert!((60..=85).contains(&later), "{later} times in an hour");
}

#[tokio::test(start_paused = true)]
async fn a_list_that_is_unknown_or_breaks_a_limit_is_not_asked_for_again() {
    let circle = r#"{"prompts":[],"nextCursor":"c"}"#;
    for (generation, pages) in [
        (server("t"), 1),
        (server("t").answers("prompts/list", "", circle), 2),
    ] {
        let (world, _host) = world(generation).await;
        pass(3_600).await;
        assert_eq!(asked(&world), pages);
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_that_hangs_does_not_hold_up_a_change_of_the_tools() {
    let (world, host) = world(server("old").ignores("prompts/list")).await;
    let record = world.until(|record| record.requests_of("s").len() == 2);
    record.await;
    assert_eq!(asked(&world), 2, "a try is under way");
    let mut changes = host.catalog_changes();
    changes.borrow_and_update();

    let link = world.link("s").unwrap();
    link.follow(server("new").ignores("prompts/list"));
    assert!(link.say(LinkEvent::ToolsChanged));
    let changed = tokio::time::timeout(Duration::from_secs(1), changes.changed());
    changed.await.expect("no wait for the prompts").unwrap();
    assert!(listed(&host, ListKind::Tools).contains("\"new\""));
}
