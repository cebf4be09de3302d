//! Resource shares per principal, for the status response.

use std::cmp::Reverse;

use bowline_core::shares::ShareView;
use serde_json::{Map, Value, json};

use crate::edge::Edge;

/// Maximum number of principals named per resource, largest share first.
const NAMED_MAX: usize = 16;

/// Returns the state of every resource by name.
pub(super) fn shares_json(edge: &Edge) -> Value {
    let views = edge.host.accounts().usage();
    let entries = views.into_iter().map(|view| {
        let name = view.resource.name().to_owned();
        (name, share_json(view))
    });
    Value::Object(entries.collect())
}

fn share_json(mut view: ShareView) -> Value {
    let holders = view.by_principal.len();
    view.by_principal.sort_by_key(|(_, usage)| Reverse(*usage));
    let named = view.by_principal.iter().take(NAMED_MAX);
    let by_principal: Map<String, Value> = named
        .map(|(name, usage)| (name.as_ref().to_owned(), (*usage).into()))
        .collect();
    json!({
        "limit": view.limit.total,
        "principal_limit": view.limit.per_principal,
        "owner_reserve": view.limit.owner_reserve,
        "used": view.used,
        "refused": view.refusals,
        "holders": holders,
        "by_principal": by_principal,
    })
}
