//! The four lists of the modern era: the same pages as for sessions, plus cache hints.

use bowline_host::catalog::ListKind;
use bowline_wire::mcp::code;
use bowline_wire::object;
use http::StatusCode;

use super::{ModernRequest, ModernRequestError};
use crate::call::modern_response::{NOT_CACHED, complete_result};
use crate::mcp::{error_response, list_pages, outbox_resource, result_response};
use crate::response_body::{self, EdgeResponse};

/// Handles a list request.
pub(super) async fn handle_list(request: ModernRequest<'_>, kind: ListKind) -> EdgeResponse {
    let caller = request.caller;
    let host = &caller.edge.host;
    host.wait_settled().await;
    host.start_unlisted_for(caller.principal, caller.scope)
        .await;
    if !is_declared(&request, kind) {
        return ModernRequestError::Method.to_response(request.message.id());
    }
    let listed = host.list_for(caller.principal, caller.scope, kind);
    let params = request.params();
    let cursor = object::field(params, "cursor").map(|at| at.slice(params));
    match list_pages::page_at_cursor(&listed, kind, cursor) {
        Some(page) => {
            let page = complete_result(&request, &page, Some(listed.hint.unwrap_or(NOT_CACHED)));
            response_body::json_response(StatusCode::OK, result_response(request.id(), &page))
        }
        None => {
            let text = list_pages::INVALID_CURSOR;
            let refused = error_response(Some(request.id()), code::INVALID_PARAMS, text);
            response_body::json_response(StatusCode::OK, refused)
        }
    }
}

/// Returns whether the endpoint declares the list.
fn is_declared(request: &ModernRequest<'_>, kind: ListKind) -> bool {
    let caller = request.caller;
    let host = &caller.edge.host;
    let own = host.initialize_info(caller.principal, caller.scope);
    let declared =
        outbox_resource::declare_capabilities(caller.edge, caller.scope, own.capabilities);
    object::field(&declared, kind.capability()).is_some()
}
