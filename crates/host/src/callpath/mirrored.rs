//! Arguments that headers repeat: what the headers say is what the arguments say.

use std::sync::Arc;

use bowline_core::call::{Call, Route};
use bowline_core::error::CallError;
use bowline_wire::era::mirror;
use bowline_wire::object;

/// Refuses a call whose headers speak of other arguments than it has. What came without headers
/// of its own claims nothing.
pub(super) fn check(call: &Call, route: &Route) -> Result<(), CallError> {
    let claims = match &call.stateless {
        None => return Ok(()),
        Some(stateless) => stateless.claims.as_deref(),
    };
    let (Some(claims), Some(mirrors)) = (claims, route.mirrors.as_deref()) else {
        return Ok(());
    };
    let arguments = object::field(&call.params, "arguments");
    let arguments = arguments.map_or(&b"{}"[..], |at| at.of(&call.params));
    if mirror::agrees(claims, mirrors, arguments) {
        return Ok(());
    }
    Err(CallError::HeaderMismatch {
        server: Arc::clone(&route.server),
        tool: Arc::clone(&route.name),
    })
}
