//! `/api/v1/sessions`: who is here, and what single sessions are narrowed by.

use std::cmp::Reverse;
use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use bowline_core::call::{Contexts, Principal, Role, Scope};
use bowline_core::policy::Policy;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Failure, Shared, alive, contexts_of, read_body, tokens};
use crate::edge::session::{NarrowError, Session};
use crate::edge::{Edge, announce};

/// Sessions that are listed, those used last first.
const LISTED_MAX: usize = 1_000;

/// What is asked of `PUT /api/v1/sessions/{id}/context`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    contexts: Vec<String>,
    /// Whether the token of the session is narrowed, and so every other session of it. Without a
    /// word, it is where the token was made for one run of one program.
    credential: Option<bool>,
}

/// `GET /api/v1/sessions`
pub(super) async fn list(State(edge): Shared) -> Result<Json<Value>, Failure> {
    let edge = alive(&edge)?;
    let mut all = edge.sessions.named();
    let total = all.len();
    all.sort_by_key(|(_, session)| Reverse(session.used()));
    let policy = edge.host.policy();
    let listed = all.iter().take(LISTED_MAX);
    let sessions: Vec<_> = listed
        .map(|(id, session)| shown(&edge, &policy, id, session))
        .collect();
    Ok(Json(json!({"v": 1, "total": total, "sessions": sessions})))
}

/// `PUT /api/v1/sessions/{id}/context`: replaces what narrows one session, or its token.
pub(super) async fn narrow(
    State(edge): Shared,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, Failure> {
    let edge = alive(&edge)?;
    let asked: Asked = read_body(&body)?;
    let names = contexts_of(&edge.host.policy(), asked.contexts)?;
    let contexts = Contexts::new(names);
    let Some(token) = token_of(&edge, &id, asked.credential)? else {
        narrow_one(&edge, &id, &contexts).await?;
        let answer = json!({
            "v": 1, "id": id, "contexts": contexts.names(), "narrows": "session",
        });
        return Ok(Json(answer));
    };
    tokens::narrow_token(&edge, &token, &contexts).await?;
    // One place says what narrows it, so that one command takes it back.
    narrow_one(&edge, &id, &Contexts::default()).await?;
    Ok(Json(json!({
        "v": 1, "id": id, "contexts": contexts.names(), "narrows": "credential", "token": token,
    })))
}

/// Returns the token that is to be narrowed in place of the session.
fn token_of(edge: &Edge, id: &str, credential: Option<bool>) -> Result<Option<String>, Failure> {
    let sealed = edge.sessions.credential_of(id, edge.host.clock().as_ref());
    let token = sealed.ok_or_else(not_found)?;
    let is_run = || {
        let tokens = edge.door.tokens().map(|tokens| tokens.all());
        let mut tokens = tokens.into_iter().flatten();
        tokens.any(|one| **one.id() == *token && one.run.is_some())
    };
    match credential {
        Some(false) => Ok(None),
        Some(true) if token.is_empty() => Err(Failure::plain(
            StatusCode::CONFLICT,
            "no_token",
            "the session was opened without a token that can be narrowed; narrow the session",
        )),
        Some(true) => Ok(Some(token)),
        None => Ok(is_run().then_some(token)),
    }
}

async fn narrow_one(edge: &Arc<Edge>, id: &str, contexts: &Contexts) -> Result<(), Failure> {
    let narrowed = {
        let (edge, id, contexts) = (Arc::clone(edge), id.to_owned(), contexts.clone());
        let clock = Arc::clone(edge.host.clock());
        // It is written to a file before it counts.
        tokio::task::spawn_blocking(move || edge.sessions.narrow(&id, &contexts, clock.as_ref()))
            .await
    };
    let narrowed = narrowed.map_err(|_| {
        let message = "the request was given up; look at the log of the gateway";
        Failure::plain(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    })?;
    let session = narrowed.map_err(|error| match error {
        NarrowError::Unknown => not_found(),
        NarrowError::TooMany => {
            let status = StatusCode::CONFLICT;
            Failure::plain(status, "too_many_contexts", &error.to_string())
        }
        NarrowError::State(error) => Failure::state(&error),
    })?;
    if let Some(session) = session {
        edge.host.session_narrowed(session.key, &session.asker());
        announce::catch_up(edge, &session);
    }
    Ok(())
}

/// `DELETE /api/v1/sessions/{id}`: ends one session, with all it has under way.
pub(super) async fn end(
    State(edge): Shared,
    Path(id): Path<String>,
) -> Result<Json<Value>, Failure> {
    let edge = alive(&edge)?;
    match edge.end_session(&id) {
        true => Ok(Json(json!({"v": 1, "id": id, "ended": true}))),
        false => Err(not_found()),
    }
}

fn not_found() -> Failure {
    let message = "there is no such session";
    Failure::plain(StatusCode::NOT_FOUND, "session_not_found", message)
}

fn shown(edge: &Edge, policy: &Policy, id: &str, session: &Session) -> Value {
    let principal = &session.principal;
    let clock = edge.host.clock();
    let issued_ms = session.issued_s.saturating_mul(1_000);
    json!({
        "id": id,
        "principal": principal.name,
        "role": role(policy, principal),
        "token": Some(&principal.credential).filter(|id| !id.is_empty()),
        "client": session.client().map(|(name, _)| name),
        "client_version": session.client().map(|(_, version)| version),
        "endpoint": endpoint(&session.scope),
        "revision": session.revision.as_str(),
        "contexts": session.contexts().names(),
        "token_contexts": policy.contexts_of(principal).names(),
        "age_ms": clock.unix_ms().saturating_sub(issued_ms),
        "idle_ms": clock.now().millis_since(session.used()),
        "streams": session.stream_count(),
        "calls": session.in_flight.count(),
    })
}

/// Returns the role that counts.
fn role<'p>(policy: &'p Policy, principal: &'p Principal) -> Option<&'p str> {
    match principal.role {
        Role::Owner => Some("owner"),
        Role::OwnersAgent => Some("owner's agent"),
        Role::AnonymousLocal => policy.assigned(&principal.name).map(AsRef::as_ref),
        Role::Named(_) | Role::None => policy.role(principal).map(AsRef::as_ref),
    }
}

fn endpoint(scope: &Scope) -> String {
    match scope {
        Scope::All => "/mcp".to_owned(),
        Scope::Profile(profile) => format!("/mcp/{profile}"),
        Scope::Server(server) => format!("/servers/{server}/mcp"),
    }
}
