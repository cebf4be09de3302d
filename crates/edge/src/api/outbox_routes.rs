//! Queued calls and dead letters of the outbox: listing and operations on single entries.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use bowline_api::VERSION;
use bowline_api::outbox::{
    OutboxQuery, OutboxResponse, QueuedCallResponse, QueuedCallState, QueuedCallView,
};
use bowline_api::status::{JournalStatus, OutboxCounts, StoppedLaneEntry};
use bowline_host::outbox::{OutboxError, OutboxHandle, QUEUED_CALLS_MAX};
use bowline_journal::{JournalError, JournalHealth};

use super::{ApiError, EdgeState, nearest_names, upgrade_edge};
use crate::Edge;

/// Default number of calls in a response.
const SHOWN_DEFAULT: usize = 200;

/// Maximum number of pages scanned for matching entries.
const PAGES_MAX: usize = 64;

/// `GET /api/v1/outbox[?server=NAME&state=queued|sending|dead&after=ID&limit=N]`
pub(super) async fn list_calls(
    State(edge): EdgeState,
    Query(query): Query<OutboxQuery>,
) -> Result<Json<OutboxResponse>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    let state = query.state.as_deref().map(parse_state).transpose()?;
    let limit = query
        .limit
        .unwrap_or(SHOWN_DEFAULT)
        .clamp(1, QUEUED_CALLS_MAX);
    let is_match = |call: &QueuedCallView| {
        let server_filter = query.server.as_deref();
        server_filter.is_none_or(|server| *call.server == *server)
            && state.as_ref().is_none_or(|state| call.state == *state)
    };
    let outbox = edge.host.outbox();
    let (mut entries, mut after, mut more) = (Vec::new(), query.after, true);
    for _ in 0..PAGES_MAX {
        if !more || entries.len() >= limit {
            break;
        }
        let page = outbox
            .list(after, QUEUED_CALLS_MAX)
            .await
            .map_err(|error| to_api_error(&error))?;
        more = page.len() >= QUEUED_CALLS_MAX;
        for call in page {
            if entries.len() >= limit {
                more = true;
                break;
            }
            after = call.id.parse().ok().or(after);
            entries.extend(Some(call).filter(&is_match));
        }
    }
    if let Some(server) = query.server.as_deref().filter(|_| entries.is_empty()) {
        check_server(&edge, server)?;
    }
    Ok(Json(OutboxResponse {
        v: VERSION,
        now_ms: edge.host.clock().unix_ms(),
        entries,
        next: after.filter(|_| more),
    }))
}

/// Maximum number of damaged lanes named in the status response.
const STOPPED_LANES_SHOWN_MAX: usize = 16;

/// Journal section of the status response.
pub(super) fn journal_status(edge: &Edge) -> JournalStatus {
    let outbox = edge.host.outbox();
    let stopped = outbox.journal().stopped_lanes();
    let lanes = stopped.iter().take(STOPPED_LANES_SHOWN_MAX);
    let lanes = lanes.map(|one| StoppedLaneEntry {
        lane: one.lane.as_str().to_owned(),
        reason: Arc::clone(&one.reason),
    });
    let lanes = lanes.collect();
    let (health, reason) = match outbox.health() {
        JournalHealth::Good => ("good", None),
        JournalHealth::DiskFull => ("full", None),
        JournalHealth::Poisoned(reason) => ("poisoned", Some(reason)),
        JournalHealth::Replaced => ("replaced", Some(JournalError::Replaced.to_string().into())),
    };
    JournalStatus {
        engine: edge.info.journal.into(),
        health: health.into(),
        reason,
        stopped: stopped.len() as u64,
        stopped_lanes: lanes,
    }
}

/// Outbox section of the status response; `None` while the journal is unreadable.
pub(super) async fn status_counts(edge: &Edge) -> Option<OutboxCounts> {
    let by_server = edge.host.outbox().stats().await.ok()?;
    let all = by_server.values();
    let queued: u64 = all.clone().map(|one| one.queued).sum();
    let dead: u64 = all.clone().map(|one| one.dead).sum();
    let oldest = all.filter_map(|one| one.oldest_age_ms).max();
    Some(OutboxCounts {
        queued,
        dead,
        oldest_age_ms: oldest,
        servers: by_server,
    })
}

