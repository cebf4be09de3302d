//! Another configuration comes into force while calls go on.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::{Principal, Role};
use bowline_core::error::{CallError, Class};
use bowline_core::redact::Redactor;
use bowline_host::spec::{Reach, RemoteSpec, ServerSpec, ToolRule};
use bowline_host::{Applied, Changed, FRESH_LIST_WAIT, Host, HostLimits};
use bowline_link::http::Transport;
use bowline_link::http::credentials::{CredentialError, Credentials};
use bowline_link::http::endpoint::Endpoint;
use bowline_sim::{Act, Gate, Generation, Script, World, body, call, reaches, spec};
use http::{HeaderName, HeaderValue};
use tokio::task::JoinSet;

fn well() -> Generation {
    Generation::tools([("do", Act::Answers)])
}

/// The spec of a server, changed in one key.
fn changed(server: &str) -> ServerSpec {
    ServerSpec {
        call_timeout: Duration::from_secs(7),
        ..spec(server)
    }
}

fn names(servers: &[&str]) -> Vec<Arc<str>> {
    servers.iter().map(|name| Arc::from(*name)).collect()
}

fn has_tool(host: &Host, server: &str, tool: &str) -> bool {
    let catalog = host.catalog();
    let offer = catalog.offer(server);
    offer.is_some_and(|offer| offer.tools.route(tool).is_some())
}

