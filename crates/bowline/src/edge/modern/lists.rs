//! The four lists: the same pages as for sessions, with what this era says of them.

use bowline_host::catalog::ListKind;
use bowline_wire::mcp::code;
use bowline_wire::object;
use http::StatusCode;

use super::read::{Asked, Refused};
use super::result::{NOT_KEPT, complete, server_info};
use crate::edge::body::{self, Answer};
use crate::edge::mcp::{error, list, outbox, result};

/// Answers a request for a list.
pub(super) async fn answer(asked: Asked<'_>, kind: ListKind) -> Answer {
    let caller = asked.caller;
    let host = &caller.edge.host;
    host.settled().await;
    host.shown_to(caller.principal, caller.scope).await;
    if !is_declared(&asked, kind) {
        return Refused::Method.answer(asked.message.id());
    }
    let listed = host.view(caller.principal, caller.scope, kind);
    let params = asked.params();
    let cursor = object::field(params, "cursor").map(|at| at.of(params));
    match list::page_of(&listed, kind, cursor) {
        Some(page) => {
            let page = complete(&page, &server_info(&asked), Some(NOT_KEPT));
            body::json(StatusCode::OK, result(asked.id(), &page))
        }
        None => {
            let text = list::STRANGE_CURSOR;
            let refused = error(Some(asked.id()), code::INVALID_PARAMS, text);
            body::json(StatusCode::OK, refused)
        }
    }
}

/// Whether the endpoint says that it has such a list.
fn is_declared(asked: &Asked<'_>, kind: ListKind) -> bool {
    let caller = asked.caller;
    let host = &caller.edge.host;
    let own = host.introduction(caller.principal, caller.scope);
    let declared = outbox::declare(caller.edge, caller.scope, own.capabilities);
    object::field(&declared, kind.capability()).is_some()
}
