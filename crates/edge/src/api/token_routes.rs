//! `/api/v1/tokens`: creation, listing, narrowing and revocation of tokens.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use bowline_api::VERSION;
use bowline_api::tokens::{
    NeverExpires, TokenCreateRequest, TokenEntry, TokenNarrowRequest, TokenResponse,
    TokenRevokeResponse, TokenRotateResponse, TokensResponse,
};
use bowline_core::call::{ContextSet, Role};
use bowline_core::policy::{DefaultAction, Policy, profile_context};

use super::{
    ApiError, AuditReason, EdgeState, check_contexts, nearest_names, outbox_routes, parse_body,
    upgrade_edge,
};
use crate::Edge;
use crate::auth::RotateError;
use crate::connection_registry::ConnectionKey;
use crate::tokens::{
    IssuedToken, LIFETIME_MAX, NAME_BYTES_MAX, TokenCreateError, TokenKind, TokenRequest,
    TokenStore, owner_agent_principal,
};
use bowline_config::{TokenLifetime, is_principal_name, is_run_name};

/// Reason for ending a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenEndReason {
    /// Revoked by a person.
    Revoked,
    /// The token's run has finished. Calls already accepted stay accepted.
    RunOver,
}

/// `POST /api/v1/tokens`: the only response with the secret text of a token.
pub(super) async fn create_token(
    State(edge): EdgeState,
    body: Bytes,
) -> Result<(Extension<AuditReason>, Json<TokenResponse>), ApiError> {
    let edge = upgrade_edge(&edge)?;
    let tokens = Arc::clone(token_store(&edge)?);
    let lifetime = edge.reloader.with_policy(|policy, _| policy.token_lifetime);
    let token_request = validate_request(&edge.host.policy(), lifetime, parse_body(&body)?)?;
    let created = tokio::task::spawn_blocking(move || tokens.create_token(&token_request)).await;
    let (text, token) = created
        .map_err(|_| task_failed())?
        .map_err(|error| match error {
            TokenCreateError::TooMany => {
                ApiError::new(StatusCode::CONFLICT, "too_many_tokens", &error.to_string())
            }
            TokenCreateError::State(error) => ApiError::from_state_error(&error),
        })?;
    tracing::info!(token = %token.id(), principal = %token.principal.name, "token created");
    let response = TokenResponse {
        v: VERSION,
        token: Some(text),
        entry: TokenEntry {
            state: None,
            ..token_entry(&token, edge.host.clock().unix_ms())
        },
    };
    let audit_reason = format!("token {} of {}", token.id(), token.principal.name);
    Ok((Extension(AuditReason(audit_reason)), Json(response)))
}

/// `GET /api/v1/tokens`: contains neither secrets nor hashes.
pub(super) async fn list_tokens(State(edge): EdgeState) -> Result<Json<TokensResponse>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    let now = edge.host.clock().unix_ms();
    let all = token_store(&edge)?.list_tokens();
    let tokens = all.iter().map(|token| token_entry(token, now)).collect();
    Ok(Json(TokensResponse {
        v: VERSION,
        now_ms: now,
        tokens,
    }))
}

/// `DELETE /api/v1/tokens/{id}`: by token id, or by principal name for all tokens of a principal.
pub(super) async fn revoke_token(
    State(edge): EdgeState,
    Path(which): Path<String>,
) -> Result<Json<TokenRevokeResponse>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    revoke_matching(&edge, &which, TokenEndReason::Revoked).await
}

/// `POST /api/v1/tokens/{id}/end`: ends a run token after its run has finished.
pub(super) async fn end_run_token(
    State(edge): EdgeState,
    Path(id): Path<String>,
) -> Result<Json<TokenRevokeResponse>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    let tokens = token_store(&edge)?;
    match tokens
        .list_tokens()
        .iter()
        .find(|token| **token.id() == *id)
    {
        None => Err(token_not_found(tokens, &id)),
        Some(token) if token.run.is_none() => {
            let message = "the token was made for no run; revoke it instead";
            Err(ApiError::new(StatusCode::CONFLICT, "no_run", message))
        }
        Some(_) => revoke_matching(&edge, &id, TokenEndReason::RunOver).await,
    }
}

