//! Last known lists of an unavailable server: marked, and removed after a refusal.

use std::sync::Arc;

use bowline_core::call::{EndpointScope, Principal, Role};
use bowline_core::error::{ExecutionStatus, FailureClass};
use bowline_core::policy::{DefaultAction, FeaturePattern, Policy, RoleRules};
use bowline_host::Host;
use bowline_host::catalog::{ListKind, RenderedList};
use bowline_link::{LinkError, LinkExit};
use bowline_testkit::{
    GenerationScript, ReleaseGate, ScriptedDial, ServerScript, SimWorld, ToolBehaviour,
    server_spec, tool_call, wait_for_state,
};
use serde_json::Value;

use super::failing::{refused_connect, unauthorized_connect};
use super::{MemoryManifests, OddDial, healthy_server, http_spec, start_host};

const STALE: &str = "dev.bowline/stale";

fn tool_list(host: &Host, scope: &EndpointScope) -> RenderedList {
    host.catalog().list(scope, ListKind::Tools)
}

/// The listed tools, and whether each is marked.
fn tools_with_marks(list: &RenderedList) -> Vec<(String, bool)> {
    let list: Value = serde_json::from_slice(&list.result).unwrap();
    let tools = list["tools"].as_array().unwrap().iter();
    let one = |tool: &Value| {
        let name = tool["name"].as_str().unwrap().to_owned();
        (name, tool["_meta"][STALE] == true)
    };
    tools.map(one).collect()
}

fn marked_tool(name: &str) -> Vec<(String, bool)> {
    vec![(name.to_owned(), true)]
}

fn unmarked_tool(name: &str) -> Vec<(String, bool)> {
    vec![(name.to_owned(), false)]
}

/// A restarted gateway after a successful run.
async fn restarted_world(script: ServerScript) -> (SimWorld, Arc<MemoryManifests>) {
    let kept = Arc::new(MemoryManifests::default());
    let world = SimWorld::new([("s", script)]);
    let first = start_host(
        ScriptedDial::new(world.clone()),
        &kept,
        vec![http_spec("s")],
    );
    assert!(wait_for_state(&first, "s", "ready").await);
    first.shutdown().await;
    (world, kept)
}

#[tokio::test(start_paused = true)]
async fn outage_marks_tools_without_change() {
    let gate = ReleaseGate::new_closed();
    let world = SimWorld::new([
        (
            "s",
            ServerScript::always(healthy_server()).then(healthy_server().hang_start(&gate)),
        ),
        ("t", ServerScript::always(healthy_server())),
    ]);
    let host = world.start_host(
        vec![server_spec("s"), server_spec("t")],
        bowline_host::HostLimits::default(),
    );
    assert!(wait_for_state(&host, "s", "ready").await && wait_for_state(&host, "t", "ready").await);
    let (all, own) = (EndpointScope::All, EndpointScope::Server("s".into()));
    let (before, before_own) = (tool_list(&host, &all), tool_list(&host, &own));
    assert_eq!(tools_with_marks(&before_own), unmarked_tool("do"));
    assert!(!host.server_status("s").unwrap().stale);

    assert!(world.kill("s", LinkExit::Signal(9)));
    assert!(wait_for_state(&host, "s", "starting").await);
    let down = tool_list(&host, &all);
    assert_eq!(
        tools_with_marks(&down),
        [("s__do".to_owned(), true), ("t__do".to_owned(), false)],
        "one server is away and the other is not"
    );
    assert_eq!(tools_with_marks(&tool_list(&host, &own)), marked_tool("do"));
    assert!(host.server_status("s").unwrap().stale);
    // The fingerprint is unchanged, so agents do not list again.
    assert_eq!(down.fingerprint, before.fingerprint);
    assert_eq!(tool_list(&host, &own).fingerprint, before_own.fingerprint);

    gate.release();
    assert!(wait_for_state(&host, "s", "ready").await);
    assert_eq!(
        tool_list(&host, &all).result,
        before.result,
        "byte for byte"
    );
    assert_eq!(tool_list(&host, &own).result, before_own.result);
    assert!(!host.server_status("s").unwrap().stale);
}

#[tokio::test(start_paused = true)]
async fn restarted_gateway_serves_marked_tools() {
    let (world, kept) = restarted_world(ServerScript::always(healthy_server())).await;
    let errors = (0..3).map(|_| refused_connect(LinkError::Unreachable("no route".into())));
    let second = start_host(OddDial::new(&world, errors), &kept, vec![http_spec("s")]);
    assert_eq!(
        tools_with_marks(&tool_list(&second, &EndpointScope::All)),
        marked_tool("s__do")
    );
    assert!(wait_for_state(&second, "s", "backoff").await);
    assert_eq!(
        tools_with_marks(&tool_list(&second, &EndpointScope::All)),
        marked_tool("s__do")
    );
    assert_eq!(second.server_status("s").unwrap().manifest, "last_known");
    assert!(wait_for_state(&second, "s", "ready").await);
    assert_eq!(
        tools_with_marks(&tool_list(&second, &EndpointScope::All)),
        unmarked_tool("s__do")
    );
}

#[tokio::test(start_paused = true)]
async fn idle_server_is_not_marked() {
    let (world, kept) = restarted_world(ServerScript::always(healthy_server())).await;
    let mut lazily = http_spec("s");
    lazily.lazy = true;
    let second = start_host(ScriptedDial::new(world), &kept, vec![lazily]);
    assert_eq!(
        tools_with_marks(&tool_list(&second, &EndpointScope::All)),
        unmarked_tool("s__do")
    );
    assert!(!second.server_status("s").unwrap().stale);
}

