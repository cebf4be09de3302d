//! Pins: definitions with unapproved changes, their diffs, and approval.

use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use bowline_core::lint::LintFinding;
use bowline_core::pins::{self as core, DefinitionVersion, Pin, PinKind};
use bowline_host::pins::{AcceptPinsError, PinTarget, ServerPinState};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{ApiError, AuditReason, EdgeState, upgrade_edge};
use crate::edge::Edge;
use crate::file_pins::{diff, parse_hash};
use bowline_core::hex::to_hex;

/// Query of `GET /api/v1/pins`.
#[derive(Debug, Deserialize)]
pub(super) struct PinsQuery {
    server: Option<String>,
}

/// `GET /api/v1/pins`
pub(super) async fn list_pins(
    State(edge): EdgeState,
    Query(query): Query<PinsQuery>,
) -> Result<Json<Value>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    let servers = match &query.server {
        Some(server) => vec![server.as_str().into()],
        None => edge.host.servers(),
    };
    let mut all = Vec::new();
    for server in servers {
        all.push(server_pins(&edge, &server)?);
    }
    Ok(Json(json!({"v": 1, "servers": all})))
}

fn server_pins(edge: &Edge, server: &Arc<str>) -> Result<Value, ApiError> {
    let unknown = |error| ApiError::from_call_error(edge, &error, None);
    let mode = edge.host.server(server).map_err(unknown)?.spec().pin;
    let ServerPinState { pins, trouble, .. } = edge.host.pins(server).map_err(unknown)?;
    let pins_of_kind = |kind| -> Vec<_> {
        let entries = pins.iter(kind);
        entries
            .map(|(name, pin)| pin_json(kind, name, pin))
            .collect()
    };
    let error = trouble.map(|trouble| {
        json!({
            "state": trouble.as_str(),
            "message": trouble.reason(),
            "hint": format!("after a look at its tools: bowline pin accept {server}"),
        })
    });
    Ok(json!({
        "server": server,
        "pin": mode.as_str(),
        "error": error,
        "tools": pins_of_kind(PinKind::Tool),
        "prompts": pins_of_kind(PinKind::Prompt),
        "resources": pins_of_kind(PinKind::Resource),
        "templates": pins_of_kind(PinKind::Template),
        "introduction": pins_of_kind(PinKind::Introduction),
    }))
}

fn pin_json(kind: PinKind, name: &str, pin: &Pin) -> Value {
    let (since_ms, is_reverted) = match &pin.state {
        core::PinState::Changed {
            since_ms, reverted, ..
        } => (Some(*since_ms), *reverted),
        core::PinState::Approved | core::PinState::Quarantined => (None, false),
    };
    let tool = (kind == PinKind::Tool).then_some(name);
    json!({
        "kind": kind.as_str(),
        "name": name,
        "tool": tool,
        "state": pin.state.as_str(),
        "approved": to_hex(&pin.approved.hash),
        "approved_at_ms": pin.approved.at_ms,
        "reviewed": pin.is_reviewed,
        "now": to_hex(&pin.current().hash),
        "since_ms": since_ms,
        "reverted": is_reverted,
        "findings": findings_json(&pin.findings),
    })
}

fn findings_json(findings: &[LintFinding]) -> Vec<Value> {
    let one = |finding: &LintFinding| {
        let LintFinding {
            code,
            location: place,
            detail,
        } = finding;
        json!({"code": code.as_str(), "place": place, "detail": detail})
    };
    findings.iter().map(one).collect()
}

/// Response of `GET /api/v1/pins/{server}/{tool}/diff`; definitions hold the exact bytes of the
/// servers.
#[derive(Serialize)]
pub(super) struct PinDiffResponse {
    v: u8,
    server: String,
    #[serde(flatten)]
    pin: Value,
    changes: Vec<PinChange>,
    /// Approved definition; absent if too long to store.
    old: Option<Box<RawValue>>,
    /// Latest differing definition, or the approved definition if none differed.
    new: Option<Box<RawValue>>,
}

#[derive(Serialize)]
struct PinChange {
    path: String,
    old: Option<Box<RawValue>>,
    new: Option<Box<RawValue>>,
}

/// Query of `GET /api/v1/pins/{server}/{tool}/diff`.
#[derive(Debug, Deserialize)]
pub(super) struct PinDiffQuery {
    /// Default: `tool`.
    kind: Option<String>,
}

/// `GET /api/v1/pins/{server}/{tool}/diff`
pub(super) async fn diff_pin(
    State(edge): EdgeState,
    Path((server, name)): Path<(String, String)>,
    Query(query): Query<PinDiffQuery>,
) -> Result<Json<PinDiffResponse>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    let kind = parse_kind(query.kind.as_deref())?;
    let pin_state = edge.host.pins(&server);
    let pin_state = pin_state.map_err(|error| ApiError::from_call_error(&edge, &error, None))?;
    let Some(pin) = pin_state.pins.get(kind, &name) else {
        return Err(unknown_definition(&server, kind, &name));
    };
    let old = &pin.approved;
    let new = match &pin.state {
        // The last change, even if the server has reverted to the approved definition.
        core::PinState::Changed { seen, .. } => seen,
        core::PinState::Approved | core::PinState::Quarantined => old,
    };
    let changes = match (&old.definition, &new.definition) {
        (Some(old), Some(new)) => diff::diff_definitions(old, new),
        (None, _) | (_, None) => Vec::new(),
    };
    let changes = changes.into_iter().map(|change| PinChange {
        path: change.path,
        old: change.old.and_then(to_raw_json),
        new: change.new.and_then(to_raw_json),
    });
    Ok(Json(PinDiffResponse {
        v: 1,
        pin: pin_json(kind, &name, pin),
        changes: changes.collect(),
        old: definition_json(old),
        new: definition_json(new),
        server,
    }))
}

