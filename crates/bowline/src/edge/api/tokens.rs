//! `/api/v1/tokens`: who has a credential, and who no longer has.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use bowline_core::call::{Contexts, Role};
use bowline_core::policy::{Otherwise, Policy, profile_context};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Failure, Noted, Shared, alive, contexts_of, nearest, outbox, read_body};
use crate::config::TokenLifetime;
use crate::edge::Edge;
use crate::edge::hold::HoldKey;
use crate::edge::owner::RotateError;
use crate::tokens::{
    CreateError, Issued, LIFE_MAX, NAME_BYTES_MAX, TokenKind, Tokens, Wanted, is_principal, is_run,
    owners_agent,
};

/// What is asked of `POST /api/v1/tokens`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    /// Whom it is for; the owner's agent, where it is for a run and nothing is said.
    principal: Option<String>,
    /// What its holder is; an agent where nothing is said.
    #[serde(default)]
    kind: TokenKind,
    role: Option<String>,
    /// Seconds to its end; `[tokens] lifetime` of the config where neither this nor `expires` is
    /// given.
    expires_s: Option<u64>,
    /// Says that it has no end.
    expires: Option<Never>,
    #[serde(default)]
    contexts: Vec<String>,
    /// The profile that it sees no more than, on every endpoint.
    profile: Option<String>,
    /// The program that runs with it.
    run: Option<String>,
}

/// The one word that `expires` takes.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Never {
    Never,
}

/// Why a token counts no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// A person took it away.
    Revoked,
    /// The run that it was made for is over. What was accepted of it stays accepted.
    RunOver,
}

/// `POST /api/v1/tokens`: the one answer that shows a token.
pub(super) async fn create(
    State(edge): Shared,
    body: Bytes,
) -> Result<(Extension<Noted>, Json<Value>), Failure> {
    let edge = alive(&edge)?;
    let tokens = Arc::clone(tokens(&edge)?);
    let lifetime = edge.reloader.rules(|policy, _| policy.token_lifetime);
    let wanted = wanted(&edge.host.policy(), lifetime, read_body(&body)?)?;
    let made = tokio::task::spawn_blocking(move || tokens.create(&wanted)).await;
    let (text, token) = made.map_err(|_| broken())?.map_err(|error| match error {
        CreateError::TooMany => {
            Failure::plain(StatusCode::CONFLICT, "too_many_tokens", &error.to_string())
        }
        CreateError::State(error) => Failure::state(&error),
    })?;
    tracing::info!(token = %token.id(), principal = %token.principal.name, "token created");
    let mut answer = shown(&token, edge.host.clock().unix_ms());
    if let Some(shown) = answer.as_object_mut() {
        shown.insert("v".to_owned(), 1.into());
        shown.insert("token".to_owned(), text.into());
        shown.remove("state");
    }
    let noted = format!("token {} of {}", token.id(), token.principal.name);
    Ok((Extension(Noted(noted)), Json(answer)))
}

/// `GET /api/v1/tokens`: neither secrets nor their hashes.
pub(super) async fn list(State(edge): Shared) -> Result<Json<Value>, Failure> {
    let edge = alive(&edge)?;
    let now = edge.host.clock().unix_ms();
    let all = tokens(&edge)?.all();
    let shown: Vec<_> = all.iter().map(|token| shown(token, now)).collect();
    Ok(Json(json!({"v": 1, "now_ms": now, "tokens": shown})))
}

/// `DELETE /api/v1/tokens/{id}`: by its id, or all of a principal by the principal's name.
pub(super) async fn revoke(
    State(edge): Shared,
    Path(which): Path<String>,
) -> Result<Json<Value>, Failure> {
    let edge = alive(&edge)?;
    take_away(&edge, &which, End::Revoked).await
}

