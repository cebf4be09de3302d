//! Accepts connections, and leads each request to its endpoint: authenticated, counted in the
//! shares of its principal, and charged to the principal's rate.
//!
//! Paths match exactly, without normalization. A request above the rate waits before its body is
//! read, so a fast sender is slowed at no further cost. A request with too long a wait is refused
//! with 429, after the longest wait. The owner has no rate.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::{EndpointScope, Principal, Role};
use bowline_core::error::CallError;
use bowline_core::name;
use bowline_core::rate_limiter::{RateDecision, RequestCost, WAIT_MAX};
use bowline_runtime::{Service, Shutdown};
use http::request::Parts;
use http::{HeaderValue, Request, StatusCode, header};
use hyper::body::{Body as _, Incoming};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use super::auth::{AuthError, LocalAddress};
use super::call_errors::{TooManyRequests, UNAUTHORIZED};
use super::connection_registry::ClientConnection;
use super::mcp::McpEndpoint;
use super::response_body::{self, EdgeResponse, ResponseAccount};
use super::{Edge, api, auth_failures, call_errors, connection, mcp, metrics, readiness, upgrade};
use crate::tokens::TokenKind;

/// Total connection limit, independent of principal shares; further connections wait in the
/// kernel's backlog.
pub(crate) const CONNECTIONS_MAX: usize = 65_536;

/// Wait after a failed accept.
const ACCEPT_RETRY_WAIT: Duration = Duration::from_millis(50);

/// Accepts connections until shutdown, then lets requests in flight finish.
#[derive(Debug)]
pub struct HttpListener {
    /// Serves the connections.
    pub edge: Arc<Edge>,
    /// The bound address.
    pub listener: TcpListener,
}

impl Service for HttpListener {
    const NAME: &'static str = "listener";

    async fn run(self, shutdown: Shutdown) {
        tokio::select! {
            () = self.accept_connections(&shutdown) => {}
            () = shutdown.wait_closing() => {}
        }
    }
}

impl HttpListener {
    async fn accept_connections(&self, shutdown: &Shutdown) {
        let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            let Ok(permit) = Arc::clone(&permits).acquire_owned().await else {
                return;
            };
            let stream = match self.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Usually out of file descriptors: let other connections finish.
                    tracing::warn!(error = &error as &dyn std::error::Error, "accept failed");
                    tokio::time::sleep(ACCEPT_RETRY_WAIT).await;
                    continue;
                }
            };
            let (edge, shutdown) = (Arc::clone(&self.edge), shutdown.clone());
            self.edge.host.tasks().spawn("connection", async move {
                connection::serve_connection(edge, stream, &shutdown).await;
                drop(permit);
            });
        }
    }
}

