//! `POST /api/v1/reload`: applies the config file.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use bowline_api::reload::ReloadResponse;
use serde_json::Map;

use super::{ApiError, EdgeState, upgrade_edge};
use bowline_config::reload::ReloadOutcome;

/// Reads the config file again and reports the changes, or all problems found.
pub(super) async fn reload_config(
    State(edge): EdgeState,
) -> Result<Json<ReloadResponse>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    let outcome = edge.reloader.reload(&edge.host).await;
    let outcome = outcome
        .map_err(|error| ApiError::new(StatusCode::CONFLICT, "no_config", &error.to_string()))?;
    match outcome.as_ref() {
        ReloadOutcome::Applied(report) => Ok(Json(report.to_response())),
        ReloadOutcome::Refused(refusal) => {
            let unprocessable = StatusCode::UNPROCESSABLE_ENTITY;
            let mut failure = ApiError::new(unprocessable, "config", &refusal.message);
            failure.1.details = Map::from_iter([
                ("report".to_owned(), refusal.report.as_str().into()),
                ("problems".to_owned(), refusal.problems.clone()),
            ]);
            Err(failure)
        }
    }
}
