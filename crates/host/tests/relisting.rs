//! Refreshes of failed and stale lists.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::time::Duration;

use bowline_core::call::{EndpointScope, Principal, Role};
use bowline_host::catalog::ListKind;
use bowline_host::{DefaultAction, Host, HostLimits, Policy};
use bowline_link::LinkEvent;
use bowline_testkit::{
    GenerationScript, ServerScript, SimWorld, ToolBehaviour, advance_clock, run_until_idle,
    server_spec, tool_call, wait_for_state,
};
use tokio::task::JoinSet;
use tokio::time::Instant;

const CAPABILITIES: &str = concat!(
    r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"prompts":{}},"#,
    r#""serverInfo":{"name":"n","version":"1"}}"#,
);

const PROMPTS: &str = r#"{"prompts":[{"name":"p"}]}"#;

fn server_with_tool(tool: &str) -> GenerationScript {
    GenerationScript::with_tools([(tool, ToolBehaviour::Respond)])
        .with_initialize_result(CAPABILITIES)
}

async fn ready_world(generation: GenerationScript) -> (SimWorld, Host) {
    let world = SimWorld::new([("s", ServerScript::always(generation))]);
    let host = world.start_host(vec![server_spec("s")], HostLimits::default());
    assert!(wait_for_state(&host, "s", "ready").await);
    (world, host)
}

fn list_text(host: &Host, kind: ListKind) -> String {
    let listing = host
        .catalog()
        .list(&EndpointScope::Server("s".into()), kind);
    String::from_utf8_lossy(&listing.result).into_owned()
}

fn prompt_list_requests(world: &SimWorld) -> usize {
    let record = world.record();
    let requests = record.server_requests("s");
    let lists = requests
        .iter()
        .filter(|one| one.starts_with("prompts/list"));
    lists.count()
}