/// Rejects a name that no server ever had. Removed servers may still have queued calls.
fn check_server(edge: &Edge, server: &str) -> Result<(), ApiError> {
    let Err(error) = edge.host.server(server) else {
        return Ok(());
    };
    Err(ApiError::from_call_error(edge, &error, None))
}

fn parse_state(word: &str) -> Result<QueuedCallState, ApiError> {
    let all = [
        QueuedCallState::Queued,
        QueuedCallState::Sending,
        QueuedCallState::Dead,
    ];
    let found = all.iter().find(|state| state.as_str() == word).cloned();
    found.ok_or_else(|| {
        let near = nearest_names(word, all.map(|state| state.as_str().into()));
        let message = "a call of the outbox is queued, sending or dead";
        ApiError::with_suggestions(StatusCode::BAD_REQUEST, "invalid", message, near)
    })
}

/// `GET /api/v1/outbox/{id}`
pub(super) async fn show_call(
    State(edge): EdgeState,
    Path(id): Path<String>,
) -> Result<Json<QueuedCallResponse>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    let entry = edge
        .host
        .outbox()
        .show(&id)
        .await
        .map_err(|error| to_api_error(&error))?;
    Ok(entry_response(&edge, entry))
}

/// `POST /api/v1/outbox/{id}/retry`
pub(super) async fn retry_call(
    State(edge): EdgeState,
    Path(id): Path<String>,
) -> Result<Json<QueuedCallResponse>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    let outbox = edge.host.outbox();
    let entry = find_pending(&outbox, &id).await?;
    outbox
        .retry(&id)
        .await
        .map_err(|error| to_api_error(&error))?;
    // A call retried at once may have finished by now; the entry read before the retry serves as
    // the response.
    Ok(entry_response(
        &edge,
        outbox.show(&id).await.unwrap_or(entry),
    ))
}

/// `DELETE /api/v1/outbox/{id}`; the response holds the dropped entry.
pub(super) async fn drop_call(
    State(edge): EdgeState,
    Path(id): Path<String>,
) -> Result<Json<QueuedCallResponse>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    let outbox = edge.host.outbox();
    let entry = find_pending(&outbox, &id).await?;
    outbox
        .drop_write(&id)
        .await
        .map_err(|error| to_api_error(&error))?;
    tracing::info!(id, server = %entry.server, tool = %entry.tool, "queued call dropped");
    Ok(entry_response(&edge, entry))
}

/// Returns an unfinished call.
async fn find_pending(outbox: &OutboxHandle, id: &str) -> Result<QueuedCallView, ApiError> {
    let entry = outbox
        .show(id)
        .await
        .map_err(|error| to_api_error(&error))?;
    match entry.state {
        QueuedCallState::Delivered => Err(to_api_error(&OutboxError::Unknown { id: id.into() })),
        QueuedCallState::Queued
        | QueuedCallState::Sending
        | QueuedCallState::Dead
        | QueuedCallState::Other(_) => Ok(entry),
    }
}

fn entry_response(edge: &Edge, entry: QueuedCallView) -> Json<QueuedCallResponse> {
    Json(QueuedCallResponse {
        v: VERSION,
        now_ms: edge.host.clock().unix_ms(),
        entry,
    })
}

pub(super) fn to_api_error(error: &OutboxError) -> ApiError {
    let (status, code) = match error {
        OutboxError::Unknown { .. } => (StatusCode::NOT_FOUND, "not_queued"),
        OutboxError::Sending { .. } => (StatusCode::CONFLICT, "sending"),
        OutboxError::Journal(_) => (StatusCode::SERVICE_UNAVAILABLE, "journal"),
    };
    let mut message = error.to_string();
    if let Some(source) = std::error::Error::source(error) {
        message = format!("{message}: {source}");
    }
    let failure = ApiError::new(status, code, &message);
    match error {
        OutboxError::Unknown { .. } => failure.with_hint("list what waits: bowline outbox ls"),
        OutboxError::Sending { .. } | OutboxError::Journal(_) => failure,
    }
}
