//! Calls that wait for their server, and dead letters: what there is, and orders to one of them.

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use bowline_host::outbox::{LETTERS_MAX, Letter, LetterState, OutboxError, OutboxHandle};
use bowline_journal::{Health, JournalError};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Failure, Shared, alive, nearest};
use crate::edge::Edge;

/// Calls that one look shows unless it asks for another number.
const SHOWN: usize = 200;

/// Pages that one look goes through at most while it looks for what it was asked for.
const PAGES_MAX: usize = 64;

/// The query of `GET /api/v1/outbox`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    server: Option<String>,
    state: Option<String>,
    after: Option<u64>,
    limit: Option<usize>,
}

/// The answer of `GET /api/v1/outbox`.
#[derive(Debug, Serialize)]
pub(super) struct Listed {
    v: u8,
    now_ms: u64,
    entries: Vec<Letter>,
    /// After which to go on; absent where these were all.
    next: Option<u64>,
}

/// The answer where it is about one call.
#[derive(Debug, Serialize)]
pub(super) struct One {
    v: u8,
    now_ms: u64,
    entry: Letter,
}

/// `GET /api/v1/outbox[?server=NAME&state=queued|sending|dead&after=ID&limit=N]`
pub(super) async fn list(
    State(edge): Shared,
    Query(asked): Query<Asked>,
) -> Result<Json<Listed>, Failure> {
    let edge = alive(&edge)?;
    let state = asked.state.as_deref().map(state).transpose()?;
    let limit = asked.limit.unwrap_or(SHOWN).clamp(1, LETTERS_MAX);
    let wanted = |letter: &Letter| {
        let here = asked.server.as_deref();
        here.is_none_or(|server| *letter.server == *server)
            && state.is_none_or(|state| letter.state == state)
    };
    let outbox = edge.host.outbox();
    let (mut entries, mut after, mut more) = (Vec::new(), asked.after, true);
    for _ in 0..PAGES_MAX {
        if !more || entries.len() >= limit {
            break;
        }
        let page = outbox
            .ls(after, LETTERS_MAX)
            .await
            .map_err(|error| failure(&error))?;
        more = page.len() >= LETTERS_MAX;
        for letter in page {
            if entries.len() >= limit {
                more = true;
                break;
            }
            after = letter.id.parse().ok().or(after);
            entries.extend(Some(letter).filter(wanted));
        }
    }
    if let Some(server) = asked.server.as_deref().filter(|_| entries.is_empty()) {
        known(&edge, server)?;
    }
    Ok(Json(Listed {
        v: 1,
        now_ms: edge.host.clock().unix_ms(),
        entries,
        next: after.filter(|_| more),
    }))
}

/// Lanes that status names at most of those that are stopped by damage.
const STOPPED_SHOWN_MAX: usize = 16;

/// What status says of the journal.
pub(super) fn journal(edge: &Edge) -> Value {
    let outbox = edge.host.outbox();
    let stopped = outbox.journal().stopped_lanes();
    let lanes = stopped.iter().take(STOPPED_SHOWN_MAX);
    let lanes = lanes.map(|one| json!({"lane": one.lane.as_str(), "reason": one.reason}));
    let lanes: Vec<_> = lanes.collect();
    let (health, reason) = match outbox.health() {
        Health::Good => ("good", None),
        Health::Full => ("full", None),
        Health::Poisoned(reason) => ("poisoned", Some(reason)),
        Health::Replaced => ("replaced", Some(JournalError::Replaced.to_string().into())),
    };
    json!({
        "engine": edge.about.journal, "health": health, "reason": reason,
        "stopped": stopped.len(), "stopped_lanes": lanes,
    })
}

