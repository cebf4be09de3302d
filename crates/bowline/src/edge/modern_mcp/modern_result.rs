//! Results of the modern era: complete, with server info and cache hints.

use std::time::Duration;

use bowline_core::cache::{CacheHint, CacheScope};
use bowline_core::call::{EndpointScope, Principal};
use bowline_wire::era::result_translation::{ResultContext, to_modern};
use bytes::Bytes;

use super::request_check::ModernRequest;
use crate::edge::Edge;

/// Info of the gateway, for endpoints of several servers.
pub(in crate::edge) const GATEWAY_INFO: &str = concat!(
    r#"{"name":"bowline","title":"Bowline","version":""#,
    env!("CARGO_PKG_VERSION"),
    r#""}"#,
);

/// Returns the info of an endpoint: its single server's, or the gateway's.
pub(in crate::edge) fn server_info(request: &ModernRequest<'_>) -> Bytes {
    let caller = request.caller;
    endpoint_info(caller.edge, caller.principal, caller.scope)
}

/// The same without a request.
pub(in crate::edge) fn endpoint_info(
    edge: &Edge,
    principal: &Principal,
    scope: &EndpointScope,
) -> Bytes {
    let own = edge.host.server_info(principal, scope);
    own.unwrap_or(Bytes::from_static(GATEWAY_INFO.as_bytes()))
}

/// Not cacheable and private: the safe default.
pub(in crate::edge) const NOT_CACHED: CacheHint = CacheHint {
    ttl: Duration::ZERO,
    scope: CacheScope::Private,
};

/// Completes a legacy result for the modern era.
pub(in crate::edge) fn complete_result(
    request: &ModernRequest<'_>,
    result: &[u8],
    hint: Option<CacheHint>,
) -> Vec<u8> {
    let info = server_info(request);
    let context = ResultContext {
        server_info: Some(&info),
        hint,
    };
    to_modern(result, request.method, &context)
}