/// Routes a request received at `local` to an endpoint.
pub(super) async fn route_request(
    edge: &Arc<Edge>,
    request: Request<Incoming>,
    local: &LocalAddress,
    connection: &Arc<ClientConnection>,
) -> EdgeResponse {
    let (mut parts, incoming) = request.into_parts();
    if let Err(refused) = edge.authenticator.check_address(&parts, local) {
        let route =
            match_path(parts.uri.path()).map_or(auth_failures::NO_ROUTE, |target| target.label());
        return edge.refuse_request(refused, &parts, route, connection);
    }
    let Some(target) = match_path(parts.uri.path()) else {
        return response_body::text_response(StatusCode::NOT_FOUND, "there is nothing here\n");
    };
    if let EdgeEndpoint::Upgrade(upgrade_target) = target {
        return upgrade::handle_upgrade(edge, &parts, connection, upgrade_target);
    }
    let (principal, kind) = match authenticate_request(edge, &parts, &target, connection) {
        Ok(identity) => identity,
        Err(refused) => return edge.refuse_request(refused, &parts, target.label(), connection),
    };
    // A health check does not count as authentication.
    let is_proof = principal.role != Role::AnonymousLocal
        || !matches!(target, EdgeEndpoint::Livez | EdgeEndpoint::Readyz);
    if is_proof && let Err(refusal) = connection.take_share(edge.host.accounts(), &principal) {
        return refusal.into_response();
    }
    // Every request is charged, except health checks.
    if !matches!(target, EdgeEndpoint::Livez | EdgeEndpoint::Readyz)
        && let Err(refused) = admit_request(edge, &principal, &incoming).await
    {
        return refused;
    }
    let (endpoint, scope) = match target {
        EdgeEndpoint::Mcp(scope) => (McpEndpoint::StreamableHttp, scope),
        EdgeEndpoint::Sse(scope) => (McpEndpoint::SseStream, scope),
        EdgeEndpoint::Messages(scope) => (McpEndpoint::SseMessages, scope),
        EdgeEndpoint::Api => {
            parts.extensions.insert(connection.key());
            return Box::pin(api::handle_request(edge, &principal, kind, parts, incoming)).await;
        }
        EdgeEndpoint::Metrics => {
            return Box::pin(metrics::handle_scrape(
                edge,
                &principal,
                kind,
                &parts.method,
            ))
            .await;
        }
        EdgeEndpoint::Livez => return response_body::text_response(StatusCode::OK, "ok\n"),
        EdgeEndpoint::Readyz => {
            let detail = match principal.role {
                Role::Owner => readiness::ReadinessDetail::Servers,
                _ => readiness::ReadinessDetail::Summary,
            };
            return readiness::handle_readyz(edge, detail);
        }
        EdgeEndpoint::Upgrade(upgrade_target) => {
            return upgrade::handle_upgrade(edge, &parts, connection, upgrade_target);
        }
    };
    let response = mcp::handle_http(edge, &principal, endpoint, &scope, &parts, incoming).await;
    charge_large_response(edge, principal, response)
}

/// Authenticates a request and binds the connection to the token of the request.
fn authenticate_request(
    edge: &Edge,
    parts: &Parts,
    target: &EdgeEndpoint,
    connection: &Arc<ClientConnection>,
) -> Result<(Arc<Principal>, TokenKind), AuthError> {
    let identity = edge.authenticator.authenticate(parts, target)?;
    edge.connections
        .record_token(connection, identity.token.as_ref())?;
    let principal = connection.principal_at_peer(&identity.principal);
    Ok((principal, identity.kind()))
}

/// Charges a large response to the share of its reader.
fn charge_large_response(
    edge: &Edge,
    principal: Arc<Principal>,
    response: EdgeResponse,
) -> EdgeResponse {
    if !response_body::may_be_large(&response) {
        return response;
    }
    let accounts = edge.host.accounts().clone();
    response_body::charge_response(
        response,
        ResponseAccount {
            accounts,
            principal,
        },
    )
}

/// Returns the HTTP response for an authentication error; the body is an error that MCP clients
/// show.
pub(super) fn auth_error_response(refused: AuthError) -> EdgeResponse {
    let status = match refused {
        AuthError::ForeignHost
        | AuthError::ForeignOrigin
        | AuthError::Forbidden
        | AuthError::ExecutorToken
        | AuthError::ReaderToken => StatusCode::FORBIDDEN,
        AuthError::Unauthorized => StatusCode::UNAUTHORIZED,
        AuthError::CredentialInQuery => StatusCode::BAD_REQUEST,
    };
    let mut text = Vec::new();
    let message = refused.to_string();
    bowline_wire::jsonrpc::write_error(&mut text, None, UNAUTHORIZED, &message, None);
    let mut response = response_body::json_response(status, text);
    if status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(
            header::WWW_AUTHENTICATE,
            HeaderValue::from_static("Bearer realm=\"bowline\""),
        );
    }
    response
}

