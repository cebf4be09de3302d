//! Which principal holds how much of what all share, as `status` tells it.

use std::cmp::Reverse;

use bowline_core::shares::ShareView;
use serde_json::{Map, Value, json};

use crate::edge::Edge;

/// Principals named for one resource, those that hold most first.
const NAMED_MAX: usize = 16;

/// Returns how every resource stands, by its name.
pub(super) fn view(edge: &Edge) -> Value {
    let views = edge.host.accounts().view();
    let shown = views.into_iter().map(|view| {
        let name = view.resource.name().to_owned();
        (name, shown(view))
    });
    Value::Object(shown.collect())
}

fn shown(mut view: ShareView) -> Value {
    let holders = view.by_principal.len();
    view.by_principal.sort_by_key(|(_, held)| Reverse(*held));
    let named = view.by_principal.iter().take(NAMED_MAX);
    let by_principal: Map<String, Value> = named
        .map(|(name, held)| (name.as_ref().to_owned(), (*held).into()))
        .collect();
    json!({
        "limit": view.limit.total,
        "principal_limit": view.limit.per_principal,
        "owner_reserve": view.limit.owner_reserve,
        "used": view.used,
        "refused": view.refused,
        "holders": holders,
        "by_principal": by_principal,
    })
}
