//! Which tool a name means, and what the server gets to read.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::sync::Arc;

use bowline_core::call::{Principal, Role, Scope};
use bowline_core::error::{CallError, Class, Execution};
use bowline_core::name;
use bowline_host::catalog::ListKind;
use bowline_host::{Host, HostLimits};
use bowline_sim::{Act, CALL_ID, Generation, Script, World, body, call, call_of, reaches, spec};

fn script(tools: &[&str]) -> Script {
    Script::always(Generation::tools(
        tools.iter().map(|name| (*name, Act::Answers)),
    ))
}

async fn ready(world: &World, servers: &[&str]) -> Host {
    let specs = servers.iter().map(|name| spec(name)).collect();
    let host = world.host(specs, HostLimits::default());
    for server in servers {
        assert!(reaches(&host, server, "ready").await);
    }
    host
}

/// Which tool of which server ran, in order.
fn ran(world: &World) -> Vec<(String, String)> {
    let record = world.record();
    let deeds = record.executions.into_iter();
    deeds
        .map(|deed| (deed.server.to_string(), deed.tool))
        .collect()
}

fn pair(server: &str, tool: &str) -> (String, String) {
    (server.to_owned(), tool.to_owned())
}

#[tokio::test(start_paused = true)]
async fn visible_names_are_resolved_and_the_raw_name_goes_to_the_server() {
    let world = World::new([("a", script(&["read"])), ("b", script(&["read", "write"]))]);
    let host = ready(&world, &["a", "b"]).await;

    let reply = host.call(call("b__read", r#"{"n":1}"#)).await.unwrap();

    let answer = String::from_utf8(reply.answer.to_vec()).unwrap();
    assert!(answer.contains(&format!("\"id\":{CALL_ID},")), "{answer}");
    assert!(body(&reply).contains("b#1"), "{answer}");
    let record = world.record();
    assert_eq!(record.executions.len(), 1);
    let deed = &record.executions[0];
    assert_eq!((&*deed.server, deed.generation), ("b", 1));
    assert_eq!(deed.tool, "read");
    assert_eq!(deed.arguments, r#"{"n":1}"#);
}

#[tokio::test(start_paused = true)]
async fn a_single_server_scope_uses_the_servers_own_names() {
    let world = World::new([("a", script(&["read"])), ("b", script(&["write"]))]);
    let host = ready(&world, &["a", "b"]).await;

    assert!(host.call(call_of("a", "read", "{}")).await.is_ok());
    for (server, tool) in [("a", "a__read"), ("a", "write"), ("b", "read")] {
        let error = host.call(call_of(server, tool, "{}")).await.unwrap_err();
        assert!(matches!(error, CallError::UnknownTool { .. }), "{error}");
    }
    assert_eq!(ran(&world), [pair("a", "read")]);
}

#[tokio::test(start_paused = true)]
async fn unknown_names_are_refused_without_reaching_any_server() {
    let world = World::new([("a", script(&["read"]))]);
    let host = ready(&world, &["a"]).await;
    let server = |name: &str| CallError::UnknownServer {
        server: name.into(),
    };
    let tool = |name: &str| CallError::UnknownTool { tool: name.into() };

    for (call, expect) in [
        (call("a__nope", "{}"), tool("a__nope")),
        (call("read", "{}"), tool("read")),
        (call("", "{}"), tool("")),
        (call("no such__read", "{}"), tool("no such__read")),
        (call("nosuch__read", "{}"), server("nosuch")),
        (call_of("a", "nope", "{}"), tool("nope")),
        (call_of("nosuch", "read", "{}"), server("nosuch")),
    ] {
        let error = host.call(call).await.unwrap_err();
        assert_eq!(error, expect);
        assert_eq!(error.class(), Class::NotFound);
        assert_eq!(error.execution(), Execution::NotStarted);
    }
    assert!(ran(&world).is_empty());
}

#[tokio::test(start_paused = true)]
async fn odd_and_long_names_are_called_by_their_mangled_form() {
    let long = "x".repeat(100);
    let world = World::new([("s", script(&["naïve tool", &long]))]);
    let host = ready(&world, &["s"]).await;

    for tool in ["naïve tool", &long] {
        let visible = name::visible("s", tool);
        host.call(call(&visible, "{}")).await.unwrap();
        host.call(call_of("s", tool, "{}")).await.unwrap();
    }

    let odd = pair("s", "naïve tool");
    let long = pair("s", &long);
    assert_eq!(ran(&world), [odd.clone(), odd, long.clone(), long]);
}

#[tokio::test(start_paused = true)]
async fn two_tools_whose_visible_names_would_clash_get_different_names() {
    // The second tool is called what the first one is shown as.
    let taken = name::visible("s", "a b");
    let twin = taken.strip_prefix("s__").unwrap();
    assert_eq!(name::visible("s", twin), taken);
    let world = World::new([("s", script(&["a b", twin]))]);
    let host = ready(&world, &["s"]).await;

    let catalog = host.catalog();
    let tools = &catalog.offer("s").unwrap().tools;
    assert_eq!(tools.len(), 2);
    assert_ne!(tools.items[0].visible, tools.items[1].visible);
    for tool in tools {
        host.call(call(&tool.visible, "{}")).await.unwrap();
    }
    assert_eq!(ran(&world), [pair("s", "a b"), pair("s", twin)]);
}

#[tokio::test(start_paused = true)]
async fn a_server_name_inside_a_tool_name_confuses_nobody() {
    let world = World::new([
        ("a", script(&["b__read", "_read"])),
        ("a-b", script(&["read"])),
        ("b", script(&["read", "__read"])),
    ]);
    let host = ready(&world, &["a", "a-b", "b"]).await;

    for tool in [
        "a__b__read",
        "b__read",
        "a___read",
        "b____read",
        "a-b__read",
    ] {
        host.call(call(tool, "{}")).await.unwrap();
    }

    let expect = [
        pair("a", "b__read"),
        pair("b", "read"),
        pair("a", "_read"),
        pair("b", "__read"),
        pair("a-b", "read"),
    ];
    assert_eq!(ran(&world), expect);
}

#[tokio::test(start_paused = true)]
async fn a_principal_without_a_role_sees_and_calls_nothing() {
    let world = World::new([("a", script(&["read"]))]);
    let host = ready(&world, &["a"]).await;
    let nobody = Arc::new(Principal::new("nobody", Role::None));

    for scope in [Scope::All, Scope::Server("a".into())] {
        let view = host.view(&nobody, &scope, ListKind::Tools);
        assert_eq!(view.result, r#"{"tools":[]}"#, "{scope:?}");
    }
    let mut denied = call("a__read", "{}");
    denied.principal = nobody;
    let error = host.call(denied).await.unwrap_err();
    assert_eq!(error.class(), Class::Denied);
    assert_eq!(error.execution(), Execution::NotStarted);
    assert!(ran(&world).is_empty());
}
