//! `/api/v1`: what the command line asks the running gateway. For the owner; some of it for
//! tokens that only read.

mod audit;
mod broker;
mod call;
mod discover;
pub(super) mod events;
mod executors;
mod logs;
mod outbox;
mod pins;
mod refresh;
mod reload;
mod roles;
mod search;
mod servers;
mod sessions;
mod shares;
mod tokens;

use std::sync::{Arc, Weak};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use bowline_core::call::{Principal, Role};
use bowline_core::error::CallError;
use bowline_core::policy::Policy;
use bowline_host::audit::{Note, Target};
use bowline_journal::audit::Kind;
use bowline_wire::scan::{self, Keys};
use http::Request;
use http::request::Parts;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::body::{Answer, EdgeBody};
use super::mcp::{bounded_body, is_json};
use super::{Edge, errors};
use crate::state;
use crate::tokens::{CONTEXTS_MAX, TokenKind};

/// How many suggestions an error carries.
const SUGGESTIONS_MAX: usize = 3;

/// Where one watches what happens.
const EVENTS: &str = "/api/v1/events";

/// Where one has the audit trail looked at.
const VERIFY: &str = "/api/v1/audit/verify";

/// What is asked by POST and changes nothing, or leaves a row of its own.
const UNNOTED: [&str; 3] = ["/api/v1/call", "/api/v1/roles/test", VERIFY];

/// The requests that tokens of other kinds may make. What is not here is the owner's alone.
const READERS: [(&str, &str, &[TokenKind]); 9] = {
    use TokenKind::{Auditor, Viewer};
    [
        ("GET", "/api/v1/status", &[Auditor, Viewer]),
        ("GET", "/api/v1/audit", &[Auditor]),
        ("GET", VERIFY, &[Auditor]),
        ("POST", VERIFY, &[Auditor]),
        ("GET", "/api/v1/servers", &[Viewer]),
        ("GET", "/api/v1/servers/{name}", &[Viewer]),
        ("GET", "/api/v1/tools", &[Viewer]),
        ("GET", "/api/v1/executors", &[Viewer]),
        ("GET", EVENTS, &[Viewer]),
    ]
};

/// Whether the holder of a token of this kind may make a request.
fn may_read(kind: TokenKind, method: &http::Method, path: &str) -> bool {
    let is_same = |pattern: &str| {
        let mut pairs = pattern.split('/').zip(path.split('/'));
        pattern.split('/').count() == path.split('/').count()
            && pairs.all(|(wanted, is)| match wanted.starts_with('{') {
                true => !is.is_empty(),
                false => wanted == is,
            })
    };
    READERS.iter().any(|(verb, pattern, kinds)| {
        *verb == method.as_str() && kinds.contains(&kind) && is_same(pattern)
    })
}

/// What a row of the audit trail says besides the path; carried by an answer.
#[derive(Clone, Debug)]
struct Noted(String);

/// The edge, which owns this router: hence the weak reference.
type Shared = State<Weak<Edge>>;

/// Answers one request to the API.
pub async fn answer(
    edge: &Arc<Edge>,
    (principal, kind): (&Arc<Principal>, TokenKind),
    mut parts: Parts,
    incoming: Incoming,
) -> Answer {
    let is_reader = kind.is_reader() && may_read(kind, &parts.method, parts.uri.path());
    if principal.role != Role::Owner && !is_reader {
        deny(edge, principal, &parts);
        let body = json!({"error": {"code": "forbidden", "message": "this needs the owner token"}});
        return super::body::json(StatusCode::FORBIDDEN, body.to_string());
    }
    // A form or plain text can be sent by any web page without asking; JSON cannot.
    if parts.method != http::Method::GET && !is_json(&parts.headers) {
        let message = "the body must be application/json";
        let body = json!({"error": {"code": "not_json", "message": message}});
        return super::body::json(StatusCode::UNSUPPORTED_MEDIA_TYPE, body.to_string());
    }
    // It ends with its watcher, not with an answer; the router knows only answers.
    if parts.uri.path() == EVENTS && parts.method == http::Method::GET {
        return events::watch(edge).await;
    }
    parts.extensions.insert(Arc::clone(principal));
    let bytes =
        match bounded_body(&parts.headers, incoming, (edge.host.accounts(), principal)).await {
            Ok(bytes) => bytes,
            Err(unread) => return unread,
        };
    let is_change = parts.method != http::Method::GET && !UNNOTED.contains(&parts.uri.path());
    let asked = is_change.then(|| (parts.method.clone(), parts.uri.path().to_owned()));
    let request = Request::from_parts(parts, axum::body::Body::from(bytes));
    let response = match edge.api.clone().oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    };
    if let Some((method, path)) = asked {
        let done = response.status().is_success();
        let at_ms = edge.host.clock().unix_ms();
        let mut note = crate::audit::admin(principal, at_ms, (method.as_str(), &path), done);
        let noted = response.extensions().get::<Noted>();
        note.reason = noted.map(|Noted(what)| what.as_str().into());
        edge.host.audit().note(note);
    }
    response.map(|body| EdgeBody::Api(Box::new(body.boxed_unsync())))
}