/// Charges a request with its announced bytes, and waits until admitted.
async fn admit_request(
    edge: &Edge,
    principal: &Principal,
    incoming: &Incoming,
) -> Result<(), EdgeResponse> {
    let cost = RequestCost {
        requests: 1,
        bytes: incoming.size_hint().lower(),
    };
    let is_read = incoming.is_end_stream();
    charge_rate(edge, principal, cost)
        .await
        .map_err(|mut refused| {
            if !is_read {
                // The rest of the body must not be parsed as the next request.
                let close = HeaderValue::from_static("close");
                refused.headers_mut().insert(header::CONNECTION, close);
            }
            refused
        })
}

/// Charges a body without announced length.
pub(super) async fn admit_body(
    edge: &Edge,
    principal: &Principal,
    parts: &Parts,
    bytes: usize,
) -> Result<(), EdgeResponse> {
    if parts.headers.contains_key(header::CONTENT_LENGTH) {
        return Ok(());
    }
    let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
    charge_rate(edge, principal, RequestCost { requests: 0, bytes }).await
}

/// Charges the messages of a batch; the first was charged as the request.
pub(super) async fn admit_batch(
    edge: &Edge,
    principal: &Principal,
    messages: usize,
) -> Result<(), EdgeResponse> {
    let requests = u64::try_from(messages.saturating_sub(1)).unwrap_or(u64::MAX);
    charge_rate(edge, principal, RequestCost { requests, bytes: 0 }).await
}

async fn charge_rate(
    edge: &Edge,
    principal: &Principal,
    cost: RequestCost,
) -> Result<(), EdgeResponse> {
    let now = || edge.host.clock().now();
    match edge.host.accounts().charge_request(principal, cost, now) {
        RateDecision::Immediate => Ok(()),
        // Boxed to keep the future of a plain request small.
        RateDecision::Wait(wait) => {
            Box::pin(tokio::time::sleep(wait)).await;
            Ok(())
        }
        RateDecision::Refused(after) => {
            Box::pin(tokio::time::sleep(WAIT_MAX)).await;
            Err(too_fast_response(principal, after))
        }
    }
}

/// Returns the 429 response for a request above the rate.
pub(super) fn too_fast_response(principal: &Principal, after: Duration) -> EdgeResponse {
    let error = CallError::RateExceeded {
        principal: Arc::clone(&principal.name),
        after,
    };
    let text = call_errors::error_response(b"null", &error);
    let limit = TooManyRequests::from_error(&error);
    let retry_after_s = limit.and_then(TooManyRequests::retry_after_seconds);
    response_body::retry_response(StatusCode::TOO_MANY_REQUESTS, text, retry_after_s)
}

/// Endpoint of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EdgeEndpoint {
    /// MCP over streamable HTTP.
    Mcp(EndpointScope),
    /// Event stream of the HTTP+SSE transport (2024-11-05).
    Sse(EndpointScope),
    /// POST endpoint of the HTTP+SSE transport.
    Messages(EndpointScope),
    /// WebSocket upgrade.
    Upgrade(UpgradeTarget),
    /// The API.
    Api,
    /// Metrics for monitoring.
    Metrics,
    /// Liveness check.
    Livez,
    /// Readiness check.
    Readyz,
}

/// Protocol after a WebSocket upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpgradeTarget {
    /// Broker peer; may authenticate in its first frame.
    Peer,
    /// Executor.
    Executor,
}

impl UpgradeTarget {
    /// Returns the label for logs and metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Peer => "broker",
            Self::Executor => "executor",
        }
    }
}

impl EdgeEndpoint {
    /// Returns the label for logs and metrics, without the scope chosen by the caller.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Mcp(_) => "mcp",
            Self::Sse(_) => "sse",
            Self::Messages(_) => "messages",
            Self::Upgrade(target) => target.label(),
            Self::Api => "api",
            Self::Metrics => "metrics",
            Self::Livez | Self::Readyz => "health",
        }
    }
}