#[tokio::test(start_paused = true)]
async fn only_servers_that_changed_are_started_anew() {
    let all = ["a", "b", "c", "d"];
    let world = World::new(all.map(|name| (name, Script::always(well()))));
    let host = world.host(["a", "b", "c"].map(spec).to_vec(), HostLimits::default());
    for server in ["a", "b", "c"] {
        assert!(
            host.call(call(&format!("{server}__do"), "{}"))
                .await
                .is_ok()
        );
    }

    let applied = host.apply(vec![spec("a"), changed("b"), spec("d")]);

    let expected = Applied {
        added: names(&["d"]),
        changed: vec![Changed {
            server: "b".into(),
            keys: vec!["timeout"],
        }],
        removed: names(&["c"]),
        kept: names(&["a"]),
        clashes: Vec::new(),
    };
    assert_eq!(applied, expected);
    assert_eq!(host.servers(), names(&["a", "b", "d"]));
    let gone = host.call(call("c__do", "{}")).await.unwrap_err();
    assert_eq!(gone.class(), Class::NotFound, "{gone}");
    for server in ["b", "d"] {
        assert!(reaches(&host, server, "ready").await);
    }
    let record = world
        .until(|record| record.alive("c") == 0 && record.alive("b") == 1)
        .await;
    assert_eq!((record.starts_of("a"), record.alive("a")), (1, 1));
    assert_eq!((record.starts_of("b"), record.starts_of("d")), (2, 1));
    let kept = host.status_of("a").unwrap();
    assert_eq!((kept.calls, kept.generation), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn the_same_specs_change_nothing() {
    let world = World::new([("a", Script::always(well()))]);
    let host = world.host(vec![spec("a")], HostLimits::default());
    host.settled().await;
    let version = host.catalog().version;
    let applied = host.apply(vec![spec("a")]);
    assert!(applied.is_nothing(), "{applied:?}");
    assert_eq!(host.catalog().version, version);
    assert_eq!(world.record().starts_of("a"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_in_flight_ends_on_the_process_that_has_it() {
    let gate = Gate::closed();
    let slow = Generation::tools([("do", Act::Hangs(gate.clone()))]);
    let world = World::new([("s", Script::always(slow).then(well()))]);
    let host = world.host(vec![spec("s")], HostLimits::default());
    let flying = {
        let host = host.clone();
        async move { host.call(call("s__do", "{}")).await }
    };
    let mut flying = std::pin::pin!(flying);
    tokio::select! {
        outcome = &mut flying => panic!("{outcome:?}"),
        _ = world.until(|record| record.executions.len() == 1) => {}
    }

    host.apply(vec![changed("s")]);
    tokio::select! {
        outcome = &mut flying => panic!("{outcome:?}"),
        reached = reaches(&host, "s", "ready") => assert!(reached),
    }
    let next = host.call(call("s__do", "{}")).await.unwrap();
    assert!(body(&next).contains("s#2"), "{}", body(&next));
    assert_eq!(world.record().alive("s"), 2);

    gate.release();
    let reply = flying.await.unwrap();
    assert!(body(&reply).contains("s#1"), "{}", body(&reply));
    world.until(|record| record.alive("s") == 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_for_a_changed_server_goes_to_its_successor() {
    let never = Gate::closed();
    let script = Script::always(well().hangs(&never)).then(well());
    let world = World::new([("s", script)]);
    let host = world.host(vec![spec("s")], HostLimits::default());
    let mut waiting = std::pin::pin!(host.call(call("s__do", "{}")));
    tokio::select! {
        outcome = &mut waiting => panic!("{outcome:?}"),
        _ = world.until(|record| record.starts_of("s") == 1) => {}
    }
    host.apply(vec![changed("s")]);
    let reply = waiting.await.unwrap();
    assert!(body(&reply).contains("s#2"), "{}", body(&reply));
}

#[tokio::test(start_paused = true)]
async fn a_call_in_the_queue_of_a_changed_server_goes_to_its_successor() {
    let gate = Gate::closed();
    let slow = Generation::tools([("do", Act::Hangs(gate.clone()))]);
    let world = World::new([("s", Script::always(slow).then(well()))]);
    let one = |timeout| ServerSpec {
        calls_max: 1,
        call_timeout: Duration::from_secs(timeout),
        ..spec("s")
    };
    let host = world.host(vec![one(60)], HostLimits::default());
    let mut first = std::pin::pin!(host.call(call("s__do", "{}")));
    tokio::select! {
        outcome = &mut first => panic!("{outcome:?}"),
        _ = world.until(|record| record.executions.len() == 1) => {}
    }
    let mut queued = JoinSet::new();
    let queue = host.clone();
    queued.spawn(async move { queue.call(call("s__do", "{}")).await });
    tokio::task::yield_now().await;
    host.apply(vec![one(61)]);
    assert!(reaches(&host, "s", "ready").await);
    gate.release();
    let (first, queued) = tokio::join!(first, queued.join_all());
    assert!(body(&first.unwrap()).contains("s#1"));
    assert!(body(queued[0].as_ref().unwrap()).contains("s#2"));
}

#[tokio::test(start_paused = true)]
async fn servers_that_are_gone_leave_the_catalog_in_one_change() {
    let world = World::new(["a", "b", "c"].map(|name| (name, Script::always(well()))));
    let host = world.host(["a", "b", "c"].map(spec).to_vec(), HostLimits::default());
    host.settled().await;
    let version = host.catalog().version;
    host.apply(vec![spec("c")]);
    assert_eq!(host.catalog().version, version + 1);
    assert_eq!(host.catalog().offers().count(), 1);
    world
        .until(|record| record.alive("a") + record.alive("b") == 0)
        .await;
    assert_eq!(host.catalog().version, version + 1);
}

#[tokio::test(start_paused = true)]
async fn what_a_server_offered_is_shown_until_its_successor_tells() {
    let gate = Gate::closed();
    let next = Generation::tools([("other", Act::Answers)]).hangs(&gate);
    let world = World::new([("s", Script::always(well()).then(next))]);
    let host = world.host(vec![spec("s")], HostLimits::default());
    host.settled().await;

    host.apply(vec![changed("s")]);
    world
        .until(|record| record.starts_of("s") == 2 && record.alive("s") == 1)
        .await;
    assert!(has_tool(&host, "s", "do"));

    gate.release();
    assert!(reaches(&host, "s", "ready").await);
    assert!(has_tool(&host, "s", "other") && !has_tool(&host, "s", "do"));
}

#[tokio::test(start_paused = true)]
async fn rules_of_tools_count_though_the_list_is_the_same() {
    let world = World::new([("s", Script::always(well()))]);
    let host = world.host(vec![spec("s")], HostLimits::default());
    host.settled().await;
    let rule = ToolRule {
        idempotent: Some(true),
        timeout: Some(Duration::from_secs(3)),
        ..ToolRule::default()
    };
    let ruled = ServerSpec {
        tools: [("do".to_owned(), rule.clone())].into(),
        ..spec("s")
    };
    let applied = host.apply(vec![ruled]);
    assert_eq!(applied.changed[0].keys, ["tools"]);
    assert!(reaches(&host, "s", "ready").await);
    let catalog = host.catalog();
    let route = catalog.offer("s").unwrap().tools.route("do").unwrap();
    assert!(route.idempotent);
    assert_eq!(route.timeout, rule.timeout);
}

#[tokio::test(start_paused = true)]
async fn the_log_of_a_changed_server_goes_on_under_its_new_secrets() {
    let world = World::new([("s", Script::always(well()))]);
    let host = world.host(vec![spec("s")], HostLimits::default());
    host.server("s").unwrap().log().say("before hunter2");
    host.apply(vec![ServerSpec {
        secrets: Arc::new(Redactor::new([("env KEY", "hunter2")])),
        ..changed("s")
    }]);
    host.server("s").unwrap().log().say("after hunter2");
    let lines = host.logs(Some("s"), 0, 10).unwrap();
    let texts: Vec<_> = lines.iter().map(|line| &*line.text).collect();
    assert_eq!(texts, ["before hunter2", "after ‹env KEY›"]);
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_the_turn_waits_for_fresh_servers_but_not_long() {
    let gate = Gate::closed();
    let world = World::new([
        ("a", Script::always(well())),
        ("s", Script::always(well().hangs(&gate))),
    ]);
    let host = world.host(vec![spec("a")], HostLimits::default());
    host.settled().await;
    host.turned().await;
    let before = host.clock().now();
    host.apply(vec![spec("a"), spec("s")]);
    host.turned().await;
    assert_eq!(host.clock().now().millis_since(before), 5_000);
    gate.release();
    assert!(reaches(&host, "s", "ready").await);

    let before = host.clock().now();
    host.apply(vec![changed("a"), spec("s")]);
    host.turned().await;
    assert_eq!(host.status_of("a").unwrap().state, "ready");
    assert_eq!(host.clock().now(), before);
}

#[tokio::test(start_paused = true)]
async fn a_host_that_goes_down_takes_nothing_new() {
    let world = World::new([("a", Script::always(well()))]);
    let host = world.host(Vec::new(), HostLimits::default());
    host.shutdown().await;
    assert!(host.apply(vec![spec("a")]).is_nothing());
    assert!(host.servers().is_empty());
    assert!(world.record().starts.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_lower_bound_on_calls_counts_for_the_next_call() {
    let gate = Gate::closed();
    let slow = Generation::tools([("do", Act::Hangs(gate.clone()))]);
    let world = World::new([("s", Script::always(slow))]);
    let host = world.host(vec![spec("s")], HostLimits::default());
    let mut flying = std::pin::pin!(host.call(call("s__do", "{}")));
    tokio::select! {
        outcome = &mut flying => panic!("{outcome:?}"),
        _ = world.until(|record| record.executions.len() == 1) => {}
    }
    host.relimit(HostLimits {
        principal_calls_max: 1,
        ..HostLimits::default()
    });
    let refused = host.call(call("s__do", "{}")).await.unwrap_err();
    assert!(
        matches!(refused, CallError::TooManyCalls { limit: 1, .. }),
        "{refused:?}"
    );
    gate.release();
    assert!(flying.await.is_ok());
}

/// Headers that prove who we are, made anew for each spec.
struct Key(&'static str);

impl Credentials for Key {
    fn headers(&self) -> Result<Vec<(HeaderName, HeaderValue)>, CredentialError> {
        let value = HeaderValue::from_static(self.0);
        Ok(vec![(HeaderName::from_static("x-key"), value)])
    }
}

#[test]
fn a_remote_server_is_the_same_while_its_address_and_headers_are() {
    let remote = |url: &str, key| {
        let reach = RemoteSpec {
            url: Endpoint::parse(url).unwrap(),
            transport: Transport::Auto,
            credentials: Arc::new(Key(key)),
            via: None,
        };
        ServerSpec::reached("r", Reach::Remote(reach))
    };
    let spec = remote("https://h.example/mcp?a=1", "one");
    let same = remote("https://h.example/mcp?a=1", "one");
    assert_eq!(spec.differences(&same), [""; 0]);
    let other = remote("https://h.example/mcp?a=2", "two");
    assert_eq!(spec.differences(&other), ["url", "headers"]);
    let child = ServerSpec::new("r", "program");
    assert_eq!(spec.differences(&child), ["command"]);
}

/// The tools of `s` and whether they are stale, as the library lists them.
async fn tools(host: &Host) -> Vec<(String, bool)> {
    let owner = Principal::new("owner", Role::Owner);
    let tools = host.tools(&owner, "s").await.unwrap();
    let tools = tools.iter();
    tools
        .map(|tool| (tool.name().to_string(), tool.is_stale()))
        .collect()
}

fn offers(tool: &str) -> Generation {
    Generation::tools([(tool, Act::Answers)])
}

#[tokio::test(start_paused = true)]
async fn tools_after_reload_are_the_new_ones() {
    let slow = offers("second").start_takes(Duration::from_secs(3));
    let script = Script::always(offers("first"));
    let world = World::new([("s", script.then(slow).then(offers("third")))]);
    let host = world.host(vec![spec("s")], HostLimits::default());
    assert!(reaches(&host, "s", "ready").await);
    assert_eq!(tools(&host).await, [("first".into(), false)]);

    host.reload("s").await.unwrap();
    assert_eq!(tools(&host).await, [("second".into(), false)]);

    host.apply(vec![changed("s")]);
    assert_eq!(tools(&host).await, [("third".into(), false)]);
}

#[tokio::test(start_paused = true)]
async fn discover_after_apply_finds_new_tools() {
    let slow = offers("second").start_takes(Duration::from_millis(500));
    let script = Script::always(offers("first")).then(slow);
    let world = World::new([("s", script)]);
    let host = world.host(vec![spec("s")], HostLimits::default());
    assert!(reaches(&host, "s", "ready").await);
    host.apply(vec![changed("s")]);
    let owner = Principal::new("owner", Role::Owner);
    let found = host.discover(&owner, Duration::from_secs(1)).await;
    let lines = found.into_iter().flat_map(|one| one.into_entries());
    let lines = serde_json::to_value(lines.collect::<Vec<_>>()).unwrap();
    assert_eq!(lines[0]["tool"], "second", "{lines}");
    assert_eq!(lines[0].get("stale"), None, "{lines}");
}

#[tokio::test(start_paused = true)]
async fn tools_of_slow_successor_are_stale() {
    let gate = Gate::closed();
    let hangs = offers("second").hangs(&gate);
    let world = World::new([("s", Script::always(offers("first")).then(hangs))]);
    let host = world.host(vec![spec("s")], HostLimits::default());
    assert!(reaches(&host, "s", "ready").await);
    host.apply(vec![changed("s")]);
    let before = host.clock().now();
    assert_eq!(tools(&host).await, [("first".into(), true)]);
    let waited = host.clock().now().millis_since(before);
    assert_eq!(u128::from(waited), FRESH_LIST_WAIT.as_millis());
}