/// What status says of the calls that wait; nothing where the journal cannot be read.
pub(super) async fn counts(edge: &Edge) -> Option<Value> {
    let by_server = edge.host.outbox().stats().await.ok()?;
    let all = by_server.values();
    let queued: u64 = all.clone().map(|one| one.queued).sum();
    let dead: u64 = all.clone().map(|one| one.dead).sum();
    let oldest = all.filter_map(|one| one.oldest_age_ms).max();
    Some(json!({
        "queued": queued, "dead": dead, "oldest_age_ms": oldest, "servers": by_server,
    }))
}

/// A server that is no more may still have calls waiting; one that never was is a mistake.
fn known(edge: &Edge, server: &str) -> Result<(), Failure> {
    let Err(error) = edge.host.server(server) else {
        return Ok(());
    };
    Err(Failure::call(edge, &error, None))
}

fn state(word: &str) -> Result<LetterState, Failure> {
    let all = [LetterState::Queued, LetterState::Sending, LetterState::Dead];
    all.into_iter()
        .find(|state| state.as_str() == word)
        .ok_or_else(|| {
            let near = nearest(word, all.map(|state| state.as_str().into()));
            let message = "a call of the outbox is queued, sending or dead";
            Failure::named(StatusCode::BAD_REQUEST, "invalid", message, near)
        })
}

/// `GET /api/v1/outbox/{id}`
pub(super) async fn one(State(edge): Shared, Path(id): Path<String>) -> Result<Json<One>, Failure> {
    let edge = alive(&edge)?;
    let entry = edge
        .host
        .outbox()
        .show(&id)
        .await
        .map_err(|error| failure(&error))?;
    Ok(told(&edge, entry))
}

/// `POST /api/v1/outbox/{id}/retry`
pub(super) async fn retry(
    State(edge): Shared,
    Path(id): Path<String>,
) -> Result<Json<One>, Failure> {
    let edge = alive(&edge)?;
    let outbox = edge.host.outbox();
    let entry = waiting(&outbox, &id).await?;
    outbox.retry(&id).await.map_err(|error| failure(&error))?;
    // Sent at once it may be over by now; then what it was is as good an answer.
    Ok(told(&edge, outbox.show(&id).await.unwrap_or(entry)))
}

/// `DELETE /api/v1/outbox/{id}`; the answer is all that there was of it.
pub(super) async fn drop_one(
    State(edge): Shared,
    Path(id): Path<String>,
) -> Result<Json<One>, Failure> {
    let edge = alive(&edge)?;
    let outbox = edge.host.outbox();
    let entry = waiting(&outbox, &id).await?;
    outbox
        .drop_letter(&id)
        .await
        .map_err(|error| failure(&error))?;
    tracing::info!(id, server = %entry.server, tool = %entry.tool, "a queued write was dropped");
    Ok(told(&edge, entry))
}

/// Returns a call that is not over.
async fn waiting(outbox: &OutboxHandle, id: &str) -> Result<Letter, Failure> {
    let entry = outbox.show(id).await.map_err(|error| failure(&error))?;
    match entry.state {
        LetterState::Delivered => Err(failure(&OutboxError::Unknown { id: id.into() })),
        LetterState::Queued | LetterState::Sending | LetterState::Dead => Ok(entry),
    }
}

fn told(edge: &Edge, entry: Letter) -> Json<One> {
    Json(One {
        v: 1,
        now_ms: edge.host.clock().unix_ms(),
        entry,
    })
}

pub(super) fn failure(error: &OutboxError) -> Failure {
    let (status, code) = match error {
        OutboxError::Unknown { .. } => (StatusCode::NOT_FOUND, "not_queued"),
        OutboxError::Sending { .. } => (StatusCode::CONFLICT, "sending"),
        OutboxError::Journal(_) => (StatusCode::SERVICE_UNAVAILABLE, "journal"),
    };
    let mut message = error.to_string();
    if let Some(source) = std::error::Error::source(error) {
        message = format!("{message}: {source}");
    }
    let mut failure = Failure::plain(status, code, &message);
    if code == "not_queued" {
        failure.add("hint", "list what waits: bowline outbox ls".into());
    }
    failure
}