fn definition_json(version: &DefinitionVersion) -> Option<Box<RawValue>> {
    let text = version.definition.as_ref()?.to_vec();
    to_raw_json(String::from_utf8(text).ok()?)
}

fn to_raw_json(text: String) -> Option<Box<RawValue>> {
    RawValue::from_string(text).ok()
}

/// Body of `POST /api/v1/pins/accept`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AcceptPinsBody {
    server: String,
    tool: Option<String>,
    /// Kind of the definition named by `tool`; default: `tool`.
    kind: Option<String>,
    hash: Option<String>,
}

/// `POST /api/v1/pins/accept`
pub(super) async fn accept_pins(
    State(edge): EdgeState,
    Json(body): Json<AcceptPinsBody>,
) -> Result<(Extension<AuditReason>, Json<Value>), ApiError> {
    let edge = upgrade_edge(&edge)?;
    let hash = match &body.hash {
        Some(text) => Some(parse_hash(text).ok_or_else(invalid_hash)?),
        None => None,
    };
    if (hash.is_some() || body.kind.is_some()) && body.tool.is_none() {
        return Err(invalid_hash());
    }
    let kind = parse_kind(body.kind.as_deref())?;
    let target = body.tool.as_deref().map(|name| PinTarget {
        kind,
        name,
        hash: hash.as_ref(),
    });
    let accepted = edge.host.accept_pins(&body.server, target).await;
    let accepted = accepted
        .map_err(|error| ApiError::from_call_error(&edge, &error, None))?
        .map_err(|error| to_api_error(&body, &error))?;
    let accepted: Vec<_> = accepted
        .iter()
        .map(|one| {
            let tool = (one.kind == PinKind::Tool).then_some(&one.name);
            let (kind, old, new) = (
                one.kind.as_str(),
                to_hex(&one.old_hash),
                to_hex(&one.new_hash),
            );
            json!({"kind": kind, "name": one.name, "tool": tool, "old": old, "new": new})
        })
        .collect();
    let name = body.tool.as_deref().unwrap_or("*");
    let audit_reason = AuditReason(match kind {
        PinKind::Tool => format!("{}.{name}", body.server),
        kind => format!("{}:{}.{name}", kind.as_str(), body.server),
    });
    let response = json!({"v": 1, "server": body.server, "accepted": accepted});
    Ok((Extension(audit_reason), Json(response)))
}

fn invalid_hash() -> ApiError {
    ApiError::new(
        StatusCode::BAD_REQUEST,
        "bad_request",
        "a hash is 64 hexadecimal digits, and goes with a tool, as a kind does",
    )
}

fn parse_kind(word: Option<&str>) -> Result<PinKind, ApiError> {
    let kind = word.map_or(Some(PinKind::Tool), PinKind::parse);
    kind.ok_or_else(|| {
        let message = "a kind is tool, prompt, resource, template or introduction";
        ApiError::new(StatusCode::BAD_REQUEST, "bad_request", message)
    })
}

fn unknown_definition(server: &str, kind: PinKind, name: &str) -> ApiError {
    let message = format!("server `{server}` never had a {} `{name}`", kind.as_str());
    let code = match kind {
        PinKind::Tool | PinKind::Introduction => "tool_not_found",
        PinKind::Prompt => "prompt_not_found",
        PinKind::Resource | PinKind::Template => "resource_not_found",
    };
    ApiError::new(StatusCode::NOT_FOUND, code, &message)
}

fn to_api_error(body: &AcceptPinsBody, error: &AcceptPinsError) -> ApiError {
    let server = &body.server;
    let (status, code, hint) = match error {
        AcceptPinsError::Unknown { kind, tool, .. } => {
            return unknown_definition(server, *kind, tool);
        }
        AcceptPinsError::Other { now } => (
            StatusCode::CONFLICT,
            "pin_changed",
            format!(
                "its hash is {} now; see: bowline pin diff {server}",
                to_hex(now)
            ),
        ),
        AcceptPinsError::Unreadable { .. } => (
            StatusCode::CONFLICT,
            "pins_unreadable",
            format!("after a look at its tools: bowline pin accept {server}"),
        ),
        AcceptPinsError::Unsaved(_) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            "pins_unsaved",
            "nothing was accepted; make room in the state directory and try again".to_owned(),
        ),
    };
    let error = json!({"code": code, "message": error.to_string(), "hint": hint});
    ApiError(status, json!({"error": error}))
}
