//! `POST /api/v1/reload`: applies the config file.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde_json::{Value, json};

use super::{ApiError, EdgeState, upgrade_edge};
use bowline_config::reload::ReloadOutcome;

/// Reads the config file again and reports the changes, or all problems found.
pub(super) async fn reload_config(State(edge): EdgeState) -> Result<Json<Value>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    let outcome = edge.reloader.reload(&edge.host).await;
    let outcome = outcome
        .map_err(|error| ApiError::new(StatusCode::CONFLICT, "no_config", &error.to_string()))?;
    match outcome.as_ref() {
        ReloadOutcome::Applied(report) => Ok(Json(report.to_json())),
        ReloadOutcome::Refused(refusal) => {
            let error = json!({
                "code": "config",
                "message": refusal.message,
                "report": refusal.report,
                "problems": refusal.problems,
            });
            Err(ApiError(
                StatusCode::UNPROCESSABLE_ENTITY,
                json!({"error": error}),
            ))
        }
    }
}