#[tokio::test(start_paused = true)]
async fn unknown_server_in_outage_lists_empty() {
    let world = SimWorld::new([("s", ServerScript::always(healthy_server()))]);
    let errors = (0..3).map(|_| refused_connect(LinkError::Unreachable("no route".into())));
    let host = start_host(
        OddDial::new(&world, errors),
        &Arc::default(),
        vec![http_spec("s")],
    );
    assert!(wait_for_state(&host, "s", "backoff").await);
    assert!(tools_with_marks(&tool_list(&host, &EndpointScope::All)).is_empty());
    let status = host.server_status("s").unwrap();
    assert_eq!((&*status.manifest, status.stale), ("none", false));
    // All capabilities are announced, so that clients listen for changes.
    let owner = Principal::new("owner", Role::Owner);
    let said = host
        .initialize_info(&owner, &EndpointScope::All)
        .capabilities;
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(said.contains(r#""tools":{"listChanged":true}"#), "{said}");
}

#[tokio::test(start_paused = true)]
async fn refusal_removes_tools_until_listed() {
    let answer = || {
        refused_connect(LinkError::Http {
            status: 500,
            preview: "".into(),
        })
    };
    for (error, class) in [
        (unauthorized_connect(401), FailureClass::AuthRequired),
        (unauthorized_connect(403), FailureClass::ScopeRequired),
        (answer(), FailureClass::ConnectFailed),
    ] {
        let (world, kept) = restarted_world(ServerScript::always(healthy_server())).await;
        let is_credentials = class != FailureClass::ConnectFailed;
        let second = start_host(OddDial::new(&world, [error]), &kept, vec![http_spec("s")]);
        assert_eq!(
            tools_with_marks(&tool_list(&second, &EndpointScope::All)),
            marked_tool("s__do"),
            "nobody knows yet"
        );
        assert!(wait_for_state(&second, "s", "backoff").await);
        assert!(tools_with_marks(&tool_list(&second, &EndpointScope::All)).is_empty());
        assert!(
            kept.manifests.lock().unwrap().is_empty(),
            "nor by the next life"
        );
        if is_credentials {
            // Fails at once, although the next attempt is near.
            let error = second.call(tool_call("s__do", "{}")).await.unwrap_err();
            assert_eq!(error.failure_class(), class, "{error}");
            assert_eq!(error.execution_status(), ExecutionStatus::NotStarted);
            assert_eq!(
                second.server_status("s").unwrap().last_error.unwrap().class,
                class.as_str()
            );
        }
        assert!(wait_for_state(&second, "s", "ready").await);
        assert_eq!(
            tools_with_marks(&tool_list(&second, &EndpointScope::All)),
            unmarked_tool("s__do")
        );
        assert_eq!(kept.manifests.lock().unwrap().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn bad_gateway_counts_as_outage() {
    for status in [502, 503, 504] {
        let (world, kept) = restarted_world(ServerScript::always(healthy_server())).await;
        let error = refused_connect(LinkError::Http {
            status,
            preview: "".into(),
        });
        let second = start_host(OddDial::new(&world, [error]), &kept, vec![http_spec("s")]);
        assert!(wait_for_state(&second, "s", "backoff").await);
        assert_eq!(
            tools_with_marks(&tool_list(&second, &EndpointScope::All)),
            marked_tool("s__do"),
            "{status}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn refused_list_at_start_removes_tools() {
    // The second page is an error.
    let refusing = healthy_server().with_page("", &["do"], Some("c"));
    let (world, kept) =
        restarted_world(ServerScript::always(healthy_server()).then(refusing)).await;
    let second = start_host(ScriptedDial::new(world), &kept, vec![http_spec("s")]);
    assert!(wait_for_state(&second, "s", "backoff").await);
    assert!(tools_with_marks(&tool_list(&second, &EndpointScope::All)).is_empty());
    assert_eq!(
        second.server_status("s").unwrap().last_error.unwrap().class,
        FailureClass::ProtocolError.as_str()
    );
}

#[tokio::test(start_paused = true)]
async fn policy_applies_to_last_known_tools() {
    let two = || {
        GenerationScript::with_tools([
            ("do", ToolBehaviour::Respond),
            ("undo", ToolBehaviour::Respond),
        ])
    };
    let (world, kept) = restarted_world(ServerScript::always(two())).await;
    let errors = (0..9).map(|_| refused_connect(LinkError::Unreachable("no route".into())));
    let second = start_host(OddDial::new(&world, errors), &kept, vec![http_spec("s")]);
    let rules = RoleRules {
        allow: vec![FeaturePattern::parse("s.do").unwrap()],
        ..RoleRules::default()
    };
    second.set_policy(Policy::new(DefaultAction::Deny).with_role("half", rules));
    assert!(wait_for_state(&second, "s", "backoff").await);
    let half = Principal::new("p", Role::Named("half".into()));
    let none = Principal::new("p", Role::None);
    let view = |who: &Principal| {
        tools_with_marks(&second.list_for(who, &EndpointScope::All, ListKind::Tools))
    };
    assert_eq!(view(&half), marked_tool("s__do"));
    assert!(view(&none).is_empty());
    let agent = Principal::new("owner:claude", Role::OwnersAgent);
    assert_eq!(view(&agent).len(), 2);
}
