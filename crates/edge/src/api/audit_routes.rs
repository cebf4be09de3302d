//! `/api/v1/audit`: rows of the audit trail, and verification of the hash chain.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use bowline_api::VERSION;
use bowline_api::audit_trail::{AuditQuery, AuditResponse, AuditVerifyQuery, AuditVerifyResponse};
use bowline_host::audit::AuditRings;
use bowline_journal::audit::{
    AuditCursor, AuditError, AuditFilter, AuditRowKind, ExpectedHeads, MergedPage, RingReports,
    RowText,
};
use serde_json::json;
use serde_json::value::RawValue;

use super::{ApiError, EdgeState, upgrade_edge};
use crate::Edge;

/// Default and maximum number of rows in a response.
const ROWS_MAX: usize = 2_000;

/// Maximum wait of a following client for a new row.
const WAIT_MAX: Duration = Duration::from_secs(25);

/// `GET /api/v1/audit`
pub(super) async fn list_rows(
    State(edge): EdgeState,
    Query(query): Query<AuditQuery>,
) -> Result<Json<AuditResponse>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    let trail = audit_trail(&edge)?;
    let limit = query.limit.unwrap_or(ROWS_MAX).clamp(1, ROWS_MAX);
    let wait = Duration::from_millis(query.wait_ms).min(WAIT_MAX);
    let after = query.after.as_deref().map(str::parse::<AuditCursor>);
    let mut after = after
        .transpose()
        .map_err(|_| invalid_query("`after` is what `next` said before"))?;
    let filter = Arc::new(parse_filter(query)?);
    let mut heads = (trail.calls().head_updates(), trail.denials().head_updates());
    // The writer appends a row shortly after the call's response.
    trail.flush().await;
    let end = tokio::time::sleep(wait);
    let mut end = std::pin::pin!(end);
    let page = loop {
        heads.0.borrow_and_update();
        heads.1.borrow_and_update();
        let page = read_page(&trail, &filter, after, limit).await?;
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
    let rows = page.rows.iter().filter_map(row_json).collect();
    let next = page.next.to_string();
    Ok(Json(AuditResponse {
        v: VERSION,
        rows,
        next,
    }))
}

/// `GET` and `POST /api/v1/audit/verify`
pub(super) async fn verify_trail(
    State(edge): EdgeState,
    Query(query): Query<AuditVerifyQuery>,
) -> Result<Json<AuditVerifyResponse>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    let trail = audit_trail(&edge)?;
    let expect = ExpectedHeads::parse(query.expect.as_deref(), query.expect_denials.as_deref());
    let expect = expect.map_err(|error| invalid_query(&error.to_string()))?;
    trail.flush().await;
    let verdicts =
        run_blocking(move || RingReports::verify_rings(trail.calls().directory(), expect)).await?;
    Ok(Json(crate::audit::to_verify_response(&verdicts)))
}

fn audit_trail(edge: &Edge) -> Result<Arc<AuditRings>, ApiError> {
    let trail = edge.info.audit.rings().map(Arc::clone);
    trail.ok_or_else(|| {
        let message = "this gateway keeps no audit trail";
        ApiError::new(StatusCode::CONFLICT, "no_audit", message)
            .with_hint("set `calls = true` under [audit]")
    })
}

fn parse_filter(query: AuditQuery) -> Result<AuditFilter, ApiError> {
    let kind = query.kind.as_deref().map(|word| {
        let kind_names = || AuditRowKind::ALL.map(AuditRowKind::as_str).join(", ");
        AuditRowKind::from_name(word)
            .ok_or_else(|| invalid_query(&format!("a kind is one of {}", kind_names())))
    });
    Ok(AuditFilter {
        principal: query.principal,
        server: query.server,
        kind: kind.transpose()?,
        from_ms: query.from_ms,
        to_ms: query.to_ms,
    })
}

async fn read_page(
    trail: &Arc<AuditRings>,
    filter: &Arc<AuditFilter>,
    after: Option<AuditCursor>,
    limit: usize,
) -> Result<MergedPage, ApiError> {
    let (trail, filter) = (Arc::clone(trail), Arc::clone(filter));
    run_blocking(move || match after {
        Some(after) => MergedPage::read_page(trail.calls().directory(), &filter, after, limit),
        None => MergedPage::read_newest(trail.calls().directory(), &filter, limit),
    })
    .await
}

/// Runs blocking file access off the async threads.
async fn run_blocking<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, AuditError> + Send + 'static,
) -> Result<T, ApiError> {
    let read = tokio::task::spawn_blocking(read).await;
    let failed = |message: &str| {
        ApiError::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "audit_unreadable",
            message,
        )
    };
    let read = read.map_err(|_| failed("the request was given up"))?;
    read.map_err(|error| failed(&error.to_string()))
}

/// Returns the stored text of a row, for recomputing the row's hash.
fn row_json(row: &RowText) -> Option<Box<RawValue>> {
    let unreadable = || json!({"seq": row.seq, "unreadable": true}).to_string();
    let line = RawValue::from_string(row.to_json_line());
    line.or_else(|_| RawValue::from_string(unreadable())).ok()
}

fn invalid_query(message: &str) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, "invalid", message)
}
