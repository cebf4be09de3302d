//! `/api/v1`: the API for the command line. The owner may use all of it; reader tokens may use a
//! subset.

mod audit_routes;
mod broker_routes;
mod call_routes;
mod discover_routes;
pub(super) mod event_routes;
mod executor_routes;
mod log_routes;
mod outbox_routes;
mod pin_diff;
mod pin_routes;
mod refresh_routes;
mod reload_routes;
mod role_routes;
mod search_routes;
mod server_routes;
mod session_routes;
mod share_status;
mod token_routes;

use std::sync::{Arc, Weak};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use bowline_api::error::{ErrorBody, ErrorResponse};
use bowline_core::call::{Principal, Role};
use bowline_core::error::CallError;
use bowline_core::policy::Policy;
use bowline_host::audit::{AuditEntry, AuditTarget};
use bowline_journal::audit::AuditRowKind;
use bowline_wire::scan::{self, KeyPolicy};
use http::Request;
use http::request::Parts;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde::Deserialize;
use tower::ServiceExt as _;

use super::mcp::{BodyAccount, is_json_content, read_bounded_body};
use super::response_body::{EdgeBody, EdgeResponse};
use super::{Edge, call_errors};
use crate::tokens::{CONTEXTS_MAX, TokenKind};
use bowline_config::state;

/// Maximum number of suggestions in an error.
const SUGGESTIONS_MAX: usize = 3;

/// Path of the event stream.
const EVENTS_PATH: &str = "/api/v1/events";

/// Path of audit trail verification.
const VERIFY_PATH: &str = "/api/v1/audit/verify";

/// POST paths without an audit row for a change: read-only requests, or requests with an audit row
/// of their own.
const UNAUDITED_PATHS: [&str; 3] = ["/api/v1/call", "/api/v1/roles/test", VERIFY_PATH];

/// Routes open to reader tokens. All further routes require the owner.
const READER_ROUTES: [(&str, &str, &[TokenKind]); 9] = {
    use TokenKind::{Auditor, Viewer};
    [
        ("GET", "/api/v1/status", &[Auditor, Viewer]),
        ("GET", "/api/v1/audit", &[Auditor]),
        ("GET", VERIFY_PATH, &[Auditor]),
        ("POST", VERIFY_PATH, &[Auditor]),
        ("GET", "/api/v1/servers", &[Viewer]),
        ("GET", "/api/v1/servers/{name}", &[Viewer]),
        ("GET", "/api/v1/tools", &[Viewer]),
        ("GET", "/api/v1/executors", &[Viewer]),
        ("GET", EVENTS_PATH, &[Viewer]),
    ]
};

/// Returns whether a token of this kind may use a route.
fn can_read(kind: TokenKind, method: &http::Method, path: &str) -> bool {
    let is_same = |pattern: &str| {
        let mut pairs = pattern.split('/').zip(path.split('/'));
        pattern.split('/').count() == path.split('/').count()
            && pairs.all(|(expected, actual)| match expected.starts_with('{') {
                true => !actual.is_empty(),
                false => expected == actual,
            })
    };
    READER_ROUTES.iter().any(|(verb, pattern, kinds)| {
        *verb == method.as_str() && kinds.contains(&kind) && is_same(pattern)
    })
}

/// Audit reason attached to a response as an extension.
#[derive(Clone, Debug)]
struct AuditReason(String);

/// Weak, because the edge owns the router.
type EdgeState = State<Weak<Edge>>;

/// Handles one API request.
pub(crate) async fn handle_request(
    edge: &Arc<Edge>,
    principal: &Arc<Principal>,
    kind: TokenKind,
    mut parts: Parts,
    incoming: Incoming,
) -> EdgeResponse {
    let is_reader = kind.is_read_only() && can_read(kind, &parts.method, parts.uri.path());
    if principal.role != Role::Owner && !is_reader {
        audit_denial(edge, principal, &parts);
        let message = "this needs the owner token";
        return ApiError::new(StatusCode::FORBIDDEN, "forbidden", message).into_edge_response();
    }
    // Any web page can send a form or plain text without a CORS preflight, but not JSON.
    if parts.method != http::Method::GET && !is_json_content(&parts.headers) {
        let message = "the body must be application/json";
        let unsupported = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return ApiError::new(unsupported, "not_json", message).into_edge_response();
    }
    // Bypasses the router: the stream ends with its client, and the router handles only complete
    // responses.
    if parts.uri.path() == EVENTS_PATH && parts.method == http::Method::GET {
        return event_routes::open_event_stream(edge).await;
    }
    parts.extensions.insert(Arc::clone(principal));
    let account = BodyAccount {
        accounts: edge.host.accounts(),
        principal,
    };
    let bytes = match read_bounded_body(&parts.headers, incoming, account).await {
        Ok(bytes) => bytes,
        Err(unread) => return unread,
    };
    let is_change =
        parts.method != http::Method::GET && !UNAUDITED_PATHS.contains(&parts.uri.path());
    let change = is_change.then(|| (parts.method.clone(), parts.uri.path().to_owned()));
    let request = Request::from_parts(parts, axum::body::Body::from(bytes));
    let response = match edge.api.clone().oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    };
    if let Some((method, path)) = change {
        let done = response.status().is_success();
        let at_ms = edge.host.clock().unix_ms();
        let mut note = crate::audit::admin_entry(principal, at_ms, method.as_str(), &path, done);
        let audit_reason = response.extensions().get::<AuditReason>();
        note.reason = audit_reason.map(|AuditReason(text)| text.as_str().into());
        edge.host.audit().record(note);
    }
    response.map(|body| EdgeBody::Api(Box::new(body.boxed_unsync())))
}

