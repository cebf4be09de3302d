//! Results as this era has them: they say that they are whole, whose they are, and how long they
//! may be kept.

use bowline_core::call::Scope;
use bowline_wire::mcp::meta;
use bowline_wire::{Span, object};
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
    info_of(asked.caller.edge, asked.caller.scope)
}

/// The same for whoever outlives the request.
pub(in crate::edge) fn info_of(edge: &Edge, scope: &Scope) -> Bytes {
    let own = match scope {
        Scope::Server(server) => {
            let catalog = edge.host.catalog();
            catalog.offer(server).and_then(|offer| {
                let at = object::field(&offer.initialize, "serverInfo")?;
                Some(offer.initialize.slice(at.start..at.end))
            })
        }
        Scope::All | Scope::Profile(_) => None,
    };
    own.unwrap_or(Bytes::from_static(GATEWAY.as_bytes()))
}

/// How long a result may be kept, and for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::edge) struct Keep {
    /// Milliseconds for which it is fresh.
    pub(in crate::edge) ttl_ms: u64,
    /// Whether it may be shown to others.
    pub(in crate::edge) public: bool,
}

/// Not at all, and for nobody else: right for whatever is not known better.
pub(in crate::edge) const NOT_KEPT: Keep = Keep {
    ttl_ms: 0,
    public: false,
};

/// Completes a result of the other era.
pub(in crate::edge) fn complete(result: &[u8], info: &[u8], keep: Option<Keep>) -> Vec<u8> {
    let mut out = Vec::from(&b"{\"resultType\":\"complete\""[..]);
    if let Some(keep) = keep {
        let scope = if keep.public { "public" } else { "private" };
        let hint = format!(",\"ttlMs\":{},\"cacheScope\":\"{scope}\"", keep.ttl_ms);
        out.extend_from_slice(hint.as_bytes());
    }
    let mut own_meta: Option<Span> = None;
    for (key, at) in object::fields(result) {
        match key.as_ref() {
            "resultType" | "ttlMs" | "cacheScope" => continue,
            "_meta" => {
                own_meta = Some(at);
                continue;
            }
            _ => {}
        }
        out.push(b',');
        bowline_wire::splice::write_string(&mut out, &key);
        out.push(b':');
        out.extend_from_slice(at.of(result));
    }
    out.extend_from_slice(b",\"_meta\":{");
    bowline_wire::splice::write_string(&mut out, meta::SERVER_INFO);
    out.push(b':');
    out.extend_from_slice(info);
    for (key, at) in own_meta.iter().flat_map(|within| {
        let inside = within.of(result);
        object::fields(inside).map(move |(key, at)| (key, at.of(inside)))
    }) {
        if key != meta::SERVER_INFO {
            out.push(b',');
            bowline_wire::splice::write_string(&mut out, &key);
            out.push(b':');
            out.extend_from_slice(at);
        }
    }
    out.extend_from_slice(b"}}");
    out
}
