//! Reading, merging, refreshing and truncating lists.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::time::Duration;

use bowline_core::call::{Effect, EndpointScope};
use bowline_core::error::{CallError, ExecutionStatus};
use bowline_host::catalog::ListKind;
use bowline_host::supervisor::OmittedStatus;
use bowline_host::{Host, HostLimits};
use bowline_link::LinkEvent;
use bowline_testkit::{
    GenerationScript, ServerScript, SimWorld, ToolBehaviour, server_spec, server_tool_call,
    tool_call, tool_definition, wait_for_state,
};

fn server_offering(tools: &[&str]) -> GenerationScript {
    GenerationScript::with_tools(tools.iter().map(|name| (*name, ToolBehaviour::Respond)))
}

/// A host with the single server `s`.
fn world_with(generation: GenerationScript) -> (SimWorld, Host) {
    let world = SimWorld::new([("s", ServerScript::always(generation))]);
    let host = world.start_host(vec![server_spec("s")], HostLimits::default());
    (world, host)
}

fn tool_names(host: &Host) -> Vec<String> {
    let catalog = host.catalog();
    let offer = catalog.server("s").expect("s has told its tools");
    let names = offer.tools.iter().map(|tool| tool.route.name.to_string());
    names.collect()
}

/// Waits for a new catalog version.
async fn next_version(changes: &mut tokio::sync::watch::Receiver<u64>) -> u64 {
    let changed = tokio::time::timeout(Duration::from_secs(3_600), changes.changed()).await;
    changed.expect("a new version in time").unwrap();
    *changes.borrow_and_update()
}

