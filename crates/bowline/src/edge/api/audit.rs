//! `/api/v1/audit`: what was called and refused, and whether the trail of it is whole.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use bowline_host::audit::Rings;
use bowline_journal::audit::{
    AuditError, Cursor, ExpectedHeads, Filter, Kind, Merged, RowText, Verdicts,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{Failure, Shared, alive};
use crate::edge::Edge;

/// Rows in one answer, unless fewer are asked for.
const ROWS_MAX: usize = 2_000;

/// How long a follower may wait for a row.
const WAIT_MAX: Duration = Duration::from_secs(25);

/// The query of `GET /api/v1/audit`.
#[derive(Debug, Deserialize)]
pub(super) struct RowsQuery {
    /// Rows after these; the newest where absent.
    after: Option<String>,
    limit: Option<usize>,
    #[serde(default)]
    wait_ms: u64,
    principal: Option<String>,
    server: Option<String>,
    kind: Option<String>,
    from_ms: Option<u64>,
    to_ms: Option<u64>,
}

/// The answer of `GET /api/v1/audit`.
#[derive(Debug, Serialize)]
pub(super) struct Rows {
    v: u32,
    rows: Vec<Box<RawValue>>,
    next: String,
}

/// The query of `GET /api/v1/audit/verify`.
#[derive(Debug, Deserialize)]
pub(super) struct VerifyQuery {
    expect: Option<String>,
    expect_denials: Option<String>,
}

/// `GET /api/v1/audit`
pub(super) async fn rows(
    State(edge): Shared,
    Query(query): Query<RowsQuery>,
) -> Result<Json<Rows>, Failure> {
    let edge = alive(&edge)?;
    let trail = trail(&edge)?;
    let limit = query.limit.unwrap_or(ROWS_MAX).clamp(1, ROWS_MAX);
    let wait = Duration::from_millis(query.wait_ms).min(WAIT_MAX);
    let after = query.after.as_deref().map(str::parse::<Cursor>);
    let mut after = after
        .transpose()
        .map_err(|_| invalid("`after` is what `next` said before"))?;
    let filter = Arc::new(filter(query)?);
    let mut heads = (trail.calls().heads(), trail.denials().heads());
    // A row is written a moment after its call was answered.
    trail.flush().await;
    let end = tokio::time::sleep(wait);
    let mut end = std::pin::pin!(end);
    let page = loop {
        heads.0.borrow_and_update();
        heads.1.borrow_and_update();
        let page = read(&trail, &filter, after, limit).await?;
        if !page.rows.is_empty() || after.is_none() || wait.is_zero() {
            break page;
        }
        after = Some(page.next);
        tokio::select! {
            () = end.as_mut() => break page,
            changed = heads.0.changed() => if changed.is_err() {
                break page;
            },
            changed = heads.1.changed() => if changed.is_err() {
                break page;
            },
        }
    };
    let rows = page.rows.iter().filter_map(shown).collect();
    let next = page.next.to_string();
    Ok(Json(Rows { v: 1, rows, next }))
}

/// `GET` and `POST /api/v1/audit/verify`
pub(super) async fn verify(
    State(edge): Shared,
    Query(query): Query<VerifyQuery>,
) -> Result<Json<Value>, Failure> {
    let edge = alive(&edge)?;
    let trail = trail(&edge)?;
    let expect = ExpectedHeads::parse(query.expect.as_deref(), query.expect_denials.as_deref());
    let expect = expect.map_err(|error| invalid(&error.to_string()))?;
    trail.flush().await;
    let verdicts = blocking(move || Verdicts::verify(trail.calls().directory(), expect)).await?;
    Ok(Json(crate::audit::verdicts(&verdicts)))
}

fn trail(edge: &Edge) -> Result<Arc<Rings>, Failure> {
    let trail = edge.about.audit.trail().map(Arc::clone);
    trail.ok_or_else(|| {
        let message = "this gateway keeps no audit trail";
        let mut failure = Failure::plain(StatusCode::CONFLICT, "no_audit", message);
        failure.add("hint", "set `calls = true` under [audit]".into());
        failure
    })
}

fn filter(query: RowsQuery) -> Result<Filter, Failure> {
    let kind = query.kind.as_deref().map(|word| {
        let known = || Kind::ALL.map(Kind::as_str).join(", ");
        Kind::named(word).ok_or_else(|| invalid(&format!("a kind is one of {}", known())))
    });
    Ok(Filter {
        principal: query.principal,
        server: query.server,
        kind: kind.transpose()?,
        from_ms: query.from_ms,
        to_ms: query.to_ms,
    })
}

async fn read(
    trail: &Arc<Rings>,
    filter: &Arc<Filter>,
    after: Option<Cursor>,
    limit: usize,
) -> Result<Merged, Failure> {
    let (trail, filter) = (Arc::clone(trail), Arc::clone(filter));
    blocking(move || match after {
        Some(after) => Merged::page(trail.calls().directory(), &filter, after, limit),
        None => Merged::newest(trail.calls().directory(), &filter, limit),
    })
    .await
}

/// Reads files where that holds nobody up.
async fn blocking<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, AuditError> + Send + 'static,
) -> Result<T, Failure> {
    let read = tokio::task::spawn_blocking(read).await;
    let failed = |message: &str| {
        Failure::plain(
            StatusCode::INTERNAL_SERVER_ERROR,
            "audit_unreadable",
            message,
        )
    };
    let read = read.map_err(|_| failed("the request was given up"))?;
    read.map_err(|error| failed(&error.to_string()))
}

/// Returns a row as it is kept, so that its hash can be counted again.
fn shown(row: &RowText) -> Option<Box<RawValue>> {
    let unreadable = || json!({"seq": row.seq, "unreadable": true}).to_string();
    let line = RawValue::from_string(row.line());
    line.or_else(|_| RawValue::from_string(unreadable())).ok()
}

fn invalid(message: &str) -> Failure {
    Failure::plain(StatusCode::BAD_REQUEST, "invalid", message)
}
