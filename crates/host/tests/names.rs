//! Name resolution, and the names sent to servers.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::sync::Arc;

use bowline_core::call::{EndpointScope, Principal, Role};
use bowline_core::error::{CallError, ExecutionStatus, FailureClass};
use bowline_core::name;
use bowline_host::catalog::ListKind;
use bowline_host::{Host, HostLimits};
use bowline_testkit::{
    CALL_ID, GenerationScript, ServerScript, SimWorld, ToolBehaviour, reply_body, server_spec,
    server_tool_call, tool_call, wait_for_state,
};

fn script_with_tools(tools: &[&str]) -> ServerScript {
    ServerScript::always(GenerationScript::with_tools(
        tools.iter().map(|name| (*name, ToolBehaviour::Respond)),
    ))
}

async fn ready_host(world: &SimWorld, servers: &[&str]) -> Host {
    let specs = servers.iter().map(|name| server_spec(name)).collect();
    let host = world.start_host(specs, HostLimits::default());
    for server in servers {
        assert!(wait_for_state(&host, server, "ready").await);
    }
    host
}

/// Executed tools with their servers, in order.
fn executed_tools(world: &SimWorld) -> Vec<(String, String)> {
    let record = world.record();
    let deeds = record.executions.into_iter();
    deeds
        .map(|deed| (deed.server.to_string(), deed.tool))
        .collect()
}

fn server_and_tool(server: &str, tool: &str) -> (String, String) {
    (server.to_owned(), tool.to_owned())
}

