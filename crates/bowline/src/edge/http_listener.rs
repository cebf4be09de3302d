//! Accepts connections, authenticates requests and routes requests to endpoints.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::{Principal, Role};
use http::request::Parts;
use http::{HeaderValue, Request, StatusCode, header};
use hyper::body::Incoming;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

use super::auth::{AuthError, LocalAddress};
use super::call_errors::UNAUTHORIZED;
use super::connection_registry::ClientConnection;
use super::endpoints::{EdgeEndpoint, match_path};
use super::large_response::{self, ResponseAccount};
use super::mcp::McpEndpoint;
use super::response_body::{self, EdgeResponse};
use super::{Edge, api, auth_failures, connection, mcp, metrics, rate_limit, readiness, upgrade};
use crate::tokens::TokenKind;

/// Total connection limit, independent of principal shares; further connections wait in the
/// kernel's backlog.
pub const CONNECTIONS_MAX: usize = 65_536;

/// Accepts connections until `stop` is signalled, then lets requests in flight finish.
pub async fn accept_connections(
    edge: Arc<Edge>,
    listener: TcpListener,
    mut stop: watch::Receiver<bool>,
) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let permit = tokio::select! {
            seat = Arc::clone(&permits).acquire_owned() => seat,
            () = connection::wait_shutdown(&mut stop) => return,
        };
        let Ok(permit) = permit else { return };
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Usually out of file descriptors: let other connections finish.
                    tracing::warn!(error = &error as &dyn std::error::Error, "accept failed");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
            () = connection::wait_shutdown(&mut stop) => return,
        };
        let task = connection::serve_connection(Arc::clone(&edge), stream, stop.clone());
        edge.host.tasks().spawn("connection", async move {
            task.await;
            drop(permit);
        });
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
        && let Err(refused) = rate_limit::admit_request(edge, &principal, &incoming).await
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
    if !large_response::may_be_large(&response) {
        return response;
    }
    let accounts = edge.host.accounts().clone();
    large_response::charge_response(
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
