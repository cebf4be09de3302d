//! `bowline://outbox/{id}`: state of a queued call, readable by the calling principal.

use bowline_core::call::{
    BodyKind, CallReply, CallRequest, EndpointScope, ReplyOrigin, ServerResponse,
};
use bowline_core::era::Era;
use bowline_core::error::CallError;
use bowline_host::outbox::{OUTBOX_URI_PREFIX, OutboxError};
use bowline_wire::jsonrpc::write_result;
use bytes::Bytes;
use serde_json::{Value, json};

use crate::Edge;
use crate::client_session::ClientSession;

/// Returns whether a URI names a queued call. URIs of a server named `outbox` contain a scheme
/// after the slash, so never digits only.
pub(crate) fn is_outbox_uri(uri: &str) -> bool {
    let id = uri.strip_prefix(OUTBOX_URI_PREFIX);
    id.is_some_and(|id| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Handles `resources/read`: the gateway replies in the place of a server.
pub(crate) async fn read_outbox(
    edge: &Edge,
    call: &CallRequest,
    uri: &str,
) -> Result<CallReply, CallError> {
    let outbox = edge.host.outbox();
    let read = outbox.read_uri(&call.principal, &call.scope, uri).await;
    let text = read.map_err(|error| to_call_error(&error))?;
    let text = text.ok_or_else(|| unknown_resource(uri))?;
    let contents = json!({"uri": uri, "mimeType": "application/json", "text": text});
    let result = json!({"contents": [contents]}).to_string();
    let mut bytes = Vec::new();
    let body_at = write_result(&mut bytes, &call.message.id, result.as_bytes());
    Ok(CallReply {
        response: ServerResponse {
            bytes: bytes.into(),
            body: BodyKind::Result,
            body_at,
            era: Era::Legacy,
        },
        origin: ReplyOrigin::Live,
        server: None,
    })
}

/// Subscribes a session to the completion of a queued call.
pub(crate) async fn subscribe_outbox(
    edge: &Edge,
    session: &ClientSession,
    uri: &str,
) -> Result<(), CallError> {
    let outbox = edge.host.outbox();
    let principal = session.current_principal();
    let subscribed = outbox.subscribe(&principal, &session.scope, session.key, uri);
    match subscribed.await {
        Ok(true) => Ok(()),
        Ok(false) => Err(unknown_resource(uri)),
        Err(error) => Err(to_call_error(&error)),
    }
}

fn unknown_resource(uri: &str) -> CallError {
    CallError::UnknownResource { uri: uri.into() }
}

fn to_call_error(error: &OutboxError) -> CallError {
    let cause = std::error::Error::source(error);
    CallError::NotStored {
        server: "bowline".into(),
        tool: "outbox".into(),
        reason: cause
            .map_or_else(|| error.to_string(), ToString::to_string)
            .into(),
    }
}

/// Adds resource subscription and logging to the capabilities of an endpoint, if any call can be
/// queued.
pub(crate) fn declare_capabilities(
    edge: &Edge,
    scope: &EndpointScope,
    capabilities: Bytes,
) -> Bytes {
    let catalog = edge.host.catalog();
    let mut offers = catalog.servers().filter(|offer| match scope {
        EndpointScope::All | EndpointScope::Profile(_) => true,
        EndpointScope::Server(server) => offer.server == *server,
    });
    let queues = offers.any(|offer| {
        offer
            .tools
            .iter()
            .any(|tool| tool.route.queue_policy.is_some())
    });
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
