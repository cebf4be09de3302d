//! What people see of servers: their state, and what they offer.
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
use bowline_host::supervisor::Order;
use bowline_host::{Discovered, Host, HostLimits};
use bowline_link::Exit;
use bowline_sim::{Act, Gate, Generation, Script, World, call, reaches, spec};

const REST: Duration = Duration::from_secs(10);
const WAIT: Duration = Duration::from_secs(3);

fn well() -> Generation {
    Generation::tools([("do", Act::Answers)])
}

fn touchy(server: &str) -> ServerSpec {
    ServerSpec {
        breaker: BreakerPolicy {
            failures_max: 1,
            rest: REST,
        },
        call_timeout: Duration::from_secs(5),
        ..spec(server)
    }
}

async fn all(host: &Host) -> Vec<Discovered> {
    let owner = Principal::new("owner", Role::Owner);
    host.discover(&owner, WAIT).await
}

/// The servers with the names of their tools, or the class of what went wrong.
fn brief(found: &[Discovered]) -> Vec<(String, String)> {
    let brief = found.iter().map(|found| {
        let tools = match &found.tools {
            Ok(tools) => tools.iter().map(|tool| tool.route.name.as_ref()).collect(),
            Err(why) => why.class.to_owned(),
        };
        (found.server.as_ref().to_owned(), tools)
    });
    brief.collect()
}

#[tokio::test(start_paused = true)]
async fn a_server_is_probing_while_its_breaker_is_half_open() {
    let gate = Gate::closed();
    let script = Script::always(Generation::tools([("do", Act::Hangs(gate.clone()))]));
    let world = World::new([("s", script)]);
    let host = world.host(vec![touchy("s")], HostLimits::default());
    assert!(reaches(&host, "s", "ready").await);
    let seen = || host.status_of("s").unwrap();
    assert!(!seen().is_degraded());

    host.call(call("s__do", "{}")).await.unwrap_err();
    let open = seen();
    assert_eq!((open.state, open.circuit), ("ready", "open"));
    assert_eq!(open.retry_after_ms, Some(10_000));
    assert!(open.active && open.is_degraded());
    let found = all(&host).await;
    assert_eq!(brief(&found), [("s".into(), "unavailable".into())]);

    tokio::time::advance(REST).await;
    let half = seen();
    assert_eq!((half.state, half.circuit), ("probing", "half_open"));
    assert!(half.active && half.is_degraded());
    assert_eq!(half.retry_after_ms, None);

    gate.release();
    host.call(call("s__do", "{}")).await.unwrap();
    assert_eq!((seen().state, seen().circuit), ("ready", "closed"));
}

#[tokio::test(start_paused = true)]
async fn all_servers_are_asked_at_once_and_one_that_hangs_is_given_up() {
    let gate = Gate::closed();
    let hangs = || Script::always(well().hangs(&gate));
    let world = World::new([
        ("hangs-a", hangs()),
        ("hangs-b", hangs()),
        ("fails", Script::always(Generation::fails("no"))),
        ("good", Script::always(well())),
        ("lazy", Script::always(well())),
        ("stopped", Script::always(well())),
    ]);
    let lazy = ServerSpec {
        lazy: true,
        ..spec("lazy")
    };
    let names = ["hangs-a", "hangs-b", "fails", "good", "stopped"];
    let mut specs = names.map(spec).to_vec();
    specs.push(lazy);
    let host = world.host(specs, HostLimits::default());
    assert!(reaches(&host, "good", "ready").await);
    assert!(reaches(&host, "stopped", "ready").await);
    host.order("stopped", Order::Stop, WAIT).await.unwrap();
    assert!(reaches(&host, "fails", "backoff").await);

    let before = host.clock().now();
    let found = all(&host).await;
    assert_eq!(host.clock().now().millis_since(before), 3_000);
    let expect = [
        ("fails", "protocol_error"),
        ("good", "do"),
        ("hangs-a", "unavailable"),
        ("hangs-b", "unavailable"),
        ("lazy", "do"),
        ("stopped", "unavailable"),
    ];
    assert_eq!(brief(&found), expect.map(|(a, b)| (a.into(), b.into())));
    assert!(
        reaches(&host, "lazy", "ready").await,
        "nobody knew its tools"
    );
}

#[tokio::test(start_paused = true)]
async fn who_may_use_nothing_discovers_nothing() {
    let world = World::new([("s", Script::always(well()))]);
    let host = world.host(vec![spec("s")], HostLimits::default());
    assert!(reaches(&host, "s", "ready").await);
    let found = host.discover(&Principal::new("p", Role::None), WAIT).await;
    assert_eq!(brief(&found), [], "not even that there is a server");
}

#[tokio::test(start_paused = true)]
async fn a_secret_in_what_a_server_failed_with_is_not_shown() {
    let world = World::new([(
        "s",
        Script::always(Generation::fails("bad key hunter22hunter22")),
    )]);
    let spec = ServerSpec {
        secrets: Redactor::new([("key", "hunter22hunter22")]).into(),
        ..spec("s")
    };
    let host = world.host(vec![spec], HostLimits::default());
    assert!(reaches(&host, "s", "backoff").await);
    let status = host.status_of("s").unwrap();
    let shown = serde_json::to_string(&status).unwrap();
    assert!(shown.contains("bad key"), "{shown}");
    assert!(!shown.contains("hunter22"), "{shown}");
    let found = all(&host).await;
    let why = found[0].tools.as_ref().unwrap_err();
    assert!(!why.message.contains("hunter22"), "{}", why.message);
}

#[tokio::test(start_paused = true)]
async fn tools_are_told_from_the_link_that_serves_or_from_the_last_one() {
    let world = World::new([("s", Script::always(well()).then(Generation::fails("no")))]);
    let host = world.host(vec![spec("s")], HostLimits::default());
    assert!(reaches(&host, "s", "ready").await);
    assert_eq!(host.status_of("s").unwrap().manifest, "live");
    assert!(world.kill("s", Exit::Status(1)));
    assert!(reaches(&host, "s", "backoff").await);
    let status = host.status_of("s").unwrap();
    assert_eq!((status.manifest, status.tools), ("last_known", 1));
    host.order("s", Order::Stop, WAIT).await.unwrap();
    assert_eq!(host.status_of("s").unwrap().manifest, "none");
}
