//! Executors: connection state and traffic.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use bowline_host::executor::{DialDirection, ExecutorStatus};
use serde_json::{Value, json};

use super::{ApiError, EdgeState, upgrade_edge};
use crate::edge::Edge;

/// `GET /api/v1/executors`
pub(super) async fn list_executors(State(edge): EdgeState) -> Result<Json<Value>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    let executors = edge.executors.list_statuses();
    let executors: Vec<_> = executors
        .iter()
        .map(|one| executor_json(&edge, one))
        .collect();
    Ok(Json(json!({
        "v": 1,
        "now_ms": edge.host.clock().unix_ms(),
        "executors": executors,
    })))
}

/// Executor section of the status response.
pub(super) fn status_counts(edge: &Edge) -> Value {
    let all = edge.executors.list_statuses();
    let connected = all.iter().filter(|one| one.connected).count();
    json!({"known": all.len(), "connected": connected})
}

fn executor_json(edge: &Edge, one: &ExecutorStatus) -> Value {
    json!({
        "name": one.name,
        "connected": one.connected,
        "via": one.direction.map(DialDirection::as_str),
        "protocol": one.protocol.as_str(),
        "peer": one.peer,
        "software": one.software,
        "servers": one.servers,
        "secrets": one.secrets,
        "used_by": servers_via(edge, &one.name),
        "streams": one.traffic.streams,
        "opened": one.traffic.opened,
        "sent_bytes": one.traffic.sent_bytes,
        "received_bytes": one.traffic.received_bytes,
        "since_ms": one.since_ms,
        "lost": one.lost_reason,
    })
}

/// Returns the servers reached through an executor.
fn servers_via(edge: &Edge, name: &str) -> Vec<Arc<str>> {
    let mut servers = edge.host.servers();
    servers.retain(|server| {
        let found = edge.host.server(server);
        found.is_ok_and(|server| server.spec().transport.executor() == Some(name))
    });
    servers
}