/// `POST /api/v1/owner-token/rotate`: writes a new owner token to its file. The old token ends,
/// with everything it opened except the connection of this response.
pub(super) async fn rotate_owner_token(
    State(edge): EdgeState,
    Extension(requester): Extension<ConnectionKey>,
) -> Result<Json<TokenRotateResponse>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    let rotating = Arc::clone(&edge);
    let rotated =
        tokio::task::spawn_blocking(move || rotating.authenticator.owner_token().rotate()).await;
    let old = rotated
        .map_err(|_| task_failed())?
        .map_err(|error| match error {
            RotateError::NoFile => {
                ApiError::new(StatusCode::CONFLICT, "no_token_file", &error.to_string())
            }
            RotateError::State(error) => ApiError::from_state_error(&error),
        })?;
    edge.revoke_owner_access(&old, requester);
    tracing::info!("owner token replaced");
    let file = edge.authenticator.owner_token().file();
    Ok(Json(TokenRotateResponse {
        v: VERSION,
        rotated: true,
        token_file: file.map(Into::into),
    }))
}

/// `PUT /api/v1/tokens/{id}/context`: replaces the contexts added to a token after creation.
pub(super) async fn set_token_contexts(
    State(edge): EdgeState,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<(Extension<AuditReason>, Json<TokenResponse>), ApiError> {
    let edge = upgrade_edge(&edge)?;
    let request: TokenNarrowRequest = parse_body(&body)?;
    let contexts = ContextSet::new(check_contexts(&edge.host.policy(), request.contexts)?);
    let token = narrow_token(&edge, &id, &contexts).await?;
    let response = TokenResponse {
        v: VERSION,
        token: None,
        entry: token_entry(&token, edge.host.clock().unix_ms()),
    };
    let names = contexts.names().join(",");
    let audit_reason = format!("token {id} narrowed by [{names}]");
    Ok((Extension(AuditReason(audit_reason)), Json(response)))
}

/// Narrows a token on every endpoint, immediately and permanently.
pub(super) async fn narrow_token(
    edge: &Edge,
    id: &str,
    contexts: &ContextSet,
) -> Result<Arc<IssuedToken>, ApiError> {
    let tokens = Arc::clone(token_store(edge)?);
    let narrowed = {
        let (tokens, id, contexts) = (Arc::clone(&tokens), id.to_owned(), contexts.clone());
        // The file is written before the change takes effect.
        tokio::task::spawn_blocking(move || tokens.narrow_token(&id, &contexts)).await
    };
    let narrowed = narrowed.map_err(|_| task_failed())?;
    let token = narrowed.map_err(|error| ApiError::from_state_error(&error))?;
    let token = token.ok_or_else(|| token_not_found(&tokens, id))?;
    // The policy is consulted for every decision, so sessions, streams, queued and brokered calls
    // of the token are narrowed from here on.
    edge.host.restrict_credentials(tokens.added_contexts());
    let names = contexts.names().join(",");
    tracing::info!(token = %token.id(), contexts = %names, "token narrowed");
    Ok(token)
}

async fn revoke_matching(
    edge: &Edge,
    which: &str,
    reason: TokenEndReason,
) -> Result<Json<TokenRevokeResponse>, ApiError> {
    let tokens = Arc::clone(token_store(edge)?);
    let revoked = tokens.revoke_tokens(which);
    if revoked.is_empty() {
        return Err(token_not_found(&tokens, which));
    }
    // Access ends first; persisting the revocation follows.
    edge.revoke_access(&revoked);
    for token in &revoked {
        let principal = &token.principal.name;
        tracing::info!(token = %token.id(), %principal, ?reason, "token revoked");
    }
    let saved = tokio::task::spawn_blocking(move || tokens.save()).await;
    saved.map_err(|_| task_failed())?.map_err(|error| {
        let reason = ApiError::from_state_error(&error);
        reason.prefix_message("revoked for now, but it would count again after a restart")
    })?;
    let mut withdrawn = 0;
    // Calls queued while the token was valid are withdrawn only if a person revoked the token.
    let taken_back = revoked.iter().filter(|_| reason == TokenEndReason::Revoked);
    for token in taken_back {
        let dead = edge.host.outbox().revoke_credential(token.id()).await;
        withdrawn += dead.map_err(|error| {
            let reason = outbox_routes::to_api_error(&error);
            reason.prefix_message("revoked, but not all of its queued calls are withdrawn")
        })?;
    }
    let now = edge.host.clock().unix_ms();
    let entries = revoked.iter().map(|token| token_entry(token, now));
    Ok(Json(TokenRevokeResponse {
        v: VERSION,
        revoked: entries.collect(),
        withdrawn: withdrawn as u64,
    }))
}

/// Returns the number of tokens close to expiry, for the status response.
pub(super) fn count_expiring(edge: &Edge) -> usize {
    let now = edge.host.clock().unix_ms();
    let all = edge
        .authenticator
        .tokens()
        .map(|tokens| tokens.list_tokens());
    let ending = all
        .iter()
        .flatten()
        .filter(|token| token.is_expiring_soon(now));
    ending.count()
}

fn token_store(edge: &Edge) -> Result<&Arc<TokenStore>, ApiError> {
    edge.authenticator.tokens().ok_or_else(|| {
        let message = "this gateway keeps no tokens";
        ApiError::new(StatusCode::CONFLICT, "no_tokens", message)
    })
}

fn task_failed() -> ApiError {
    let message = "the request was given up; look at the log of the gateway";
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
}

fn token_not_found(tokens: &TokenStore, which: &str) -> ApiError {
    let all = tokens.list_tokens();
    let names = all.iter().map(|token| Arc::clone(&token.principal.name));
    let mut near = nearest_names(which, names);
    near.dedup();
    let message = format!("no token has the id `{which}`, and no principal of that name has one");
    ApiError::with_suggestions(StatusCode::NOT_FOUND, "token_not_found", &message, near)
}

/// Validates a token request against the active policy.
fn validate_request(
    policy: &Policy,
    lifetime: TokenLifetime,
    request: TokenCreateRequest,
) -> Result<TokenRequest, ApiError> {
    let refused =
        |code, message: &str| ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, code, message);
    if request.run.as_deref().is_some_and(|run| !is_run_name(run)) {
        let message = "a run is named by 1 to 32 of a-z, 0-9, `.`, `_` and `-`, beginning with a \
                       letter or a digit";
        return Err(refused("invalid_run", message));
    }
    let kind = parse_kind(request.kind.as_deref())?;
    if let Err(message) = check_kind(kind, &request) {
        return Err(refused("invalid_kind", message));
    }
    let (principal, role) = match (&request.principal, &request.run, &request.role) {
        (None, Some(run), None) => (owner_agent_principal(run), Role::OwnersAgent),
        (Some(name), _, role) if is_principal_name(name) => (
            name.as_str().into(),
            match kind {
                TokenKind::Agent => resolve_role(policy, name, role.as_deref())?,
                TokenKind::Executor | TokenKind::Auditor | TokenKind::Viewer => Role::None,
            },
        ),
        (Some(_), _, _) | (None, _, _) => {
            let message = "a principal is named by 1 to 64 of a-z, 0-9, `.`, `_` and `-`, \
                           beginning with a letter or a digit; `owner` and `anonymous-local` are \
                           taken";
            return Err(refused("invalid_principal", message));
        }
    };
    let token_lifetime =
        parse_lifetime(&request, lifetime).map_err(|message| refused("invalid_expiry", message))?;
    Ok(TokenRequest {
        principal,
        kind,
        role,
        contexts: token_contexts(policy, request.contexts, request.profile.as_deref())?,
        lifetime: token_lifetime,
        run: request.run.map(Into::into),
    })
}