/// `POST /api/v1/tokens/{id}/end`: the run that it was made for is over.
pub(super) async fn end(
    State(edge): Shared,
    Path(id): Path<String>,
) -> Result<Json<Value>, Failure> {
    let edge = alive(&edge)?;
    let tokens = tokens(&edge)?;
    match tokens.all().iter().find(|token| **token.id() == *id) {
        None => Err(unknown(tokens, &id)),
        Some(token) if token.run.is_none() => {
            let message = "the token was made for no run; revoke it instead";
            Err(Failure::plain(StatusCode::CONFLICT, "no_run", message))
        }
        Some(_) => take_away(&edge, &id, End::RunOver).await,
    }
}

/// `POST /api/v1/owner-token/rotate`: a new token of the owner, in its file; the old one ends
/// here, with all that it opened but this answer.
pub(super) async fn rotate_owner(
    State(edge): Shared,
    Extension(asker): Extension<HoldKey>,
) -> Result<Json<Value>, Failure> {
    let edge = alive(&edge)?;
    let rotating = Arc::clone(&edge);
    let rotated = tokio::task::spawn_blocking(move || rotating.door.owner_token().rotate()).await;
    let old = rotated
        .map_err(|_| broken())?
        .map_err(|error| match error {
            RotateError::Unkept => {
                Failure::plain(StatusCode::CONFLICT, "no_token_file", &error.to_string())
            }
            RotateError::State(error) => Failure::state(&error),
        })?;
    edge.dismiss_owner(&old, asker);
    tracing::info!("owner token replaced");
    let file = edge.door.owner_token().file();
    Ok(Json(json!({"v": 1, "rotated": true, "token_file": file})))
}

/// What is asked of `PUT /api/v1/tokens/{id}/context`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Narrowing {
    contexts: Vec<String>,
}

