//! Pins: definitions with unapproved changes, their diffs, and approval.

use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use bowline_api::VERSION;
use bowline_api::pins::{
    AcceptedPin, PinAcceptRequest, PinAcceptResponse, PinChange, PinDiffQuery, PinDiffResponse,
    PinEntry, PinFinding, PinsError, PinsQuery, PinsResponse, ServerPins,
};
use bowline_core::lint::LintFinding;
use bowline_core::pins::{self as core, DefinitionVersion, Pin, PinKind};
use bowline_host::pins::{AcceptPinsError, PinTarget, ServerPinState};
use serde_json::value::RawValue;

use super::pin_diff as diff;
use super::{ApiError, AuditReason, EdgeState, upgrade_edge};
use crate::Edge;
use bowline_core::hex::to_hex;
use bowline_core::pins::parse_hash;

/// `GET /api/v1/pins`
pub(super) async fn list_pins(
    State(edge): EdgeState,
    Query(query): Query<PinsQuery>,
) -> Result<Json<PinsResponse>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    let servers = match &query.server {
        Some(server) => vec![server.as_str().into()],
        None => edge.host.servers(),
    };
    let mut all = Vec::new();
    for server in servers {
        all.push(server_pins(&edge, &server)?);
    }
    Ok(Json(PinsResponse {
        v: VERSION,
        servers: all,
    }))
}

fn server_pins(edge: &Edge, server: &Arc<str>) -> Result<ServerPins, ApiError> {
    let unknown = |error| ApiError::from_call_error(edge, &error, None);
    let mode = edge.host.server(server).map_err(unknown)?.spec().pin;
    let ServerPinState { pins, trouble, .. } = edge.host.pins(server).map_err(unknown)?;
    let pins_of_kind = |kind| -> Vec<_> {
        let entries = pins.iter(kind);
        entries
            .map(|(name, pin)| pin_entry(kind, name, pin))
            .collect()
    };
    let error = trouble.map(|trouble| PinsError {
        state: trouble.as_str().into(),
        message: trouble.reason().to_string(),
        hint: format!("after a look at its tools: bowline pin accept {server}"),
    });
    Ok(ServerPins {
        server: server.to_string(),
        pin: mode.as_str().into(),
        error,
        tools: pins_of_kind(PinKind::Tool),
        prompts: pins_of_kind(PinKind::Prompt),
        resources: pins_of_kind(PinKind::Resource),
        templates: pins_of_kind(PinKind::Template),
        introduction: pins_of_kind(PinKind::Introduction),
    })
}

fn pin_entry(kind: PinKind, name: &str, pin: &Pin) -> PinEntry {
    let (since_ms, is_reverted) = match &pin.state {
        core::PinState::Changed {
            since_ms, reverted, ..
        } => (Some(*since_ms), *reverted),
        core::PinState::Approved | core::PinState::Quarantined => (None, false),
    };
    PinEntry {
        kind: kind.as_str().into(),
        name: name.to_owned(),
        tool: (kind == PinKind::Tool).then(|| name.to_owned()),
        state: pin.state.as_str().into(),
        approved: to_hex(&pin.approved.hash),
        approved_at_ms: pin.approved.at_ms,
        reviewed: pin.is_reviewed,
        now: to_hex(&pin.current().hash),
        since_ms,
        reverted: is_reverted,
        findings: pin.findings.iter().map(finding_entry).collect(),
    }
}

fn finding_entry(finding: &LintFinding) -> PinFinding {
    PinFinding {
        code: finding.code.as_str().into(),
        place: finding.location.to_string(),
        detail: finding.detail.to_string(),
    }
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
        v: VERSION,
        pin: pin_entry(kind, &name, pin),
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

/// `POST /api/v1/pins/accept`
pub(super) async fn accept_pins(
    State(edge): EdgeState,
    Json(body): Json<PinAcceptRequest>,
) -> Result<(Extension<AuditReason>, Json<PinAcceptResponse>), ApiError> {
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
    let accepted = accepted.iter().map(|one| AcceptedPin {
        kind: one.kind.as_str().into(),
        name: one.name.to_string(),
        tool: (one.kind == PinKind::Tool).then(|| one.name.to_string()),
        old: to_hex(&one.old_hash),
        new: to_hex(&one.new_hash),
    });
    let accepted = accepted.collect();
    let name = body.tool.as_deref().unwrap_or("*");
    let audit_reason = AuditReason(match kind {
        PinKind::Tool => format!("{}.{name}", body.server),
        kind => format!("{}:{}.{name}", kind.as_str(), body.server),
    });
    let response = PinAcceptResponse {
        v: VERSION,
        server: body.server,
        accepted,
    };
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

fn to_api_error(body: &PinAcceptRequest, error: &AcceptPinsError) -> ApiError {
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
    ApiError::new(status, code, &error.to_string()).with_hint(&hint)
}
