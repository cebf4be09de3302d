//! Servers and tools: status, lists and lifecycle operations.

use std::time::Duration;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use bowline_core::call::EndpointScope;
use bowline_host::catalog::Staleness;
use bowline_host::supervisor::ServerAction;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{
    ApiError, EdgeState, broker_routes, executor_routes, outbox_routes, share_status, token_routes,
    upgrade_edge,
};
use crate::edge::Edge;
use crate::edge::auth::AuthMode;

/// Maximum wait for the outcome of a lifecycle operation; after the wait the response reports the
/// current state.
const ORDER_WAIT: Duration = Duration::from_secs(10);

/// `GET /api/v1/status`
pub(super) async fn gateway_status(State(edge): EdgeState) -> Result<Json<Value>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    let (sessions, streams) = edge.sessions.count_streams();
    let queued = outbox_routes::status_counts(&edge).await;
    Ok(Json(json!({
        "v": 1,
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "uptime_ms": edge.host.clock().now().0,
        "url": edge.info.url,
        "config": edge.info.config,
        "insecure_no_auth": edge.authenticator.auth() == AuthMode::NotForMcp,
        "sessions": sessions,
        "streams": streams,
        "servers": edge.host.status_with_memory().await,
        "broken": broken_servers(&edge),
        "config_error": edge.reloader.config_error(),
        "sharing": edge.reloader.sharing_warning(),
        "tokens_ending": token_routes::count_expiring(&edge),
        "sandbox": {"landlock_abi": edge.info.landlock_abi},
        "journal": outbox_routes::journal_status(&edge),
        "outbox": queued,
        "broker": broker_routes::status_counts(&edge),
        "executors": executor_routes::status_counts(&edge),
        "audit": edge.info.audit.status(),
        "shares": share_status::shares_json(&edge),
    })))
}

/// `GET /api/v1/servers/{name}`
pub(super) async fn show_server(
    State(edge): EdgeState,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    let server = edge
        .host
        .server_status_with_memory(&name)
        .await
        .map_err(|error| ApiError::from_call_error(&edge, &error, None))?;
    Ok(Json(json!({"v": 1, "server": server})))
}

/// `GET /api/v1/servers`
pub(super) async fn list_servers(State(edge): EdgeState) -> Result<Json<Value>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    Ok(Json(json!({
        "v": 1,
        "servers": edge.host.status_with_memory().await,
        "broken": broken_servers(&edge),
    })))
}

fn broken_servers(edge: &Edge) -> Vec<Value> {
    let broken = edge.reloader.broken_servers().into_iter();
    broken
        .map(|broken| json!({"name": broken.name, "reason": broken.reason}))
        .collect()
}

/// `POST /api/v1/servers/{name}/start|stop|restart|reload`
pub(super) async fn order_server(
    State(edge): EdgeState,
    Path((name, order)): Path<(String, String)>,
) -> Result<Json<Value>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    let order = match order.as_str() {
        "start" => ServerAction::Start,
        "stop" => ServerAction::Stop,
        "restart" => ServerAction::Restart,
        "reload" => ServerAction::Reload,
        _ => {
            return Err(ApiError::new(
                StatusCode::NOT_FOUND,
                "not_found",
                "a server can be told to start, stop, restart, reload or refresh",
            ));
        }
    };
    // A reload first drains calls in flight, for at most the server's `drain_timeout`.
    let drain = match (order, edge.host.server(&name)) {
        (ServerAction::Reload, Ok(server)) => server.spec().drain_timeout,
        _ => Duration::ZERO,
    };
    let server = edge
        .host
        .apply_action(&name, order, ORDER_WAIT + drain)
        .await
        .map_err(|error| ApiError::from_call_error(&edge, &error, None))?;
    Ok(Json(json!({"v": 1, "server": server})))
}

/// Query of `GET /api/v1/tools`.
#[derive(Debug, Deserialize)]
pub(super) struct ToolsQuery {
    server: Option<String>,
}

/// Response of `GET /api/v1/tools`; definitions hold the exact bytes of the servers.
#[derive(Serialize)]
pub(super) struct ToolsResponse {
    v: u8,
    tools: Vec<ToolEntry>,
    unlisted: Vec<Value>,
}

#[derive(Serialize)]
struct ToolEntry {
    server: String,
    tool: String,
    name: String,
    effect: &'static str,
    /// True for a definition kept from an earlier run, while the server is down or starting.
    stale: bool,
    definition: Box<RawValue>,
}

/// `GET /api/v1/tools`
pub(super) async fn list_tools(
    State(edge): EdgeState,
    Query(query): Query<ToolsQuery>,
) -> Result<Json<ToolsResponse>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    if let Some(server) = &query.server {
        edge.host
            .server(server)
            .map_err(|error| ApiError::from_call_error(&edge, &error, None))?;
    }
    edge.host.wait_settled().await;
    let scope = query.server.as_deref();
    let scope = scope.map_or(EndpointScope::All, |server| {
        EndpointScope::Server(server.into())
    });
    edge.host.start_unlisted(&scope).await;
    let is_match = |name: &str| query.server.as_deref().is_none_or(|server| server == name);
    let catalog = edge.host.catalog();
    let tools = catalog
        .servers()
        .filter(|offer| is_match(&offer.server))
        .flat_map(|offer| offer.tools.iter().map(|tool| (tool, offer.staleness)))
        .filter_map(|(tool, age)| {
            let definition = String::from_utf8(tool.unqueued_definition.to_vec()).ok()?;
            Some(ToolEntry {
                server: tool.route.server.as_ref().to_owned(),
                tool: tool.route.name.as_ref().to_owned(),
                name: tool.visible.as_ref().to_owned(),
                effect: tool.route.effect.as_str(),
                stale: age == Staleness::LastKnown,
                definition: RawValue::from_string(definition).ok()?,
            })
        })
        .collect();
    let unlisted = edge
        .host
        .status()
        .into_iter()
        .filter(|status| is_match(&status.name) && catalog.server(&status.name).is_none())
        .map(|status| {
            let error = status.last_error.as_ref();
            json!({
                "server": status.name,
                "state": status.state,
                "class": error.map(|error| error.class),
                "message": error.map(|error| &error.message),
            })
        })
        .collect();
    Ok(Json(ToolsResponse {
        v: 1,
        tools,
        unlisted,
    }))
}
