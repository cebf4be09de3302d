//! Servers and tools: status, lists and lifecycle operations.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use bowline_api::VERSION;
use bowline_api::servers::{ServerResponse, ServersResponse};
use bowline_api::status::{SandboxSupport, StatusResponse};
use bowline_api::tools::{ToolEntry, ToolsQuery, ToolsResponse, UnlistedServer};
use bowline_core::call::EndpointScope;
use bowline_host::catalog::Staleness;
use bowline_host::supervisor::ServerAction;
use serde_json::value::RawValue;

use super::{
    ApiError, EdgeState, broker_routes, executor_routes, outbox_routes, share_status, token_routes,
    upgrade_edge,
};
use crate::auth::AuthMode;

/// Maximum wait for the outcome of a lifecycle operation; after the wait the response reports the
/// current state.
const ORDER_WAIT: Duration = Duration::from_secs(10);

/// `GET /api/v1/status`
pub(super) async fn gateway_status(
    State(edge): EdgeState,
) -> Result<Json<StatusResponse>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    let (sessions, streams) = edge.sessions.count_streams();
    let queued = outbox_routes::status_counts(&edge).await;
    Ok(Json(StatusResponse {
        v: VERSION,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        uptime_ms: edge.host.clock().now().0,
        url: edge.info.url.clone(),
        config: edge.info.config.clone(),
        insecure_no_auth: edge.authenticator.auth() == AuthMode::NotForMcp,
        sessions: sessions as u64,
        streams: streams as u64,
        servers: edge.host.status_with_memory().await,
        broken: edge.reloader.broken_servers(),
        config_error: edge.reloader.config_error(),
        sharing: edge.reloader.sharing_warning(),
        tokens_ending: token_routes::count_expiring(&edge) as u64,
        sandbox: SandboxSupport {
            landlock_abi: edge.info.landlock_abi,
        },
        journal: outbox_routes::journal_status(&edge),
        outbox: queued,
        broker: Some(broker_routes::status_counts(&edge)),
        executors: Some(executor_routes::status_counts(&edge)),
        audit: edge.info.audit.status(),
        shares: share_status::share_usage(&edge),
    }))
}

/// `GET /api/v1/servers/{name}`
pub(super) async fn show_server(
    State(edge): EdgeState,
    Path(name): Path<String>,
) -> Result<Json<ServerResponse>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    let server = edge
        .host
        .server_status_with_memory(&name)
        .await
        .map_err(|error| ApiError::from_call_error(&edge, &error, None))?;
    Ok(Json(ServerResponse { v: VERSION, server }))
}

/// `GET /api/v1/servers`
pub(super) async fn list_servers(
    State(edge): EdgeState,
) -> Result<Json<ServersResponse>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    Ok(Json(ServersResponse {
        v: VERSION,
        servers: edge.host.status_with_memory().await,
        broken: edge.reloader.broken_servers(),
    }))
}

/// `POST /api/v1/servers/{name}/start|stop|restart|reload`
pub(super) async fn order_server(
    State(edge): EdgeState,
    Path((name, order)): Path<(String, String)>,
) -> Result<Json<ServerResponse>, ApiError> {
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
    Ok(Json(ServerResponse { v: VERSION, server }))
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
                server: Arc::clone(&tool.route.server),
                tool: Arc::clone(&tool.route.name),
                name: Arc::clone(&tool.visible),
                effect: tool.route.effect.as_str().into(),
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
            let (class, message) = match status.last_error {
                Some(error) => (Some(error.class), Some(error.message)),
                None => (None, None),
            };
            UnlistedServer {
                server: status.name,
                state: status.state,
                class,
                message,
            }
        })
        .collect();
    Ok(Json(ToolsResponse {
        v: VERSION,
        tools,
        unlisted,
    }))
}