#[tokio::test(start_paused = true)]
async fn definitions_keep_every_byte_except_the_name() {
    const ODD: &str = r#"{ "x-n":1e400, "big" : 123456789012345678901234567890,
        "name" :  "re\u0061d" ,"annotations":{"name":"inner","readOnlyHint":true},
        "_meta":{"é":"\u00e9"}}"#;
    const PLAIN: &str = r#"{"name":"write","inputSchema":{"type":"object"}}"#;
    let page = format!(r#"{{"_meta":{{"k":1.0}}, "tools": [ {ODD} , {PLAIN}] }}"#);
    let generation = server_offering(&[]).with_raw_page("", &page);
    let world = SimWorld::new([
        ("a", ServerScript::always(server_offering(&["first"]))),
        ("s", ServerScript::always(generation)),
    ]);
    let host = world.start_host(
        vec![server_spec("a"), server_spec("s")],
        HostLimits::default(),
    );
    assert!(wait_for_state(&host, "a", "ready").await);
    assert!(wait_for_state(&host, "s", "ready").await);

    let own = host
        .catalog()
        .list(&EndpointScope::Server("s".into()), ListKind::Tools);
    assert_eq!(
        own.result,
        page.as_bytes(),
        "one server's own list is its own bytes"
    );
    let merged = host
        .catalog()
        .list(&EndpointScope::All, ListKind::Tools)
        .result;
    let expect = format!(
        r#"{{"tools":[{},{},{}]}}"#,
        tool_definition("first").replace("\"first\"", "\"a__first\""),
        ODD.replace(r#""re\u0061d""#, r#""s__read""#),
        PLAIN.replace("\"write\"", "\"s__write\""),
    );
    assert_eq!(String::from_utf8_lossy(&merged), expect);
    assert_eq!(
        host.catalog().server("s").unwrap().tools.items[0].definition,
        ODD
    );
    let effect = |tool| {
        host.catalog()
            .server("s")
            .unwrap()
            .tools
            .route(tool)
            .unwrap()
            .effect
    };
    assert_eq!(effect("read"), Effect::Read);
    assert_eq!(effect("write"), Effect::Unknown);
}

#[tokio::test(start_paused = true)]
async fn unusable_name_is_omitted_from_list() {
    let (world, host) = world_with(GenerationScript::with_definitions(&[
        r#"{"description":"no name"}"#.to_owned(),
        r#"{"name":7}"#.to_owned(),
        r#""text""#.to_owned(),
        tool_definition("good"),
        r#"{"name":"good","description":"a second one"}"#.to_owned(),
        tool_definition("fine"),
    ]));
    assert!(wait_for_state(&host, "s", "ready").await);

    assert_eq!(tool_names(&host), ["good", "fine"]);
    let catalog = host.catalog();
    assert_eq!(catalog.server("s").unwrap().tools.withheld, 4);
    for scope in [EndpointScope::All, EndpointScope::Server("s".into())] {
        let list: serde_json::Value =
            serde_json::from_slice(&catalog.list(&scope, ListKind::Tools).result).unwrap();
        assert_eq!(list["tools"].as_array().unwrap().len(), 2, "{list}");
    }
    assert!(host.call(tool_call("s__fine", "{}")).await.is_ok());
    assert_eq!(world.record().executions.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn every_page_is_read_in_order() {
    let (world, host) = world_with(
        server_offering(&[])
            .with_page("", &["one", "two"], Some("next page"))
            .with_page("next page", &["three"], Some("last"))
            .with_page("last", &["four"], None),
    );
    assert!(wait_for_state(&host, "s", "ready").await);

    assert_eq!(tool_names(&host), ["one", "two", "three", "four"]);
    let cursors: Vec<_> = world
        .record()
        .pages
        .into_iter()
        .map(|page| page.1)
        .collect();
    assert_eq!(cursors, ["", "next page", "last"]);
    for scope in [EndpointScope::All, EndpointScope::Server("s".into())] {
        let list: serde_json::Value =
            serde_json::from_slice(&host.catalog().list(&scope, ListKind::Tools).result).unwrap();
        assert_eq!(list["tools"].as_array().unwrap().len(), 4);
        assert!(list.get("nextCursor").is_none(), "{list}");
    }
    assert!(host.call(tool_call("s__four", "{}")).await.is_ok());
}

/// Returns a list of `pages` pages with a tool each.
fn paged_server(pages: usize) -> GenerationScript {
    (0..pages).fold(server_offering(&[]), |generation, nth| {
        let cursor = if nth == 0 {
            String::new()
        } else {
            nth.to_string()
        };
        let next = (nth + 1 < pages).then(|| (nth + 1).to_string());
        generation.with_page(&cursor, &[&format!("tool{nth}")], next.as_deref())
    })
}

fn server_with_many_tools(tools: usize) -> GenerationScript {
    let definitions: Vec<_> = (0..tools)
        .map(|n| tool_definition(&format!("t{n}")))
        .collect();
    GenerationScript::with_definitions(&definitions)
}

#[tokio::test(start_paused = true)]
async fn unreadable_list_fails_start_with_reason() {
    let circle = server_offering(&[])
        .with_page("", &["one"], Some("c"))
        .with_page("c", &["two"], Some("c"));
    let huge = server_offering(&[]).with_page("", &["one"], Some(&"c".repeat(64 * 1024 + 1)));
    let missing = server_offering(&[]).with_page("", &["one"], Some("nowhere"));
    for (generation, reason) in [
        (circle, "tools/list repeats a cursor"),
        (huge, "tools/list has a cursor of more than 65536 bytes"),
        (
            missing,
            r#"tools/list was refused: {"code":-32602,"message":"no such page"}"#,
        ),
    ] {
        let (world, host) = world_with(generation);
        assert!(wait_for_state(&host, "s", "backoff").await);
        let status = host.server_status("s").unwrap();
        assert_eq!(&*status.last_error.unwrap().message, reason);
        assert_eq!(status.tools, 0);
        assert!(!status.active);
        assert!(host.catalog().server("s").is_none());
        assert_eq!(world.record().live_count("s"), 0, "the process is not kept");
        host.shutdown().await;
    }
}

/// A host whose server `s` has a list limit.
async fn host_with_list_limit(generation: GenerationScript, list_max: usize) -> (SimWorld, Host) {
    let world = SimWorld::new([("s", ServerScript::always(generation))]);
    let mut server = server_spec("s");
    server.list_max = list_max;
    let host = world.start_host(vec![server], HostLimits::default());
    assert!(wait_for_state(&host, "s", "ready").await);
    (world, host)
}

#[tokio::test(start_paused = true)]
async fn entries_beyond_limit_are_omitted() {
    for (generation, entries, more) in [
        (server_with_many_tools(5), 2, false),
        (
            server_offering(&[])
                .with_page("", &["t0", "t1"], Some("a"))
                .with_page("a", &["t2", "t3", "t4"], Some("b"))
                .with_page("b", &["t5"], None),
            2,
            true,
        ),
    ] {
        let (world, host) = host_with_list_limit(generation, 3).await;
        assert_eq!(
            tool_names(&host),
            ["t0", "t1", "t2"],
            "the first ones, in order"
        );
        let status = host.server_status("s").unwrap();
        assert_eq!((status.tools, status.active), (3, true));
        let list = "tools";
        let left_out = OmittedStatus {
            list: list.into(),
            entries,
            more,
        };
        assert_eq!(status.left_out, [left_out]);
        assert!(host.call(tool_call("s__t2", "{}")).await.is_ok());
        assert!(host.call(tool_call("s__t3", "{}")).await.is_err());
        for scope in [EndpointScope::All, EndpointScope::Server("s".into())] {
            let list = host.catalog().list(&scope, ListKind::Tools).result;
            let list: serde_json::Value = serde_json::from_slice(&list).unwrap();
            assert_eq!(list["tools"].as_array().unwrap().len(), 3, "{list}");
        }
        // Once the list fits, nothing is omitted.
        world
            .latest_link("s")
            .unwrap()
            .set_script(server_with_many_tools(3));
        assert!(world.emit("s", LinkEvent::ToolsChanged));
        host.refresh_server("s").await.unwrap();
        assert_eq!(host.server_status("s").unwrap().left_out, []);
    }
}

#[tokio::test(start_paused = true)]
async fn default_limit_allows_twenty_thousand_tools() {
    let (_world, host) = world_with(server_with_many_tools(20_000));
    assert!(wait_for_state(&host, "s", "ready").await);
    let status = host.server_status("s").unwrap();
    assert_eq!((status.tools, status.left_out), (20_000, Vec::new()));
    assert!(host.call(tool_call("s__t19999", "{}")).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn every_page_of_a_long_list_is_read() {
    let (_world, host) = world_with(paged_server(2_100));
    assert!(wait_for_state(&host, "s", "ready").await);
    assert_eq!(host.server_status("s").unwrap().tools, 2_100);
}

#[tokio::test(start_paused = true)]
async fn list_change_publishes_new_version() {
    let (world, host) = world_with(server_offering(&["old", "kept"]));
    assert!(wait_for_state(&host, "s", "ready").await);
    let mut changes = host.catalog_changes();
    let before = *changes.borrow_and_update();
    let merged = host.catalog().list(&EndpointScope::All, ListKind::Tools);

    assert!(world.change_script("s", server_offering(&["kept", "new"])));
    let after = next_version(&mut changes).await;

    assert!(after > before);
    assert_eq!(host.catalog().version, after);
    assert_eq!(tool_names(&host), ["kept", "new"]);
    let now = host.catalog().list(&EndpointScope::All, ListKind::Tools);
    assert_ne!(now.fingerprint, merged.fingerprint);
    assert!(host.call(tool_call("s__new", "{}")).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn unchanged_list_publishes_nothing() {
    let (world, host) = world_with(server_offering(&["same"]));
    assert!(wait_for_state(&host, "s", "ready").await);
    let mut changes = host.catalog_changes();
    changes.borrow_and_update();
    let fingerprint = host
        .catalog()
        .list(&EndpointScope::All, ListKind::Tools)
        .fingerprint;

    assert!(world.change_script("s", server_offering(&["same"])));
    let record = world.wait_until(|record| record.pages.len() == 2).await;
    assert_eq!(record.pages.len(), 2, "the list was asked for again");
    assert!(host.call(tool_call("s__same", "{}")).await.is_ok());
    // A restart with the same tools publishes nothing either.
    assert!(world.kill("s", bowline_link::LinkExit::Status(1)));
    assert!(wait_for_state(&host, "s", "backoff").await);
    assert!(wait_for_state(&host, "s", "ready").await);

    assert!(!changes.has_changed().unwrap(), "nobody is told");
    assert_eq!(
        host.catalog()
            .list(&EndpointScope::All, ListKind::Tools)
            .fingerprint,
        fingerprint
    );
}

#[tokio::test(start_paused = true)]
async fn removed_tools_are_no_longer_routed() {
    let (world, host) = world_with(server_offering(&["gone", "kept"]));
    assert!(wait_for_state(&host, "s", "ready").await);
    let mut changes = host.catalog_changes();
    assert!(host.call(tool_call("s__gone", "{}")).await.is_ok());

    assert!(world.change_script("s", server_offering(&["kept"])));
    next_version(&mut changes).await;

    for call in [
        tool_call("s__gone", "{}"),
        server_tool_call("s", "gone", "{}"),
    ] {
        let error = host.call(call).await.unwrap_err();
        assert!(matches!(error, CallError::UnknownTool { .. }), "{error}");
        assert_eq!(error.execution_status(), ExecutionStatus::NotStarted);
    }
    assert_eq!(world.record().executions.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn failed_refresh_keeps_old_list() {
    let (world, host) = world_with(server_offering(&["old"]));
    assert!(wait_for_state(&host, "s", "ready").await);
    let version = host.catalog().version;

    let circle = server_offering(&[])
        .with_page("", &["new"], Some("c"))
        .with_page("c", &[], Some("c"));
    assert!(world.change_script("s", circle));
    world.wait_until(|record| record.pages.len() == 3).await;
    assert!(host.call(tool_call("s__old", "{}")).await.is_ok());

    assert_eq!(tool_names(&host), ["old"]);
    assert_eq!(host.catalog().version, version);
    let error = host.server_status("s").unwrap().last_error.unwrap();
    assert_eq!(&*error.message, "tools/list repeats a cursor");
    assert_eq!(host.server_status("s").unwrap().state, "ready");
}

#[tokio::test(start_paused = true)]
async fn constantly_changing_server_is_refreshed() {
    let (world, host) = world_with(server_offering(&["old"]));
    assert!(wait_for_state(&host, "s", "ready").await);
    let mut changes = host.catalog_changes();
    changes.borrow_and_update();
    let slow = server_offering(&["new"]).with_list_delay(Duration::from_millis(100));
    let link = world.latest_link("s").unwrap();
    link.set_script(slow);

    let chatter = async {
        let mut tick = tokio::time::interval(Duration::from_millis(30));
        loop {
            tick.tick().await;
            assert!(link.emit(LinkEvent::ToolsChanged));
        }
    };
    tokio::select! {
        () = chatter => {}
        _ = next_version(&mut changes) => {}
    }
    assert_eq!(tool_names(&host), ["new"]);
}

#[tokio::test(start_paused = true)]
async fn change_during_refresh_is_not_lost() {
    let (world, host) = world_with(server_offering(&["one"]));
    assert!(wait_for_state(&host, "s", "ready").await);
    let mut changes = host.catalog_changes();
    changes.borrow_and_update();

    let wait = Duration::from_millis(100);
    assert!(world.change_script("s", server_offering(&["two"]).with_list_delay(wait)));
    world.wait_until(|record| record.pages.len() == 2).await;
    // The server has read the request and responds with `two`, but offers `three` by now.
    assert!(world.change_script("s", server_offering(&["three"])));
    while tool_names(&host) != ["three"] {
        next_version(&mut changes).await;
    }
}
