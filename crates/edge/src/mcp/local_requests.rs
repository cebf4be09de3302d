//! Requests handled by the gateway itself, or by all servers together.

use std::sync::Arc;

use bowline_core::client_handle::ClientHandle;
use bowline_core::error::CallError;
use bowline_core::log_level::LogLevel;
use bowline_core::subscriptions::URI_BYTES_MAX;
use bowline_host::catalog::ListKind;
use bowline_wire::mcp::{code, method};
use bowline_wire::{RpcMessage, object};
use bytes::Bytes;

use super::{McpCaller, error_response, list_pages, outbox_resource, result_response};
use crate::call_errors;
use crate::client_session::{ClientSession, SessionHandle};

/// Empty result.
const EMPTY_RESULT: &[u8] = b"{}";

/// Handles a request other than a call.
pub(super) async fn handle_local(
    caller: McpCaller<'_>,
    session: &Arc<ClientSession>,
    message: &RpcMessage,
) -> Bytes {
    let id = message.id().unwrap_or(b"null");
    let params = message.params().unwrap_or_default();
    let requested_method = message.method().unwrap_or_default();
    if let Some(kind) = ListKind::ALL
        .into_iter()
        .find(|kind| kind.method() == requested_method)
    {
        return list_pages::handle_list(caller, session, kind, message).await;
    }
    match requested_method {
        method::PING => result_response(id, EMPTY_RESULT),
        method::RESOURCES_SUBSCRIBE => match object::text_field(params, "uri") {
            Some(uri) if uri.len() > URI_BYTES_MAX => {
                let text = format!("a uri may be {URI_BYTES_MAX} bytes long at most");
                error_response(Some(id), code::INVALID_PARAMS, &text)
            }
            Some(uri) => empty_response(id, subscribe_resource(caller, session, &uri).await),
            None => error_response(
                Some(id),
                code::INVALID_PARAMS,
                "resources/subscribe needs a uri",
            ),
        },
        method::RESOURCES_UNSUBSCRIBE => match object::text_field(params, "uri") {
            Some(uri) => empty_response(id, unsubscribe_resource(caller, session, &uri).await),
            None => error_response(
                Some(id),
                code::INVALID_PARAMS,
                "resources/unsubscribe needs a uri",
            ),
        },
        method::LOGGING_SET_LEVEL => {
            match object::text_field(params, "level")
                .as_deref()
                .and_then(LogLevel::parse)
            {
                Some(level) => empty_response(id, set_log_level(caller, session, level).await),
                None => error_response(
                    Some(id),
                    code::INVALID_PARAMS,
                    "logging/setLevel needs a level of the protocol",
                ),
            }
        }
        method::TASKS_LIST => match list_tasks(caller).await {
            Ok(tasks) => result_response(id, &tasks),
            Err(failed) => call_errors::error_response(id, &failed),
        },
        _ => error_response(
            Some(id),
            code::METHOD_NOT_FOUND,
            "this gateway does not serve that method",
        ),
    }
}

async fn subscribe_resource(
    caller: McpCaller<'_>,
    session: &Arc<ClientSession>,
    uri: &str,
) -> Result<(), CallError> {
    if outbox_resource::is_outbox_uri(uri) {
        return outbox_resource::subscribe_outbox(caller.edge, session, uri).await;
    }
    let end = SessionHandle::for_session(session) as Arc<dyn ClientHandle>;
    let host = &caller.edge.host;
    host.subscribe(caller.principal, caller.scope, &end, uri)
        .await
}

async fn unsubscribe_resource(
    caller: McpCaller<'_>,
    session: &ClientSession,
    uri: &str,
) -> Result<(), CallError> {
    let host = &caller.edge.host;
    host.unsubscribe(caller.principal, caller.scope, session.key, uri)
        .await
}

async fn set_log_level(
    caller: McpCaller<'_>,
    session: &ClientSession,
    level: LogLevel,
) -> Result<(), CallError> {
    session.set_log_level(level);
    let host = &caller.edge.host;
    host.set_log_level(caller.principal, caller.scope, session.key, level)
        .await
}

async fn list_tasks(caller: McpCaller<'_>) -> Result<Bytes, CallError> {
    let host = &caller.edge.host;
    host.list_tasks(caller.principal, caller.scope).await
}

fn empty_response(id: &[u8], outcome: Result<(), CallError>) -> Bytes {
    match outcome {
        Ok(()) => result_response(id, EMPTY_RESULT),
        Err(failed) => call_errors::error_response(id, &failed),
    }
}
