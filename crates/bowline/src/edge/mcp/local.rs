//! Requests that the gateway answers itself, or together with all servers.

use std::sync::Arc;

use bowline_core::caller::CallerEnd;
use bowline_core::error::CallError;
use bowline_core::level::Level;
use bowline_core::subscriptions::URI_BYTES_MAX;
use bowline_host::catalog::ListKind;
use bowline_wire::mcp::{code, method};
use bowline_wire::{Message, object};
use bytes::Bytes;

use super::{Caller, error, list, outbox, result};
use crate::edge::errors;
use crate::edge::session::{Home, Session};

/// The result of a request that has nothing to tell.
const DONE: &[u8] = b"{}";

/// Answers a request that is no call.
pub(super) async fn answer(caller: Caller<'_>, session: &Arc<Session>, message: &Message) -> Bytes {
    let id = message.id().unwrap_or(b"null");
    let params = message.params().unwrap_or_default();
    let asked = message.method().unwrap_or_default();
    if let Some(kind) = ListKind::ALL
        .into_iter()
        .find(|kind| kind.method() == asked)
    {
        return list::answer(caller, session, kind, message).await;
    }
    match asked {
        method::PING => result(id, DONE),
        method::RESOURCES_SUBSCRIBE => match object::text(params, "uri") {
            Some(uri) if uri.len() > URI_BYTES_MAX => {
                let text = format!("a uri may be {URI_BYTES_MAX} bytes long at most");
                error(Some(id), code::INVALID_PARAMS, &text)
            }
            Some(uri) => done(id, subscribe(caller, session, &uri).await),
            None => error(
                Some(id),
                code::INVALID_PARAMS,
                "resources/subscribe needs a uri",
            ),
        },
        method::RESOURCES_UNSUBSCRIBE => match object::text(params, "uri") {
            Some(uri) => done(id, unsubscribe(caller, session, &uri).await),
            None => error(
                Some(id),
                code::INVALID_PARAMS,
                "resources/unsubscribe needs a uri",
            ),
        },
        method::LOGGING_SET_LEVEL => {
            match object::text(params, "level")
                .as_deref()
                .and_then(Level::parse)
            {
                Some(level) => done(id, set_level(caller, session, level).await),
                None => error(
                    Some(id),
                    code::INVALID_PARAMS,
                    "logging/setLevel needs a level of the protocol",
                ),
            }
        }
        method::TASKS_LIST => match tasks(caller).await {
            Ok(tasks) => result(id, &tasks),
            Err(failed) => errors::answer(id, &failed),
        },
        _ => error(
            Some(id),
            code::METHOD_NOT_FOUND,
            "this gateway does not serve that method",
        ),
    }
}

async fn subscribe(caller: Caller<'_>, session: &Arc<Session>, uri: &str) -> Result<(), CallError> {
    if outbox::is_ours(uri) {
        return outbox::subscribe(caller.edge, session, uri).await;
    }
    let end = Home::of(session) as Arc<dyn CallerEnd>;
    let host = &caller.edge.host;
    host.subscribe(caller.principal, caller.scope, &end, uri)
        .await
}

async fn unsubscribe(caller: Caller<'_>, session: &Session, uri: &str) -> Result<(), CallError> {
    let host = &caller.edge.host;
    host.unsubscribe(caller.principal, caller.scope, session.key, uri)
        .await
}

async fn set_level(caller: Caller<'_>, session: &Session, level: Level) -> Result<(), CallError> {
    session.set_level(level);
    let host = &caller.edge.host;
    host.set_level(caller.principal, caller.scope, session.key, level)
        .await
}

async fn tasks(caller: Caller<'_>) -> Result<Bytes, CallError> {
    let host = &caller.edge.host;
    host.tasks_of(caller.principal, caller.scope).await
}

fn done(id: &[u8], outcome: Result<(), CallError>) -> Bytes {
    match outcome {
        Ok(()) => result(id, DONE),
        Err(failed) => errors::answer(id, &failed),
    }
}
