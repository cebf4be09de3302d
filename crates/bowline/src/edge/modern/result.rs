//! Results as this era has them: they say that they are whole, whose they are, and how long they
//! may be kept.

use std::time::Duration;

use bowline_core::cache::{Hint, Sharing};
use bowline_core::call::{Principal, Scope};
use bowline_wire::era::result::{Completing, to_modern};
use bytes::Bytes;

use super::read::Asked;
use crate::edge::Edge;

/// Who answers where no server speaks for itself.
pub(in crate::edge) const GATEWAY: &str = concat!(
    r#"{"name":"bowline","title":"Bowline","version":""#,
    env!("CARGO_PKG_VERSION"),
    r#""}"#,
);

/// Returns who answers at an endpoint: the one server behind it in its own words, or the gateway.
pub(in crate::edge) fn server_info(asked: &Asked<'_>) -> Bytes {
    let caller = asked.caller;
    info_of(caller.edge, caller.principal, caller.scope)
}

/// The same for whoever outlives the request.
pub(in crate::edge) fn info_of(edge: &Edge, principal: &Principal, scope: &Scope) -> Bytes {
    let own = edge.host.server_info(principal, scope);
    own.unwrap_or(Bytes::from_static(GATEWAY.as_bytes()))
}

/// Not at all, and by nobody else: right for whatever is not known better.
pub(in crate::edge) const NOT_KEPT: Hint = Hint {
    ttl: Duration::ZERO,
    sharing: Sharing::Private,
};

/// Completes a result of the other era.
pub(in crate::edge) fn complete(asked: &Asked<'_>, result: &[u8], hint: Option<Hint>) -> Vec<u8> {
    let info = server_info(asked);
    let known = Completing {
        server_info: Some(&info),
        hint,
    };
    to_modern(result, asked.method, &known)
}