/// `PUT /api/v1/tokens/{id}/context`: replaces what narrows a token since it was made.
pub(super) async fn narrow(
    State(edge): Shared,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<(Extension<Noted>, Json<Value>), Failure> {
    let edge = alive(&edge)?;
    let asked: Narrowing = read_body(&body)?;
    let contexts = Contexts::new(contexts_of(&edge.host.policy(), asked.contexts)?);
    let token = narrow_token(&edge, &id, &contexts).await?;
    let mut answer = shown(&token, edge.host.clock().unix_ms());
    if let Some(shown) = answer.as_object_mut() {
        shown.insert("v".to_owned(), 1.into());
    }
    let names = contexts.names().join(",");
    let noted = format!("token {id} narrowed by [{names}]");
    Ok((Extension(Noted(noted)), Json(answer)))
}

/// Narrows a token on every path that it proves its principal on, at once and for good.
pub(super) async fn narrow_token(
    edge: &Edge,
    id: &str,
    contexts: &Contexts,
) -> Result<Arc<Issued>, Failure> {
    let tokens = Arc::clone(tokens(edge)?);
    let narrowed = {
        let (tokens, id, contexts) = (Arc::clone(&tokens), id.to_owned(), contexts.clone());
        // It is written to a file before it counts.
        tokio::task::spawn_blocking(move || tokens.narrow(&id, &contexts)).await
    };
    let narrowed = narrowed.map_err(|_| broken())?;
    let token = narrowed.map_err(|error| Failure::state(&error))?;
    let token = token.ok_or_else(|| unknown(&tokens, id))?;
    // Every decision asks the policy, so that sessions, streams, queued and brokered calls of the
    // token are narrower from here on.
    edge.host.narrow_credentials(tokens.narrowings());
    let names = contexts.names().join(",");
    tracing::info!(token = %token.id(), contexts = %names, "token narrowed");
    Ok(token)
}

async fn take_away(edge: &Edge, which: &str, why: End) -> Result<Json<Value>, Failure> {
    let tokens = Arc::clone(tokens(edge)?);
    let revoked = tokens.revoke(which);
    if revoked.is_empty() {
        return Err(unknown(&tokens, which));
    }
    // First of all nobody uses it any more; that this lasts comes after.
    edge.dismiss(&revoked);
    for token in &revoked {
        let principal = &token.principal.name;
        tracing::info!(token = %token.id(), %principal, ?why, "token revoked");
    }
    let saved = tokio::task::spawn_blocking(move || tokens.save()).await;
    saved.map_err(|_| broken())?.map_err(|error| {
        let why = Failure::state(&error);
        why.because("revoked for now, but it would count again after a restart")
    })?;
    let mut withdrawn = 0;
    // They were accepted while the token was good; a person says now that it is not.
    let taken_back = revoked.iter().filter(|_| why == End::Revoked);
    for token in taken_back {
        let dead = edge.host.outbox().withdraw_of_credential(token.id()).await;
        withdrawn += dead.map_err(|error| {
            let why = outbox::failure(&error);
            why.because("revoked, but not all of its queued calls are withdrawn")
        })?;
    }
    let now = edge.host.clock().unix_ms();
    let shown: Vec<_> = revoked.iter().map(|token| shown(token, now)).collect();
    Ok(Json(
        json!({"v": 1, "revoked": shown, "withdrawn": withdrawn}),
    ))
}

/// Returns how many tokens should be replaced soon, for `status`.
pub(super) fn count_ending(edge: &Edge) -> usize {
    let now = edge.host.clock().unix_ms();
    let all = edge.door.tokens().map(|tokens| tokens.all());
    let ending = all.iter().flatten().filter(|token| token.ends_soon(now));
    ending.count()
}

fn tokens(edge: &Edge) -> Result<&Arc<Tokens>, Failure> {
    edge.door.tokens().ok_or_else(|| {
        let message = "this gateway keeps no tokens";
        Failure::plain(StatusCode::CONFLICT, "no_tokens", message)
    })
}

fn broken() -> Failure {
    let message = "the request was given up; look at the log of the gateway";
    Failure::plain(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
}

fn unknown(tokens: &Tokens, which: &str) -> Failure {
    let all = tokens.all();
    let names = all.iter().map(|token| Arc::clone(&token.principal.name));
    let mut near = nearest(which, names);
    near.dedup();
    let message = format!("no token has the id `{which}`, and no principal of that name has one");
    Failure::named(StatusCode::NOT_FOUND, "token_not_found", &message, near)
}

/// Judges what is asked for by the policy in force.
fn wanted(policy: &Policy, lifetime: TokenLifetime, asked: Asked) -> Result<Wanted, Failure> {
    let refused =
        |code, message: &str| Failure::plain(StatusCode::UNPROCESSABLE_ENTITY, code, message);
    if asked.run.as_deref().is_some_and(|run| !is_run(run)) {
        let message = "a run is named by 1 to 32 of a-z, 0-9, `.`, `_` and `-`, beginning with a \
                       letter or a digit";
        return Err(refused("invalid_run", message));
    }
    if let Err(message) = fits_its_kind(&asked) {
        return Err(refused("invalid_kind", message));
    }
    let (principal, role) = match (&asked.principal, &asked.run, &asked.role) {
        (None, Some(run), None) => (owners_agent(run), Role::OwnersAgent),
        (Some(name), _, role) if is_principal(name) => (
            name.as_str().into(),
            match asked.kind {
                TokenKind::Agent => role_of(policy, name, role.as_deref())?,
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
    let life = read_life(&asked, lifetime).map_err(|message| refused("invalid_expiry", message))?;
    Ok(Wanted {
        principal,
        kind: asked.kind,
        role,
        contexts: narrowing_of(policy, asked.contexts, asked.profile.as_deref())?,
        life,
        run: asked.run.map(Into::into),
    })
}

/// Returns what a token is made narrow by: its contexts, and a profile, which is one more of them.
fn narrowing_of(
    policy: &Policy,
    contexts: Vec<String>,
    profile: Option<&str>,
) -> Result<Contexts, Failure> {
    let contexts = Contexts::new(contexts_of(policy, contexts)?);
    match profile {
        None => Ok(contexts),
        Some(profile) if policy.has_profile(profile) => {
            Ok(contexts.and(&Contexts::new([profile_context(profile)])))
        }
        Some(profile) => {
            let message = format!("no profile `{profile}` is defined");
            let near = nearest(profile, policy.profiles());
            let status = StatusCode::UNPROCESSABLE_ENTITY;
            Err(Failure::named(status, "profile_not_found", &message, near))
        }
    }
}

/// Returns how long a token lives: as its maker says, else as the config says.
fn read_life(asked: &Asked, lifetime: TokenLifetime) -> Result<Option<Duration>, &'static str> {
    match (asked.expires_s.map(Duration::from_secs), asked.expires) {
        (None, None) => Ok(lifetime.duration()),
        (None, Some(Never::Never)) => Ok(None),
        (Some(_), Some(Never::Never)) => Err("either expires_s or expires can be given"),
        (Some(life), None) if life.is_zero() || life > LIFE_MAX => {
            Err("expires_s is the seconds from now, at least 1 and at most ten years")
        }
        (Some(life), None) => Ok(Some(life)),
    }
}

/// Whether no more is asked for than a token of that kind can say.
fn fits_its_kind(asked: &Asked) -> Result<(), &'static str> {
    match asked.kind {
        TokenKind::Agent => Ok(()),
        TokenKind::Executor | TokenKind::Auditor | TokenKind::Viewer => {
            let is_narrow = asked.profile.is_some() || !asked.contexts.is_empty();
            let is_plain = asked.role.is_none() && asked.run.is_none() && !is_narrow;
            is_plain.then_some(()).ok_or(
                "only agents call tools: another token has neither a role nor contexts nor a \
                 profile nor a run",
            )
        }
    }
}

/// Returns the role a token is made with; none where the policy gives the principal one, or lets
/// those without a role do everything.
fn role_of(policy: &Policy, principal: &str, role: Option<&str>) -> Result<Role, Failure> {
    let unprocessable = StatusCode::UNPROCESSABLE_ENTITY;
    let assigned = policy.assigned(principal);
    let Some(role) = role else {
        if assigned.is_some() || policy.otherwise() == Otherwise::Allow {
            return Ok(Role::None);
        }
        let message = format!("a role is needed: the config gives none to principal `{principal}`");
        let roles = policy.roles();
        let near = roles.iter().take(super::SUGGESTIONS_MAX);
        let near = near.map(|role| role.as_ref().to_owned()).collect();
        return Err(Failure::named(
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
        return Err(Failure::named(
            unprocessable,
            "role_assigned",
            &message,
            near,
        ));
    }
    let named = !role.is_empty() && role.len() <= NAME_BYTES_MAX;
    // Where the default is to allow, a role that is not defined may do everything, and says who.
    if !named || (!policy.has_role(role) && policy.otherwise() == Otherwise::Deny) {
        let message = format!("no role `{role}` is defined");
        let near = nearest(role, policy.roles());
        return Err(Failure::named(
            unprocessable,
            "role_not_found",
            &message,
            near,
        ));
    }
    Ok(Role::Named(role.into()))
}

fn shown(token: &Issued, now_ms: u64) -> Value {
    let state = match (token.is_expired(now_ms), token.is_over()) {
        (true, _) => "expired",
        (false, true) => "revoked",
        (false, false) => "active",
    };
    json!({
        "id": token.id(),
        "principal": token.principal.name,
        "kind": token.kind,
        "role": token.role(),
        "acts_for_owner": token.principal.role == Role::OwnersAgent,
        "run": token.run,
        "contexts": token.principal.contexts.names(),
        "narrowed": token.narrowed().names(),
        "created_at_ms": token.created_ms,
        "expires_at_ms": token.expires_ms,
        "ends_soon": token.ends_soon(now_ms),
        "state": state,
    })
}
