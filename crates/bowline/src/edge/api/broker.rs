//! Peers of the broker, their mailboxes, and dead letters: what there is, and orders to one.

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use bowline_host::broker::{HubError, LetterView, MailboxView, PeerView};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{Failure, Shared, alive};
use crate::edge::Edge;

/// Dead letters that one look shows unless it asks for another number.
const SHOWN: usize = 200;

/// Dead letters that one look shows at most.
const SHOWN_MAX: usize = 1_000;

/// Pages that one look goes through at most while it looks for what it was asked for.
const PAGES_MAX: usize = 64;

/// The query of `GET /api/v1/broker/dead`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    mailbox: Option<String>,
    after: Option<u64>,
    limit: Option<usize>,
}

/// A dead letter as it is told.
#[derive(Debug, Serialize)]
struct Letter {
    id: String,
    /// Its own id, as its sender named it.
    message: String,
    mailbox: String,
    from: String,
    kind: String,
    reason: String,
    attempts: u32,
    stored_ms: u64,
    bytes: usize,
    /// The whole message, where it is shown alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    letter: Option<Box<RawValue>>,
}

impl Letter {
    fn of(view: &LetterView) -> Self {
        Self {
            id: view.number.to_string(),
            message: view.id.as_ref().to_owned(),
            mailbox: view.mailbox.to_string(),
            from: view.from.as_ref().to_owned(),
            kind: view.kind.as_ref().to_owned(),
            reason: view.reason.as_ref().to_owned(),
            attempts: view.attempts,
            stored_ms: view.stored_unix_ms,
            bytes: view.raw.len(),
            letter: None,
        }
    }

    fn whole(view: &LetterView) -> Self {
        Self {
            letter: serde_json::from_slice(&view.raw).ok(),
            ..Self::of(view)
        }
    }
}

/// The answer of `GET /api/v1/broker/dead`.
#[derive(Debug, Serialize)]
pub(super) struct Listed {
    v: u8,
    now_ms: u64,
    letters: Vec<Letter>,
    /// After which to go on; absent where these were all.
    next: Option<u64>,
}

/// The answer where it is about one letter.
#[derive(Debug, Serialize)]
pub(super) struct One {
    v: u8,
    now_ms: u64,
    letter: Letter,
}

/// `GET /api/v1/broker`
pub(super) async fn all(State(edge): Shared) -> Result<Json<Value>, Failure> {
    let edge = alive(&edge)?;
    let hub = &edge.hub;
    let peers: Vec<_> = hub.peers().iter().map(peer).collect();
    let mailboxes = hub.mailboxes().await.map_err(|error| failure(&error))?;
    let mailboxes: Vec<_> = mailboxes.iter().map(mailbox).collect();
    Ok(Json(json!({
        "v": 1,
        "now_ms": edge.host.clock().unix_ms(),
        "peers": peers,
        "mailboxes": mailboxes,
    })))
}

/// What status says of the broker.
pub(super) fn counts(edge: &Edge) -> Value {
    let peers = edge.hub.peers();
    let offered: usize = peers.iter().map(|peer| peer.offers.len()).sum();
    json!({"peers": peers.len(), "offered": offered})
}

fn peer(view: &PeerView) -> Value {
    json!({
        "mailbox": view.mailbox.as_str(),
        "role": view.role,
        "since_ms": view.since_unix_ms,
        "subscribed": view.subscribed,
        "offers": view.offers,
        "unacked": view.unacked,
        "events_dropped": view.events_dropped,
    })
}

fn mailbox(view: &MailboxView) -> Value {
    json!({
        "mailbox": view.mailbox.as_str(),
        "waiting": view.waiting,
        "dead": view.dead,
        "oldest_ms": view.oldest_unix_ms,
        "subscribed": view.subscribed,
    })
}

/// `GET /api/v1/broker/dead[?mailbox=NAME&after=ID&limit=N]`
pub(super) async fn dead(
    State(edge): Shared,
    Query(asked): Query<Asked>,
) -> Result<Json<Listed>, Failure> {
    let edge = alive(&edge)?;
    let hub = &edge.hub;
    let limit = asked.limit.unwrap_or(SHOWN).clamp(1, SHOWN_MAX);
    let wanted = |view: &LetterView| {
        let name = asked.mailbox.as_deref();
        name.is_none_or(|name| **view.mailbox.as_str() == *name)
    };
    let (mut letters, mut after, mut more) = (Vec::new(), asked.after.unwrap_or_default(), true);
    for _ in 0..PAGES_MAX {
        if !more || letters.len() >= limit {
            break;
        }
        let page = hub.dead(after, SHOWN_MAX).await;
        let page = page.map_err(|error| failure(&error))?;
        more = page.len() >= SHOWN_MAX;
        for view in page {
            if letters.len() >= limit {
                more = true;
                break;
            }
            after = view.number;
            letters.extend(Some(&view).filter(|view| wanted(view)).map(Letter::of));
        }
    }
    Ok(Json(Listed {
        v: 1,
        now_ms: edge.host.clock().unix_ms(),
        letters,
        next: more.then_some(after),
    }))
}

/// `GET /api/v1/broker/dead/{id}`
pub(super) async fn one(State(edge): Shared, Path(id): Path<String>) -> Result<Json<One>, Failure> {
    let edge = alive(&edge)?;
    let view = find(&edge, &id).await?;
    Ok(told(&edge, &view))
}

/// `POST /api/v1/broker/dead/{id}/retry`
pub(super) async fn retry(
    State(edge): Shared,
    Path(id): Path<String>,
) -> Result<Json<One>, Failure> {
    let edge = alive(&edge)?;
    let view = find(&edge, &id).await?;
    let revived = edge.hub.revive(view.number).await;
    revived.map_err(|error| failure(&error))?;
    Ok(told(&edge, &view))
}

/// `DELETE /api/v1/broker/dead/{id}`; the answer is all that there was of it.
pub(super) async fn drop_one(
    State(edge): Shared,
    Path(id): Path<String>,
) -> Result<Json<One>, Failure> {
    let edge = alive(&edge)?;
    let view = find(&edge, &id).await?;
    let dropped = edge.hub.discard(view.number).await;
    dropped.map_err(|error| failure(&error))?;
    tracing::info!(id, mailbox = %view.mailbox, from = %view.from, "a dead letter was dropped");
    Ok(told(&edge, &view))
}

async fn find(edge: &Edge, id: &str) -> Result<LetterView, Failure> {
    let number = id.parse().map_err(|_error| failure(&HubError::Unknown))?;
    let found = edge.hub.letter(number).await;
    found.map_err(|error| failure(&error))
}

fn told(edge: &Edge, view: &LetterView) -> Json<One> {
    Json(One {
        v: 1,
        now_ms: edge.host.clock().unix_ms(),
        letter: Letter::whole(view),
    })
}

fn failure(error: &HubError) -> Failure {
    let (status, code) = match error {
        HubError::Unknown => (StatusCode::NOT_FOUND, "not_dead"),
        HubError::Journal(_) => (StatusCode::SERVICE_UNAVAILABLE, "journal"),
    };
    let mut message = error.to_string();
    if let Some(source) = std::error::Error::source(error) {
        message = format!("{message}: {source}");
    }
    let mut failure = Failure::plain(status, code, &message);
    if code == "not_dead" {
        failure.add("hint", "list what is dead: bowline worker mail ls".into());
    }
    failure
}
