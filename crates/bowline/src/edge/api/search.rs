//! Looks for tools, and says what a list of them costs who reads it.

use axum::Json;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use bowline_core::call::{Principal, Role, Scope};
use bowline_host::expose::{FOUND_MAX, Found, tokens};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Failure, Shared, alive};

/// Tools that are returned where nobody says how many.
const FOUND: usize = 10;

/// The query of `GET /api/v1/search`.
#[derive(Debug, Deserialize)]
pub(super) struct Asked {
    q: String,
    limit: Option<usize>,
}

/// The answer to it.
#[derive(Debug, Serialize)]
pub(super) struct Answer {
    v: u8,
    tools: Vec<Found>,
}

/// `GET /api/v1/search`
pub(super) async fn search(
    State(edge): Shared,
    Query(asked): Query<Asked>,
) -> Result<Json<Answer>, Failure> {
    let edge = alive(&edge)?;
    if asked.q.trim().is_empty() {
        let message = "a search needs words: what the tool should do";
        return Err(Failure::plain(StatusCode::BAD_REQUEST, "invalid", message));
    }
    let owner = Principal::new("owner", Role::Owner);
    let found_max = asked.limit.unwrap_or(FOUND).clamp(1, FOUND_MAX);
    let tools = edge.host.find_tools(&owner, &asked.q, found_max).await;
    Ok(Json(Answer { v: 1, tools }))
}

/// `GET /api/v1/exposure`: what the owner is shown on `/mcp`, and what there is.
pub(super) async fn exposure(State(edge): Shared) -> Result<Json<Value>, Failure> {
    let edge = alive(&edge)?;
    let owner = Principal::new("owner", Role::Owner);
    edge.host.settled().await;
    edge.host.shown(&Scope::All).await;
    let shown = edge.host.exposed(&owner, &Scope::All);
    Ok(Json(json!({
        "v": 1,
        "expose": shown.expose.as_str(),
        "tools": shown.tools,
        "tokens": tokens(shown.bytes),
        "listed": shown.listed,
        "listed_tokens": tokens(shown.listed_bytes),
    })))
}
