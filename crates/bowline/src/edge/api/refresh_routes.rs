//! `POST /api/v1/refresh` and `POST /api/v1/servers/{name}/refresh`: fetch server lists again.

use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Value, json};

use super::{ApiError, EdgeState, upgrade_edge};

/// Refreshes every running server.
pub(super) async fn refresh_all(State(edge): EdgeState) -> Result<Json<Value>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    let refreshed = edge.host.refresh_all().await;
    Ok(Json(json!({"v": 1, "refreshed": refreshed})))
}

/// Refreshes a single server.
pub(super) async fn refresh_server(
    State(edge): EdgeState,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    let refreshed = edge.host.refresh_server(&name).await;
    let refreshed = refreshed.map_err(|error| ApiError::from_call_error(&edge, &error, None))?;
    Ok(Json(json!({"v": 1, "refreshed": [refreshed]})))
}
