//! Task support of a legacy server's tool, and the `task` member that the tool needs.

use std::sync::Arc;

use bowline_core::call::Route;
use bowline_host::catalog::NameLookup;
use bowline_wire::object;
use bytes::Bytes;

use super::write_without_member;
use crate::edge::call::call_params::CallKind;
use crate::edge::call::modern_response::ModernResponder;

/// Task support declared by a tool of a legacy server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TaskSupport {
    Forbidden,
    Optional,
    Required,
}

/// Returns the task support and the route of the called tool, if its server is legacy.
fn task_support(responder: &ModernResponder) -> Option<(TaskSupport, Arc<Route>)> {
    if responder.kind != CallKind::Tool {
        return None;
    }
    let host = &responder.edge.host;
    let (catalog, scope) = (host.catalog(), &responder.scope);
    let subject = host.effective_subject(scope, &responder.subject, &responder.params);
    let NameLookup::Route(route) = catalog.lookup(scope, &subject) else {
        return None;
    };
    let offer = catalog.server(&route.server)?;
    // A modern server decides by itself.
    if object::field(&offer.initialize, "supportedVersions").is_some() {
        return None;
    }
    let item = offer
        .tools
        .items
        .iter()
        .find(|item| item.route.name == route.name)?;
    let execution =
        object::field(&item.unqueued_definition, "execution")?.slice(&item.unqueued_definition);
    let support = match object::text_field(execution, "taskSupport")?.as_ref() {
        "required" => TaskSupport::Required,
        "optional" => TaskSupport::Optional,
        _ => TaskSupport::Forbidden,
    };
    Some((support, route))
}

/// Returns whether the called tool runs only as a task.
pub(crate) fn is_task_required(responder: &ModernResponder) -> bool {
    matches!(task_support(responder), Some((TaskSupport::Required, _)))
}

/// Returns parameters with the `task` member added or removed, if a change is needed: modern
/// clients never send the member, and legacy servers need it. A queueable call outlives its server
/// and so does not become a task unless required.
pub(crate) fn rewrite_task_param(
    responder: &ModernResponder,
    has_task_param: bool,
) -> Option<Bytes> {
    let wants_task = responder.accepts_tasks
        && match task_support(responder) {
            Some((TaskSupport::Required, _)) => true,
            Some((TaskSupport::Optional, route)) => route.queue_policy.is_none(),
            Some((TaskSupport::Forbidden, _)) | None => false,
        };
    if !wants_task && !has_task_param {
        return None;
    }
    let first: &[u8] = if wants_task { b"\"task\":{}" } else { b"" };
    Some(write_without_member(&responder.params, "task", first).into())
}
