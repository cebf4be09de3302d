//! Broker peers, mailboxes and dead letters: listing and dead-letter operations.

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use bowline_host::broker::{DeadLetterError, DeadLetterView, MailboxView, PeerView};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{ApiError, EdgeState, upgrade_edge};
use crate::edge::Edge;

/// Default number of dead letters in a response.
const SHOWN_DEFAULT: usize = 200;

/// Maximum number of dead letters in a response.
const SHOWN_MAX: usize = 1_000;

/// Maximum number of pages scanned for matching entries.
const PAGES_MAX: usize = 64;

/// Query of `GET /api/v1/broker/dead`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeadLettersQuery {
    mailbox: Option<String>,
    after: Option<u64>,
    limit: Option<usize>,
}

/// A dead letter in API responses.
#[derive(Debug, Serialize)]
struct DeadLetterEntry {
    id: String,
    /// Message id assigned by the sender.
    message: String,
    mailbox: String,
    from: String,
    kind: String,
    reason: String,
    attempts: u32,
    stored_ms: u64,
    bytes: usize,
    /// Complete message; only in single-entry responses.
    #[serde(skip_serializing_if = "Option::is_none")]
    letter: Option<Box<RawValue>>,
}

impl DeadLetterEntry {
    fn from_view(view: &DeadLetterView) -> Self {
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

    fn with_message(view: &DeadLetterView) -> Self {
        Self {
            letter: serde_json::from_slice(&view.raw).ok(),
            ..Self::from_view(view)
        }
    }
}

/// Response of `GET /api/v1/broker/dead`.
#[derive(Debug, Serialize)]
pub(super) struct DeadLettersPage {
    v: u8,
    now_ms: u64,
    letters: Vec<DeadLetterEntry>,
    /// Cursor for the next page; absent on the last page.
    next: Option<u64>,
}

/// Response about a single dead letter.
#[derive(Debug, Serialize)]
pub(super) struct DeadLetterResponse {
    v: u8,
    now_ms: u64,
    letter: DeadLetterEntry,
}

/// `GET /api/v1/broker`
pub(super) async fn list_peers(State(edge): EdgeState) -> Result<Json<Value>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    let hub = &edge.hub;
    let peers: Vec<_> = hub.peers().iter().map(peer_json).collect();
    let mailboxes = hub
        .mailboxes()
        .await
        .map_err(|error| to_api_error(&error))?;
    let mailboxes: Vec<_> = mailboxes.iter().map(mailbox_json).collect();
    Ok(Json(json!({
        "v": 1,
        "now_ms": edge.host.clock().unix_ms(),
        "peers": peers,
        "mailboxes": mailboxes,
    })))
}

/// Broker section of the status response.
pub(super) fn status_counts(edge: &Edge) -> Value {
    let peers = edge.hub.peers();
    let offered: usize = peers.iter().map(|peer| peer.offers.len()).sum();
    json!({"peers": peers.len(), "offered": offered})
}

fn peer_json(view: &PeerView) -> Value {
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

fn mailbox_json(view: &MailboxView) -> Value {
    json!({
        "mailbox": view.mailbox.as_str(),
        "waiting": view.waiting,
        "dead": view.dead,
        "oldest_ms": view.oldest_unix_ms,
        "subscribed": view.subscribed,
    })
}

/// `GET /api/v1/broker/dead[?mailbox=NAME&after=ID&limit=N]`
pub(super) async fn list_dead(
    State(edge): EdgeState,
    Query(query): Query<DeadLettersQuery>,
) -> Result<Json<DeadLettersPage>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    let hub = &edge.hub;
    let limit = query.limit.unwrap_or(SHOWN_DEFAULT).clamp(1, SHOWN_MAX);
    let is_match = |view: &DeadLetterView| {
        let name = query.mailbox.as_deref();
        name.is_none_or(|name| **view.mailbox.as_str() == *name)
    };
    let (mut letters, mut after, mut more) = (Vec::new(), query.after.unwrap_or_default(), true);
    for _ in 0..PAGES_MAX {
        if !more || letters.len() >= limit {
            break;
        }
        let page = hub.dead_letters(after, SHOWN_MAX).await;
        let page = page.map_err(|error| to_api_error(&error))?;
        more = page.len() >= SHOWN_MAX;
        for view in page {
            if letters.len() >= limit {
                more = true;
                break;
            }
            after = view.number;
            letters.extend(
                Some(&view)
                    .filter(|view| is_match(view))
                    .map(DeadLetterEntry::from_view),
            );
        }
    }
    Ok(Json(DeadLettersPage {
        v: 1,
        now_ms: edge.host.clock().unix_ms(),
        letters,
        next: more.then_some(after),
    }))
}

/// `GET /api/v1/broker/dead/{id}`
pub(super) async fn show_dead(
    State(edge): EdgeState,
    Path(id): Path<String>,
) -> Result<Json<DeadLetterResponse>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    let view = find_dead(&edge, &id).await?;
    Ok(dead_letter_response(&edge, &view))
}

/// `POST /api/v1/broker/dead/{id}/retry`
pub(super) async fn retry_dead(
    State(edge): EdgeState,
    Path(id): Path<String>,
) -> Result<Json<DeadLetterResponse>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    let view = find_dead(&edge, &id).await?;
    let revived = edge.hub.requeue(view.number).await;
    revived.map_err(|error| to_api_error(&error))?;
    Ok(dead_letter_response(&edge, &view))
}

/// `DELETE /api/v1/broker/dead/{id}`; the response holds the dropped message.
pub(super) async fn drop_dead(
    State(edge): EdgeState,
    Path(id): Path<String>,
) -> Result<Json<DeadLetterResponse>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    let view = find_dead(&edge, &id).await?;
    let dropped = edge.hub.discard(view.number).await;
    dropped.map_err(|error| to_api_error(&error))?;
    tracing::info!(id, mailbox = %view.mailbox, from = %view.from, "dead letter dropped");
    Ok(dead_letter_response(&edge, &view))
}

async fn find_dead(edge: &Edge, id: &str) -> Result<DeadLetterView, ApiError> {
    let number = id
        .parse()
        .map_err(|_error| to_api_error(&DeadLetterError::Unknown))?;
    let found = edge.hub.dead_letter(number).await;
    found.map_err(|error| to_api_error(&error))
}

fn dead_letter_response(edge: &Edge, view: &DeadLetterView) -> Json<DeadLetterResponse> {
    Json(DeadLetterResponse {
        v: 1,
        now_ms: edge.host.clock().unix_ms(),
        letter: DeadLetterEntry::with_message(view),
    })
}

fn to_api_error(error: &DeadLetterError) -> ApiError {
    let (status, code) = match error {
        DeadLetterError::Unknown => (StatusCode::NOT_FOUND, "not_dead"),
        DeadLetterError::Journal(_) => (StatusCode::SERVICE_UNAVAILABLE, "journal"),
    };
    let mut message = error.to_string();
    if let Some(source) = std::error::Error::source(error) {
        message = format!("{message}: {source}");
    }
    let mut failure = ApiError::new(status, code, &message);
    if code == "not_dead" {
        failure.add_field("hint", "list what is dead: bowline worker mail ls".into());
    }
    failure
}
