//! `initialize`: opens a session, negotiates the revision and declares capabilities.

use std::sync::Arc;

use bowline_core::client_handle::ClientCapabilities;
use bowline_wire::era::request_meta::parse_capabilities;
use bowline_wire::mcp::{Revision, code};
use bowline_wire::splice::write_string;
use bowline_wire::{RpcMessage, object};
use bytes::Bytes;
use http::{HeaderValue, StatusCode};

use super::{
    McpCaller, error_http_response, error_response, outbox_resource, result_response,
    share_exceeded_response,
};
use crate::announcer;
use crate::call::modern_response::GATEWAY_INFO;
use crate::client_session::{ClientSession, OpenSessionError, SessionTerms};
use crate::response_body::{self, EdgeResponse, SESSION_HEADER};

/// Handles `initialize` by opening a session.
pub(super) async fn open_session(caller: McpCaller<'_>, message: &RpcMessage) -> EdgeResponse {
    let id = message.id().unwrap_or(b"null");
    let params = message.params().unwrap_or_default();
    let Some(revision) = negotiate_revision(params) else {
        return response_body::json_response(StatusCode::OK, missing_revision_error(id));
    };
    let host = &caller.edge.host;
    host.wait_server_info(caller.principal, caller.scope).await;
    let session = caller.edge.open_session(SessionTerms {
        principal: Arc::clone(caller.principal),
        scope: caller.scope.clone(),
        revision,
        capabilities: declared_capabilities(params),
    });
    if let Err(OpenSessionError::Share(cause)) = session {
        return share_exceeded_response(Some(id), cause);
    }
    let header = session.ok().and_then(|(id, session)| {
        session.record_client_info(params);
        HeaderValue::from_str(&id).ok()
    });
    let Some(header) = header else {
        let message = "no session could be opened";
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        return error_http_response(status, Some(id), code::INTERNAL, message);
    };
    let introduction = result_response(id, &write_initialize_result(caller, revision));
    let mut response = response_body::json_response(StatusCode::OK, introduction);
    response.headers_mut().insert(SESSION_HEADER, header);
    response
}

/// Handles `initialize` in a session already opened by its SSE stream.
pub(super) async fn initialize_session(
    caller: McpCaller<'_>,
    session: &ClientSession,
    message: &RpcMessage,
) -> Bytes {
    let id = message.id().unwrap_or(b"null");
    let params = message.params().unwrap_or_default();
    let Some(revision) = negotiate_revision(params) else {
        return missing_revision_error(id);
    };
    let host = &caller.edge.host;
    host.wait_server_info(caller.principal, caller.scope).await;
    announcer::note_current_lists(caller.edge, session);
    session.set_capabilities(declared_capabilities(params));
    session.record_client_info(params);
    result_response(id, &write_initialize_result(caller, revision))
}

/// Negotiates the revision. For an unknown revision the latest legacy revision is offered, and the
/// client decides.
fn negotiate_revision(params: &[u8]) -> Option<Revision> {
    let requested = object::field(params, "protocolVersion")?;
    let requested = object::parse_string(requested.slice(params))?;
    Some(Revision::parse_legacy(&requested).unwrap_or(Revision::LATEST_LEGACY))
}

fn missing_revision_error(id: &[u8]) -> Bytes {
    let message = "initialize needs a protocolVersion";
    error_response(Some(id), code::INVALID_PARAMS, message)
}

/// Parses the client's capabilities.
fn declared_capabilities(params: &[u8]) -> ClientCapabilities {
    match object::field(params, "capabilities") {
        Some(declared) => parse_capabilities(declared.slice(params)),
        None => ClientCapabilities::default(),
    }
}

/// Writes the `initialize` result. The endpoint of a single server uses the server's own info.
fn write_initialize_result(caller: McpCaller<'_>, revision: Revision) -> Vec<u8> {
    let own = caller
        .edge
        .host
        .initialize_info(caller.principal, caller.scope);
    let capabilities =
        outbox_resource::declare_capabilities(caller.edge, caller.scope, own.capabilities);
    let mut out = Vec::from(&b"{\"protocolVersion\":"[..]);
    write_string(&mut out, revision.as_str());
    out.extend_from_slice(b",\"capabilities\":");
    out.extend_from_slice(&capabilities);
    out.extend_from_slice(b",\"serverInfo\":");
    match own.server_info {
        Some(info) => out.extend_from_slice(&info),
        None => out.extend_from_slice(GATEWAY_INFO.as_bytes()),
    }
    if let Some(words) = own.instructions {
        out.extend_from_slice(b",\"instructions\":");
        out.extend_from_slice(&words);
    }
    if let Some(meta) = own.meta {
        out.extend_from_slice(b",\"_meta\":");
        out.extend_from_slice(&meta);
    }
    out.push(b'}');
    out
}
