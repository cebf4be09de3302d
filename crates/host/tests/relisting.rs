//! Lists that could not be had: when they are asked for again, and what goes on meanwhile.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::time::Duration;

use bowline_core::call::{Principal, Role, Scope};
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

/// A server whose tools are good for a minute.
fn fleeting(tool: &str, capability: &str) -> Generation {
    let tools = format!(r#"[{{"name":"{tool}","inputSchema":{{"type":"object"}}}}]"#);
    let keep = r#""resultType":"complete","ttlMs":60000,"cacheScope":"public""#;
    let introduction = format!(r#"{{"capabilities":{{"tools":{capability}}}}}"#);
    Generation::definitions(&[])
        .raw_page("", &format!(r#"{{"tools":{tools},{keep}}}"#))
        .introduces(&introduction)
}

/// What a client that asks for the tools now is told: which, and how long they may be kept.
fn told(host: &Host) -> (bool, u128) {
    let owner = Principal::new("owner", Role::Owner);
    let list = host.view(&owner, &Scope::All, ListKind::Tools);
    let is_new = String::from_utf8_lossy(&list.result).contains("s__new");
    (is_new, list.hint.unwrap().ttl.as_millis())
}

fn pages(world: &World) -> usize {
    world.record().pages.len()
}

#[tokio::test(start_paused = true)]
async fn a_list_is_told_with_the_time_that_is_left_and_asked_for_again_when_none_is() {
    let (world, host) = world(fleeting("old", "{}")).await;
    let read = pages(&world);
    assert_eq!(told(&host), (false, 60_000));
    pass(20).await;
    assert_eq!(told(&host), (false, 40_000));
    world.link("s").unwrap().follow(fleeting("new", "{}"));
    pass(100).await;
    assert_eq!(pages(&world), read, "nobody asked for it");
    // Whoever asks is shown the old one at once; those who come later see the new one.
    for _ in 0..3 {
        assert_eq!(told(&host), (false, 0));
    }
    pass(1).await;
    assert_eq!(pages(&world), read + 1, "once, however many ask");
    assert_eq!(told(&host), (true, 60_000));
    // Also where it is found to be the same.
    pass(100).await;
    assert_eq!(told(&host), (true, 0));
    pass(1).await;
    assert_eq!(told(&host), (true, 60_000));
    assert_eq!(pages(&world), read + 2);
}

#[tokio::test(start_paused = true)]
async fn a_list_of_a_server_that_tells_of_changes_is_not_asked_for_again() {
    let (world, host) = world(fleeting("old", r#"{"listChanged":true}"#)).await;
    let read = pages(&world);
    pass(100).await;
    assert_eq!(told(&host), (false, 0));
    pass(10).await;
    assert_eq!(pages(&world), read);
}