/// Leaves a row of a request to the API that its credential does not allow.
fn deny(edge: &Edge, principal: &Arc<Principal>, parts: &Parts) {
    let at_ms = edge.host.clock().unix_ms();
    let mut note = Note::new(Kind::Denied, at_ms, "failed");
    note.principal = Some(Arc::clone(principal));
    let name = format!("{} {}", parts.method, parts.uri.path()).into();
    note.target = Target::Named { server: None, name };
    note.reason = Some("this needs the owner token".into());
    edge.host.audit().note(note);
}

/// Builds the routes.
pub(super) fn router(edge: Weak<Edge>) -> Router {
    Router::new()
        .route("/api/v1/status", get(servers::status))
        .route("/api/v1/servers", get(servers::list))
        .route("/api/v1/servers/{name}", get(servers::one))
        .route("/api/v1/servers/{name}/refresh", post(refresh::one))
        .route("/api/v1/servers/{name}/{order}", post(servers::order))
        .route("/api/v1/discover", get(discover::discover))
        .route("/api/v1/tools", get(servers::tools))
        .route("/api/v1/search", get(search::search))
        .route("/api/v1/exposure", get(search::exposure))
        .route("/api/v1/call", post(call::call))
        .route("/api/v1/logs", get(logs::logs))
        .route("/api/v1/audit", get(audit::rows))
        .route(VERIFY, get(audit::verify).post(audit::verify))
        .route("/api/v1/reload", post(reload::reload))
        .route("/api/v1/refresh", post(refresh::all))
        .route("/api/v1/sessions", get(sessions::list))
        .route("/api/v1/sessions/{id}", delete(sessions::end))
        .route("/api/v1/sessions/{id}/context", put(sessions::narrow))
        .route("/api/v1/roles", get(roles::list))
        .route("/api/v1/roles/test", post(roles::test))
        .route("/api/v1/tokens", get(tokens::list).post(tokens::create))
        .route("/api/v1/tokens/{id}", delete(tokens::revoke))
        .route("/api/v1/tokens/{id}/end", post(tokens::end))
        .route("/api/v1/owner-token/rotate", post(tokens::rotate_owner))
        .route("/api/v1/tokens/{id}/context", put(tokens::narrow))
        .route("/api/v1/pins", get(pins::list))
        .route("/api/v1/pins/accept", post(pins::accept))
        .route("/api/v1/pins/{server}/{tool}/diff", get(pins::diff))
        .route("/api/v1/outbox", get(outbox::list))
        .route(
            "/api/v1/outbox/{id}",
            get(outbox::one).delete(outbox::drop_one),
        )
        .route("/api/v1/outbox/{id}/retry", post(outbox::retry))
        .route("/api/v1/broker", get(broker::all))
        .route("/api/v1/broker/dead", get(broker::dead))
        .route(
            "/api/v1/broker/dead/{id}",
            get(broker::one).delete(broker::drop_one),
        )
        .route("/api/v1/broker/dead/{id}/retry", post(broker::retry))
        .route("/api/v1/executors", get(executors::list))
        .fallback(nothing)
        .with_state(edge)
}

async fn nothing() -> Failure {
    Failure::plain(
        StatusCode::NOT_FOUND,
        "not_found",
        "the API has no such path",
    )
}