/// Records an audit row for an API request denied by its credential.
fn audit_denial(edge: &Edge, principal: &Arc<Principal>, parts: &Parts) {
    let at_ms = edge.host.clock().unix_ms();
    let mut note = AuditEntry::new(AuditRowKind::Denied, at_ms, "failed");
    note.principal = Some(Arc::clone(principal));
    let name = format!("{} {}", parts.method, parts.uri.path()).into();
    note.target = AuditTarget::Named { server: None, name };
    note.reason = Some("this needs the owner token".into());
    edge.host.audit().record(note);
}

/// Builds the routes.
pub(super) fn build_router(edge: Weak<Edge>) -> Router {
    Router::new()
        .merge(build_catalog_routes())
        .merge(build_access_routes())
        .merge(build_queue_routes())
        .fallback(not_found)
        .with_state(edge)
}

/// Routes of servers, tools, calls, the audit trail and the config.
fn build_catalog_routes() -> Router<Weak<Edge>> {
    Router::new()
        .route("/api/v1/status", get(server_routes::gateway_status))
        .route("/api/v1/servers", get(server_routes::list_servers))
        .route("/api/v1/servers/{name}", get(server_routes::show_server))
        .route(
            "/api/v1/servers/{name}/refresh",
            post(refresh_routes::refresh_server),
        )
        .route(
            "/api/v1/servers/{name}/{order}",
            post(server_routes::order_server),
        )
        .route("/api/v1/discover", get(discover_routes::discover_tools))
        .route("/api/v1/tools", get(server_routes::list_tools))
        .route("/api/v1/search", get(search_routes::search_tools))
        .route("/api/v1/exposure", get(search_routes::show_exposure))
        .route("/api/v1/call", post(call_routes::call_tool))
        .route("/api/v1/logs", get(log_routes::list_logs))
        .route("/api/v1/audit", get(audit_routes::list_rows))
        .route(
            VERIFY_PATH,
            get(audit_routes::verify_trail).post(audit_routes::verify_trail),
        )
        .route("/api/v1/reload", post(reload_routes::reload_config))
        .route("/api/v1/refresh", post(refresh_routes::refresh_all))
}

/// Routes of sessions, roles, tokens and pins.
fn build_access_routes() -> Router<Weak<Edge>> {
    Router::new()
        .route("/api/v1/sessions", get(session_routes::list_sessions))
        .route("/api/v1/sessions/{id}", delete(session_routes::end_session))
        .route(
            "/api/v1/sessions/{id}/context",
            put(session_routes::narrow_session),
        )
        .route("/api/v1/roles", get(role_routes::list_roles))
        .route("/api/v1/roles/test", post(role_routes::test_policy))
        .route(
            "/api/v1/tokens",
            get(token_routes::list_tokens).post(token_routes::create_token),
        )
        .route("/api/v1/tokens/{id}", delete(token_routes::revoke_token))
        .route("/api/v1/tokens/{id}/end", post(token_routes::end_run_token))
        .route(
            "/api/v1/owner-token/rotate",
            post(token_routes::rotate_owner_token),
        )
        .route(
            "/api/v1/tokens/{id}/context",
            put(token_routes::set_token_contexts),
        )
        .route("/api/v1/pins", get(pin_routes::list_pins))
        .route("/api/v1/pins/accept", post(pin_routes::accept_pins))
        .route(
            "/api/v1/pins/{server}/{tool}/diff",
            get(pin_routes::diff_pin),
        )
}

/// Routes of the outbox, the broker and executors.
fn build_queue_routes() -> Router<Weak<Edge>> {
    Router::new()
        .route("/api/v1/outbox", get(outbox_routes::list_calls))
        .route(
            "/api/v1/outbox/{id}",
            get(outbox_routes::show_call).delete(outbox_routes::drop_call),
        )
        .route("/api/v1/outbox/{id}/retry", post(outbox_routes::retry_call))
        .route("/api/v1/broker", get(broker_routes::list_peers))
        .route("/api/v1/broker/dead", get(broker_routes::list_dead))
        .route(
            "/api/v1/broker/dead/{id}",
            get(broker_routes::show_dead).delete(broker_routes::drop_dead),
        )
        .route(
            "/api/v1/broker/dead/{id}/retry",
            post(broker_routes::retry_dead),
        )
        .route("/api/v1/executors", get(executor_routes::list_executors))
}

