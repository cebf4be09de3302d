//! Applying a changed configuration while calls continue.
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
use bowline_core::error::{CallError, FailureClass};
use bowline_core::redact::Redactor;
use bowline_host::spec::{RemoteSpec, ServerSpec, ServerTransport, ToolRule};
use bowline_host::{ApplyReport, ChangedServer, FRESH_LIST_WAIT, Host, HostLimits};
use bowline_link::http::HttpTransport;
use bowline_link::http::endpoint::HttpEndpoint;
use bowline_link::http::upstream_credentials::{CredentialError, UpstreamCredentials};
use bowline_testkit::{
    GenerationScript, ReleaseGate, ServerScript, SimWorld, ToolBehaviour, reply_body,
    run_until_idle, server_spec, tool_call, wait_for_state,
};
use http::{HeaderName, HeaderValue};
use tokio::task::JoinSet;

fn healthy_server() -> GenerationScript {
    GenerationScript::with_tools([("do", ToolBehaviour::Respond)])
}

/// The spec of a server, changed in a single key.
fn changed_spec(server: &str) -> ServerSpec {
    ServerSpec {
        call_timeout: Duration::from_secs(7),
        ..server_spec(server)
    }
}

fn to_names(servers: &[&str]) -> Vec<Arc<str>> {
    servers.iter().map(|name| Arc::from(*name)).collect()
}

fn has_tool(host: &Host, server: &str, tool: &str) -> bool {
    let catalog = host.catalog();
    let offer = catalog.server(server);
    offer.is_some_and(|offer| offer.tools.route(tool).is_some())
}

