//! The calls of a world: made some time, with more or less patience.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::error::CallError;
use bowline_host::Host;
use bowline_host::spec::ServerSpec;
use bowline_sim::{Happened, World, call, call_of};

use crate::worlds::{Draw, TOOLS};

/// No call may take longer than this, which is longer than every limit of every spec.
const CALL_MAX: Duration = Duration::from_secs(60);

/// How one call ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    Answered,
    Failed(CallError),
    /// Its caller went away.
    Dropped,
}

/// One call that is over.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Made {
    pub(crate) server: Arc<str>,
    pub(crate) tool: &'static str,
    /// What tells it from all others.
    pub(crate) arguments: String,
    pub(crate) end: End,
    pub(crate) took: Duration,
    /// How long it may take.
    pub(crate) limit: Duration,
}

/// Makes one call some time, and perhaps drops it.
pub(crate) async fn one_call(
    (host, world): (Host, World),
    nth: usize,
    spec: ServerSpec,
    mut draw: Draw,
) -> Made {
    let arguments = format!("{{\"call\":{nth}}}");
    let tool = TOOLS[draw.rng.usize(..TOOLS.len())];
    let server = Arc::clone(&spec.name);
    let mut call = if draw.rng.bool() {
        call(&format!("{server}__{tool}"), &arguments)
    } else {
        call_of(&server, tool, &arguments)
    };
    tokio::time::sleep(draw.delay()).await;
    let asked = (draw.rng.u8(..4) == 0).then(|| draw.delay());
    let patience = match draw.rng.u8(..5) {
        0 => draw.delay(),
        _ => CALL_MAX,
    };
    let begun = host.clock().now();
    call.deadline = asked.map(|asked| begun.plus(asked));
    let limit = limit(&spec, tool, asked);
    if let Ok(status) = host.status_of(&server) {
        world.note(Happened::Called {
            server: Arc::clone(&server),
            arguments: arguments.clone(),
            circuit: status.circuit,
        });
    }
    let end = match tokio::time::timeout(patience, host.call(call)).await {
        Ok(Ok(_)) => End::Answered,
        Ok(Err(error)) => End::Failed(error),
        Err(_) => End::Dropped,
    };
    let took = Duration::from_millis(host.clock().now().millis_since(begun));
    Made {
        server,
        tool,
        arguments,
        end,
        took,
        limit,
    }
}

/// The longest that a call may take: waiting for the list of a server goes by the limit of the
/// server, whatever its tools may take.
fn limit(spec: &ServerSpec, tool: &str, asked: Option<Duration>) -> Duration {
    let own = spec.tools.get(tool).and_then(|rule| rule.timeout);
    let limit = own.unwrap_or_default().max(spec.call_timeout);
    asked.map_or(limit, |asked| asked.min(limit))
}
