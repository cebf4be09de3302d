//! `GET /api/v1/discover`: every tool of every server, and the reason for each missing list.

use std::time::Duration;

use axum::Json;
use axum::extract::{Query, State};
use bowline_api::VERSION;
use bowline_api::tools::{DiscoverQuery, DiscoverResponse};
use bowline_core::call::{Principal, Role};
use bowline_host::{DISCOVER_MAX, ServerDiscovery};

use super::{ApiError, EdgeState, upgrade_edge};

/// Maximum wait a client can request.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// `GET /api/v1/discover`
pub(super) async fn discover_tools(
    State(edge): EdgeState,
    Query(query): Query<DiscoverQuery>,
) -> Result<Json<DiscoverResponse>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    let wait = query.timeout_ms.map_or(DISCOVER_MAX, Duration::from_millis);
    let owner = Principal::new("owner", Role::Owner);
    let all = edge.host.discover_tools(&owner, wait.min(WAIT_MAX)).await;
    let entries = all
        .into_iter()
        .flat_map(ServerDiscovery::into_entries)
        .collect();
    Ok(Json(DiscoverResponse {
        v: VERSION,
        entries,
    }))
}
