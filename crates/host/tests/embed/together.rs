//! Two hosts in one process know nothing of each other.

use bowline_core::error::{CallError, Class};
use bowline_core::policy::RoleAllowlist;
use bowline_host::tools::ExecuteError;
use bowline_host::{Host, SpawnOptions};
use bowline_sim::{Act, Generation, Script, World, reaches, spec};
use serde_json::json;

use super::{Refuses, builder, named, text};

async fn class(host: &Host, role: &str, tool: &str) -> Option<Class> {
    match host.call_tool(&named(role), "s", tool, json!({})).await {
        Ok(_) => None,
        Err(ExecuteError::Call(error)) => Some(error.class()),
        Err(other) => panic!("{other}"),
    }
}

#[tokio::test(start_paused = true)]
async fn two_hosts_with_the_same_names_have_policies_guards_and_breakers_of_their_own() {
    let tools =
        || Generation::tools([("a", Act::Answers), ("b", Act::Answers), ("die", Act::Dies)]);
    let worlds = [
        World::new([("s", Script::always(tools()))]),
        World::new([("s", Script::always(tools()))]),
    ];
    let allow = |role, tools: &[&str]| {
        RoleAllowlist::default()
            .deny_others()
            .with_role(role, tools)
    };
    let one = builder(&worlds[0])
        .policy(&allow("r", &["s.*"]))
        .guard(Refuses("s", Some("b")));
    let two = builder(&worlds[1]).policy(&allow("r", &["s.b"]));
    let (one, two) = (one.build().unwrap(), two.build().unwrap());
    let options = SpawnOptions {
        circuit_threshold: Some(1),
        ..SpawnOptions::default()
    };
    one.spawn(spec("s"), options.clone()).await.unwrap();
    two.spawn(spec("s"), options).await.unwrap();
    // Each decides by itself, for lists and calls.
    assert_eq!(class(&one, "r", "a").await, None);
    assert_eq!(class(&one, "r", "b").await, Some(Class::Denied));
    assert_eq!(class(&two, "r", "a").await, Some(Class::Denied));
    assert_eq!(class(&two, "r", "b").await, None);
    let names = |host: &Host| {
        let found = bowline_host::ToolExecutor::tools(&host.as_executor(named("r")));
        found
            .iter()
            .map(|tool| tool.name().to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&one), ["s__a", "s__die"]);
    assert_eq!(names(&two), ["s__b"]);
    // What breaks in one does not rest in the other.
    assert_eq!(class(&one, "r", "die").await, Some(Class::ConnectionLost));
    assert_eq!(one.status_of("s").unwrap().circuit, "open");
    assert_eq!(two.status_of("s").unwrap().circuit, "closed");
    // A guard can be put in place and taken away at any time.
    two.set_guard(Some(Box::new(Refuses("s", Some("b")))));
    let refused = two.call_tool(&named("r"), "s", "b", json!({})).await;
    let Err(ExecuteError::Call(CallError::Denied { reason, .. })) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(&*reason, "not on the list");
    two.set_guard(None);
    assert_eq!(class(&two, "r", "b").await, None);
    // One goes down, the other does not.
    one.shutdown().await;
    assert!(reaches(&two, "s", "ready").await);
    assert_eq!(
        text(two.call_tool(&named("r"), "s", "b", json!({})).await),
        "s#1"
    );
    let starts = worlds.each_ref().map(|world| world.record().starts_of("s"));
    assert_eq!(starts, [1, 1]);
}
