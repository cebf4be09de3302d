//! Lists from an earlier run of the gateway.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::EndpointScope;
use bowline_core::era::Era;
use bowline_host::Host;
use bowline_host::catalog::ListKind;
use bowline_testkit::{
    GenerationScript, ReleaseGate, ScriptedDial, ServerScript, SimWorld, ToolBehaviour,
    server_spec, tool_call, wait_for_state,
};

use super::{
    MemoryManifests, OddDial, advance_clock, healthy_server, lazy_spec, run_until_idle, start_host,
};

fn tool_list(host: &Host) -> String {
    let list = host
        .catalog()
        .list(&EndpointScope::All, ListKind::Tools)
        .result;
    String::from_utf8_lossy(&list).into_owned()
}

fn world_with_one_server(script: ServerScript) -> SimWorld {
    SimWorld::new([("s", script)])
}

#[tokio::test(start_paused = true)]
async fn lazy_server_is_listed_from_manifest() {
    let kept = Arc::new(MemoryManifests::default());
    let world = world_with_one_server(ServerScript::always(healthy_server()));
    let first = start_host(
        ScriptedDial::new(world.clone()),
        &kept,
        vec![server_spec("s")],
    );
    assert!(wait_for_state(&first, "s", "ready").await);
    first.shutdown().await;

    let second = start_host(
        ScriptedDial::new(world.clone()),
        &kept,
        vec![lazy_spec("s")],
    );
    assert!(tool_list(&second).contains("s__do"), "before anything ran");
    second.wait_settled().await;
    second.start_unlisted(&EndpointScope::All).await;
    run_until_idle().await;
    assert_eq!(second.server_status("s").unwrap().state, "idle");
    assert_eq!(world.record().start_count("s"), 1, "listing starts nothing");
    second.call(tool_call("s__do", "{}")).await.unwrap();
    assert_eq!(world.record().start_count("s"), 2);
    assert_eq!(*kept.saves.lock().unwrap(), 1, "it offers the same");
}

#[tokio::test(start_paused = true)]
async fn starting_server_is_listed_from_manifest() {
    let kept = Arc::new(MemoryManifests::default());
    let gate = ReleaseGate::new_closed();
    let newer = GenerationScript::with_tools([("other", ToolBehaviour::Respond)]);
    let world =
        world_with_one_server(ServerScript::always(healthy_server()).then(newer.hang_start(&gate)));
    let first = start_host(
        ScriptedDial::new(world.clone()),
        &kept,
        vec![server_spec("s")],
    );
    assert!(wait_for_state(&first, "s", "ready").await);
    first.shutdown().await;

    let second = start_host(
        ScriptedDial::new(world.clone()),
        &kept,
        vec![server_spec("s")],
    );
    assert!(tool_list(&second).contains("s__do"));
    gate.release();
    assert!(wait_for_state(&second, "s", "ready").await);
    assert!(tool_list(&second).contains("s__other"));
    assert!(
        !tool_list(&second).contains("s__do"),
        "it offers other things now"
    );
    assert_eq!(*kept.saves.lock().unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn stored_era_is_restored_before_start() {
    let modern = r#"{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}}"#;
    for (script, era) in [
        (healthy_server(), Era::Legacy),
        (healthy_server().with_initialize_result(modern), Era::Modern),
    ] {
        let kept = Arc::new(MemoryManifests::default());
        let world = world_with_one_server(ServerScript::always(script));
        for recalled in [&[][..], &[era]] {
            let dial = OddDial::new(&world, []);
            let life = start_host(dial.clone(), &kept, vec![server_spec("s")]);
            assert_eq!(*dial.recalled.lock().unwrap(), recalled);
            assert!(wait_for_state(&life, "s", "ready").await);
            life.shutdown().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn manifest_of_other_program_is_ignored() {
    let kept = Arc::new(MemoryManifests::default());
    let world = world_with_one_server(ServerScript::always(healthy_server()));
    let first = start_host(
        ScriptedDial::new(world.clone()),
        &kept,
        vec![server_spec("s")],
    );
    assert!(wait_for_state(&first, "s", "ready").await);
    first.shutdown().await;
    let mut other = bowline_host::spec::ServerSpec::new("s", "another");
    other.lazy = true;
    let second = start_host(ScriptedDial::new(world.clone()), &kept, vec![other]);
    assert!(!tool_list(&second).contains("s__do"));
}

#[tokio::test(start_paused = true)]
async fn changed_list_is_stored_separately() {
    let kept = Arc::new(MemoryManifests::default());
    let world = world_with_one_server(ServerScript::always(healthy_server()));
    let first = start_host(
        ScriptedDial::new(world.clone()),
        &kept,
        vec![server_spec("s")],
    );
    assert!(wait_for_state(&first, "s", "ready").await);
    let mut changes = first.catalog_changes();
    changes.borrow_and_update();
    assert!(world.change_script(
        "s",
        GenerationScript::with_tools([("new", ToolBehaviour::Respond)])
    ));
    changes.changed().await.unwrap();
    first.shutdown().await;
    let second = start_host(
        ScriptedDial::new(world.clone()),
        &kept,
        vec![lazy_spec("s")],
    );
    assert!(
        tool_list(&second).contains("s__new"),
        "{}",
        tool_list(&second)
    );
}

#[tokio::test(start_paused = true)]
async fn unlisted_lazy_server_starts_on_first_list() {
    let world = SimWorld::new([
        ("a", ServerScript::always(healthy_server())),
        ("b", ServerScript::always(healthy_server())),
        (
            "c",
            ServerScript::always(healthy_server().hang_start(&ReleaseGate::new_closed())),
        ),
    ]);
    let specs = ["a", "b", "c"].map(lazy_spec).to_vec();
    let host = start_host(ScriptedDial::new(world.clone()), &Arc::default(), specs);
    host.wait_settled().await;
    run_until_idle().await;
    assert!(world.record().starts.is_empty());

    host.start_unlisted(&EndpointScope::Server("b".into()))
        .await;
    assert_eq!(world.record().start_count("b"), 1);
    assert_eq!(world.record().starts.len(), 1, "only what would be shown");
    assert!(tool_list(&host).contains("b__do"));

    let before = host.clock().now();
    host.start_unlisted(&EndpointScope::All).await;
    assert!(tool_list(&host).contains("a__do"));
    let waited = host.clock().now().millis_since(before);
    assert_eq!(
        waited, 1_500,
        "one that hangs holds up a list, but not long"
    );
    let before = host.clock().now();
    host.start_unlisted(&EndpointScope::All).await;
    assert_eq!(host.clock().now(), before, "later lists wait for nobody");
    advance_clock(Duration::from_secs(1)).await;
    assert_eq!(world.record().starts.len(), 3);
}
