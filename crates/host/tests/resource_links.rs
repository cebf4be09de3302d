//! Server status, and discovery of tools.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::time::Duration;

use bowline_core::breaker::BreakerPolicy;
use bowline_core::call::{Principal, Role};
use bowline_core::redact::Redactor;
use bowline_host::spec::ServerSpec;
use bowline_host::supervisor::ServerAction;
use bowline_host::{Host, HostLimits, ServerDiscovery};
use bowline_link::LinkExit;
use bowline_testkit::{
    GenerationScript, ReleaseGate, ServerScript, SimWorld, ToolBehaviour, server_spec, tool_call,
    wait_for_state,
};

const REST: Duration = Duration::from_secs(10);
const WAIT: Duration = Duration::from_secs(3);

fn healthy_server() -> GenerationScript {
    GenerationScript::with_tools([("do", ToolBehaviour::Respond)])
}

fn sensitive_spec(server: &str) -> ServerSpec {
    ServerSpec {
        breaker: BreakerPolicy {
            failures_max: 1,
            cooldown: REST,
        },
        call_timeout: Duration::from_secs(5),
        ..server_spec(server)
    }
}

async fn discover_all(host: &Host) -> Vec<ServerDiscovery> {
    let owner = Principal::new("owner", Role::Owner);
    host.discover_tools(&owner, WAIT).await
}

/// Servers with their tool names, or the failure class.
fn summarize(found: &[ServerDiscovery]) -> Vec<(String, String)> {
    let brief = found.iter().map(|found| {
        let tools = match &found.tools {
            Ok(tools) => tools.iter().map(|tool| tool.route.name.as_ref()).collect(),
            Err(why) => why.class.clone().into_owned(),
        };
        (found.server.as_ref().to_owned(), tools)
    });
    brief.collect()
}

#[tokio::test(start_paused = true)]
async fn half_open_breaker_shows_probing() {
    let gate = ReleaseGate::new_closed();
    let script = ServerScript::always(GenerationScript::with_tools([(
        "do",
        ToolBehaviour::BlockOn(gate.clone()),
    )]));
    let world = SimWorld::new([("s", script)]);
    let host = world.start_host(vec![sensitive_spec("s")], HostLimits::default());
    assert!(wait_for_state(&host, "s", "ready").await);
    let seen = || host.server_status("s").unwrap();
    assert!(!seen().is_degraded());

    host.call(tool_call("s__do", "{}")).await.unwrap_err();
    let open = seen();
    assert_eq!((&*open.state, &*open.circuit), ("ready", "open"));
    assert_eq!(open.retry_after_ms, Some(10_000));
    assert!(open.active && open.is_degraded());
    let found = discover_all(&host).await;
    assert_eq!(summarize(&found), [("s".into(), "unavailable".into())]);

    tokio::time::advance(REST).await;
    let half = seen();
    assert_eq!((&*half.state, &*half.circuit), ("probing", "half_open"));
    assert!(half.active && half.is_degraded());
    assert_eq!(half.retry_after_ms, None);

    gate.release();
    host.call(tool_call("s__do", "{}")).await.unwrap();
    assert_eq!((&*seen().state, &*seen().circuit), ("ready", "closed"));
}

#[tokio::test(start_paused = true)]
async fn discovery_is_concurrent_and_bounded() {
    let gate = ReleaseGate::new_closed();
    let hangs = || ServerScript::always(healthy_server().hang_start(&gate));
    let world = SimWorld::new([
        ("hangs-a", hangs()),
        ("hangs-b", hangs()),
        (
            "fails",
            ServerScript::always(GenerationScript::failing_start("no")),
        ),
        ("good", ServerScript::always(healthy_server())),
        ("lazy", ServerScript::always(healthy_server())),
        ("stopped", ServerScript::always(healthy_server())),
    ]);
    let lazy = ServerSpec {
        lazy: true,
        ..server_spec("lazy")
    };
    let names = ["hangs-a", "hangs-b", "fails", "good", "stopped"];
    let mut specs = names.map(server_spec).to_vec();
    specs.push(lazy);
    let host = world.start_host(specs, HostLimits::default());
    assert!(wait_for_state(&host, "good", "ready").await);
    assert!(wait_for_state(&host, "stopped", "ready").await);
    host.apply_action("stopped", ServerAction::Stop, WAIT)
        .await
        .unwrap();
    assert!(wait_for_state(&host, "fails", "backoff").await);

    let before = host.clock().now();
    let found = discover_all(&host).await;
    assert_eq!(host.clock().now().millis_since(before), 3_000);
    let expect = [
        ("fails", "protocol_error"),
        ("good", "do"),
        ("hangs-a", "unavailable"),
        ("hangs-b", "unavailable"),
        ("lazy", "do"),
        ("stopped", "unavailable"),
    ];
    assert_eq!(summarize(&found), expect.map(|(a, b)| (a.into(), b.into())));
    assert!(
        wait_for_state(&host, "lazy", "ready").await,
        "nobody knew its tools"
    );
}

#[tokio::test(start_paused = true)]
async fn principal_without_access_discovers_nothing() {
    let world = SimWorld::new([("s", ServerScript::always(healthy_server()))]);
    let host = world.start_host(vec![server_spec("s")], HostLimits::default());
    assert!(wait_for_state(&host, "s", "ready").await);
    let found = host
        .discover_tools(&Principal::new("p", Role::None), WAIT)
        .await;
    assert_eq!(summarize(&found), [], "not even that there is a server");
}

#[tokio::test(start_paused = true)]
async fn secret_in_failure_is_redacted() {
    let world = SimWorld::new([(
        "s",
        ServerScript::always(GenerationScript::failing_start("bad key hunter22hunter22")),
    )]);
    let spec = ServerSpec {
        secrets: Redactor::new([("key", "hunter22hunter22")]).into(),
        ..server_spec("s")
    };
    let host = world.start_host(vec![spec], HostLimits::default());
    assert!(wait_for_state(&host, "s", "backoff").await);
    let status = host.server_status("s").unwrap();
    let shown = serde_json::to_string(&status).unwrap();
    assert!(shown.contains("bad key"), "{shown}");
    assert!(!shown.contains("hunter22"), "{shown}");
    let found = discover_all(&host).await;
    let why = found[0].tools.as_ref().unwrap_err();
    assert!(!why.message.contains("hunter22"), "{}", why.message);
}

#[tokio::test(start_paused = true)]
async fn status_shows_source_of_tools() {
    let world = SimWorld::new([(
        "s",
        ServerScript::always(healthy_server()).then(GenerationScript::failing_start("no")),
    )]);
    let host = world.start_host(vec![server_spec("s")], HostLimits::default());
    assert!(wait_for_state(&host, "s", "ready").await);
    assert_eq!(host.server_status("s").unwrap().manifest, "live");
    assert!(world.kill("s", LinkExit::Status(1)));
    assert!(wait_for_state(&host, "s", "backoff").await);
    let status = host.server_status("s").unwrap();
    assert_eq!((&*status.manifest, status.tools), ("last_known", 1));
    host.apply_action("s", ServerAction::Stop, WAIT)
        .await
        .unwrap();
    assert_eq!(host.server_status("s").unwrap().manifest, "none");
}
