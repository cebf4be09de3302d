//! Broker peers, mailboxes and dead letters: listing and dead-letter operations.

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use bowline_api::VERSION;
use bowline_api::broker::{
    BrokerPeer, BrokerResponse, DeadLetterEntry, DeadLetterResponse, DeadLettersQuery,
    DeadLettersResponse, Mailbox,
};
use bowline_api::status::BrokerCounts;
use bowline_host::broker::{DeadLetterError, DeadLetterView, MailboxView, PeerView};

use super::{ApiError, EdgeState, upgrade_edge};
use crate::Edge;

/// Default number of dead letters in a response.
const SHOWN_DEFAULT: usize = 200;

/// Maximum number of dead letters in a response.
const SHOWN_MAX: usize = 1_000;

/// Maximum number of pages scanned for matching entries.
const PAGES_MAX: usize = 64;

fn dead_letter(view: &DeadLetterView) -> DeadLetterEntry {
    DeadLetterEntry {
        id: view.number.to_string(),
        message: view.id.as_ref().to_owned(),
        mailbox: view.mailbox.to_string(),
        from: view.from.as_ref().to_owned(),
        kind: view.kind.as_ref().to_owned(),
        reason: view.reason.as_ref().to_owned(),
        attempts: view.attempts,
        stored_ms: view.stored_unix_ms,
        bytes: view.raw.len() as u64,
        letter: None,
    }
}

/// `GET /api/v1/broker`
pub(super) async fn list_peers(State(edge): EdgeState) -> Result<Json<BrokerResponse>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    let hub = &edge.hub;
    let mailboxes = hub
        .mailboxes()
        .await
        .map_err(|error| to_api_error(&error))?;
    Ok(Json(BrokerResponse {
        v: VERSION,
        now_ms: edge.host.clock().unix_ms(),
        peers: hub.peers().iter().map(peer_entry).collect(),
        mailboxes: mailboxes.iter().map(mailbox_entry).collect(),
    }))
}

/// Broker section of the status response.
pub(super) fn status_counts(edge: &Edge) -> BrokerCounts {
    let peers = edge.hub.peers();
    let offered: usize = peers.iter().map(|peer| peer.offers.len()).sum();
    BrokerCounts {
        peers: peers.len() as u64,
        offered: offered as u64,
    }
}

fn peer_entry(view: &PeerView) -> BrokerPeer {
    BrokerPeer {
        mailbox: view.mailbox.to_string(),
        role: view.role.clone(),
        since_ms: view.since_unix_ms,
        subscribed: view.subscribed,
        offers: view.offers.clone(),
        unacked: view.unacked as u64,
        events_dropped: view.events_dropped,
    }
}

fn mailbox_entry(view: &MailboxView) -> Mailbox {
    Mailbox {
        mailbox: view.mailbox.to_string(),
        waiting: view.waiting,
        dead: view.dead,
        oldest_ms: view.oldest_unix_ms,
        subscribed: view.subscribed,
    }
}

/// `GET /api/v1/broker/dead[?mailbox=NAME&after=ID&limit=N]`
pub(super) async fn list_dead(
    State(edge): EdgeState,
    Query(query): Query<DeadLettersQuery>,
) -> Result<Json<DeadLettersResponse>, ApiError> {
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
            letters.extend(Some(&view).filter(|view| is_match(view)).map(dead_letter));
        }
    }
    Ok(Json(DeadLettersResponse {
        v: VERSION,
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
        v: VERSION,
        now_ms: edge.host.clock().unix_ms(),
        letter: DeadLetterEntry {
            letter: serde_json::from_slice(&view.raw).ok(),
            ..dead_letter(view)
        },
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
    let failure = ApiError::new(status, code, &message);
    match error {
        DeadLetterError::Unknown => failure.with_hint("list what is dead: bowline worker mail ls"),
        DeadLetterError::Journal(_) => failure,
    }
}
