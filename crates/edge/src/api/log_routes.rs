//! `GET /api/v1/logs`: stderr output of servers.

use std::time::Duration;

use axum::Json;
use axum::extract::{Query, State};
use bowline_api::VERSION;
use bowline_api::logs::{LogLine, LogsQuery, LogsResponse};

use super::{ApiError, EdgeState, upgrade_edge};

/// Default and maximum number of lines in a response.
const LINES_MAX: usize = 2_000;

/// Maximum wait of a following client for a new line.
const WAIT_MAX: Duration = Duration::from_secs(25);

/// `GET /api/v1/logs`
pub(super) async fn list_logs(
    State(edge): EdgeState,
    Query(query): Query<LogsQuery>,
) -> Result<Json<LogsResponse>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    let limit = query.limit.unwrap_or(LINES_MAX).min(LINES_MAX);
    let server = query.server.as_deref();
    let mut changes = edge.host.log_changes();
    let wait = Duration::from_millis(query.wait_ms).min(WAIT_MAX);
    let end = tokio::time::sleep(wait);
    let mut end = std::pin::pin!(end);
    let lines = loop {
        changes.borrow_and_update();
        let lines = edge
            .host
            .logs(server, query.after, limit)
            .map_err(|error| ApiError::from_call_error(&edge, &error, None))?;
        if !lines.is_empty() || wait.is_zero() {
            break lines;
        }
        tokio::select! {
            () = end.as_mut() => break lines,
            changed = changes.changed() => if changed.is_err() {
                break lines;
            },
        }
    };
    let next = lines.last().map_or(query.after, |line| line.seq);
    let lines = lines.into_iter().map(|line| LogLine {
        seq: line.seq,
        server: line.server,
        at_ms: line.at_ms,
        text: line.text,
    });
    Ok(Json(LogsResponse {
        v: VERSION,
        lines: lines.collect(),
        next,
    }))
}