#[tokio::test(start_paused = true)]
async fn visible_name_is_rewritten_to_own_name() {
    let world = SimWorld::new([
        ("a", script_with_tools(&["read"])),
        ("b", script_with_tools(&["read", "write"])),
    ]);
    let host = ready_host(&world, &["a", "b"]).await;

    let reply = host.call(tool_call("b__read", r#"{"n":1}"#)).await.unwrap();

    let answer = String::from_utf8(reply.response.bytes.to_vec()).unwrap();
    assert!(answer.contains(&format!("\"id\":{CALL_ID},")), "{answer}");
    assert!(reply_body(&reply).contains("b#1"), "{answer}");
    let record = world.record();
    assert_eq!(record.executions.len(), 1);
    let deed = &record.executions[0];
    assert_eq!((&*deed.server, deed.generation), ("b", 1));
    assert_eq!(deed.tool, "read");
    assert_eq!(deed.arguments, r#"{"n":1}"#);
}

#[tokio::test(start_paused = true)]
async fn server_scope_uses_own_names() {
    let world = SimWorld::new([
        ("a", script_with_tools(&["read"])),
        ("b", script_with_tools(&["write"])),
    ]);
    let host = ready_host(&world, &["a", "b"]).await;

    assert!(host.call(server_tool_call("a", "read", "{}")).await.is_ok());
    for (server, tool) in [("a", "a__read"), ("a", "write"), ("b", "read")] {
        let error = host
            .call(server_tool_call(server, tool, "{}"))
            .await
            .unwrap_err();
        assert!(matches!(error, CallError::UnknownTool { .. }), "{error}");
    }
    assert_eq!(executed_tools(&world), [server_and_tool("a", "read")]);
}

#[tokio::test(start_paused = true)]
async fn unknown_names_reach_no_server() {
    let world = SimWorld::new([("a", script_with_tools(&["read"]))]);
    let host = ready_host(&world, &["a"]).await;
    let server = |name: &str| CallError::UnknownServer {
        server: name.into(),
    };
    let tool = |name: &str| CallError::UnknownTool { tool: name.into() };

    for (call, expect) in [
        (tool_call("a__nope", "{}"), tool("a__nope")),
        (tool_call("read", "{}"), tool("read")),
        (tool_call("", "{}"), tool("")),
        (tool_call("no such__read", "{}"), tool("no such__read")),
        (tool_call("nosuch__read", "{}"), server("nosuch")),
        (server_tool_call("a", "nope", "{}"), tool("nope")),
        (server_tool_call("nosuch", "read", "{}"), server("nosuch")),
    ] {
        let error = host.call(call).await.unwrap_err();
        assert_eq!(error, expect);
        assert_eq!(error.failure_class(), FailureClass::NotFound);
        assert_eq!(error.execution_status(), ExecutionStatus::NotStarted);
    }
    assert!(executed_tools(&world).is_empty());
}

#[tokio::test(start_paused = true)]
async fn odd_names_are_mangled() {
    let long = "x".repeat(100);
    let world = SimWorld::new([("s", script_with_tools(&["naïve tool", &long]))]);
    let host = ready_host(&world, &["s"]).await;

    for tool in ["naïve tool", &long] {
        let visible = name::visible_name("s", tool);
        host.call(tool_call(&visible, "{}")).await.unwrap();
        host.call(server_tool_call("s", tool, "{}")).await.unwrap();
    }

    let odd = server_and_tool("s", "naïve tool");
    let long = server_and_tool("s", &long);
    assert_eq!(
        executed_tools(&world),
        [odd.clone(), odd, long.clone(), long]
    );
}

#[tokio::test(start_paused = true)]
async fn clashing_visible_names_are_disambiguated() {
    // The second tool has the mangled name of the first.
    let taken = name::visible_name("s", "a b");
    let twin = taken.strip_prefix("s__").unwrap();
    assert_eq!(name::visible_name("s", twin), taken);
    let world = SimWorld::new([("s", script_with_tools(&["a b", twin]))]);
    let host = ready_host(&world, &["s"]).await;

    let catalog = host.catalog();
    let tools = &catalog.server("s").unwrap().tools;
    assert_eq!(tools.len(), 2);
    assert_ne!(tools.items[0].visible, tools.items[1].visible);
    for tool in tools {
        host.call(tool_call(&tool.visible, "{}")).await.unwrap();
    }
    assert_eq!(
        executed_tools(&world),
        [server_and_tool("s", "a b"), server_and_tool("s", twin)]
    );
}

#[tokio::test(start_paused = true)]
async fn server_name_inside_tool_name_is_harmless() {
    let world = SimWorld::new([
        ("a", script_with_tools(&["b__read", "_read"])),
        ("a-b", script_with_tools(&["read"])),
        ("b", script_with_tools(&["read", "__read"])),
    ]);
    let host = ready_host(&world, &["a", "a-b", "b"]).await;

    for tool in [
        "a__b__read",
        "b__read",
        "a___read",
        "b____read",
        "a-b__read",
    ] {
        host.call(tool_call(tool, "{}")).await.unwrap();
    }

    let expect = [
        server_and_tool("a", "b__read"),
        server_and_tool("b", "read"),
        server_and_tool("a", "_read"),
        server_and_tool("b", "__read"),
        server_and_tool("a-b", "read"),
    ];
    assert_eq!(executed_tools(&world), expect);
}

#[tokio::test(start_paused = true)]
async fn principal_without_role_has_no_access() {
    let world = SimWorld::new([("a", script_with_tools(&["read"]))]);
    let host = ready_host(&world, &["a"]).await;
    let nobody = Arc::new(Principal::new("nobody", Role::None));

    for scope in [EndpointScope::All, EndpointScope::Server("a".into())] {
        let view = host.list_for(&nobody, &scope, ListKind::Tools);
        assert_eq!(view.result, r#"{"tools":[]}"#, "{scope:?}");
    }
    let mut denied = tool_call("a__read", "{}");
    denied.principal = nobody;
    let error = host.call(denied).await.unwrap_err();
    assert_eq!(error.failure_class(), FailureClass::Denied);
    assert_eq!(error.execution_status(), ExecutionStatus::NotStarted);
    assert!(executed_tools(&world).is_empty());
}
