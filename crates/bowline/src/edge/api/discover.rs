//! `GET /api/v1/discover`: every tool of every server, and why the tools of some are missing.

use std::time::Duration;

use axum::Json;
use axum::extract::{Query, State};
use bowline_core::call::{Principal, Role};
use bowline_host::{DISCOVER_MAX, Discovered, DiscoveredEntry};
use serde::{Deserialize, Serialize};

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
    entries: Vec<DiscoveredEntry>,
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
    let entries = all.into_iter().flat_map(Discovered::into_entries).collect();
    Ok(Json(Answer { v: 1, entries }))
}
