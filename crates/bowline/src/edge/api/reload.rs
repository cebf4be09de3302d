//! `POST /api/v1/reload`: brings the config file into force.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde_json::{Value, json};

use super::{Failure, Shared, alive};
use crate::reload::Outcome;

/// Reads the file again and tells what changed, or everything that is wrong with it.
pub(super) async fn reload(State(edge): Shared) -> Result<Json<Value>, Failure> {
    let edge = alive(&edge)?;
    let outcome = edge.reloader.reload(&edge.host).await;
    let outcome = outcome
        .map_err(|error| Failure::plain(StatusCode::CONFLICT, "no_config", &error.to_string()))?;
    match outcome.as_ref() {
        Outcome::Applied(report) => Ok(Json(report.json())),
        Outcome::Refused(refusal) => {
            let error = json!({
                "code": "config",
                "message": refusal.message,
                "report": refusal.report,
                "problems": refusal.problems,
            });
            Err(Failure(
                StatusCode::UNPROCESSABLE_ENTITY,
                json!({"error": error}),
            ))
        }
    }
}
