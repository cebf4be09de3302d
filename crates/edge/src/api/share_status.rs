//! Resource shares per principal, for the status response.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use bowline_api::status::ShareUsage;
use bowline_core::shares::ShareView;

use crate::Edge;

/// Maximum number of principals named per resource, largest share first.
const NAMED_MAX: usize = 16;

/// Returns the use of every resource by name.
pub(super) fn share_usage(edge: &Edge) -> BTreeMap<String, ShareUsage> {
    let views = edge.host.accounts().usage();
    let entries = views.into_iter().map(|view| {
        let name = view.resource.name().to_owned();
        (name, resource_usage(view))
    });
    entries.collect()
}

fn resource_usage(mut view: ShareView) -> ShareUsage {
    let holders = view.by_principal.len();
    view.by_principal.sort_by_key(|(_, usage)| Reverse(*usage));
    let named = view.by_principal.iter().take(NAMED_MAX);
    ShareUsage {
        limit: view.limit.total,
        principal_limit: view.limit.per_principal,
        owner_reserve: view.limit.owner_reserve,
        used: view.used,
        refused: view.refusals,
        holders: holders as u64,
        by_principal: named
            .map(|(name, usage)| (name.as_ref().to_owned(), *usage))
            .collect(),
    }
}
