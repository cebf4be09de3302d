//! The response cache as seen by callers.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod entries;
mod flights;
mod invalidation;
mod modern;
mod scope;

use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::{CallRequest, Principal, ReplyOrigin, Role};
use bowline_core::error::CallError;
use bowline_host::spec::ServerSpec;
use bowline_host::{Host, HostLimits};
use bowline_testkit::{
    GenerationScript, ServerScript, SimWorld, ToolBehaviour, reply_body, server_spec, tool_call,
    wait_for_state,
};
use serde_json::Value;
use tokio::task::JoinSet;

/// Duration of each call of `slow`.
const SLOW: Duration = Duration::from_millis(1_000);

/// A server whose tools take the cache hint from their arguments.
fn echo_server() -> GenerationScript {
    GenerationScript::with_tools([
        ("do", ToolBehaviour::EchoArguments(Duration::ZERO)),
        ("get_it", ToolBehaviour::EchoArguments(Duration::ZERO)),
        ("slow", ToolBehaviour::EchoArguments(SLOW)),
        ("fails", ToolBehaviour::ToolError),
        ("refuses", ToolBehaviour::RpcError),
    ])
}

async fn ready_with(spec: ServerSpec, limits: HostLimits) -> (SimWorld, Host) {
    let world = SimWorld::new([("s", ServerScript::always(echo_server()))]);
    let host = world.start_host(vec![spec], limits);
    assert!(wait_for_state(&host, "s", "ready").await);
    (world, host)
}

async fn ready_host() -> (SimWorld, Host) {
    ready_with(server_spec("s"), HostLimits::default()).await
}

fn as_principal(principal: &str, call: CallRequest) -> CallRequest {
    CallRequest {
        principal: Arc::new(Principal::new(principal, Role::Owner)),
        ..call
    }
}

/// Execution number and origin of a response.
type CallOutcome = (u64, ReplyOrigin);

async fn try_call(host: &Host, call: CallRequest) -> Result<CallOutcome, CallError> {
    let reply = host.call(call).await?;
    let result: Value = serde_json::from_str(&reply_body(&reply)).unwrap();
    let before = result["before"].as_u64().unwrap_or(u64::MAX);
    Ok((before, reply.origin))
}

async fn call_ok(host: &Host, call: CallRequest) -> CallOutcome {
    try_call(host, call).await.unwrap()
}

/// A call in flight; dropping it cancels.
fn spawn_call(host: &Host, call: CallRequest) -> JoinSet<CallOutcome> {
    let (host, mut set) = (host.clone(), JoinSet::new());
    set.spawn(async move { call_ok(&host, call).await });
    set
}

async fn join_call(mut call: JoinSet<CallOutcome>) -> CallOutcome {
    call.join_next().await.unwrap().unwrap()
}

fn live_outcome(nth: u64) -> CallOutcome {
    (nth, ReplyOrigin::Live)
}

fn cached_outcome(nth: u64) -> CallOutcome {
    (nth, ReplyOrigin::Cached)
}

/// Arguments for a public response with a TTL of a minute.
const MINUTE: &str = r#"{"ttlMs":60000,"cacheScope":"public"}"#;

/// Advances the test clock.
async fn advance_ms(ms: u64) {
    tokio::time::advance(Duration::from_millis(ms)).await;
}
