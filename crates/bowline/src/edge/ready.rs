//! `/readyz`: whether the gateway serves, and which of its servers do not.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::StatusCode;
use serde_json::json;

use super::Edge;
use super::body::{self, Answer};

/// Says whether calls are taken. A server that fails is named, but takes the gateway out of
/// nobody's rotation: the others still serve. Why it fails is for the owner to read in status,
/// since anybody may ask here.
pub fn answer(edge: &Edge) -> Answer {
    if edge.host.is_closing() {
        let body = json!({"status": "stopping", "servers": {}});
        return body::json(StatusCode::SERVICE_UNAVAILABLE, body.to_string());
    }
    let broken = edge.reloader.broken().into_iter();
    let broken = broken.map(|broken| (broken.name, "broken"));
    let status = edge.host.status();
    let failing = status.iter().filter(|server| server.is_degraded());
    let failing = failing.map(|server| {
        let rests = server.active.then_some("resting");
        (Arc::clone(&server.name), rests.unwrap_or(server.state))
    });
    let servers: BTreeMap<_, _> = broken.chain(failing).collect();
    let unaudited = edge.about.audit.is_degraded();
    let word = if servers.is_empty() && !unaudited {
        "ok"
    } else {
        "degraded"
    };
    let mut body = json!({"status": word, "servers": servers});
    if let Some(body) = body.as_object_mut().filter(|_| unaudited) {
        body.insert("audit".to_owned(), "degraded".into());
    }
    body::json(StatusCode::OK, body.to_string())
}
