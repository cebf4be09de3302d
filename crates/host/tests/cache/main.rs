//! Answers that their server says stay good, as callers meet them.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod flights;
mod kept;
mod modern;
mod stale;
mod whose;

use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::{Call, Origin, Principal, Role};
use bowline_core::error::CallError;
use bowline_host::spec::ServerSpec;
use bowline_host::{Host, HostLimits};
use bowline_sim::{Act, Generation, Script, World, body, call, reaches, spec};
use serde_json::Value;
use tokio::task::JoinSet;

/// How long each call of `slow` takes.
const SLOW: Duration = Duration::from_millis(1_000);

/// A server whose tools say of their answers what their arguments say.
fn repeats() -> Generation {
    Generation::tools([
        ("do", Act::Repeats(Duration::ZERO)),
        ("get_it", Act::Repeats(Duration::ZERO)),
        ("slow", Act::Repeats(SLOW)),
        ("fails", Act::ToolError),
        ("refuses", Act::RpcError),
    ])
}

async fn ready_as(spec: ServerSpec, limits: HostLimits) -> (World, Host) {
    let world = World::new([("s", Script::always(repeats()))]);
    let host = world.host(vec![spec], limits);
    assert!(reaches(&host, "s", "ready").await);
    (world, host)
}

async fn ready() -> (World, Host) {
    ready_as(spec("s"), HostLimits::default()).await
}

fn by(principal: &str, call: Call) -> Call {
    Call {
        principal: Arc::new(Principal::new(principal, Role::Owner)),
        ..call
    }
}

/// What a call came to: the number of the execution that it is the answer of, and how it came.
type Came = (u64, Origin);

async fn try_it(host: &Host, call: Call) -> Result<Came, CallError> {
    let reply = host.call(call).await?;
    let result: Value = serde_json::from_str(&body(&reply)).unwrap();
    let before = result["before"].as_u64().unwrap_or(u64::MAX);
    Ok((before, reply.origin))
}

async fn get(host: &Host, call: Call) -> Came {
    try_it(host, call).await.unwrap()
}

/// A call under way; dropped, it is cancelled.
fn begin(host: &Host, call: Call) -> JoinSet<Came> {
    let (host, mut set) = (host.clone(), JoinSet::new());
    set.spawn(async move { get(&host, call).await });
    set
}

async fn end(mut call: JoinSet<Came>) -> Came {
    call.join_next().await.unwrap().unwrap()
}

fn live(nth: u64) -> Came {
    (nth, Origin::Live)
}

fn cached(nth: u64) -> Came {
    (nth, Origin::Cached)
}

/// Arguments that ask for an answer good for a minute, for all.
const MINUTE: &str = r#"{"ttlMs":60000,"cacheScope":"public"}"#;

/// Moves the clock of the test on.
async fn pass(ms: u64) {
    tokio::time::advance(Duration::from_millis(ms)).await;
}
