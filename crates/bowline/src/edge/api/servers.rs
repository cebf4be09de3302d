//! Servers and their tools: what they are doing, and orders to them.

use std::time::Duration;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use bowline_core::call::Scope;
use bowline_host::catalog::Age;
use bowline_host::supervisor::Order;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{Failure, Shared, alive, broker, executors, outbox, shares, tokens};
use crate::edge::Edge;
use crate::edge::door::Auth;

/// How long an order waits for its outcome before it tells how things stand.
const ORDER_WAIT: Duration = Duration::from_secs(10);

/// `GET /api/v1/status`
pub(super) async fn status(State(edge): Shared) -> Result<Json<Value>, Failure> {
    let edge = alive(&edge)?;
    let (sessions, streams) = edge.sessions.count();
    let queued = outbox::counts(&edge).await;
    Ok(Json(json!({
        "v": 1,
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "uptime_ms": edge.host.clock().now().0,
        "url": edge.about.url,
        "config": edge.about.config,
        "insecure_no_auth": edge.door.auth() == Auth::NotForMcp,
        "sessions": sessions,
        "streams": streams,
        "servers": edge.host.measured().await,
        "broken": broken(&edge),
        "config_error": edge.reloader.error(),
        "sharing": edge.reloader.sharing(),
        "tokens_ending": tokens::count_ending(&edge),
        "sandbox": {"landlock_abi": edge.about.landlock_abi},
        "journal": outbox::journal(&edge),
        "outbox": queued,
        "broker": broker::counts(&edge),
        "executors": executors::counts(&edge),
        "audit": edge.about.audit.status(),
        "shares": shares::view(&edge),
    })))
}

/// `GET /api/v1/servers/{name}`
pub(super) async fn one(
    State(edge): Shared,
    Path(name): Path<String>,
) -> Result<Json<Value>, Failure> {
    let edge = alive(&edge)?;
    let server = edge
        .host
        .measured_of(&name)
        .await
        .map_err(|error| Failure::call(&edge, &error, None))?;
    Ok(Json(json!({"v": 1, "server": server})))
}

/// `GET /api/v1/servers`
pub(super) async fn list(State(edge): Shared) -> Result<Json<Value>, Failure> {
    let edge = alive(&edge)?;
    Ok(Json(json!({
        "v": 1,
        "servers": edge.host.measured().await,
        "broken": broken(&edge),
    })))
}

fn broken(edge: &Edge) -> Vec<Value> {
    let broken = edge.reloader.broken().into_iter();
    broken
        .map(|broken| json!({"name": broken.name, "reason": broken.reason}))
        .collect()
}

/// `POST /api/v1/servers/{name}/start|stop|restart|reload`
pub(super) async fn order(
    State(edge): Shared,
    Path((name, order)): Path<(String, String)>,
) -> Result<Json<Value>, Failure> {
    let edge = alive(&edge)?;
    let order = match order.as_str() {
        "start" => Order::Start,
        "stop" => Order::Stop,
        "restart" => Order::Restart,
        "reload" => Order::Reload,
        _ => {
            return Err(Failure::plain(
                StatusCode::NOT_FOUND,
                "not_found",
                "a server can be told to start, stop, restart, reload or refresh",
            ));
        }
    };
    // Calls in flight are let end first, within a time that the server's entry gives.
    let drain = match (order, edge.host.server(&name)) {
        (Order::Reload, Ok(server)) => server.spec().drain_timeout,
        _ => Duration::ZERO,
    };
    let server = edge
        .host
        .order(&name, order, ORDER_WAIT + drain)
        .await
        .map_err(|error| Failure::call(&edge, &error, None))?;
    Ok(Json(json!({"v": 1, "server": server})))
}

/// The query of `GET /api/v1/tools`.
#[derive(Debug, Deserialize)]
pub(super) struct ToolsQuery {
    server: Option<String>,
}

/// The answer of `GET /api/v1/tools`; definitions stay the bytes their servers wrote.
#[derive(Serialize)]
pub(super) struct ToolsAnswer {
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
    /// Whether it is shown as last known, because its server is down or being started.
    stale: bool,
    definition: Box<RawValue>,
}

/// `GET /api/v1/tools`
pub(super) async fn tools(
    State(edge): Shared,
    Query(query): Query<ToolsQuery>,
) -> Result<Json<ToolsAnswer>, Failure> {
    let edge = alive(&edge)?;
    if let Some(server) = &query.server {
        edge.host
            .server(server)
            .map_err(|error| Failure::call(&edge, &error, None))?;
    }
    edge.host.settled().await;
    let scope = query.server.as_deref();
    let scope = scope.map_or(Scope::All, |server| Scope::Server(server.into()));
    edge.host.shown(&scope).await;
    let wanted = |name: &str| query.server.as_deref().is_none_or(|server| server == name);
    let catalog = edge.host.catalog();
    let tools = catalog
        .offers()
        .filter(|offer| wanted(&offer.server))
        .flat_map(|offer| offer.tools.iter().map(|tool| (tool, offer.age)))
        .filter_map(|(tool, age)| {
            let definition = String::from_utf8(tool.plain.to_vec()).ok()?;
            Some(ToolEntry {
                server: tool.route.server.as_ref().to_owned(),
                tool: tool.route.name.as_ref().to_owned(),
                name: tool.visible.as_ref().to_owned(),
                effect: tool.route.effect.as_str(),
                stale: age == Age::LastKnown,
                definition: RawValue::from_string(definition).ok()?,
            })
        })
        .collect();
    let unlisted = edge
        .host
        .status()
        .into_iter()
        .filter(|status| wanted(&status.name) && catalog.offer(&status.name).is_none())
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
    Ok(Json(ToolsAnswer {
        v: 1,
        tools,
        unlisted,
    }))
}