/// Returns the endpoint of `path`.
#[must_use]
pub(crate) fn match_path(path: &str) -> Option<EdgeEndpoint> {
    match path {
        "/broker" => Some(EdgeEndpoint::Upgrade(UpgradeTarget::Peer)),
        "/executor" => Some(EdgeEndpoint::Upgrade(UpgradeTarget::Executor)),
        "/livez" => Some(EdgeEndpoint::Livez),
        "/metrics" => Some(EdgeEndpoint::Metrics),
        "/readyz" => Some(EdgeEndpoint::Readyz),
        _ if path.starts_with("/api/v1/") => Some(EdgeEndpoint::Api),
        _ => match path.strip_prefix("/servers/") {
            None => {
                let path = path.strip_prefix('/')?;
                match path.split_once('/') {
                    None => match_mcp_path(path, EndpointScope::All),
                    Some((kind, profile)) => {
                        let scope = EndpointScope::Profile(Arc::from(profile));
                        match_mcp_path(kind, scope).filter(|_| name::is_server_name(profile))
                    }
                }
            }
            Some(rest) => {
                let (server, rest) = rest.split_once('/')?;
                let scope = EndpointScope::Server(Arc::from(server));
                match_mcp_path(rest, scope).filter(|_| name::is_server_name(server))
            }
        },
    }
}

fn match_mcp_path(name: &str, scope: EndpointScope) -> Option<EdgeEndpoint> {
    match name {
        "mcp" => Some(EdgeEndpoint::Mcp(scope)),
        "sse" => Some(EdgeEndpoint::Sse(scope)),
        "messages" => Some(EdgeEndpoint::Messages(scope)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_exact_paths_match() {
        assert_eq!(
            match_path("/mcp"),
            Some(EdgeEndpoint::Mcp(EndpointScope::All))
        );
        assert_eq!(
            match_path("/servers/files/mcp"),
            Some(EdgeEndpoint::Mcp(EndpointScope::Server("files".into())))
        );
        assert_eq!(match_path("/api/v1/servers"), Some(EdgeEndpoint::Api));
        assert_eq!(
            match_path("/broker"),
            Some(EdgeEndpoint::Upgrade(UpgradeTarget::Peer))
        );
        assert_eq!(
            match_path("/executor"),
            Some(EdgeEndpoint::Upgrade(UpgradeTarget::Executor))
        );
        assert_eq!(match_path("/metrics"), Some(EdgeEndpoint::Metrics));
        assert_eq!(
            match_path("/sse"),
            Some(EdgeEndpoint::Sse(EndpointScope::All))
        );
        assert_eq!(
            match_path("/servers/files/messages"),
            Some(EdgeEndpoint::Messages(EndpointScope::Server(
                "files".into()
            )))
        );
        let profile = || EndpointScope::Profile("day".into());
        assert_eq!(match_path("/mcp/day"), Some(EdgeEndpoint::Mcp(profile())));
        assert_eq!(match_path("/sse/day"), Some(EdgeEndpoint::Sse(profile())));
        assert_eq!(
            match_path("/messages/day"),
            Some(EdgeEndpoint::Messages(profile()))
        );
        for path in [
            "/",
            "/mcp/",
            "//mcp",
            "/MCP",
            "/mcp/../api/v1/servers",
            "/mcp/day/",
            "/mcp/Day",
            "/mcp/..",
            "/mcp/day/mcp",
            "/servers/files/mcp/day",
            "/livez/day",
            "/servers//mcp",
            "/servers/../mcp",
            "/servers/a/b/mcp",
            "/servers/%2e%2e/mcp",
            "/api/v1",
            "/metrics/",
            "/broker/",
            "/broker/day",
            "/executor/",
            "/executor/office",
            "/servers/files/broker",
            "/.well-known/mcp",
            "*",
        ] {
            assert_eq!(match_path(path), None, "{path}");
        }
    }
}
