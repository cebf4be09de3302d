//! `/readyz`: readiness of the gateway and failing servers.

use std::collections::BTreeMap;
use std::sync::Arc;

use bowline_api::Word;
use bowline_api::readiness::ReadyResponse;
use bowline_journal::JournalHealth;
use http::StatusCode;

use super::Edge;
use super::response_body::{self, EdgeResponse};

/// Detail visible to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadinessDetail {
    /// Only whether calls are accepted; for anyone.
    Summary,
    /// Failing servers; for callers with API access.
    Servers,
}

/// Reports whether calls are accepted. A failing server is named to callers with API access but
/// does not make the gateway unready, since the remaining servers work. The status response, for
/// the owner, gives the cause.
pub(crate) fn handle_readyz(edge: &Edge, detail: ReadinessDetail) -> EdgeResponse {
    let is_closing = edge.host.is_closing();
    if detail == ReadinessDetail::Summary || is_closing {
        let servers = (detail == ReadinessDetail::Servers).then(BTreeMap::new);
        let (status, word) = match is_closing {
            true => (StatusCode::SERVICE_UNAVAILABLE, "stopping"),
            false => (StatusCode::OK, "ok"),
        };
        let ready = ReadyResponse {
            status: word.into(),
            servers,
            ..ReadyResponse::default()
        };
        return to_response(status, &ready);
    }
    let broken = edge.reloader.broken_servers().into_iter();
    let broken = broken.map(|broken| (broken.name, Word::from("broken")));
    let status = edge.host.status();
    let failing = status.iter().filter(|server| server.is_degraded());
    let failing = failing.map(|server| {
        let state = match server.active {
            true => "resting".into(),
            false => server.state.clone(),
        };
        (Arc::clone(&server.name), state)
    });
    let servers: BTreeMap<_, _> = broken.chain(failing).collect();
    let outbox = edge.host.outbox();
    let is_stopped = !outbox.journal().stopped_lanes().is_empty();
    let journal = match outbox.health() {
        JournalHealth::Good => is_stopped.then_some("lane_stopped"),
        JournalHealth::DiskFull => Some("full"),
        JournalHealth::Poisoned(_) => Some("poisoned"),
        JournalHealth::Replaced => Some("replaced"),
    };
    let audit = edge.info.audit.is_degraded().then_some("degraded");
    let is_well = servers.is_empty() && journal.is_none() && audit.is_none();
    let word = if is_well { "ok" } else { "degraded" };
    let ready = ReadyResponse {
        status: word.into(),
        servers: Some(servers),
        journal: journal.map(Into::into),
        audit: audit.map(Into::into),
    };
    to_response(StatusCode::OK, &ready)
}

fn to_response(status: StatusCode, ready: &ReadyResponse) -> EdgeResponse {
    let body = serde_json::to_vec(ready).unwrap_or_default();
    response_body::json_response(status, body)
}