/// Lets background work run for a while.
async fn advance_seconds(seconds: u64) {
    advance_clock(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn failed_list_is_retried_until_success() {
    let error = r#"{"code":-32603,"message":"not yet"}"#;
    for missing in [
        server_with_tool("t").never_respond("prompts/list"),
        server_with_tool("t").respond_with_error("prompts/list", "", error),
    ] {
        let (world, host) = ready_world(missing).await;
        let mut changes = host.catalog_changes();
        changes.borrow_and_update();
        assert!(host.call(tool_call("s__t", "{}")).await.is_ok());
        assert_eq!(prompt_list_requests(&world), 1);
        assert!(!list_text(&host, ListKind::Prompts).contains("\"p\""));
        let record = world.wait_until(|record| record.server_requests("s").len() == 4);
        record.await;
        assert_eq!(
            prompt_list_requests(&world),
            4,
            "it is asked for again and again"
        );

        // Sends no change notification: nothing changed at the server.
        let link = world.latest_link("s").unwrap();
        link.set_script(server_with_tool("t").respond_with("prompts/list", "", PROMPTS));
        changes.changed().await.unwrap();
        assert!(list_text(&host, ListKind::Prompts).contains("\"p\""));

        let before = prompt_list_requests(&world);
        advance_seconds(3_600).await;
        assert_eq!(
            prompt_list_requests(&world),
            before,
            "what is there is not asked for"
        );
        assert_eq!(world.record().start_count("s"), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn retry_delays_grow_to_a_minute() {
    let error = r#"{"code":-32603,"message":"not yet"}"#;
    let (world, _host) =
        ready_world(server_with_tool("t").respond_with_error("prompts/list", "", error)).await;
    advance_seconds(60).await;
    let first = prompt_list_requests(&world);
    assert!((6..=9).contains(&first), "{first} times in a minute");
    advance_seconds(3_600).await;
    let later = prompt_list_requests(&world) - first;
    assert!((60..=85).contains(&later), "{later} times in an hour");
}

#[tokio::test(start_paused = true)]
async fn permanent_list_error_is_not_retried() {
    let circle = r#"{"prompts":[],"nextCursor":"c"}"#;
    for (generation, pages) in [
        (server_with_tool("t"), 1),
        (
            server_with_tool("t").respond_with("prompts/list", "", circle),
            2,
        ),
    ] {
        let (world, _host) = ready_world(generation).await;
        advance_seconds(3_600).await;
        assert_eq!(prompt_list_requests(&world), pages);
    }
}

#[tokio::test(start_paused = true)]
async fn hanging_list_does_not_delay_tools() {
    let (world, host) = ready_world(server_with_tool("old").never_respond("prompts/list")).await;
    let record = world.wait_until(|record| record.server_requests("s").len() == 2);
    record.await;
    assert_eq!(prompt_list_requests(&world), 2, "a try is under way");
    let mut changes = host.catalog_changes();
    changes.borrow_and_update();

    let link = world.latest_link("s").unwrap();
    link.set_script(server_with_tool("new").never_respond("prompts/list"));
    assert!(link.emit(LinkEvent::ToolsChanged));
    let changed = tokio::time::timeout(Duration::from_secs(1), changes.changed());
    changed.await.expect("no wait for the prompts").unwrap();
    assert!(list_text(&host, ListKind::Tools).contains("\"new\""));
}

/// A server whose tools have a TTL of a minute.
fn server_with_ttl(tool: &str, capability: &str) -> GenerationScript {
    let tools = format!(r#"[{{"name":"{tool}","inputSchema":{{"type":"object"}}}}]"#);
    let keep = r#""resultType":"complete","ttlMs":60000,"cacheScope":"public""#;
    let introduction = format!(r#"{{"capabilities":{{"tools":{capability}}}}}"#);
    GenerationScript::with_definitions(&[])
        .with_raw_page("", &format!(r#"{{"tools":{tools},{keep}}}"#))
        .with_initialize_result(&introduction)
}

/// Whether a client sees the tool now, and the announced TTL.
fn announced_ttl(host: &Host) -> (bool, u128) {
    let owner = Principal::new("owner", Role::Owner);
    let list = host.list_for(&owner, &EndpointScope::All, ListKind::Tools);
    let is_new = String::from_utf8_lossy(&list.result).contains("s__new");
    (is_new, list.hint.unwrap().ttl.as_millis())
}

fn tool_list_requests(world: &SimWorld) -> usize {
    world.record().pages.len()
}

#[tokio::test(start_paused = true)]
async fn list_ttl_counts_down_and_triggers_refresh() {
    let (world, host) = ready_world(server_with_ttl("old", "{}")).await;
    let read = tool_list_requests(&world);
    assert_eq!(announced_ttl(&host), (false, 60_000));
    advance_seconds(20).await;
    assert_eq!(announced_ttl(&host), (false, 40_000));
    world
        .latest_link("s")
        .unwrap()
        .set_script(server_with_ttl("new", "{}"));
    advance_seconds(100).await;
    assert_eq!(tool_list_requests(&world), read, "nobody asked for it");
    // The first caller gets the old list at once; later callers get the new list.
    for _ in 0..3 {
        assert_eq!(announced_ttl(&host), (false, 0));
    }
    run_until_idle().await;
    assert_eq!(
        tool_list_requests(&world),
        read + 1,
        "once, however many ask"
    );
    assert_eq!(announced_ttl(&host), (true, 60_000));
    // Also if the list is unchanged.
    advance_seconds(100).await;
    assert_eq!(announced_ttl(&host), (true, 0));
    run_until_idle().await;
    assert_eq!(announced_ttl(&host), (true, 60_000));
    assert_eq!(tool_list_requests(&world), read + 2);
}

#[tokio::test(start_paused = true)]
async fn announcing_server_is_not_refreshed() {
    let (world, host) = ready_world(server_with_ttl("old", r#"{"listChanged":true}"#)).await;
    let read = tool_list_requests(&world);
    advance_seconds(100).await;
    assert_eq!(announced_ttl(&host), (false, 0));
    advance_seconds(10).await;
    assert_eq!(tool_list_requests(&world), read);
}

/// A server without TTL and change notifications.
fn silent_server(tool: &str) -> GenerationScript {
    GenerationScript::with_tools([(tool, ToolBehaviour::Respond)])
        .with_initialize_result(r#"{"capabilities":{"tools":{}}}"#)
}

fn can_see_tool(host: &Host, tool: &str) -> bool {
    let owner = Principal::new("owner", Role::Owner);
    let list = host.list_for(&owner, &EndpointScope::All, ListKind::Tools);
    String::from_utf8_lossy(&list.result).contains(tool)
}

#[tokio::test(start_paused = true)]
async fn stale_list_without_ttl_is_refreshed() {
    let (world, host) = ready_world(silent_server("old")).await;
    let read = tool_list_requests(&world);
    world
        .latest_link("s")
        .unwrap()
        .set_script(silent_server("new"));
    advance_seconds(59).await;
    assert!(!can_see_tool(&host, "s__new"));
    advance_seconds(1).await;
    assert_eq!(
        tool_list_requests(&world),
        read,
        "it is younger than a minute"
    );
    for _ in 0..3 {
        assert!(!can_see_tool(&host, "s__new"), "no caller waits for it");
    }
    advance_seconds(1).await;
    assert_eq!(
        tool_list_requests(&world),
        read + 1,
        "once, however many ask"
    );
    assert!(can_see_tool(&host, "s__new"));
    // An unchanged list counts as fresh.
    advance_seconds(60).await;
    assert!(can_see_tool(&host, "s__new"));
    advance_seconds(1).await;
    assert_eq!(tool_list_requests(&world), read + 2);
    advance_seconds(10).await;
    assert!(can_see_tool(&host, "s__new"));
    assert_eq!(tool_list_requests(&world), read + 2);
}

#[tokio::test(start_paused = true)]
async fn stale_prompts_are_refreshed_alone() {
    let introduction = r#"{"capabilities":{"tools":{"listChanged":true},"prompts":{}}}"#;
    let server = |prompts: &str| {
        let tools = GenerationScript::with_tools([("t", ToolBehaviour::Respond)])
            .with_initialize_result(introduction);
        tools.respond_with("prompts/list", "", prompts)
    };
    let (world, host) = ready_world(server(r#"{"prompts":[]}"#)).await;
    let read = (tool_list_requests(&world), prompt_list_requests(&world));
    world.latest_link("s").unwrap().set_script(server(PROMPTS));
    advance_seconds(61).await;
    let owner = Principal::new("owner", Role::Owner);
    for kind in ListKind::ALL {
        drop(host.list_for(&owner, &EndpointScope::All, kind));
    }
    advance_seconds(1).await;
    assert_eq!(
        (tool_list_requests(&world), prompt_list_requests(&world)),
        (read.0, read.1 + 1)
    );
    assert!(list_text(&host, ListKind::Prompts).contains("\"p\""));
}

#[tokio::test(start_paused = true)]
async fn relist_off_never_refreshes() {
    let world = SimWorld::new([("s", ServerScript::always(silent_server("old")))]);
    let mut server = server_spec("s");
    server.relist = None;
    let host = world.start_host(vec![server], HostLimits::default());
    assert!(wait_for_state(&host, "s", "ready").await);
    let read = tool_list_requests(&world);
    world
        .latest_link("s")
        .unwrap()
        .set_script(silent_server("new"));
    advance_seconds(3_600).await;
    assert!(!can_see_tool(&host, "s__new"));
    assert!(host.call(tool_call("s__new", "{}")).await.is_err());
    advance_seconds(10).await;
    assert_eq!(tool_list_requests(&world), read);
}

#[tokio::test(start_paused = true)]
async fn unknown_tool_triggers_one_refresh() {
    let (world, host) = ready_world(silent_server("old")).await;
    let read = tool_list_requests(&world);
    world
        .latest_link("s")
        .unwrap()
        .set_script(silent_server("new"));
    advance_seconds(6).await;
    assert!(host.call(tool_call("s__new", "{}")).await.is_ok());
    assert_eq!(tool_list_requests(&world), read + 1);
    // Endless names cost the server a single list request per interval.
    for nth in 0..100 {
        let error = host.call(tool_call(&format!("s__no{nth}"), "{}")).await;
        assert_eq!(error.unwrap_err().code(), "tool_not_found");
    }
    assert_eq!(tool_list_requests(&world), read + 1);
    advance_seconds(5).await;
    let mut calls = JoinSet::new();
    for nth in 0..100 {
        let host = host.clone();
        calls.spawn(async move { host.call(tool_call(&format!("s__no{nth}"), "{}")).await });
    }
    for answer in calls.join_all().await {
        assert_eq!(answer.unwrap_err().code(), "tool_not_found");
    }
    assert_eq!(tool_list_requests(&world), read + 2);
    // A name without a known server causes no request.
    advance_seconds(6).await;
    for tool in ["none", "t__none"] {
        assert!(host.call(tool_call(tool, "{}")).await.is_err());
    }
    assert_eq!(tool_list_requests(&world), read + 2);
}

#[expect(clippy::disallowed_methods, reason = "the paused clock of the test")]
fn now() -> Instant {
    Instant::now()
}

#[tokio::test(start_paused = true)]
async fn hanging_relist_delays_unknown_tool_briefly() {
    let (world, host) = ready_world(silent_server("old")).await;
    world
        .latest_link("s")
        .unwrap()
        .set_script(silent_server("new").with_list_delay(Duration::from_secs(3_600)));
    advance_seconds(6).await;
    let begun = now();
    let error = host.call(tool_call("s__new", "{}")).await.unwrap_err();
    assert_eq!(error.code(), "tool_not_found");
    assert_eq!(begun.elapsed(), Duration::from_secs(3));
    // The next caller does not wait for the same request again.
    assert!(host.call(tool_call("s__new", "{}")).await.is_err());
    assert_eq!(begun.elapsed(), Duration::from_secs(3));
}

#[tokio::test(start_paused = true)]
async fn idle_server_is_not_started_for_stale_lists() {
    let world = SimWorld::new([("s", ServerScript::always(silent_server("old")))]);
    let mut server = server_spec("s");
    server.lazy = true;
    server.idle_stop = Some(Duration::from_secs(30));
    let host = world.start_host(vec![server], HostLimits::default());
    host.start_unlisted(&EndpointScope::All).await;
    assert!(
        wait_for_state(&host, "s", "idle").await,
        "it was stopped again"
    );
    assert_eq!(world.record().start_count("s"), 1);
    advance_seconds(3_600).await;
    assert!(can_see_tool(&host, "s__old"));
    assert!(host.call(tool_call("s__new", "{}")).await.is_err());
    advance_seconds(10).await;
    assert_eq!(world.record().start_count("s"), 1);
    assert_eq!(tool_list_requests(&world), 1);
}

#[tokio::test(start_paused = true)]
async fn principal_without_access_causes_no_relist() {
    let (world, host) = ready_world(silent_server("old")).await;
    let read = tool_list_requests(&world);
    advance_seconds(6).await;
    let mut asked = tool_call("s__new", "{}");
    asked.principal = std::sync::Arc::new(Principal::new("nobody", Role::Named("none".into())));
    host.set_policy(Policy::new(DefaultAction::Deny));
    assert!(host.call(asked).await.is_err());
    assert_eq!(tool_list_requests(&world), read);
}

#[tokio::test(start_paused = true)]
async fn refresh_reads_lists_at_once() {
    let (world, host) = ready_world(silent_server("old")).await;
    world
        .latest_link("s")
        .unwrap()
        .set_script(silent_server("new"));
    let refreshed = host.refresh_server("s").await.unwrap();
    assert_eq!((refreshed.tools_added, refreshed.tools_removed), (1, 1));
    assert_eq!(refreshed.failed, []);
    assert!(can_see_tool(&host, "s__new"));
    let broken = silent_server("new").with_page("", &["new"], Some("nowhere"));
    world.latest_link("s").unwrap().set_script(broken);
    let refreshed = host.refresh_all().await;
    assert_eq!(refreshed[0].failed[0].list, "tools");
    assert!(refreshed[0].failed[0].message.contains("no such page"));
    assert!(can_see_tool(&host, "s__new"), "the old list stays");
    assert_eq!(
        host.refresh_server("t").await.unwrap_err().code(),
        "server_not_found"
    );
}
