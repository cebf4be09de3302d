//! What one principal sees of the catalog.

use bowline_core::call::{Principal, Scope};
use bowline_core::policy::Thing;

use super::Host;
use crate::catalog::{Item, ListKind, Listing};

impl Host {
    /// Returns what `principal` sees in `scope`, as ready bytes.
    #[must_use]
    pub fn view(&self, principal: &Principal, scope: &Scope, kind: ListKind) -> Listing {
        let catalog = self.catalog();
        if self.path.decider.sees_all(principal, scope) {
            return catalog.listing(scope, kind);
        }
        catalog.filtered(scope, kind, |item: &Item| {
            let thing = Thing {
                kind: kind.subject(),
                server: &item.route.server,
                name: &item.route.name,
                arguments: None,
            };
            self.path.decider.decide(principal, scope, thing).is_ok()
        })
    }
}
