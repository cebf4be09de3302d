//! `/readyz`: whether the gateway serves, and which of its servers do not.

use std::collections::BTreeMap;
use std::sync::Arc;

use bowline_journal::Health;
use http::StatusCode;
use serde_json::json;

use super::Edge;
use super::body::{self, Answer};

/// How much of the answer the caller may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Whether calls are taken: anybody may ask that.
    Word,
    /// Which servers fail, for who may read the API.
    Servers,
}

/// Says whether calls are taken. A server that fails is named to who may read the API, but takes
/// the gateway out of nobody's rotation: the others still serve. Why it fails is for the owner to
/// read in status.
pub fn answer(edge: &Edge, detail: Detail) -> Answer {
    let is_closing = edge.host.is_closing();
    if detail == Detail::Word {
        let (status, word) = match is_closing {
            true => (StatusCode::SERVICE_UNAVAILABLE, "stopping"),
            false => (StatusCode::OK, "ok"),
        };
        return body::json(status, json!({"status": word}).to_string());
    }
    if is_closing {
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
    let outbox = edge.host.outbox();
    let is_stopped = !outbox.journal().stopped_lanes().is_empty();
    let journal = match outbox.health() {
        Health::Good => is_stopped.then_some("lane_stopped"),
        Health::Full => Some("full"),
        Health::Poisoned(_) => Some("poisoned"),
        Health::Replaced => Some("replaced"),
    };
    let audit = edge.about.audit.is_degraded().then_some("degraded");
    let is_well = servers.is_empty() && journal.is_none() && audit.is_none();
    let word = if is_well { "ok" } else { "degraded" };
    let mut body = json!({"status": word, "servers": servers});
    for (what, how) in [("journal", journal), ("audit", audit)] {
        if let (Some(how), Some(body)) = (how, body.as_object_mut()) {
            body.insert(what.to_owned(), how.into());
        }
    }
    body::json(StatusCode::OK, body.to_string())
}
