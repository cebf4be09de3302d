//! Arguments that somebody goes by: what the headers say is what the arguments say, and no other
//! argument can be taken for one of them.

use std::sync::Arc;

use bowline_core::call::{Call, Route, Subject};
use bowline_core::error::CallError;
use bowline_core::lane::Channel;
use bowline_wire::era::mirror;
use bowline_wire::{fold, object};

/// Refuses a call whose headers speak of other arguments than it has, and one with an argument
/// that differs in case only from one that a header repeats or that carries the idempotency key.
/// What came without headers of its own claims nothing.
pub(super) fn check(call: &Call, route: &Route) -> Result<(), CallError> {
    let carrier = match route.queue.as_ref().map(|queue| &queue.channel) {
        Some(Channel::Argument(member)) if matches!(call.subject, Subject::Tool(_)) => Some(member),
        _ => None,
    };
    let mirrors = route.mirrors.as_deref();
    if mirrors.is_none() && carrier.is_none() {
        return Ok(());
    }
    let arguments = object::field(&call.params, "arguments");
    let arguments = arguments.map_or(&b"{}"[..], |at| at.of(&call.params));
    if carrier.is_some_and(|member| fold::has_variant(arguments, member))
        || mirrors.is_some_and(|mirrors| !mirror::is_clear(mirrors, arguments))
    {
        return Err(CallError::AmbiguousNames {
            server: Arc::clone(&route.server),
            tool: Arc::clone(&route.name),
        });
    }
    let claims = match &call.stateless {
        None => return Ok(()),
        Some(stateless) => stateless.claims.as_deref(),
    };
    let (Some(claims), Some(mirrors)) = (claims, mirrors) else {
        return Ok(());
    };
    if mirror::agrees(claims, mirrors, arguments) {
        return Ok(());
    }
    Err(CallError::HeaderMismatch {
        server: Arc::clone(&route.server),
        tool: Arc::clone(&route.name),
    })
}
