//! `POST /api/v1/refresh` and `POST /api/v1/servers/{name}/refresh`: fetch server lists again.

use axum::Json;
use axum::extract::{Path, State};
use bowline_api::VERSION;
use bowline_api::reload::RefreshResponse;

use super::{ApiError, EdgeState, upgrade_edge};

/// Refreshes every running server.
pub(super) async fn refresh_all(State(edge): EdgeState) -> Result<Json<RefreshResponse>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    let refreshed = edge.host.refresh_all().await;
    Ok(Json(RefreshResponse {
        v: VERSION,
        refreshed,
    }))
}

/// Refreshes a single server.
pub(super) async fn refresh_server(
    State(edge): EdgeState,
    Path(name): Path<String>,
) -> Result<Json<RefreshResponse>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    let refreshed = edge.host.refresh_server(&name).await;
    let refreshed = refreshed.map_err(|error| ApiError::from_call_error(&edge, &error, None))?;
    Ok(Json(RefreshResponse {
        v: VERSION,
        refreshed: vec![refreshed],
    }))
}
