//! Pins: which definitions are not as they were approved, what changed, and accepting it.

use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use bowline_core::lint::Finding;
use bowline_core::pins::{self as core, Pin, PinKind, Version};
use bowline_host::pins::{AcceptError, Kept, PinTarget};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{Failure, Noted, Shared, alive};
use crate::edge::Edge;
use crate::pins::{diff, read_hash};
use crate::state::hex;

/// The query of `GET /api/v1/pins`.
#[derive(Debug, Deserialize)]
pub(super) struct PinsQuery {
    server: Option<String>,
}

/// `GET /api/v1/pins`
pub(super) async fn list(
    State(edge): Shared,
    Query(query): Query<PinsQuery>,
) -> Result<Json<Value>, Failure> {
    let edge = alive(&edge)?;
    let servers = match &query.server {
        Some(server) => vec![server.as_str().into()],
        None => edge.host.servers(),
    };
    let mut all = Vec::new();
    for server in servers {
        all.push(of_server(&edge, &server)?);
    }
    Ok(Json(json!({"v": 1, "servers": all})))
}

fn of_server(edge: &Edge, server: &Arc<str>) -> Result<Value, Failure> {
    let unknown = |error| Failure::call(edge, &error, None);
    let mode = edge.host.server(server).map_err(unknown)?.spec().pin;
    let Kept { pins, trouble, .. } = edge.host.pins(server).map_err(unknown)?;
    let of = |kind| -> Vec<_> {
        let entries = pins.iter(kind);
        entries.map(|(name, pin)| entry(kind, name, pin)).collect()
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
        "tools": of(PinKind::Tool),
        "prompts": of(PinKind::Prompt),
        "resources": of(PinKind::Resource),
        "templates": of(PinKind::Template),
        "introduction": of(PinKind::Introduction),
    }))
}

fn entry(kind: PinKind, name: &str, pin: &Pin) -> Value {
    let (since_ms, is_reverted) = match &pin.state {
        core::State::Changed {
            since_ms, reverted, ..
        } => (Some(*since_ms), *reverted),
        core::State::Approved | core::State::Quarantined => (None, false),
    };
    let tool = (kind == PinKind::Tool).then_some(name);
    json!({
        "kind": kind.as_str(),
        "name": name,
        "tool": tool,
        "state": pin.state.as_str(),
        "approved": hex(&pin.approved.hash),
        "approved_at_ms": pin.approved.at_ms,
        "reviewed": pin.reviewed,
        "now": hex(&pin.now().hash),
        "since_ms": since_ms,
        "reverted": is_reverted,
        "findings": findings(&pin.findings),
    })
}

fn findings(findings: &[Finding]) -> Vec<Value> {
    let one = |finding: &Finding| {
        let Finding {
            code,
            place,
            detail,
        } = finding;
        json!({"code": code.as_str(), "place": place, "detail": detail})
    };
    findings.iter().map(one).collect()
}

/// The answer of `GET /api/v1/pins/{server}/{tool}/diff`; definitions stay the bytes their servers
/// wrote.
#[derive(Serialize)]
pub(super) struct DiffAnswer {
    v: u8,
    server: String,
    #[serde(flatten)]
    pin: Value,
    changes: Vec<Change>,
    /// The definition that was approved; absent where it was too long to be kept.
    old: Option<Box<RawValue>>,
    /// The one that it was when it last was another, or the same.
    new: Option<Box<RawValue>>,
}

#[derive(Serialize)]
struct Change {
    path: String,
    old: Option<Box<RawValue>>,
    new: Option<Box<RawValue>>,
}

/// The query of `GET /api/v1/pins/{server}/{tool}/diff`.
#[derive(Debug, Deserialize)]
pub(super) struct DiffQuery {
    /// `tool` where it is absent.
    kind: Option<String>,
}

/// `GET /api/v1/pins/{server}/{tool}/diff`
pub(super) async fn diff(
    State(edge): Shared,
    Path((server, name)): Path<(String, String)>,
    Query(query): Query<DiffQuery>,
) -> Result<Json<DiffAnswer>, Failure> {
    let edge = alive(&edge)?;
    let kind = read_kind(query.kind.as_deref())?;
    let kept = edge.host.pins(&server);
    let kept = kept.map_err(|error| Failure::call(&edge, &error, None))?;
    let Some(pin) = kept.pins.get(kind, &name) else {
        return Err(never_seen(&server, kind, &name));
    };
    let old = &pin.approved;
    let new = match &pin.state {
        // What it was, also where it is what was approved again.
        core::State::Changed { seen, .. } => seen,
        core::State::Approved | core::State::Quarantined => old,
    };
    let changes = match (&old.definition, &new.definition) {
        (Some(old), Some(new)) => diff::diff(old, new),
        (None, _) | (_, None) => Vec::new(),
    };
    let changes = changes.into_iter().map(|change| Change {
        path: change.path,
        old: change.old.and_then(raw),
        new: change.new.and_then(raw),
    });
    Ok(Json(DiffAnswer {
        v: 1,
        pin: entry(kind, &name, pin),
        changes: changes.collect(),
        old: definition(old),
        new: definition(new),
        server,
    }))
}

