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

use super::{Failure, Shared, alive, contexts_of, read_body};
use crate::edge::session::{NarrowError, Session};
use crate::edge::{Edge, announce};

/// Sessions that are listed, those used last first.
const LISTED_MAX: usize = 1_000;

/// What is asked of `PUT /api/v1/sessions/{id}/context`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    contexts: Vec<String>,
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

/// `PUT /api/v1/sessions/{id}/context`: replaces what narrows one session.
pub(super) async fn narrow(
    State(edge): Shared,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, Failure> {
    let edge = alive(&edge)?;
    let asked: Asked = read_body(&body)?;
    let names = contexts_of(&edge.host.policy(), asked.contexts)?;
    let contexts = Contexts::new(names);
    let narrowed = {
        let (edge, id, contexts) = (Arc::clone(&edge), id.clone(), contexts.clone());
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
        NarrowError::Unknown => Failure::plain(
            StatusCode::NOT_FOUND,
            "session_not_found",
            "there is no such session",
        ),
        NarrowError::TooMany => {
            let status = StatusCode::CONFLICT;
            Failure::plain(status, "too_many_contexts", &error.to_string())
        }
        NarrowError::State(error) => Failure::state(&error),
    })?;
    if let Some(session) = session {
        edge.host.session_narrowed(session.key, &session.asker());
        announce::catch_up(&edge, &session);
    }
    Ok(Json(
        json!({"v": 1, "id": id, "contexts": contexts.names()}),
    ))
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
        "endpoint": endpoint(&session.scope),
        "revision": session.revision.as_str(),
        "contexts": session.contexts().names(),
        "token_contexts": principal.contexts.names(),
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
