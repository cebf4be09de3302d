//! Invalidation before the TTL ends.

use bowline_core::call::{CallSubject, Effect};
use bowline_core::policy::FeaturePattern;
use bowline_host::spec::ToolRule;
use bowline_host::supervisor::ServerAction;
use bowline_link::LinkEvent;
use bowline_testkit::subject_call;

use super::*;

fn write_rule(invalidates: &[&str]) -> ToolRule {
    let patterns = invalidates
        .iter()
        .map(|name| FeaturePattern::parse(name).unwrap());
    ToolRule {
        effect: Some(Effect::Write),
        invalidates: patterns.collect(),
        ..ToolRule::default()
    }
}

async fn host_with_rule(tool: &str, rule: ToolRule) -> (SimWorld, Host) {
    let ruled = ServerSpec {
        tools: [(tool.to_owned(), rule)].into(),
        ..server_spec("s")
    };
    ready_with(ruled, HostLimits::default()).await
}

#[tokio::test(start_paused = true)]
async fn configured_write_tool_purges_server() {
    let (_world, host) = host_with_rule("slow", write_rule(&[])).await;
    assert_eq!(
        call_ok(&host, tool_call("s__do", MINUTE)).await,
        live_outcome(0)
    );
    assert_eq!(
        call_ok(&host, tool_call("s__slow", MINUTE)).await,
        live_outcome(1)
    );
    assert_eq!(
        call_ok(&host, tool_call("s__do", MINUTE)).await,
        live_outcome(2)
    );
    assert_eq!(
        call_ok(&host, tool_call("s__do", MINUTE)).await,
        cached_outcome(2)
    );
    let again = call_ok(&host, tool_call("s__slow", MINUTE)).await;
    assert_eq!(again, live_outcome(4 - 1), "what writes is asked each time");
}

#[tokio::test(start_paused = true)]
async fn invalidates_patterns_limit_the_purge() {
    let (_world, host) = host_with_rule("slow", write_rule(&["*.get_*"])).await;
    call_ok(&host, tool_call("s__do", MINUTE)).await;
    call_ok(&host, tool_call("s__get_it", MINUTE)).await;
    call_ok(&host, tool_call("s__slow", "{}")).await;
    assert_eq!(
        call_ok(&host, tool_call("s__do", MINUTE)).await,
        cached_outcome(0)
    );
    assert_eq!(
        call_ok(&host, tool_call("s__get_it", MINUTE)).await,
        live_outcome(3)
    );
}

#[tokio::test(start_paused = true)]
async fn read_during_write_is_not_cached() {
    let (world, host) = host_with_rule("slow", write_rule(&[])).await;
    call_ok(&host, tool_call("s__do", MINUTE)).await;
    let write = spawn_call(&host, tool_call("s__slow", "{}"));
    world
        .wait_until(|record| record.executions.len() == 2)
        .await;
    assert_eq!(
        call_ok(&host, tool_call("s__do", MINUTE)).await,
        live_outcome(2),
        "before"
    );
    assert_eq!(
        call_ok(&host, tool_call("s__do", MINUTE)).await,
        cached_outcome(2),
        "during"
    );
    join_call(write).await;
    assert_eq!(
        call_ok(&host, tool_call("s__do", MINUTE)).await,
        live_outcome(3),
        "after"
    );
}

#[tokio::test(start_paused = true)]
async fn cancelled_write_purges_too() {
    let (world, host) = host_with_rule("slow", write_rule(&[])).await;
    let mut write = spawn_call(&host, tool_call("s__slow", "{}"));
    world
        .wait_until(|record| record.executions.len() == 1)
        .await;
    assert_eq!(
        call_ok(&host, tool_call("s__do", MINUTE)).await,
        live_outcome(1)
    );
    write.shutdown().await;
    assert_eq!(
        call_ok(&host, tool_call("s__do", MINUTE)).await,
        live_outcome(2)
    );
}

#[tokio::test(start_paused = true)]
async fn read_started_before_write_end_is_dropped() {
    let (world, host) = host_with_rule("do", write_rule(&[])).await;
    let asks = || tool_call("s__slow", MINUTE);
    let read = spawn_call(&host, asks());
    world
        .wait_until(|record| record.executions.len() == 1)
        .await;
    call_ok(&host, tool_call("s__do", "{}")).await;
    assert_eq!(join_call(read).await, live_outcome(0));
    assert_eq!(host.cache_stats().entries, 0);
    assert_eq!(call_ok(&host, asks()).await, live_outcome(2));
    assert_eq!(call_ok(&host, asks()).await, cached_outcome(2));
}

#[tokio::test(start_paused = true)]
async fn read_before_write_has_no_followers() {
    let (world, host) = host_with_rule("do", write_rule(&[])).await;
    let asks = || tool_call("s__slow", MINUTE);
    call_ok(&host, asks()).await;
    call_ok(&host, tool_call("s__do", "{}")).await;
    let early = spawn_call(&host, asks());
    world
        .wait_until(|record| record.executions.len() == 3)
        .await;
    call_ok(&host, tool_call("s__do", "{}")).await;
    assert_eq!(
        call_ok(&host, asks()).await,
        live_outcome(4),
        "not what was read before"
    );
    assert_eq!(join_call(early).await, live_outcome(2));
}