fn definition(version: &Version) -> Option<Box<RawValue>> {
    let text = version.definition.as_ref()?.to_vec();
    raw(String::from_utf8(text).ok()?)
}

fn raw(text: String) -> Option<Box<RawValue>> {
    RawValue::from_string(text).ok()
}

/// The body of `POST /api/v1/pins/accept`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AcceptBody {
    server: String,
    tool: Option<String>,
    /// What the member `tool` names; a tool where it is absent.
    kind: Option<String>,
    hash: Option<String>,
}

/// `POST /api/v1/pins/accept`
pub(super) async fn accept(
    State(edge): Shared,
    Json(body): Json<AcceptBody>,
) -> Result<(Extension<Noted>, Json<Value>), Failure> {
    let edge = alive(&edge)?;
    let hash = match &body.hash {
        Some(text) => Some(read_hash(text).ok_or_else(bad_hash)?),
        None => None,
    };
    if (hash.is_some() || body.kind.is_some()) && body.tool.is_none() {
        return Err(bad_hash());
    }
    let kind = read_kind(body.kind.as_deref())?;
    let target = body.tool.as_deref().map(|name| PinTarget {
        kind,
        name,
        hash: hash.as_ref(),
    });
    let accepted = edge.host.accept_pins(&body.server, target).await;
    let accepted = accepted
        .map_err(|error| Failure::call(&edge, &error, None))?
        .map_err(|error| refused(&body, &error))?;
    let accepted: Vec<_> = accepted
        .iter()
        .map(|one| {
            let tool = (one.kind == PinKind::Tool).then_some(&one.tool);
            let (kind, old, new) = (one.kind.as_str(), hex(&one.old), hex(&one.new));
            json!({"kind": kind, "name": one.tool, "tool": tool, "old": old, "new": new})
        })
        .collect();
    let name = body.tool.as_deref().unwrap_or("*");
    let noted = Noted(match kind {
        PinKind::Tool => format!("{}.{name}", body.server),
        kind => format!("{}:{}.{name}", kind.as_str(), body.server),
    });
    let answer = json!({"v": 1, "server": body.server, "accepted": accepted});
    Ok((Extension(noted), Json(answer)))
}

fn bad_hash() -> Failure {
    Failure::plain(
        StatusCode::BAD_REQUEST,
        "bad_request",
        "a hash is 64 hexadecimal digits, and goes with a tool, as a kind does",
    )
}

fn read_kind(word: Option<&str>) -> Result<PinKind, Failure> {
    let kind = word.map_or(Some(PinKind::Tool), PinKind::read);
    kind.ok_or_else(|| {
        let message = "a kind is tool, prompt, resource, template or introduction";
        Failure::plain(StatusCode::BAD_REQUEST, "bad_request", message)
    })
}

fn never_seen(server: &str, kind: PinKind, name: &str) -> Failure {
    let message = format!("server `{server}` never had a {} `{name}`", kind.as_str());
    let code = match kind {
        PinKind::Tool | PinKind::Introduction => "tool_not_found",
        PinKind::Prompt => "prompt_not_found",
        PinKind::Resource | PinKind::Template => "resource_not_found",
    };
    Failure::plain(StatusCode::NOT_FOUND, code, &message)
}

fn refused(body: &AcceptBody, error: &AcceptError) -> Failure {
    let server = &body.server;
    let (status, code, hint) = match error {
        AcceptError::Unknown { kind, tool, .. } => return never_seen(server, *kind, tool),
        AcceptError::Other { now } => (
            StatusCode::CONFLICT,
            "pin_changed",
            format!(
                "its hash is {} now; see: bowline pin diff {server}",
                hex(now)
            ),
        ),
        AcceptError::Unreadable { .. } => (
            StatusCode::CONFLICT,
            "pins_unreadable",
            format!("after a look at its tools: bowline pin accept {server}"),
        ),
        AcceptError::Unsaved(_) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            "pins_unsaved",
            "nothing was accepted; make room in the state directory and try again".to_owned(),
        ),
    };
    let error = json!({"code": code, "message": error.to_string(), "hint": hint});
    Failure(status, json!({"error": error}))
}