/// An error of the API.
#[derive(Debug)]
pub(super) struct Failure(StatusCode, Value);

impl Failure {
    fn plain(status: StatusCode, code: &str, message: &str) -> Self {
        Self(status, json!({"error": {"code": code, "message": message}}))
    }

    /// The same, with names that may have been meant.
    fn named(status: StatusCode, code: &str, message: &str, near: Vec<String>) -> Self {
        let mut failure = Self::plain(status, code, message);
        if !near.is_empty() {
            failure.add("suggestions", near.into());
        }
        failure
    }

    /// Tells that something could not be kept.
    fn state(error: &state::Error) -> Self {
        let mut message = error.to_string();
        if let Some(source) = std::error::Error::source(error) {
            message = format!("{message}: {source}");
        }
        let mut failure = Self::plain(StatusCode::INTERNAL_SERVER_ERROR, "state", &message);
        if let Some(fix) = error.fix() {
            failure.add("hint", fix.into());
        }
        failure
    }

    fn add(&mut self, key: &str, value: Value) {
        if let Some(Value::Object(error)) = self.1.get_mut("error") {
            error.insert(key.to_owned(), value);
        }
    }

    /// Says what a failure means, before it says what failed.
    fn because(mut self, meaning: &str) -> Self {
        if let Some(Value::String(message)) = self.1.pointer_mut("/error/message") {
            *message = format!("{meaning}: {message}");
        }
        self
    }

    /// Tells a failed call, with the names that come close to one that does not exist.
    fn call(edge: &Edge, error: &CallError, server: Option<&str>) -> Self {
        let near = match error {
            CallError::UnknownServer { server } => nearest(server, edge.host.servers()),
            CallError::UnknownTool { tool } => {
                let catalog = edge.host.catalog();
                let names = catalog
                    .offers()
                    .filter(|offer| server.is_none_or(|server| *offer.server == *server))
                    .flat_map(|offer| &offer.tools)
                    .map(|tool| Arc::clone(&tool.route.name));
                nearest(tool, names.collect::<Vec<_>>())
            }
            _ => Vec::new(),
        };
        Self(errors::status(error), errors::api(error, &near))
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.0, axum::Json(self.1)).into_response()
    }
}

/// Returns the living edge.
fn alive(edge: &Weak<Edge>) -> Result<Arc<Edge>, Failure> {
    edge.upgrade().ok_or_else(|| {
        Failure::plain(
            StatusCode::SERVICE_UNAVAILABLE,
            "server_stopped",
            "the gateway is shutting down",
        )
    })
}

/// Reads what is asked, as strictly as at the MCP endpoints.
fn read_body<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Failure> {
    let invalid = |message: String| Failure::plain(StatusCode::BAD_REQUEST, "invalid", &message);
    scan::check(body, Keys::Unique).map_err(|fault| invalid(fault.to_string()))?;
    serde_json::from_slice(body).map_err(|error| invalid(error.to_string()))
}

/// Refuses contexts that are not defined: they would hide everything.
fn contexts_of(policy: &Policy, names: Vec<String>) -> Result<Vec<String>, Failure> {
    let status = StatusCode::UNPROCESSABLE_ENTITY;
    if names.len() > CONTEXTS_MAX {
        let message = format!("at most {CONTEXTS_MAX} contexts can be named");
        return Err(Failure::plain(status, "too_many_contexts", &message));
    }
    let Some(unknown) = names.iter().find(|name| !policy.has_context(name)) else {
        return Ok(names);
    };
    let message = format!("no context `{unknown}` is defined");
    let near = nearest(unknown, policy.contexts());
    Err(Failure::named(status, "context_not_found", &message, near))
}

/// Returns the names that are most like `asked`, best first.
fn nearest(asked: &str, names: impl IntoIterator<Item = Arc<str>>) -> Vec<String> {
    let mut scored: Vec<_> = names
        .into_iter()
        .map(|name| (strsim::jaro_winkler(asked, &name), name))
        .filter(|(score, _)| *score > 0.7)
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    scored
        .into_iter()
        .take(SUGGESTIONS_MAX)
        .map(|(_, name)| name.as_ref().to_owned())
        .collect()
}
