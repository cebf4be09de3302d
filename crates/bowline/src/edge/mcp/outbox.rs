//! `bowline://outbox/{id}`: what became of a queued call, for the principal that made it.

use bowline_core::call::{Principal, Scope};
use bowline_core::error::CallError;
use bowline_host::outbox::{OutboxError, URI};
use bytes::Bytes;
use serde_json::{Value, json};

use super::result;
use crate::edge::session::Session;
use crate::edge::{Edge, errors};

/// Whether a URI is of a queued call. What a server named `outbox` has is written with a scheme
/// behind the slash, and so never with digits alone.
pub(in crate::edge) fn is_ours(uri: &str) -> bool {
    let id = uri.strip_prefix(URI);
    id.is_some_and(|id| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Answers `resources/read`.
pub(in crate::edge) async fn read(
    edge: &Edge,
    (principal, scope): (&Principal, &Scope),
    uri: &str,
    id: &[u8],
) -> Bytes {
    match edge.host.outbox().read(principal, scope, uri).await {
        Ok(Some(text)) => {
            let contents = json!({"uri": uri, "mimeType": "application/json", "text": text});
            result(id, json!({"contents": [contents]}).to_string().as_bytes())
        }
        Ok(None) => errors::answer(id, &unknown(uri)),
        Err(error) => errors::answer(id, &failed(&error)),
    }
}

/// Has a session told when the call is over.
pub(in crate::edge) async fn subscribe(
    edge: &Edge,
    session: &Session,
    uri: &str,
) -> Result<(), CallError> {
    let outbox = edge.host.outbox();
    let asker = session.asker();
    let asked = outbox.subscribe((&asker, &session.scope), session.key, uri);
    match asked.await {
        Ok(true) => Ok(()),
        Ok(false) => Err(unknown(uri)),
        Err(error) => Err(failed(&error)),
    }
}

fn unknown(uri: &str) -> CallError {
    CallError::UnknownResource { uri: uri.into() }
}

fn failed(error: &OutboxError) -> CallError {
    let cause = std::error::Error::source(error);
    CallError::NotStored {
        server: "bowline".into(),
        tool: "outbox".into(),
        reason: cause
            .map_or_else(|| error.to_string(), ToString::to_string)
            .into(),
    }
}

/// Adds to the capabilities of an endpoint what queued calls are read and heard of by, where any
/// call may be queued.
pub(in crate::edge) fn declare(edge: &Edge, scope: &Scope, capabilities: Bytes) -> Bytes {
    let catalog = edge.host.catalog();
    let mut offers = catalog.offers().filter(|offer| match scope {
        Scope::All | Scope::Profile(_) => true,
        Scope::Server(server) => offer.server == *server,
    });
    let queues = offers.any(|offer| offer.tools.iter().any(|tool| tool.route.queue.is_some()));
    if !queues {
        return capabilities;
    }
    let Ok(Value::Object(mut all)) = serde_json::from_slice(&capabilities) else {
        return capabilities;
    };
    let resources = all.entry("resources").or_insert_with(|| json!({}));
    if let Some(resources) = resources.as_object_mut() {
        resources.insert("subscribe".to_owned(), true.into());
    }
    all.entry("logging").or_insert_with(|| json!({}));
    Bytes::from(Value::Object(all).to_string())
}