/// Returns the initial contexts of a token: the requested contexts plus the profile as a context.
fn token_contexts(
    policy: &Policy,
    contexts: Vec<String>,
    profile: Option<&str>,
) -> Result<ContextSet, ApiError> {
    let contexts = ContextSet::new(check_contexts(policy, contexts)?);
    match profile {
        None => Ok(contexts),
        Some(profile) if policy.has_profile(profile) => {
            Ok(contexts.union(&ContextSet::new([profile_context(profile)])))
        }
        Some(profile) => {
            let message = format!("no profile `{profile}` is defined");
            let near = nearest_names(profile, policy.profile_names());
            let status = StatusCode::UNPROCESSABLE_ENTITY;
            Err(ApiError::with_suggestions(
                status,
                "profile_not_found",
                &message,
                near,
            ))
        }
    }
}

/// Returns the lifetime from the request, else from the config.
fn parse_lifetime(
    request: &TokenCreateRequest,
    lifetime: TokenLifetime,
) -> Result<Option<Duration>, &'static str> {
    match (request.expires_s.map(Duration::from_secs), request.expires) {
        (None, None) => Ok(lifetime.duration()),
        (None, Some(NeverExpires::Never)) => Ok(None),
        (Some(_), Some(NeverExpires::Never)) => Err("either expires_s or expires can be given"),
        (Some(expiry), None) if expiry.is_zero() || expiry > LIFETIME_MAX => {
            Err("expires_s is the seconds from now, at least 1 and at most ten years")
        }
        (Some(expiry), None) => Ok(Some(expiry)),
    }
}

