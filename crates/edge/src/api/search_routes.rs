//! Tool search, and the token cost of tool lists.

use axum::Json;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use bowline_api::VERSION;
use bowline_api::tools::{ExposureResponse, SearchQuery, SearchResponse};
use bowline_core::call::{EndpointScope, Principal, Role};
use bowline_host::expose::{FOUND_MAX, estimate_tokens};

use super::{ApiError, EdgeState, upgrade_edge};

/// Default number of tools in a response.
const FOUND_DEFAULT: usize = 10;

/// `GET /api/v1/search`
pub(super) async fn search_tools(
    State(edge): EdgeState,
    Query(query): Query<SearchQuery>,
) -> Result<Json<SearchResponse>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    if query.q.trim().is_empty() {
        let message = "a search needs words: what the tool should do";
        return Err(ApiError::new(StatusCode::BAD_REQUEST, "invalid", message));
    }
    let owner = Principal::new("owner", Role::Owner);
    let found_max = query.limit.unwrap_or(FOUND_DEFAULT).clamp(1, FOUND_MAX);
    let tools = edge.host.find_tools(&owner, &query.q, found_max).await;
    Ok(Json(SearchResponse { v: VERSION, tools }))
}

/// `GET /api/v1/exposure`: tools exposed to the owner on `/mcp`, against all listed tools.
pub(super) async fn show_exposure(
    State(edge): EdgeState,
) -> Result<Json<ExposureResponse>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    let owner = Principal::new("owner", Role::Owner);
    edge.host.wait_settled().await;
    edge.host.start_unlisted(&EndpointScope::All).await;
    let summary = edge.host.exposure_summary(&owner, &EndpointScope::All);
    Ok(Json(ExposureResponse {
        v: VERSION,
        expose: summary.expose.as_str().into(),
        tools: summary.tools,
        tokens: estimate_tokens(summary.bytes),
        listed: summary.listed,
        listed_tokens: estimate_tokens(summary.listed_bytes),
    }))
}
