//! What servers offer: how lists are read, merged, changed and bounded.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::time::Duration;

use bowline_core::call::{Effect, Scope};
use bowline_core::error::{CallError, Execution};
use bowline_host::catalog::ListKind;
use bowline_host::supervisor::LeftOutStatus;
use bowline_host::{Host, HostLimits};
use bowline_link::LinkEvent;
use bowline_sim::{Act, Generation, Script, World, call, call_of, definition, reaches, spec};

fn offering(tools: &[&str]) -> Generation {
    Generation::tools(tools.iter().map(|name| (*name, Act::Answers)))
}

/// A world with the one server `s`, and a host that has it in care.
fn world(generation: Generation) -> (World, Host) {
    let world = World::new([("s", Script::always(generation))]);
    let host = world.host(vec![spec("s")], HostLimits::default());
    (world, host)
}

fn names(host: &Host) -> Vec<String> {
    let catalog = host.catalog();
    let offer = catalog.offer("s").expect("s has told its tools");
    let names = offer.tools.iter().map(|tool| tool.route.name.to_string());
    names.collect()
}

/// Waits until the catalog has a version other than the one the receiver saw last.
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
    let generation = offering(&[]).raw_page("", &page);
    let world = World::new([
        ("a", Script::always(offering(&["first"]))),
        ("s", Script::always(generation)),
    ]);
    let host = world.host(vec![spec("a"), spec("s")], HostLimits::default());
    assert!(reaches(&host, "a", "ready").await);
    assert!(reaches(&host, "s", "ready").await);

    let own = host
        .catalog()
        .listing(&Scope::Server("s".into()), ListKind::Tools);
    assert_eq!(
        own.result,
        page.as_bytes(),
        "one server's own list is its own bytes"
    );
    let merged = host.catalog().listing(&Scope::All, ListKind::Tools).result;
    let expect = format!(
        r#"{{"tools":[{},{},{}]}}"#,
        definition("first").replace("\"first\"", "\"a__first\""),
        ODD.replace(r#""re\u0061d""#, r#""s__read""#),
        PLAIN.replace("\"write\"", "\"s__write\""),
    );
    assert_eq!(String::from_utf8_lossy(&merged), expect);
    assert_eq!(
        host.catalog().offer("s").unwrap().tools.items[0].definition,
        ODD
    );
    let effect = |tool| {
        host.catalog()
            .offer("s")
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
async fn a_definition_without_a_usable_name_is_withheld_and_the_others_are_listed() {
    let (world, host) = world(Generation::definitions(&[
        r#"{"description":"no name"}"#.to_owned(),
        r#"{"name":7}"#.to_owned(),
        r#""text""#.to_owned(),
        definition("good"),
        r#"{"name":"good","description":"a second one"}"#.to_owned(),
        definition("fine"),
    ]));
    assert!(reaches(&host, "s", "ready").await);

    assert_eq!(names(&host), ["good", "fine"]);
    let catalog = host.catalog();
    assert_eq!(catalog.offer("s").unwrap().tools.withheld, 4);
    for scope in [Scope::All, Scope::Server("s".into())] {
        let list: serde_json::Value =
            serde_json::from_slice(&catalog.listing(&scope, ListKind::Tools).result).unwrap();
        assert_eq!(list["tools"].as_array().unwrap().len(), 2, "{list}");
    }
    assert!(host.call(call("s__fine", "{}")).await.is_ok());
    assert_eq!(world.record().executions.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn every_page_is_read_in_order() {
    let (world, host) = world(
        offering(&[])
            .page("", &["one", "two"], Some("next page"))
            .page("next page", &["three"], Some("last"))
            .page("last", &["four"], None),
    );
    assert!(reaches(&host, "s", "ready").await);

    assert_eq!(names(&host), ["one", "two", "three", "four"]);
    let cursors: Vec<_> = world
        .record()
        .pages
        .into_iter()
        .map(|page| page.1)
        .collect();
    assert_eq!(cursors, ["", "next page", "last"]);
    for scope in [Scope::All, Scope::Server("s".into())] {
        let list: serde_json::Value =
            serde_json::from_slice(&host.catalog().listing(&scope, ListKind::Tools).result)
                .unwrap();
        assert_eq!(list["tools"].as_array().unwrap().len(), 4);
        assert!(list.get("nextCursor").is_none(), "{list}");
    }
    assert!(host.call(call("s__four", "{}")).await.is_ok());
}

/// Returns a list of `pages` pages with one tool each.
fn paged(pages: usize) -> Generation {
    (0..pages).fold(offering(&[]), |generation, nth| {
        let cursor = if nth == 0 {
            String::new()
        } else {
            nth.to_string()
        };
        let next = (nth + 1 < pages).then(|| (nth + 1).to_string());
        generation.page(&cursor, &[&format!("tool{nth}")], next.as_deref())
    })
}

fn crowd(tools: usize) -> Generation {
    let definitions: Vec<_> = (0..tools).map(|n| definition(&format!("t{n}"))).collect();
    Generation::definitions(&definitions)
}

#[tokio::test(start_paused = true)]
async fn unreadable_list_fails_start_with_reason() {
    let circle = offering(&[])
        .page("", &["one"], Some("c"))
        .page("c", &["two"], Some("c"));
    let huge = offering(&[]).page("", &["one"], Some(&"c".repeat(64 * 1024 + 1)));
    let missing = offering(&[]).page("", &["one"], Some("nowhere"));
    for (generation, reason) in [
        (circle, "tools/list repeats a cursor"),
        (huge, "tools/list has a cursor of more than 65536 bytes"),
        (
            missing,
            r#"tools/list was refused: {"code":-32602,"message":"no such page"}"#,
        ),
    ] {
        let (world, host) = world(generation);
        assert!(reaches(&host, "s", "backoff").await);
        let status = host.status_of("s").unwrap();
        assert_eq!(&*status.last_error.unwrap().message, reason);
        assert_eq!(status.tools, 0);
        assert!(!status.active);
        assert!(host.catalog().offer("s").is_none());
        assert_eq!(world.record().alive("s"), 0, "the process is not kept");
        host.shutdown().await;
    }
}

/// A host whose server `s` may offer so many entries.
async fn bounded(generation: Generation, list_max: usize) -> (World, Host) {
    let world = World::new([("s", Script::always(generation))]);
    let mut server = spec("s");
    server.list_max = list_max;
    let host = world.host(vec![server], HostLimits::default());
    assert!(reaches(&host, "s", "ready").await);
    (world, host)
}

#[tokio::test(start_paused = true)]
async fn entries_beyond_the_limit_are_left_out() {
    for (generation, entries, more) in [
        (crowd(5), 2, false),
        (
            offering(&[])
                .page("", &["t0", "t1"], Some("a"))
                .page("a", &["t2", "t3", "t4"], Some("b"))
                .page("b", &["t5"], None),
            2,
            true,
        ),
    ] {
        let (world, host) = bounded(generation, 3).await;
        assert_eq!(names(&host), ["t0", "t1", "t2"], "the first ones, in order");
        let status = host.status_of("s").unwrap();
        assert_eq!((status.tools, status.active), (3, true));
        let list = "tools";
        let left_out = LeftOutStatus {
            list,
            entries,
            more,
        };
        assert_eq!(status.left_out, [left_out]);
        assert!(host.call(call("s__t2", "{}")).await.is_ok());
        assert!(host.call(call("s__t3", "{}")).await.is_err());
        for scope in [Scope::All, Scope::Server("s".into())] {
            let list = host.catalog().listing(&scope, ListKind::Tools).result;
            let list: serde_json::Value = serde_json::from_slice(&list).unwrap();
            assert_eq!(list["tools"].as_array().unwrap().len(), 3, "{list}");
        }
        // Once the list fits, nothing is left out any more.
        world.link("s").unwrap().follow(crowd(3));
        assert!(world.say("s", LinkEvent::ToolsChanged));
        host.refresh("s").await.unwrap();
        assert_eq!(host.status_of("s").unwrap().left_out, []);
    }
}

#[tokio::test(start_paused = true)]
async fn twenty_thousand_tools_are_offered_by_default() {
    let (_world, host) = world(crowd(20_000));
    assert!(reaches(&host, "s", "ready").await);
    let status = host.status_of("s").unwrap();
    assert_eq!((status.tools, status.left_out), (20_000, Vec::new()));
    assert!(host.call(call("s__t19999", "{}")).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn every_page_of_a_long_list_is_read() {
    let (_world, host) = world(paged(2_100));
    assert!(reaches(&host, "s", "ready").await);
    assert_eq!(host.status_of("s").unwrap().tools, 2_100);
}

#[tokio::test(start_paused = true)]
async fn a_list_change_publishes_a_new_catalog_version() {
    let (world, host) = world(offering(&["old", "kept"]));
    assert!(reaches(&host, "s", "ready").await);
    let mut changes = host.catalog_changes();
    let before = *changes.borrow_and_update();
    let merged = host.catalog().listing(&Scope::All, ListKind::Tools);

    assert!(world.change("s", offering(&["kept", "new"])));
    let after = next_version(&mut changes).await;

    assert!(after > before);
    assert_eq!(host.catalog().version, after);
    assert_eq!(names(&host), ["kept", "new"]);
    let now = host.catalog().listing(&Scope::All, ListKind::Tools);
    assert_ne!(now.fingerprint, merged.fingerprint);
    assert!(host.call(call("s__new", "{}")).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn an_unchanged_list_publishes_nothing() {
    let (world, host) = world(offering(&["same"]));
    assert!(reaches(&host, "s", "ready").await);
    let mut changes = host.catalog_changes();
    changes.borrow_and_update();
    let fingerprint = host
        .catalog()
        .listing(&Scope::All, ListKind::Tools)
        .fingerprint;

    assert!(world.change("s", offering(&["same"])));
    let record = world.until(|record| record.pages.len() == 2).await;
    assert_eq!(record.pages.len(), 2, "the list was asked for again");
    assert!(host.call(call("s__same", "{}")).await.is_ok());
    // A restart that finds the same tools is no news either.
    assert!(world.kill("s", bowline_link::Exit::Status(1)));
    assert!(reaches(&host, "s", "backoff").await);
    assert!(reaches(&host, "s", "ready").await);

    assert!(!changes.has_changed().unwrap(), "nobody is told");
    assert_eq!(
        host.catalog()
            .listing(&Scope::All, ListKind::Tools)
            .fingerprint,
        fingerprint
    );
}

#[tokio::test(start_paused = true)]
async fn removed_tools_are_no_longer_routed() {
    let (world, host) = world(offering(&["gone", "kept"]));
    assert!(reaches(&host, "s", "ready").await);
    let mut changes = host.catalog_changes();
    assert!(host.call(call("s__gone", "{}")).await.is_ok());

    assert!(world.change("s", offering(&["kept"])));
    next_version(&mut changes).await;

    for call in [call("s__gone", "{}"), call_of("s", "gone", "{}")] {
        let error = host.call(call).await.unwrap_err();
        assert!(matches!(error, CallError::UnknownTool { .. }), "{error}");
        assert_eq!(error.execution(), Execution::NotStarted);
    }
    assert_eq!(world.record().executions.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_cannot_be_had_again_leaves_the_old_one_in_place() {
    let (world, host) = world(offering(&["old"]));
    assert!(reaches(&host, "s", "ready").await);
    let version = host.catalog().version;

    let circle = offering(&[])
        .page("", &["new"], Some("c"))
        .page("c", &[], Some("c"));
    assert!(world.change("s", circle));
    world.until(|record| record.pages.len() == 3).await;
    assert!(host.call(call("s__old", "{}")).await.is_ok());

    assert_eq!(names(&host), ["old"]);
    assert_eq!(host.catalog().version, version);
    let error = host.status_of("s").unwrap().last_error.unwrap();
    assert_eq!(&*error.message, "tools/list repeats a cursor");
    assert_eq!(host.status_of("s").unwrap().state, "ready");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_changes_faster_than_it_lists_is_heard() {
    let (world, host) = world(offering(&["old"]));
    assert!(reaches(&host, "s", "ready").await);
    let mut changes = host.catalog_changes();
    changes.borrow_and_update();
    let slow = offering(&["new"]).list_takes(Duration::from_millis(100));
    let link = world.link("s").unwrap();
    link.follow(slow);

    let chatter = async {
        let mut tick = tokio::time::interval(Duration::from_millis(30));
        loop {
            tick.tick().await;
            assert!(link.say(LinkEvent::ToolsChanged));
        }
    };
    tokio::select! {
        () = chatter => {}
        _ = next_version(&mut changes) => {}
    }
    assert_eq!(names(&host), ["new"]);
}

#[tokio::test(start_paused = true)]
async fn a_change_while_a_list_is_under_way_is_not_lost() {
    let (world, host) = world(offering(&["one"]));
    assert!(reaches(&host, "s", "ready").await);
    let mut changes = host.catalog_changes();
    changes.borrow_and_update();

    let wait = Duration::from_millis(100);
    assert!(world.change("s", offering(&["two"]).list_takes(wait)));
    world.until(|record| record.pages.len() == 2).await;
    // The server has read the question and will answer `two`, but offers `three` by now.
    assert!(world.change("s", offering(&["three"])));
    while names(&host) != ["three"] {
        next_version(&mut changes).await;
    }
}
