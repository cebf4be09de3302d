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
use bowline_host::{Host, HostLimits, Otherwise, Policy};
use bowline_link::LinkEvent;
use bowline_sim::{Act, Generation, Script, World, call, reaches, spec};
use tokio::task::JoinSet;
use tokio::time::Instant;

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

/// A server that says neither how long its tools are good nor when they change.
fn silent(tool: &str) -> Generation {
    Generation::tools([(tool, Act::Answers)]).introduces(r#"{"capabilities":{"tools":{}}}"#)
}

fn sees(host: &Host, tool: &str) -> bool {
    let owner = Principal::new("owner", Role::Owner);
    let list = host.view(&owner, &Scope::All, ListKind::Tools);
    String::from_utf8_lossy(&list.result).contains(tool)
}

#[tokio::test(start_paused = true)]
async fn stale_list_without_ttl_is_asked_again_in_background() {
    let (world, host) = world(silent("old")).await;
    let read = pages(&world);
    world.link("s").unwrap().follow(silent("new"));
    pass(59).await;
    assert!(!sees(&host, "s__new"));
    pass(1).await;
    assert_eq!(pages(&world), read, "it is younger than a minute");
    for _ in 0..3 {
        assert!(!sees(&host, "s__new"), "no caller waits for it");
    }
    pass(1).await;
    assert_eq!(pages(&world), read + 1, "once, however many ask");
    assert!(sees(&host, "s__new"));
    // A list that is found to be the same is as fresh.
    pass(60).await;
    assert!(sees(&host, "s__new"));
    pass(1).await;
    assert_eq!(pages(&world), read + 2);
    pass(10).await;
    assert!(sees(&host, "s__new"));
    assert_eq!(pages(&world), read + 2);
}

#[tokio::test(start_paused = true)]
async fn stale_prompts_are_asked_again_without_the_tools() {
    let introduction = r#"{"capabilities":{"tools":{"listChanged":true},"prompts":{}}}"#;
    let server = |prompts: &str| {
        let tools = Generation::tools([("t", Act::Answers)]).introduces(introduction);
        tools.answers("prompts/list", "", prompts)
    };
    let (world, host) = world(server(r#"{"prompts":[]}"#)).await;
    let read = (pages(&world), asked(&world));
    world.link("s").unwrap().follow(server(PROMPTS));
    pass(61).await;
    let owner = Principal::new("owner", Role::Owner);
    for kind in ListKind::ALL {
        drop(host.view(&owner, &Scope::All, kind));
    }
    pass(1).await;
    assert_eq!((pages(&world), asked(&world)), (read.0, read.1 + 1));
    assert!(listed(&host, ListKind::Prompts).contains("\"p\""));
}

#[tokio::test(start_paused = true)]
async fn relist_off_never_asks_again() {
    let world = World::new([("s", Script::always(silent("old")))]);
    let mut server = spec("s");
    server.relist = None;
    let host = world.host(vec![server], HostLimits::default());
    assert!(reaches(&host, "s", "ready").await);
    let read = pages(&world);
    world.link("s").unwrap().follow(silent("new"));
    pass(3_600).await;
    assert!(!sees(&host, "s__new"));
    assert!(host.call(call("s__new", "{}")).await.is_err());
    pass(10).await;
    assert_eq!(pages(&world), read);
}

#[tokio::test(start_paused = true)]
async fn unknown_tool_is_looked_for_once_before_refusal() {
    let (world, host) = world(silent("old")).await;
    let read = pages(&world);
    world.link("s").unwrap().follow(silent("new"));
    pass(6).await;
    assert!(host.call(call("s__new", "{}")).await.is_ok());
    assert_eq!(pages(&world), read + 1);
    // Names without end cost the server one list in an interval.
    for nth in 0..100 {
        let error = host.call(call(&format!("s__no{nth}"), "{}")).await;
        assert_eq!(error.unwrap_err().code(), "tool_not_found");
    }
    assert_eq!(pages(&world), read + 1);
    pass(5).await;
    let mut calls = JoinSet::new();
    for nth in 0..100 {
        let host = host.clone();
        calls.spawn(async move { host.call(call(&format!("s__no{nth}"), "{}")).await });
    }
    for answer in calls.join_all().await {
        assert_eq!(answer.unwrap_err().code(), "tool_not_found");
    }
    assert_eq!(pages(&world), read + 2);
    // What names no server, or none of ours, asks nobody.
    pass(6).await;
    for tool in ["none", "t__none"] {
        assert!(host.call(call(tool, "{}")).await.is_err());
    }
    assert_eq!(pages(&world), read + 2);
}

#[expect(clippy::disallowed_methods, reason = "the paused clock of the test")]
fn now() -> Instant {
    Instant::now()
}

#[tokio::test(start_paused = true)]
async fn hanging_relist_delays_unknown_tool_briefly() {
    let (world, host) = world(silent("old")).await;
    world
        .link("s")
        .unwrap()
        .follow(silent("new").list_takes(Duration::from_secs(3_600)));
    pass(6).await;
    let begun = now();
    let error = host.call(call("s__new", "{}")).await.unwrap_err();
    assert_eq!(error.code(), "tool_not_found");
    assert_eq!(begun.elapsed(), Duration::from_secs(3));
    // The one that comes next does not wait for the same request once more.
    assert!(host.call(call("s__new", "{}")).await.is_err());
    assert_eq!(begun.elapsed(), Duration::from_secs(3));
}

#[tokio::test(start_paused = true)]
async fn idle_server_is_not_started_for_stale_lists() {
    let world = World::new([("s", Script::always(silent("old")))]);
    let mut server = spec("s");
    server.lazy = true;
    server.idle_stop = Some(Duration::from_secs(30));
    let host = world.host(vec![server], HostLimits::default());
    host.shown(&Scope::All).await;
    assert!(reaches(&host, "s", "idle").await, "it was stopped again");
    assert_eq!(world.record().starts_of("s"), 1);
    pass(3_600).await;
    assert!(sees(&host, "s__old"));
    assert!(host.call(call("s__new", "{}")).await.is_err());
    pass(10).await;
    assert_eq!(world.record().starts_of("s"), 1);
    assert_eq!(pages(&world), 1);
}

#[tokio::test(start_paused = true)]
async fn principal_without_access_causes_no_relist() {
    let (world, host) = world(silent("old")).await;
    let read = pages(&world);
    pass(6).await;
    let mut asked = call("s__new", "{}");
    asked.principal = std::sync::Arc::new(Principal::new("nobody", Role::Named("none".into())));
    host.set_policy(Policy::new(Otherwise::Deny));
    assert!(host.call(asked).await.is_err());
    assert_eq!(pages(&world), read);
}

#[tokio::test(start_paused = true)]
async fn refresh_reads_lists_at_once() {
    let (world, host) = world(silent("old")).await;
    world.link("s").unwrap().follow(silent("new"));
    let refreshed = host.refresh("s").await.unwrap();
    assert_eq!((refreshed.tools_added, refreshed.tools_removed), (1, 1));
    assert_eq!(refreshed.failed, []);
    assert!(sees(&host, "s__new"));
    let broken = silent("new").page("", &["new"], Some("nowhere"));
    world.link("s").unwrap().follow(broken);
    let refreshed = host.refresh_all().await;
    assert_eq!(refreshed[0].failed[0].list, "tools");
    assert!(refreshed[0].failed[0].message.contains("no such page"));
    assert!(sees(&host, "s__new"), "the old list stays");
    assert_eq!(
        host.refresh("t").await.unwrap_err().code(),
        "server_not_found"
    );
}
