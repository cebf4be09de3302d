//! `GET /api/v1/discover`: every tool of every server, and why the tools of some are missing.

use std::time::Duration;

use axum::Json;
use axum::extract::{Query, State};
use bowline_core::call::{Principal, Role};
use bowline_host::catalog::Item;
use bowline_host::{DISCOVER_MAX, Discovered};
use bowline_wire::object;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{Failure, Shared, alive};

/// The longest wait that can be asked for.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// The query of `GET /api/v1/discover`.
#[derive(Debug, Deserialize)]
pub(super) struct DiscoverQuery {
    timeout_ms: Option<u64>,
}

/// The answer; schemas stay the bytes their servers wrote.
#[derive(Debug, Serialize)]
pub(super) struct Answer {
    v: u8,
    entries: Vec<Entry>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Entry {
    Tool {
        server: String,
        tool: String,
        schema: Option<Box<RawValue>>,
    },
    Failed {
        server: String,
        error: Error,
    },
}

#[derive(Debug, Serialize)]
struct Error {
    class: &'static str,
    message: String,
}

/// `GET /api/v1/discover`
pub(super) async fn discover(
    State(edge): Shared,
    Query(query): Query<DiscoverQuery>,
) -> Result<Json<Answer>, Failure> {
    let edge = alive(&edge)?;
    let wait = query.timeout_ms.map_or(DISCOVER_MAX, Duration::from_millis);
    let owner = Principal::new("owner", Role::Owner);
    let all = edge.host.discover(&owner, wait.min(WAIT_MAX)).await;
    let entries = all.into_iter().flat_map(entries).collect();
    Ok(Json(Answer { v: 1, entries }))
}

fn entries(found: Discovered) -> Vec<Entry> {
    let server = found.server.as_ref();
    match found.tools {
        Ok(tools) => tools.iter().map(|tool| tool_entry(server, tool)).collect(),
        Err(why) => vec![Entry::Failed {
            server: server.to_owned(),
            error: Error {
                class: why.class,
                message: why.message.as_ref().to_owned(),
            },
        }],
    }
}

fn tool_entry(server: &str, tool: &Item) -> Entry {
    let definition = &tool.definition;
    let schema = object::field(definition, "inputSchema").and_then(|at| {
        let text = String::from_utf8(at.of(definition).to_vec()).ok()?;
        RawValue::from_string(text).ok()
    });
    Entry::Tool {
        server: server.to_owned(),
        tool: tool.route.name.as_ref().to_owned(),
        schema,
    }
}
