//! Lists of a server: requested only if declared, refreshed separately.

use bowline_core::call::EndpointScope;
use bowline_host::catalog::ListKind;
use bowline_link::LinkEvent;
use bowline_testkit::{GenerationScript, ServerScript, SimWorld, ToolBehaviour, tool_call};

use super::{CAPABILITIES, full_server, list_text, owner_principal, ready_host};

#[tokio::test(start_paused = true)]
async fn undeclared_lists_are_not_requested() {
    let world = SimWorld::new([(
        "a",
        ServerScript::always(GenerationScript::with_tools([(
            "t",
            ToolBehaviour::Respond,
        )])),
    )]);
    let host = ready_host(&world, &["a"]).await;
    assert_eq!(world.record().server_requests("a"), [""; 0]);
    assert_eq!(
        list_text(&host, ListKind::Templates),
        r#"{"resourceTemplates":[]}"#
    );
}

#[tokio::test(start_paused = true)]
async fn failed_list_leaves_other_lists() {
    let tools = || {
        GenerationScript::with_tools([("t", ToolBehaviour::Respond)])
            .with_initialize_result(CAPABILITIES)
    };
    let prompts = r#"{"prompts":[{"name":"p"}]}"#;
    let circle = r#"{"resources":[{"uri":"x:1"}],"nextCursor":"c"}"#;
    for (generation, reason) in [
        (
            tools()
                .respond_with("prompts/list", "", prompts)
                .respond_with("resources/list", "", circle),
            Some("resources/list repeats a cursor"),
        ),
        (
            tools()
                .respond_with("prompts/list", "", prompts)
                .never_respond("resources/list"),
            Some("resources/list failed: no answer in time"),
        ),
        // An unknown method gives an empty list.
        (tools().respond_with("prompts/list", "", prompts), None),
    ] {
        let world = SimWorld::new([("a", ServerScript::always(generation))]);
        let host = ready_host(&world, &["a"]).await;
        assert_eq!(list_text(&host, ListKind::Resources), r#"{"resources":[]}"#);
        assert!(list_text(&host, ListKind::Prompts).contains("a__p"));
        assert!(host.call(tool_call("a__t", "{}")).await.is_ok());
        let said = host.server_status("a").unwrap().last_error;
        assert_eq!(said.as_ref().map(|error| &*error.message), reason);
    }
}

#[tokio::test(start_paused = true)]
async fn changed_lists_are_refreshed_separately() {
    let world = SimWorld::new([("a", ServerScript::always(full_server("a", &["x:1"], &[])))]);
    let host = ready_host(&world, &["a"]).await;
    let mut changes = host.catalog_changes();
    changes.borrow_and_update();
    let tools = host
        .list_for(&owner_principal(), &EndpointScope::All, ListKind::Tools)
        .fingerprint;
    world
        .latest_link("a")
        .unwrap()
        .set_script(full_server("a", &["x:2"], &["t:{x}"]));
    assert!(world.emit("a", LinkEvent::ResourcesChanged));
    changes.changed().await.unwrap();
    assert!(list_text(&host, ListKind::Resources).contains("x:2"));
    assert!(list_text(&host, ListKind::Templates).contains("t:{x}"));
    assert_eq!(
        host.list_for(&owner_principal(), &EndpointScope::All, ListKind::Tools)
            .fingerprint,
        tools
    );
    let asked = world
        .record()
        .server_requests("a")
        .iter()
        .filter(|r| r.starts_with("prompts"))
        .count();
    assert_eq!(asked, 1, "prompts were not asked for again");
    assert!(world.emit("a", LinkEvent::PromptsChanged));
    let record = world.wait_until(|record| record.server_requests("a").len() == 6);
    let record = record.await;
    assert_eq!(record.server_requests("a").last(), Some(&"prompts/list"));
}