async fn not_found() -> ApiError {
    ApiError::new(
        StatusCode::NOT_FOUND,
        "not_found",
        "the API has no such path",
    )
}

/// Error response of the API.
#[derive(Debug)]
pub(super) struct ApiError(StatusCode, Box<ErrorBody>);

impl ApiError {
    fn new(status: StatusCode, code: &str, message: &str) -> Self {
        let error = ErrorBody {
            code: code.to_owned(),
            message: message.to_owned(),
            ..ErrorBody::default()
        };
        Self(status, Box::new(error))
    }

    /// Adds similar names as suggestions.
    fn with_suggestions(status: StatusCode, code: &str, message: &str, near: Vec<String>) -> Self {
        let mut failure = Self::new(status, code, message);
        failure.1.suggestions = near;
        failure
    }

    /// Reports a failed read or write of the state directory.
    fn from_state_error(error: &state::StateError) -> Self {
        let mut message = error.to_string();
        if let Some(source) = std::error::Error::source(error) {
            message = format!("{message}: {source}");
        }
        let mut failure = Self::new(StatusCode::INTERNAL_SERVER_ERROR, "state", &message);
        failure.1.hint = error.suggest_fix();
        failure
    }

    fn with_hint(mut self, hint: &str) -> Self {
        self.1.hint = Some(hint.to_owned());
        self
    }

    /// Prefixes the message with the consequence of the failure.
    fn prefix_message(mut self, meaning: &str) -> Self {
        self.1.message = format!("{meaning}: {}", self.1.message);
        self
    }

    /// Reports a failed call, with suggestions for unknown names.
    fn from_call_error(edge: &Edge, error: &CallError, server: Option<&str>) -> Self {
        let near = match error {
            CallError::UnknownServer { server } => nearest_names(server, edge.host.servers()),
            CallError::UnknownTool { tool } => {
                let catalog = edge.host.catalog();
                let names = catalog
                    .servers()
                    .filter(|offer| server.is_none_or(|server| *offer.server == *server))
                    .flat_map(|offer| &offer.tools)
                    .map(|tool| Arc::clone(&tool.route.name));
                nearest_names(tool, names.collect::<Vec<_>>())
            }
            _ => Vec::new(),
        };
        Self(
            call_errors::http_status(error),
            Box::new(call_errors::to_error_body(error, near)),
        )
    }
}

impl ApiError {
    /// Returns the response for requests that the router does not see.
    fn into_edge_response(self) -> EdgeResponse {
        let response = ErrorResponse { error: *self.1 };
        let body = serde_json::to_vec(&response).unwrap_or_default();
        super::response_body::json_response(self.0, body)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.0, axum::Json(ErrorResponse { error: *self.1 })).into_response()
    }
}

/// Upgrades the weak reference to the edge.
fn upgrade_edge(edge: &Weak<Edge>) -> Result<Arc<Edge>, ApiError> {
    edge.upgrade().ok_or_else(|| {
        ApiError::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "server_stopped",
            "the gateway is shutting down",
        )
    })
}

/// Parses a request body as strictly as the MCP endpoints do.
fn parse_body<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, ApiError> {
    let invalid = |message: String| ApiError::new(StatusCode::BAD_REQUEST, "invalid", &message);
    scan::check_json(body, KeyPolicy::Unique).map_err(|fault| invalid(fault.to_string()))?;
    serde_json::from_slice(body).map_err(|error| invalid(error.to_string()))
}

/// Rejects undefined contexts, because an undefined context hides everything.
fn check_contexts(policy: &Policy, names: Vec<String>) -> Result<Vec<String>, ApiError> {
    let status = StatusCode::UNPROCESSABLE_ENTITY;
    if names.len() > CONTEXTS_MAX {
        let message = format!("at most {CONTEXTS_MAX} contexts can be named");
        return Err(ApiError::new(status, "too_many_contexts", &message));
    }
    let Some(unknown) = names.iter().find(|name| !policy.has_context(name)) else {
        return Ok(names);
    };
    let message = format!("no context `{unknown}` is defined");
    let near = nearest_names(unknown, policy.context_names());
    Err(ApiError::with_suggestions(
        status,
        "context_not_found",
        &message,
        near,
    ))
}

/// Returns the names most similar to `name_given`, best first.
fn nearest_names(name_given: &str, names: impl IntoIterator<Item = Arc<str>>) -> Vec<String> {
    let mut scored: Vec<_> = names
        .into_iter()
        .map(|name| (strsim::jaro_winkler(name_given, &name), name))
        .filter(|(score, _)| *score > 0.7)
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    scored
        .into_iter()
        .take(SUGGESTIONS_MAX)
        .map(|(_, name)| name.as_ref().to_owned())
        .collect()
}
