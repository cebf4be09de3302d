//! Checks `Mcp-Param-*` headers against the arguments, and refuses arguments differing only in
//! case.

use std::sync::Arc;

use bowline_core::call::{CallRequest, CallSubject, Route};
use bowline_core::error::CallError;
use bowline_core::lane::KeyChannel;
use bowline_wire::era::header_params;
use bowline_wire::{case_fold, object};

/// Refuses a call with headers that contradict its arguments, and a call with an argument that
/// differs only in case from a header parameter or from the idempotency key's argument. Calls
/// without such headers claim nothing.
pub(super) fn check_headers(call: &CallRequest, route: &Route) -> Result<(), CallError> {
    let key_argument = match route.queue_policy.as_ref().map(|queue| &queue.key_channel) {
        Some(KeyChannel::Argument(member)) if matches!(call.subject, CallSubject::Tool(_)) => {
            Some(member)
        }
        _ => None,
    };
    let mirrors = route.header_params.as_deref();
    if mirrors.is_none() && key_argument.is_none() {
        return Ok(());
    }
    let arguments = object::field(&call.params, "arguments");
    let arguments = arguments.map_or(&b"{}"[..], |at| at.slice(&call.params));
    if key_argument.is_some_and(|member| case_fold::has_variant(arguments, member))
        || mirrors.is_some_and(|mirrors| !header_params::is_unambiguous(mirrors, arguments))
    {
        return Err(CallError::AmbiguousNames {
            server: Arc::clone(&route.server),
            tool: Arc::clone(&route.name),
        });
    }
    let claims = match &call.stateless {
        None => return Ok(()),
        Some(stateless) => stateless.header_claims.as_deref(),
    };
    let (Some(claims), Some(mirrors)) = (claims, mirrors) else {
        return Ok(());
    };
    if header_params::headers_match(claims, mirrors, arguments) {
        return Ok(());
    }
    Err(CallError::HeaderMismatch {
        server: Arc::clone(&route.server),
        tool: Arc::clone(&route.name),
    })
}
