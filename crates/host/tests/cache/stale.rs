//! When answers are no longer good before their time.

use bowline_core::call::{Effect, Subject};
use bowline_core::policy::Pattern;
use bowline_host::spec::ToolRule;
use bowline_host::supervisor::Order;
use bowline_link::LinkEvent;
use bowline_sim::ask;

use super::*;

fn writes(invalidates: &[&str]) -> ToolRule {
    let patterns = invalidates.iter().map(|name| Pattern::parse(name).unwrap());
    ToolRule {
        effect: Some(Effect::Write),
        invalidates: patterns.collect(),
        ..ToolRule::default()
    }
}

async fn with_rule(tool: &str, rule: ToolRule) -> (World, Host) {
    let ruled = ServerSpec {
        tools: [(tool.to_owned(), rule)].into(),
        ..spec("s")
    };
    ready_as(ruled, HostLimits::default()).await
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_a_person_says_writes_makes_answers_of_its_server_stale() {
    let (_world, host) = with_rule("slow", writes(&[])).await;
    assert_eq!(get(&host, call("s__do", MINUTE)).await, live(0));
    assert_eq!(get(&host, call("s__slow", MINUTE)).await, live(1));
    assert_eq!(get(&host, call("s__do", MINUTE)).await, live(2));
    assert_eq!(get(&host, call("s__do", MINUTE)).await, cached(2));
    let again = get(&host, call("s__slow", MINUTE)).await;
    assert_eq!(again, live(4 - 1), "what writes is asked each time");
}

#[tokio::test(start_paused = true)]
async fn a_tool_makes_stale_what_a_person_says_it_does_and_nothing_else() {
    let (_world, host) = with_rule("slow", writes(&["*.get_*"])).await;
    get(&host, call("s__do", MINUTE)).await;
    get(&host, call("s__get_it", MINUTE)).await;
    get(&host, call("s__slow", "{}")).await;
    assert_eq!(get(&host, call("s__do", MINUTE)).await, cached(0));
    assert_eq!(get(&host, call("s__get_it", MINUTE)).await, live(3));
}

#[tokio::test(start_paused = true)]
async fn what_is_read_while_a_write_runs_is_not_kept_past_it() {
    let (world, host) = with_rule("slow", writes(&[])).await;
    get(&host, call("s__do", MINUTE)).await;
    let write = begin(&host, call("s__slow", "{}"));
    world.until(|record| record.executions.len() == 2).await;
    assert_eq!(get(&host, call("s__do", MINUTE)).await, live(2), "before");
    assert_eq!(get(&host, call("s__do", MINUTE)).await, cached(2), "during");
    end(write).await;
    assert_eq!(get(&host, call("s__do", MINUTE)).await, live(3), "after");
}

#[tokio::test(start_paused = true)]
async fn a_write_that_is_given_up_makes_answers_stale_as_well() {
    let (world, host) = with_rule("slow", writes(&[])).await;
    let mut write = begin(&host, call("s__slow", "{}"));
    world.until(|record| record.executions.len() == 1).await;
    assert_eq!(get(&host, call("s__do", MINUTE)).await, live(1));
    write.shutdown().await;
    assert_eq!(get(&host, call("s__do", MINUTE)).await, live(2));
}

#[tokio::test(start_paused = true)]
async fn a_read_that_began_before_a_write_ended_leaves_nothing_after_it() {
    let (world, host) = with_rule("do", writes(&[])).await;
    let asks = || call("s__slow", MINUTE);
    let read = begin(&host, asks());
    world.until(|record| record.executions.len() == 1).await;
    get(&host, call("s__do", "{}")).await;
    assert_eq!(end(read).await, live(0));
    assert_eq!(host.cache_stats().entries, 0);
    assert_eq!(get(&host, asks()).await, live(2));
    assert_eq!(get(&host, asks()).await, cached(2));
}

#[tokio::test(start_paused = true)]
async fn nobody_follows_a_read_that_began_before_a_write() {
    let (world, host) = with_rule("do", writes(&[])).await;
    let asks = || call("s__slow", MINUTE);
    get(&host, asks()).await;
    get(&host, call("s__do", "{}")).await;
    let early = begin(&host, asks());
    world.until(|record| record.executions.len() == 3).await;
    get(&host, call("s__do", "{}")).await;
    assert_eq!(
        get(&host, asks()).await,
        live(4),
        "not what was read before"
    );
    assert_eq!(end(early).await, live(2));
}

#[tokio::test(start_paused = true)]
async fn what_the_server_says_of_its_own_tools_makes_nothing_stale() {
    let says = ToolRule {
        effect: None,
        ..writes(&[])
    };
    let (_world, host) = with_rule("slow", says).await;
    get(&host, call("s__do", MINUTE)).await;
    get(&host, call("s__slow", "{}")).await;
    assert_eq!(get(&host, call("s__do", MINUTE)).await, cached(0));
}

#[tokio::test(start_paused = true)]
async fn a_changed_list_makes_the_answers_of_its_kind_stale() {
    let (world, host) = ready().await;
    get(&host, call("s__do", MINUTE)).await;
    for (event, came) in [
        (LinkEvent::PromptsChanged, cached(0)),
        (LinkEvent::ResourcesChanged, cached(0)),
        (LinkEvent::ToolsChanged, live(1)),
    ] {
        assert!(world.say("s", event));
        // The supervisor hears it before it answers the order.
        world.order(&host, "s", Order::Start).await.unwrap();
        pass(10).await;
        assert_eq!(get(&host, call("s__do", MINUTE)).await, came);
    }
}

#[tokio::test(start_paused = true)]
async fn a_changed_definition_is_another_tool() {
    let (world, host) = ready().await;
    get(&host, call("s__do", MINUTE)).await;
    let mut versions = host.catalog_changes();
    versions.mark_unchanged();
    let other = Generation::definitions(&[bowline_sim::annotated("do", r#"{"title":"new"}"#)])
        .act("do", Act::Repeats(Duration::ZERO));
    assert!(world.change("s", other));
    versions.changed().await.unwrap();
    assert_eq!(get(&host, call("s__do", MINUTE)).await, live(1));
}

#[tokio::test(start_paused = true)]
async fn news_of_a_resource_makes_that_resource_stale_and_no_other() {
    let script = repeats()
        .answers(
            "resources/read",
            "x://a",
            r#"{"contents":[],"ttlMs":60000}"#,
        )
        .answers(
            "resources/read",
            "x://b",
            r#"{"contents":[],"ttlMs":60000}"#,
        );
    let world = World::new([("s", Script::always(script))]);
    let host = world.host(vec![spec("s")], HostLimits::default());
    assert!(reaches(&host, "s", "ready").await);
    let read = async |uri: &str| {
        let asks = Call {
            scope: bowline_core::call::Scope::Server("s".into()),
            ..ask(Subject::Resource(uri.into()), "uri")
        };
        host.call(asks).await.unwrap().origin
    };
    for uri in ["x://a", "x://b"] {
        assert_eq!(read(uri).await, Origin::Live);
        assert_eq!(read(uri).await, Origin::Cached);
    }
    assert!(world.say(
        "s",
        LinkEvent::ResourceUpdated {
            uri: "x://a".into(),
            notification: "{}".into(),
        }
    ));
    world.order(&host, "s", Order::Start).await.unwrap();
    pass(10).await;
    assert_eq!(read("x://a").await, Origin::Live);
    assert_eq!(read("x://b").await, Origin::Cached);
}

#[tokio::test(start_paused = true)]
async fn orders_of_a_person_and_another_entry_make_all_answers_stale() {
    let (world, host) = ready().await;
    for (nth, order) in [(0, Order::Restart), (1, Order::Reload)] {
        assert_eq!(get(&host, call("s__do", MINUTE)).await, live(nth));
        assert_eq!(get(&host, call("s__do", MINUTE)).await, cached(nth));
        world.order(&host, "s", order).await.unwrap();
        assert_eq!(host.cache_stats().entries, 0, "{order:?}");
        assert!(reaches(&host, "s", "ready").await);
    }
    get(&host, call("s__do", MINUTE)).await;
    world.order(&host, "s", Order::Stop).await.unwrap();
    assert_eq!(host.cache_stats().entries, 0);
    world.order(&host, "s", Order::Start).await.unwrap();
    assert!(reaches(&host, "s", "ready").await);
    get(&host, call("s__do", MINUTE)).await;
    host.apply(vec![ServerSpec {
        call_timeout: Duration::from_secs(7),
        ..spec("s")
    }]);
    assert_eq!(host.cache_stats().entries, 0);
    assert!(reaches(&host, "s", "ready").await);
    get(&host, call("s__do", MINUTE)).await;
    let stats = host.cache_stats();
    assert_eq!(
        (stats.entries, stats.hits),
        (1, 2),
        "what was counted stays"
    );
    host.apply(vec![]);
    assert_eq!(host.cache_stats(), Default::default());
}

#[tokio::test(start_paused = true)]
async fn a_crash_makes_nothing_stale() {
    let (world, host) = ready().await;
    get(&host, call("s__do", MINUTE)).await;
    world.kill("s", bowline_link::Exit::Signal(9));
    world.until(|record| record.ends.len() == 1).await;
    assert_eq!(get(&host, call("s__do", MINUTE)).await, cached(0));
}
