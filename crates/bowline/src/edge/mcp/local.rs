//! Requests that the gateway answers itself, or together with all servers.

use std::sync::Arc;

use bowline_core::level::Level;
use bowline_host::catalog::ListKind;
use bowline_wire::mcp::{code, method};
use bowline_wire::{Message, object};
use bytes::Bytes;

use super::{Caller, error, list, result};
use crate::edge::session::Session;

/// The result of a request that has nothing to tell.
const DONE: &[u8] = b"{}";

/// Answers a request that is no call.
pub(super) async fn answer(caller: Caller<'_>, session: &Arc<Session>, message: &Message) -> Bytes {
    let id = message.id().unwrap_or(b"null");
    let params = message.params().unwrap_or_default();
    match message.method().unwrap_or_default() {
        method::PING => result(id, DONE),
        method::TOOLS_LIST => list::answer(caller, session, ListKind::Tools, message).await,
        method::PROMPTS_LIST => list::answer(caller, session, ListKind::Prompts, message).await,
        method::RESOURCES_LIST => list::answer(caller, session, ListKind::Resources, message).await,
        method::RESOURCES_TEMPLATES_LIST => {
            list::answer(caller, session, ListKind::Templates, message).await
        }
        method::LOGGING_SET_LEVEL => {
            match text(params, "level").as_deref().and_then(Level::parse) {
                Some(level) => {
                    session.set_level(level);
                    result(id, DONE)
                }
                None => error(
                    Some(id),
                    code::INVALID_PARAMS,
                    "logging/setLevel needs a level of the protocol",
                ),
            }
        }
        _ => error(
            Some(id),
            code::METHOD_NOT_FOUND,
            "this gateway does not serve that method",
        ),
    }
}

fn text(params: &[u8], key: &str) -> Option<String> {
    let at = object::field(params, key)?;
    object::string(at.of(params)).map(|text| text.into_owned())
}
