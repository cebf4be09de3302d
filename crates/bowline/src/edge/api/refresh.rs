//! `POST /api/v1/refresh` and `POST /api/v1/servers/{name}/refresh`: asks servers for their lists
//! again.

use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Value, json};

use super::{Failure, Shared, alive};

/// Asks every server that serves.
pub(super) async fn all(State(edge): Shared) -> Result<Json<Value>, Failure> {
    let edge = alive(&edge)?;
    let refreshed = edge.host.refresh_all().await;
    Ok(Json(json!({"v": 1, "refreshed": refreshed})))
}

/// Asks one server.
pub(super) async fn one(
    State(edge): Shared,
    Path(name): Path<String>,
) -> Result<Json<Value>, Failure> {
    let edge = alive(&edge)?;
    let refreshed = edge.host.refresh(&name).await;
    let refreshed = refreshed.map_err(|error| Failure::call(&edge, &error, None))?;
    Ok(Json(json!({"v": 1, "refreshed": [refreshed]})))
}
