//! Executors: connection state and traffic.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use bowline_api::VERSION;
use bowline_api::executors::{ExecutorEntry, ExecutorsResponse};
use bowline_api::status::ExecutorCounts;
use bowline_host::executor::ExecutorStatus;

use super::{ApiError, EdgeState, upgrade_edge};
use crate::Edge;

/// `GET /api/v1/executors`
pub(super) async fn list_executors(
    State(edge): EdgeState,
) -> Result<Json<ExecutorsResponse>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    let executors = edge.executors.list_statuses();
    let executors = executors.iter().map(|one| executor_entry(&edge, one));
    Ok(Json(ExecutorsResponse {
        v: VERSION,
        now_ms: edge.host.clock().unix_ms(),
        executors: executors.collect(),
    }))
}

/// Executor section of the status response.
pub(super) fn status_counts(edge: &Edge) -> ExecutorCounts {
    let all = edge.executors.list_statuses();
    let connected = all.iter().filter(|one| one.connected).count();
    ExecutorCounts {
        known: all.len() as u64,
        connected: connected as u64,
    }
}

fn executor_entry(edge: &Edge, one: &ExecutorStatus) -> ExecutorEntry {
    ExecutorEntry {
        name: Arc::clone(&one.name),
        connected: one.connected,
        via: one.direction.map(|direction| direction.as_str().into()),
        protocol: one.protocol.as_str().into(),
        peer: one.peer.clone(),
        software: Arc::clone(&one.software),
        servers: one.servers.clone(),
        secrets: one.secrets.clone(),
        used_by: servers_via(edge, &one.name),
        streams: one.traffic.streams,
        opened: one.traffic.opened,
        sent_bytes: one.traffic.sent_bytes,
        received_bytes: one.traffic.received_bytes,
        since_ms: one.since_ms,
        lost: one.lost_reason.clone(),
    }
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