#[tokio::test(start_paused = true)]
async fn only_changed_servers_restart() {
    let all = ["a", "b", "c", "d"];
    let world = SimWorld::new(all.map(|name| (name, ServerScript::always(healthy_server()))));
    let host = world.start_host(
        ["a", "b", "c"].map(server_spec).to_vec(),
        HostLimits::default(),
    );
    for server in ["a", "b", "c"] {
        assert!(
            host.call(tool_call(&format!("{server}__do"), "{}"))
                .await
                .is_ok()
        );
    }

    let applied = host.apply_config(vec![server_spec("a"), changed_spec("b"), server_spec("d")]);

    let expected = ApplyReport {
        added: to_names(&["d"]),
        changed: vec![ChangedServer {
            server: "b".into(),
            keys: vec!["timeout"],
        }],
        removed: to_names(&["c"]),
        kept: to_names(&["a"]),
        clashes: Vec::new(),
        unsupported: Vec::new(),
    };
    assert_eq!(applied, expected);
    assert_eq!(host.servers(), to_names(&["a", "b", "d"]));
    let gone = host.call(tool_call("c__do", "{}")).await.unwrap_err();
    assert_eq!(gone.failure_class(), FailureClass::NotFound, "{gone}");
    for server in ["b", "d"] {
        assert!(wait_for_state(&host, server, "ready").await);
    }
    let record = world
        .wait_until(|record| record.live_count("c") == 0 && record.live_count("b") == 1)
        .await;
    assert_eq!((record.start_count("a"), record.live_count("a")), (1, 1));
    assert_eq!((record.start_count("b"), record.start_count("d")), (2, 1));
    let kept = host.server_status("a").unwrap();
    assert_eq!((kept.calls, kept.generation), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn unchanged_specs_change_nothing() {
    let world = SimWorld::new([("a", ServerScript::always(healthy_server()))]);
    let host = world.start_host(vec![server_spec("a")], HostLimits::default());
    host.wait_settled().await;
    let version = host.catalog().version;
    let applied = host.apply_config(vec![server_spec("a")]);
    assert!(applied.is_unchanged(), "{applied:?}");
    assert_eq!(host.catalog().version, version);
    assert_eq!(world.record().start_count("a"), 1);
}

#[tokio::test(start_paused = true)]
async fn call_in_flight_finishes_on_old_process() {
    let gate = ReleaseGate::new_closed();
    let slow = GenerationScript::with_tools([("do", ToolBehaviour::BlockOn(gate.clone()))]);
    let world = SimWorld::new([("s", ServerScript::always(slow).then(healthy_server()))]);
    let host = world.start_host(vec![server_spec("s")], HostLimits::default());
    let flying = {
        let host = host.clone();
        async move { host.call(tool_call("s__do", "{}")).await }
    };
    let mut flying = std::pin::pin!(flying);
    tokio::select! {
        outcome = &mut flying => panic!("{outcome:?}"),
        _ = world.wait_until(|record| record.executions.len() == 1) => {}
    }

    host.apply_config(vec![changed_spec("s")]);
    tokio::select! {
        outcome = &mut flying => panic!("{outcome:?}"),
        reached = wait_for_state(&host, "s", "ready") => assert!(reached),
    }
    let next = host.call(tool_call("s__do", "{}")).await.unwrap();
    assert!(reply_body(&next).contains("s#2"), "{}", reply_body(&next));
    assert_eq!(world.record().live_count("s"), 2);

    gate.release();
    let reply = flying.await.unwrap();
    assert!(reply_body(&reply).contains("s#1"), "{}", reply_body(&reply));
    world.wait_until(|record| record.live_count("s") == 1).await;
}

#[tokio::test(start_paused = true)]
async fn waiting_call_moves_to_successor() {
    let never = ReleaseGate::new_closed();
    let script = ServerScript::always(healthy_server().hang_start(&never)).then(healthy_server());
    let world = SimWorld::new([("s", script)]);
    let host = world.start_host(vec![server_spec("s")], HostLimits::default());
    let mut waiting = std::pin::pin!(host.call(tool_call("s__do", "{}")));
    tokio::select! {
        outcome = &mut waiting => panic!("{outcome:?}"),
        _ = world.wait_until(|record| record.start_count("s") == 1) => {}
    }
    host.apply_config(vec![changed_spec("s")]);
    let reply = waiting.await.unwrap();
    assert!(reply_body(&reply).contains("s#2"), "{}", reply_body(&reply));
}

#[tokio::test(start_paused = true)]
async fn queued_call_moves_to_successor() {
    let gate = ReleaseGate::new_closed();
    let slow = GenerationScript::with_tools([("do", ToolBehaviour::BlockOn(gate.clone()))]);
    let world = SimWorld::new([("s", ServerScript::always(slow).then(healthy_server()))]);
    let one = |timeout| ServerSpec {
        calls_max: 1,
        call_timeout: Duration::from_secs(timeout),
        ..server_spec("s")
    };
    let host = world.start_host(vec![one(60)], HostLimits::default());
    let mut first = std::pin::pin!(host.call(tool_call("s__do", "{}")));
    tokio::select! {
        outcome = &mut first => panic!("{outcome:?}"),
        _ = world.wait_until(|record| record.executions.len() == 1) => {}
    }
    let mut queued = JoinSet::new();
    let queue = host.clone();
    queued.spawn(async move { queue.call(tool_call("s__do", "{}")).await });
    run_until_idle().await;
    assert_eq!(host.server("s").unwrap().queued_calls(), 1);
    host.apply_config(vec![one(61)]);
    assert!(wait_for_state(&host, "s", "ready").await);
    gate.release();
    let (first, queued) = tokio::join!(first, queued.join_all());
    assert!(reply_body(&first.unwrap()).contains("s#1"));
    assert!(reply_body(queued[0].as_ref().unwrap()).contains("s#2"));
}

#[tokio::test(start_paused = true)]
async fn removed_servers_leave_catalog_in_one_change() {
    let world =
        SimWorld::new(["a", "b", "c"].map(|name| (name, ServerScript::always(healthy_server()))));
    let host = world.start_host(
        ["a", "b", "c"].map(server_spec).to_vec(),
        HostLimits::default(),
    );
    host.wait_settled().await;
    let version = host.catalog().version;
    host.apply_config(vec![server_spec("c")]);
    assert_eq!(host.catalog().version, version + 1);
    assert_eq!(host.catalog().servers().count(), 1);
    world
        .wait_until(|record| record.live_count("a") + record.live_count("b") == 0)
        .await;
    assert_eq!(host.catalog().version, version + 1);
}

#[tokio::test(start_paused = true)]
async fn old_tools_stay_until_successor_lists() {
    let gate = ReleaseGate::new_closed();
    let next = GenerationScript::with_tools([("other", ToolBehaviour::Respond)]).hang_start(&gate);
    let world = SimWorld::new([("s", ServerScript::always(healthy_server()).then(next))]);
    let host = world.start_host(vec![server_spec("s")], HostLimits::default());
    host.wait_settled().await;

    host.apply_config(vec![changed_spec("s")]);
    world
        .wait_until(|record| record.start_count("s") == 2 && record.live_count("s") == 1)
        .await;
    assert!(has_tool(&host, "s", "do"));

    gate.release();
    assert!(wait_for_state(&host, "s", "ready").await);
    assert!(has_tool(&host, "s", "other") && !has_tool(&host, "s", "do"));
}

#[tokio::test(start_paused = true)]
async fn changed_tool_rules_apply_to_unchanged_list() {
    let world = SimWorld::new([("s", ServerScript::always(healthy_server()))]);
    let host = world.start_host(vec![server_spec("s")], HostLimits::default());
    host.wait_settled().await;
    let rule = ToolRule {
        idempotent: Some(true),
        timeout: Some(Duration::from_secs(3)),
        ..ToolRule::default()
    };
    let ruled = ServerSpec {
        tools: [("do".to_owned(), rule.clone())].into(),
        ..server_spec("s")
    };
    let applied = host.apply_config(vec![ruled]);
    assert_eq!(applied.changed[0].keys, ["tools"]);
    assert!(wait_for_state(&host, "s", "ready").await);
    let catalog = host.catalog();
    let route = catalog.server("s").unwrap().tools.route("do").unwrap();
    assert!(route.is_idempotent);
    assert_eq!(route.timeout, rule.timeout);
}

#[tokio::test(start_paused = true)]
async fn log_continues_with_new_redaction() {
    let world = SimWorld::new([("s", ServerScript::always(healthy_server()))]);
    let host = world.start_host(vec![server_spec("s")], HostLimits::default());
    host.server("s").unwrap().log().push_text("before hunter2");
    host.apply_config(vec![ServerSpec {
        secrets: Arc::new(Redactor::new([("env KEY", "hunter2")])),
        ..changed_spec("s")
    }]);
    host.server("s").unwrap().log().push_text("after hunter2");
    let lines = host.logs(Some("s"), 0, 10).unwrap();
    let texts: Vec<_> = lines.iter().map(|line| &*line.text).collect();
    assert_eq!(texts, ["before hunter2", "after ‹env KEY›"]);
}

#[tokio::test(start_paused = true)]
async fn wait_applied_is_bounded() {
    let gate = ReleaseGate::new_closed();
    let world = SimWorld::new([
        ("a", ServerScript::always(healthy_server())),
        (
            "s",
            ServerScript::always(healthy_server().hang_start(&gate)),
        ),
    ]);
    let host = world.start_host(vec![server_spec("a")], HostLimits::default());
    host.wait_settled().await;
    host.wait_applied().await;
    let before = host.clock().now();
    host.apply_config(vec![server_spec("a"), server_spec("s")]);
    host.wait_applied().await;
    assert_eq!(host.clock().now().millis_since(before), 5_000);
    gate.release();
    assert!(wait_for_state(&host, "s", "ready").await);

    let before = host.clock().now();
    host.apply_config(vec![changed_spec("a"), server_spec("s")]);
    host.wait_applied().await;
    assert_eq!(host.server_status("a").unwrap().state, "ready");
    assert_eq!(host.clock().now(), before);
}

#[tokio::test(start_paused = true)]
async fn apply_during_shutdown_changes_nothing() {
    let world = SimWorld::new([("a", ServerScript::always(healthy_server()))]);
    let host = world.start_host(Vec::new(), HostLimits::default());
    host.shutdown().await;
    assert!(host.apply_config(vec![server_spec("a")]).is_unchanged());
    assert!(host.servers().is_empty());
    assert!(world.record().starts.is_empty());
}

#[tokio::test(start_paused = true)]
async fn lowered_call_limit_applies_to_next_call() {
    let gate = ReleaseGate::new_closed();
    let slow = GenerationScript::with_tools([("do", ToolBehaviour::BlockOn(gate.clone()))]);
    let world = SimWorld::new([("s", ServerScript::always(slow))]);
    let host = world.start_host(vec![server_spec("s")], HostLimits::default());
    let mut flying = std::pin::pin!(host.call(tool_call("s__do", "{}")));
    tokio::select! {
        outcome = &mut flying => panic!("{outcome:?}"),
        _ = world.wait_until(|record| record.executions.len() == 1) => {}
    }
    host.set_limits(HostLimits {
        principal_calls_max: 1,
        ..HostLimits::default()
    });
    let refused = host.call(tool_call("s__do", "{}")).await.unwrap_err();
    assert!(
        matches!(refused, CallError::TooManyCalls { limit: 1, .. }),
        "{refused:?}"
    );
    gate.release();
    assert!(flying.await.is_ok());
}

/// Credentials, created anew for each spec.
struct ApiKey(&'static str);

impl UpstreamCredentials for ApiKey {
    fn headers(&self) -> Result<Vec<(HeaderName, HeaderValue)>, CredentialError> {
        let value = HeaderValue::from_static(self.0);
        Ok(vec![(HeaderName::from_static("x-key"), value)])
    }
}

#[test]
fn equal_address_and_headers_mean_unchanged() {
    let remote = |url: &str, key| {
        let reach = RemoteSpec {
            url: HttpEndpoint::parse(url).unwrap(),
            transport: HttpTransport::Auto,
            credentials: Arc::new(ApiKey(key)),
            via: None,
        };
        ServerSpec::with_transport("r", ServerTransport::Remote(reach))
    };
    let spec = remote("https://h.example/mcp?a=1", "one");
    let same = remote("https://h.example/mcp?a=1", "one");
    assert_eq!(spec.changed_keys(&same), [""; 0]);
    let other = remote("https://h.example/mcp?a=2", "two");
    assert_eq!(spec.changed_keys(&other), ["url", "headers"]);
    let child = ServerSpec::new("r", "program");
    assert_eq!(spec.changed_keys(&child), ["command"]);
}

/// The tools of `s` and whether they are stale, as listed by the library.
async fn tools_with_staleness(host: &Host) -> Vec<(String, bool)> {
    let owner = Principal::new("owner", Role::Owner);
    let tools = host.list_tools(&owner, "s").await.unwrap();
    let tools = tools.iter();
    tools
        .map(|tool| (tool.name().to_string(), tool.is_stale()))
        .collect()
}

fn server_with_tool(tool: &str) -> GenerationScript {
    GenerationScript::with_tools([(tool, ToolBehaviour::Respond)])
}

#[tokio::test(start_paused = true)]
async fn tools_after_reload_are_new() {
    let slow = server_with_tool("second").with_start_delay(Duration::from_secs(3));
    let script = ServerScript::always(server_with_tool("first"));
    let world = SimWorld::new([("s", script.then(slow).then(server_with_tool("third")))]);
    let host = world.start_host(vec![server_spec("s")], HostLimits::default());
    assert!(wait_for_state(&host, "s", "ready").await);
    assert_eq!(tools_with_staleness(&host).await, [("first".into(), false)]);

    host.reload_server("s").await.unwrap();
    assert_eq!(
        tools_with_staleness(&host).await,
        [("second".into(), false)]
    );

    host.apply_config(vec![changed_spec("s")]);
    assert_eq!(tools_with_staleness(&host).await, [("third".into(), false)]);
}

#[tokio::test(start_paused = true)]
async fn discover_after_apply_finds_new_tools() {
    let slow = server_with_tool("second").with_start_delay(Duration::from_millis(500));
    let script = ServerScript::always(server_with_tool("first")).then(slow);
    let world = SimWorld::new([("s", script)]);
    let host = world.start_host(vec![server_spec("s")], HostLimits::default());
    assert!(wait_for_state(&host, "s", "ready").await);
    host.apply_config(vec![changed_spec("s")]);
    let owner = Principal::new("owner", Role::Owner);
    let found = host.discover_tools(&owner, Duration::from_secs(1)).await;
    let lines = found.into_iter().flat_map(|one| one.into_entries());
    let lines = serde_json::to_value(lines.collect::<Vec<_>>()).unwrap();
    assert_eq!(lines[0]["tool"], "second", "{lines}");
    assert_eq!(lines[0].get("stale"), None, "{lines}");
}

#[tokio::test(start_paused = true)]
async fn tools_of_slow_successor_are_stale() {
    let gate = ReleaseGate::new_closed();
    let hangs = server_with_tool("second").hang_start(&gate);
    let world = SimWorld::new([(
        "s",
        ServerScript::always(server_with_tool("first")).then(hangs),
    )]);
    let host = world.start_host(vec![server_spec("s")], HostLimits::default());
    assert!(wait_for_state(&host, "s", "ready").await);
    host.apply_config(vec![changed_spec("s")]);
    let before = host.clock().now();
    assert_eq!(tools_with_staleness(&host).await, [("first".into(), true)]);
    let waited = host.clock().now().millis_since(before);
    assert_eq!(u128::from(waited), FRESH_LIST_WAIT.as_millis());
}