#[tokio::test(start_paused = true)]
async fn write_annotation_does_not_purge() {
    let says = ToolRule {
        effect: None,
        ..write_rule(&[])
    };
    let (_world, host) = host_with_rule("slow", says).await;
    call_ok(&host, tool_call("s__do", MINUTE)).await;
    call_ok(&host, tool_call("s__slow", "{}")).await;
    assert_eq!(
        call_ok(&host, tool_call("s__do", MINUTE)).await,
        cached_outcome(0)
    );
}

#[tokio::test(start_paused = true)]
async fn changed_list_purges_its_kind() {
    let (world, host) = ready_host().await;
    call_ok(&host, tool_call("s__do", MINUTE)).await;
    for (event, came) in [
        (LinkEvent::PromptsChanged, cached_outcome(0)),
        (LinkEvent::ResourcesChanged, cached_outcome(0)),
        (LinkEvent::ToolsChanged, live_outcome(1)),
    ] {
        assert!(world.emit("s", event));
        // The supervisor handles the notification before the operator action.
        world
            .give_order(&host, "s", ServerAction::Start)
            .await
            .unwrap();
        advance_ms(10).await;
        assert_eq!(call_ok(&host, tool_call("s__do", MINUTE)).await, came);
    }
}

#[tokio::test(start_paused = true)]
async fn changed_definition_changes_key() {
    let (world, host) = ready_host().await;
    call_ok(&host, tool_call("s__do", MINUTE)).await;
    let mut versions = host.catalog_changes();
    versions.mark_unchanged();
    let other = GenerationScript::with_definitions(&[bowline_testkit::annotated_tool(
        "do",
        r#"{"title":"new"}"#,
    )])
    .with_behaviour("do", ToolBehaviour::EchoArguments(Duration::ZERO));
    assert!(world.change_script("s", other));
    versions.changed().await.unwrap();
    assert_eq!(
        call_ok(&host, tool_call("s__do", MINUTE)).await,
        live_outcome(1)
    );
}

#[tokio::test(start_paused = true)]
async fn resource_update_purges_that_resource() {
    let script = echo_server()
        .respond_with(
            "resources/read",
            "x://a",
            r#"{"contents":[],"ttlMs":60000}"#,
        )
        .respond_with(
            "resources/read",
            "x://b",
            r#"{"contents":[],"ttlMs":60000}"#,
        );
    let world = SimWorld::new([("s", ServerScript::always(script))]);
    let host = world.start_host(vec![server_spec("s")], HostLimits::default());
    assert!(wait_for_state(&host, "s", "ready").await);
    let read = async |uri: &str| {
        let asks = CallRequest {
            scope: bowline_core::call::EndpointScope::Server("s".into()),
            ..subject_call(CallSubject::Resource(uri.into()), "uri")
        };
        host.call(asks).await.unwrap().origin
    };
    for uri in ["x://a", "x://b"] {
        assert_eq!(read(uri).await, ReplyOrigin::Live);
        assert_eq!(read(uri).await, ReplyOrigin::Cached);
    }
    assert!(world.emit(
        "s",
        LinkEvent::ResourceUpdated {
            uri: "x://a".into(),
            notification: "{}".into(),
        }
    ));
    world
        .give_order(&host, "s", ServerAction::Start)
        .await
        .unwrap();
    advance_ms(10).await;
    assert_eq!(read("x://a").await, ReplyOrigin::Live);
    assert_eq!(read("x://b").await, ReplyOrigin::Cached);
}

#[tokio::test(start_paused = true)]
async fn operator_actions_and_config_change_purge() {
    let (world, host) = ready_host().await;
    for (nth, order) in [(0, ServerAction::Restart), (1, ServerAction::Reload)] {
        assert_eq!(
            call_ok(&host, tool_call("s__do", MINUTE)).await,
            live_outcome(nth)
        );
        assert_eq!(
            call_ok(&host, tool_call("s__do", MINUTE)).await,
            cached_outcome(nth)
        );
        world.give_order(&host, "s", order).await.unwrap();
        assert_eq!(host.cache_stats().entries, 0, "{order:?}");
        assert!(wait_for_state(&host, "s", "ready").await);
    }
    call_ok(&host, tool_call("s__do", MINUTE)).await;
    world
        .give_order(&host, "s", ServerAction::Stop)
        .await
        .unwrap();
    assert_eq!(host.cache_stats().entries, 0);
    world
        .give_order(&host, "s", ServerAction::Start)
        .await
        .unwrap();
    assert!(wait_for_state(&host, "s", "ready").await);
    call_ok(&host, tool_call("s__do", MINUTE)).await;
    host.apply_config(vec![ServerSpec {
        call_timeout: Duration::from_secs(7),
        ..server_spec("s")
    }]);
    assert_eq!(host.cache_stats().entries, 0);
    assert!(wait_for_state(&host, "s", "ready").await);
    call_ok(&host, tool_call("s__do", MINUTE)).await;
    let stats = host.cache_stats();
    assert_eq!(
        (stats.entries, stats.hits),
        (1, 2),
        "what was counted stays"
    );
    host.apply_config(vec![]);
    assert_eq!(host.cache_stats(), Default::default());
}

#[tokio::test(start_paused = true)]
async fn crash_purges_nothing() {
    let (world, host) = ready_host().await;
    call_ok(&host, tool_call("s__do", MINUTE)).await;
    world.kill("s", bowline_link::LinkExit::Signal(9));
    world.wait_until(|record| record.ends.len() == 1).await;
    assert_eq!(
        call_ok(&host, tool_call("s__do", MINUTE)).await,
        cached_outcome(0)
    );
}
