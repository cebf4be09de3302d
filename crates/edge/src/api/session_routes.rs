//! `/api/v1/sessions`: open sessions, and the contexts of single sessions.

use std::cmp::Reverse;
use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use bowline_api::VERSION;
use bowline_api::sessions::{
    SessionEndResponse, SessionEntry, SessionNarrowRequest, SessionNarrowResponse, SessionsResponse,
};
use bowline_core::call::{ContextSet, EndpointScope, Principal, Role};
use bowline_core::policy::Policy;

use super::{ApiError, EdgeState, check_contexts, parse_body, token_routes, upgrade_edge};
use crate::client_session::{ClientSession, NarrowError};
use crate::{Edge, announcer};

/// Maximum number of listed sessions, most recently used first.
const LISTED_MAX: usize = 1_000;

/// `GET /api/v1/sessions`
pub(super) async fn list_sessions(
    State(edge): EdgeState,
) -> Result<Json<SessionsResponse>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    let mut all = edge.sessions.list_with_ids();
    let total = all.len();
    all.sort_by_key(|(_, session)| Reverse(session.last_used()));
    let policy = edge.host.policy();
    let listed = all.iter().take(LISTED_MAX);
    let sessions = listed.map(|(id, session)| session_entry(&edge, &policy, id, session));
    Ok(Json(SessionsResponse {
        v: VERSION,
        total: total as u64,
        sessions: sessions.collect(),
    }))
}

/// `PUT /api/v1/sessions/{id}/context`: replaces the contexts of a session, or of its token.
pub(super) async fn narrow_session(
    State(edge): EdgeState,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Json<SessionNarrowResponse>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    let body_json: SessionNarrowRequest = parse_body(&body)?;
    let names = check_contexts(&edge.host.policy(), body_json.contexts)?;
    let contexts = ContextSet::new(names);
    let Some(token) = token_to_narrow(&edge, &id, body_json.credential)? else {
        apply_narrowing(&edge, &id, &contexts).await?;
        return Ok(Json(SessionNarrowResponse {
            v: VERSION,
            id,
            contexts: contexts.names().to_vec(),
            narrows: "session".into(),
            token: None,
        }));
    };
    token_routes::narrow_token(&edge, &token, &contexts).await?;
    // Clear the session's own contexts, so that a single command undoes the narrowing.
    apply_narrowing(&edge, &id, &ContextSet::default()).await?;
    Ok(Json(SessionNarrowResponse {
        v: VERSION,
        id,
        contexts: contexts.names().to_vec(),
        narrows: "credential".into(),
        token: Some(token),
    }))
}

/// Returns the token to narrow instead of the session.
fn token_to_narrow(
    edge: &Edge,
    id: &str,
    credential: Option<bool>,
) -> Result<Option<String>, ApiError> {
    let sealed = edge
        .sessions
        .session_credential(id, edge.host.clock().as_ref());
    let token = sealed.ok_or_else(session_not_found)?;
    let is_run = || {
        let tokens = edge
            .authenticator
            .tokens()
            .map(|tokens| tokens.list_tokens());
        let mut tokens = tokens.into_iter().flatten();
        tokens.any(|one| **one.id() == *token && one.run.is_some())
    };
    match credential {
        Some(false) => Ok(None),
        Some(true) if token.is_empty() => Err(ApiError::new(
            StatusCode::CONFLICT,
            "no_token",
            "the session was opened without a token that can be narrowed; narrow the session",
        )),
        Some(true) => Ok(Some(token)),
        None => Ok(is_run().then_some(token)),
    }
}

async fn apply_narrowing(
    edge: &Arc<Edge>,
    id: &str,
    contexts: &ContextSet,
) -> Result<(), ApiError> {
    let narrowed = {
        let (edge, id, contexts) = (Arc::clone(edge), id.to_owned(), contexts.clone());
        let clock = Arc::clone(edge.host.clock());
        // The file is written before the change takes effect.
        tokio::task::spawn_blocking(move || {
            edge.sessions.narrow_session(&id, &contexts, clock.as_ref())
        })
        .await
    };
    let narrowed = narrowed.map_err(|_| {
        let message = "the request was given up; look at the log of the gateway";
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    })?;
    let session = narrowed.map_err(|error| match error {
        NarrowError::Unknown => session_not_found(),
        NarrowError::TooMany => {
            let status = StatusCode::CONFLICT;
            ApiError::new(status, "too_many_contexts", &error.to_string())
        }
        NarrowError::State(error) => ApiError::from_state_error(&error),
    })?;
    if let Some(session) = session {
        edge.host
            .update_session_principal(session.key, &session.current_principal());
        announcer::announce_missed(edge, &session);
    }
    Ok(())
}

/// `DELETE /api/v1/sessions/{id}`: ends a session and cancels its pending calls.
pub(super) async fn end_session(
    State(edge): EdgeState,
    Path(id): Path<String>,
) -> Result<Json<SessionEndResponse>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    match edge.end_session(&id) {
        true => Ok(Json(SessionEndResponse {
            v: VERSION,
            id,
            ended: true,
        })),
        false => Err(session_not_found()),
    }
}

fn session_not_found() -> ApiError {
    let message = "there is no such session";
    ApiError::new(StatusCode::NOT_FOUND, "session_not_found", message)
}

fn session_entry(edge: &Edge, policy: &Policy, id: &str, session: &ClientSession) -> SessionEntry {
    let principal = &session.principal;
    let clock = edge.host.clock();
    let issued_ms = session.issued_s.saturating_mul(1_000);
    let (client, client_version) = session.client_info().unzip();
    SessionEntry {
        id: id.to_owned(),
        principal: Arc::clone(&principal.name),
        role: effective_role(policy, principal).map(str::to_owned),
        token: Some(Arc::clone(&principal.credential)).filter(|id| !id.is_empty()),
        client: client.cloned(),
        client_version: client_version.cloned(),
        endpoint: endpoint_path(&session.scope),
        revision: session.revision.as_str().into(),
        contexts: session.contexts().names().to_vec(),
        token_contexts: policy.all_contexts(principal).names().to_vec(),
        age_ms: clock.unix_ms().saturating_sub(issued_ms),
        idle_ms: clock.now().millis_since(session.last_used()),
        streams: session.stream_count() as u64,
        calls: session.in_flight.count() as u64,
    }
}

/// Returns the effective role.
fn effective_role<'p>(policy: &'p Policy, principal: &'p Principal) -> Option<&'p str> {
    match principal.role {
        Role::Owner => Some("owner"),
        Role::OwnersAgent => Some("owner's agent"),
        Role::AnonymousLocal => policy.assigned_role(&principal.name).map(AsRef::as_ref),
        Role::Named(_) | Role::None => policy.role_name(principal).map(AsRef::as_ref),
    }
}

fn endpoint_path(scope: &EndpointScope) -> String {
    match scope {
        EndpointScope::All => "/mcp".to_owned(),
        EndpointScope::Profile(profile) => format!("/mcp/{profile}"),
        EndpointScope::Server(server) => format!("/servers/{server}/mcp"),
    }
}
