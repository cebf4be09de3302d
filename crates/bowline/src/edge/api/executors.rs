//! Executors: who is connected, and what goes through them.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use bowline_host::executor::{ExecutorStatus, Via};
use serde_json::{Value, json};

use super::{Failure, Shared, alive};
use crate::edge::Edge;

/// `GET /api/v1/executors`
pub(super) async fn list(State(edge): Shared) -> Result<Json<Value>, Failure> {
    let edge = alive(&edge)?;
    let executors = edge.executors.list();
    let executors: Vec<_> = executors.iter().map(|one| shown(&edge, one)).collect();
    Ok(Json(json!({
        "v": 1,
        "now_ms": edge.host.clock().unix_ms(),
        "executors": executors,
    })))
}

/// What status says of executors.
pub(super) fn counts(edge: &Edge) -> Value {
    let all = edge.executors.list();
    let connected = all.iter().filter(|one| one.connected).count();
    json!({"known": all.len(), "connected": connected})
}

fn shown(edge: &Edge, one: &ExecutorStatus) -> Value {
    json!({
        "name": one.name,
        "connected": one.connected,
        "via": one.via.map(Via::as_str),
        "protocol": one.protocol.as_str(),
        "peer": one.peer,
        "software": one.software,
        "servers": one.servers,
        "secrets": one.secrets,
        "used_by": used_by(edge, &one.name),
        "streams": one.carried.streams,
        "opened": one.carried.opened,
        "sent_bytes": one.carried.sent_bytes,
        "received_bytes": one.carried.received_bytes,
        "since_ms": one.since_ms,
        "lost": one.lost,
    })
}

/// Returns the servers whose way leads through an executor.
fn used_by(edge: &Edge, name: &str) -> Vec<Arc<str>> {
    let mut servers = edge.host.servers();
    servers.retain(|server| {
        let found = edge.host.server(server);
        found.is_ok_and(|server| server.spec().reach.via() == Some(name))
    });
    servers
}
