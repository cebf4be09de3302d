//! Two hosts in a process share nothing.

use bowline_core::error::{CallError, FailureClass};
use bowline_core::policy::RoleAllowlist;
use bowline_host::tools::ExecuteError;
use bowline_host::{Host, SpawnOptions};
use bowline_testkit::{
    GenerationScript, ServerScript, SimWorld, ToolBehaviour, server_spec, wait_for_state,
};
use serde_json::json;

use super::{DenyGuard, host_builder, named_principal, output_text};

async fn failure_class(host: &Host, role: &str, tool: &str) -> Option<FailureClass> {
    match host
        .call_tool(&named_principal(role), "s", tool, json!({}))
        .await
    {
        Ok(_) => None,
        Err(ExecuteError::Call(error)) => Some(error.failure_class()),
        Err(other) => panic!("{other}"),
    }
}

/// Starts two hosts with different rules for role `r`; a single failure opens a breaker.
async fn start_hosts(worlds: &[SimWorld; 2]) -> [Host; 2] {
    let allow = |role, tools: &[&str]| {
        RoleAllowlist::default()
            .deny_others()
            .with_role(role, tools)
    };
    let one = host_builder(&worlds[0])
        .policy(&allow("r", &["s.*"]))
        .guard(DenyGuard("s", Some("b")));
    let two = host_builder(&worlds[1]).policy(&allow("r", &["s.b"]));
    let (one, two) = (one.build().unwrap(), two.build().unwrap());
    let options = SpawnOptions {
        circuit_threshold: Some(1),
        ..SpawnOptions::default()
    };
    one.spawn(server_spec("s"), options.clone()).await.unwrap();
    two.spawn(server_spec("s"), options).await.unwrap();
    [one, two]
}

#[tokio::test(start_paused = true)]
async fn two_hosts_share_no_state() {
    let tools = || {
        GenerationScript::with_tools([
            ("a", ToolBehaviour::Respond),
            ("b", ToolBehaviour::Respond),
            ("die", ToolBehaviour::Exit),
        ])
    };
    let worlds = [
        SimWorld::new([("s", ServerScript::always(tools()))]),
        SimWorld::new([("s", ServerScript::always(tools()))]),
    ];
    let [one, two] = start_hosts(&worlds).await;
    // Each applies its own policy to lists and calls.
    assert_eq!(failure_class(&one, "r", "a").await, None);
    assert_eq!(
        failure_class(&one, "r", "b").await,
        Some(FailureClass::Denied)
    );
    assert_eq!(
        failure_class(&two, "r", "a").await,
        Some(FailureClass::Denied)
    );
    assert_eq!(failure_class(&two, "r", "b").await, None);
    let names = |host: &Host| {
        let found = bowline_host::ToolExecutor::list_tools(&host.as_executor(named_principal("r")));
        found
            .iter()
            .map(|tool| tool.name().to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&one), ["s__a", "s__die"]);
    assert_eq!(names(&two), ["s__b"]);
    // An open breaker in one host does not affect the other.
    assert_eq!(
        failure_class(&one, "r", "die").await,
        Some(FailureClass::ConnectionLost)
    );
    assert_eq!(one.server_status("s").unwrap().circuit, "open");
    assert_eq!(two.server_status("s").unwrap().circuit, "closed");
    // A guard can be set and removed at any time.
    two.set_guard(Some(Box::new(DenyGuard("s", Some("b")))));
    let refused = two
        .call_tool(&named_principal("r"), "s", "b", json!({}))
        .await;
    let Err(ExecuteError::Call(CallError::Denied { reason, .. })) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(&*reason, "not on the list");
    two.set_guard(None);
    assert_eq!(failure_class(&two, "r", "b").await, None);
    // One host shuts down; the other continues.
    one.shutdown().await;
    assert!(wait_for_state(&two, "s", "ready").await);
    assert_eq!(
        output_text(
            two.call_tool(&named_principal("r"), "s", "b", json!({}))
                .await
        ),
        "s#1"
    );
    let starts = worlds
        .each_ref()
        .map(|world| world.record().start_count("s"));
    assert_eq!(starts, [1, 1]);
}
