//! The calls of a world, at random times with random deadlines.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::error::CallError;
use bowline_host::Host;
use bowline_host::spec::ServerSpec;
use bowline_testkit::{HistoryEvent, SimWorld, server_tool_call, tool_call};

use crate::worlds::{Draw, TOOLS};

/// Upper bound for every call, above every limit of every spec.
const CALL_MAX: Duration = Duration::from_secs(60);

/// Outcome of a call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CallFate {
    Answered,
    Failed(CallError),
    /// The caller left.
    Dropped,
}

/// A finished call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FinishedCall {
    pub(crate) server: Arc<str>,
    pub(crate) tool: &'static str,
    /// Unique arguments.
    pub(crate) arguments: String,
    pub(crate) end: CallFate,
    pub(crate) took: Duration,
    /// Maximum duration.
    pub(crate) limit: Duration,
}

/// Makes a call at a random time, and possibly drops it.
pub(crate) async fn make_random_call(
    host: Host,
    world: SimWorld,
    nth: usize,
    spec: ServerSpec,
    mut draw: Draw,
) -> FinishedCall {
    let arguments = format!("{{\"call\":{nth}}}");
    let tool = TOOLS[draw.rng.usize(..TOOLS.len())];
    let server = Arc::clone(&spec.name);
    let mut call = if draw.rng.bool() {
        tool_call(&format!("{server}__{tool}"), &arguments)
    } else {
        server_tool_call(&server, tool, &arguments)
    };
    tokio::time::sleep(draw.random_delay()).await;
    let asked = (draw.rng.u8(..4) == 0).then(|| draw.random_delay());
    let patience = match draw.rng.u8(..5) {
        0 => draw.random_delay(),
        _ => CALL_MAX,
    };
    let begun = host.clock().now();
    call.deadline = asked.map(|asked| begun.plus(asked));
    let limit = max_duration(&spec, tool, asked);
    if let Ok(status) = host.server_status(&server) {
        world.record_event(HistoryEvent::Called {
            server: Arc::clone(&server),
            arguments: arguments.clone(),
            circuit: status.circuit.into_owned(),
        });
    }
    let end = match tokio::time::timeout(patience, host.call(call)).await {
        Ok(Ok(_)) => CallFate::Answered,
        Ok(Err(error)) => CallFate::Failed(error),
        Err(_) => CallFate::Dropped,
    };
    let took = Duration::from_millis(host.clock().now().millis_since(begun));
    FinishedCall {
        server,
        tool,
        arguments,
        end,
        took,
        limit,
    }
}

/// The maximum duration of a call: waiting for a server's list uses the server's limit, independent
/// of the tool.
fn max_duration(spec: &ServerSpec, tool: &str, asked: Option<Duration>) -> Duration {
    let own = spec.tools.get(tool).and_then(|rule| rule.timeout);
    let limit = own.unwrap_or_default().max(spec.call_timeout);
    asked.map_or(limit, |asked| asked.min(limit))
}