fn parse_kind(word: Option<&str>) -> Result<TokenKind, ApiError> {
    let kind = word.map_or_else(|| Some(TokenKind::default()), TokenKind::from_name);
    kind.ok_or_else(|| {
        let message = "a kind is agent, executor, auditor or viewer";
        ApiError::new(StatusCode::BAD_REQUEST, "invalid", message)
    })
}

/// Checks the request for attributes that tokens of this kind cannot have.
fn check_kind(kind: TokenKind, request: &TokenCreateRequest) -> Result<(), &'static str> {
    match kind {
        TokenKind::Agent => Ok(()),
        TokenKind::Executor | TokenKind::Auditor | TokenKind::Viewer => {
            let is_narrow = request.profile.is_some() || !request.contexts.is_empty();
            let is_plain = request.role.is_none() && request.run.is_none() && !is_narrow;
            is_plain.then_some(()).ok_or(
                "only agents call tools: another token has neither a role nor contexts nor a \
                 profile nor a run",
            )
        }
    }
}

/// Returns the role of a new token; `Role::None` if the policy assigns a role to the principal or
/// allows everything by default.
fn resolve_role(policy: &Policy, principal: &str, role: Option<&str>) -> Result<Role, ApiError> {
    let unprocessable = StatusCode::UNPROCESSABLE_ENTITY;
    let assigned = policy.assigned_role(principal);
    let Some(role) = role else {
        if assigned.is_some() || policy.default_action() == DefaultAction::Allow {
            return Ok(Role::None);
        }
        let message = format!("a role is needed: the config gives none to principal `{principal}`");
        let roles = policy.role_names();
        let near = roles.iter().take(super::SUGGESTIONS_MAX);
        let near = near.map(|role| role.as_ref().to_owned()).collect();
        return Err(ApiError::with_suggestions(
            unprocessable,
            "role_required",
            &message,
            near,
        ));
    };
    if let Some(assigned) = assigned.filter(|assigned| ***assigned != *role) {
        let message = format!(
            "the config gives principal `{principal}` the role `{assigned}`, which would count \
             instead of `{role}`"
        );
        let near = vec![assigned.as_ref().to_owned()];
        return Err(ApiError::with_suggestions(
            unprocessable,
            "role_assigned",
            &message,
            near,
        ));
    }
    let named = !role.is_empty() && role.len() <= NAME_BYTES_MAX;
    // With default `allow`, an undefined role grants everything and only labels the principal.
    if !named || (!policy.has_role(role) && policy.default_action() == DefaultAction::Deny) {
        let message = format!("no role `{role}` is defined");
        let near = nearest_names(role, policy.role_names());
        return Err(ApiError::with_suggestions(
            unprocessable,
            "role_not_found",
            &message,
            near,
        ));
    }
    Ok(Role::Named(role.into()))
}

fn token_entry(token: &IssuedToken, now_ms: u64) -> TokenEntry {
    let state = match (token.is_expired(now_ms), token.is_ended()) {
        (true, _) => "expired",
        (false, true) => "revoked",
        (false, false) => "active",
    };
    TokenEntry {
        id: Arc::clone(token.id()),
        principal: Arc::clone(&token.principal.name),
        kind: token.kind.name().into(),
        role: token.role().map(|role| role.to_string()),
        acts_for_owner: token.principal.role == Role::OwnersAgent,
        run: token.run.clone(),
        contexts: token.principal.contexts.names().to_vec(),
        narrowed: token.added_contexts().names().to_vec(),
        created_at_ms: token.created_ms,
        expires_at_ms: token.expires_ms,
        ends_soon: token.is_expiring_soon(now_ms),
        state: Some(state.into()),
    }
}
