//! What one principal sees of the catalog, by the same decision as for its calls.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::cache::Hint;
use bowline_core::call::{Principal, Scope};
use bowline_core::policy::{Credentials, Expose, Thing};
use bowline_wire::object;
use bytes::Bytes;

use super::Host;
use super::views::{Key, Moment, View, What};
use crate::catalog::{Catalog, Introduction, Item, ListKind, Listing, Offer, keep};
use crate::decide::Sight;
use crate::expose;
use crate::supervisor::Supervisor;

impl Host {
    /// Returns what `principal` is shown in `scope`, as ready bytes. Whoever sees the same shares
    /// them; with a guard, which may change its mind, each is built anew.
    #[must_use]
    pub fn view(&self, principal: &Principal, scope: &Scope, kind: ListKind) -> Listing {
        let catalog = self.catalog();
        self.refresh_stale(&catalog, scope, kind);
        let sight = self.path.decider.sight();
        let expose = sight.policy().exposure().expose;
        if expose == Expose::All || kind != ListKind::Tools || !scope.is_shared() {
            return self.whole(&catalog, &sight, (principal, scope), kind);
        }
        let who = (principal, scope);
        let build = || View::List(self.shortened(&catalog, &sight, who));
        match self.kept(&catalog, &sight, who, What::Shortened, build) {
            View::List(mut list) => {
                list.hint = self.hint(&catalog, &sight, who, list.hint);
                self.left(&catalog, scope, ListKind::Tools, list)
            }
            View::Introduction(_) => Listing::default(),
        }
    }

    /// Returns the tools that are listed where the rest may have to be found.
    fn shortened(
        &self,
        catalog: &Catalog,
        sight: &Sight,
        (principal, scope): (&Principal, &Scope),
    ) -> Listing {
        let exposure = sight.policy().exposure();
        let seen = |item: &Item| sees(sight, (principal, scope), ListKind::Tools, item);
        let tools = catalog.offers().flat_map(|offer| offer.tools.iter());
        if !exposure
            .expose
            .searches(tools.filter(|item| seen(item)).count())
        {
            return self.whole(catalog, sight, (principal, scope), ListKind::Tools);
        }
        let favours = |item: &Item| {
            let route = &item.route;
            exposure.favours(&route.server, &route.name) && seen(item)
        };
        expose::with_meta(&catalog.filtered(scope, ListKind::Tools, favours))
    }

    /// Returns all that `principal` sees in `scope`.
    fn whole(
        &self,
        catalog: &Catalog,
        sight: &Sight,
        (principal, scope): (&Principal, &Scope),
        kind: ListKind,
    ) -> Listing {
        let who = (principal, scope);
        if sight.all(principal, scope) {
            let mut list = catalog.listing(scope, kind);
            list.hint = self.hint(catalog, sight, who, list.hint);
            return self.left(catalog, scope, kind, list);
        }
        let build = || {
            let sees = |item: &Item| sees(sight, who, kind, item);
            View::List(catalog.filtered(scope, kind, sees))
        };
        match self.kept(catalog, sight, who, What::List(kind), build) {
            View::List(mut list) => {
                list.hint = self.hint(catalog, sight, who, list.hint);
                self.left(catalog, scope, kind, list)
            }
            View::Introduction(_) => Listing::default(),
        }
    }

    /// Returns how long what `principal` sees may be kept, and by whom. What others may see less
    /// of is for nobody else, and what a server still to come adds to is not to be kept.
    fn hint(
        &self,
        catalog: &Catalog,
        sight: &Sight,
        (principal, scope): (&Principal, &Scope),
        hint: Option<Hint>,
    ) -> Option<Hint> {
        // Nearly all servers say nothing.
        let hint = hint?;
        if scope.is_shared() && !self.is_told(catalog, principal, scope) {
            return None;
        }
        match sight.is_open(principal, scope) {
            true => Some(hint),
            false => keep::private(Some(hint)),
        }
    }

    /// Says how long a list may still be kept: it is as old as the oldest of its parts.
    fn left(&self, catalog: &Catalog, scope: &Scope, kind: ListKind, mut list: Listing) -> Listing {
        if let Some(hint) = &mut list.hint {
            let now = self.path.clock.now();
            let ends = in_scope(catalog, scope).filter_map(|offer| offer.shelf(kind).good_until());
            let left = ends.map(|end| now.until(end)).min();
            hint.ttl = hint.ttl.min(left.unwrap_or(Duration::MAX));
        }
        list
    }

    /// Has stale lists asked for again, of servers that do not say when they change: those older
    /// than their server says that they are good, and those older than `relist` where it says
    /// nothing. The request runs in the background; its caller is shown the lists as they are.
    pub(crate) fn refresh_stale(&self, catalog: &Catalog, scope: &Scope, kind: ListKind) {
        let servers = self.path.servers.load();
        for offer in in_scope(catalog, scope) {
            if let Some(server) = servers.get(&offer.server) {
                server.refresh_stale(kind, offer.shelf(kind).ttl());
            }
        }
    }

    /// Waits as [`settled`](Self::settled) does, but only for servers that `principal` may see in
    /// `scope` and of which nothing is known yet. A server with a manifest is introduced by that.
    pub async fn introduced(&self, principal: &Principal, scope: &Scope) {
        let unknown = self.unknown_servers(principal, scope);
        self.settle(unknown).await;
    }

    fn unknown_servers(&self, principal: &Principal, scope: &Scope) -> Vec<Supervisor> {
        let catalog = self.catalog();
        let servers = self.path.servers.load();
        let is_unknown = |name: &str| {
            let is_in_scope = match scope {
                Scope::Server(only) => **only == *name,
                Scope::All | Scope::Profile(_) => true,
            };
            is_in_scope
                && catalog.offer(name).is_none()
                && self.path.decider.reaches(principal, scope, name)
        };
        let unknown = servers.iter().filter(|(name, _)| is_unknown(name));
        unknown.map(|(_, server)| server.clone()).collect()
    }

    /// Whether every server has told what it has of which `principal` may see anything.
    fn is_told(&self, catalog: &Catalog, principal: &Principal, scope: &Scope) -> bool {
        let servers = self.path.servers.load();
        servers.keys().all(|name| {
            catalog.offer(name).is_some() || !self.path.decider.reaches(principal, scope, name)
        })
    }

    /// Returns what the endpoint of `scope` says of itself to `principal`: in words of servers of
    /// which it sees anything.
    #[must_use]
    pub fn introduction(&self, principal: &Principal, scope: &Scope) -> Introduction {
        let catalog = self.catalog();
        let sight = self.path.decider.sight();
        let who = (principal, scope);
        let own = if sight.all(principal, scope) {
            introduce(&catalog, scope, |_| true)
        } else {
            let build = || {
                let visible = |offer: &Offer| shows(&sight, who, offer);
                View::Introduction(Arc::new(introduce(&catalog, scope, visible)))
            };
            match self.kept(&catalog, &sight, who, What::Introduction, build) {
                View::Introduction(own) => Introduction::clone(&own),
                View::List(_) => Introduction::unknown(),
            }
        };
        // One that has told nothing yet may turn out to have anything.
        if scope.is_shared() && !self.is_told(&catalog, principal, scope) {
            return own.open();
        }
        Introduction {
            hint: self.hint(&catalog, &sight, who, own.hint),
            ..own
        }
    }

    /// Returns `serverInfo` of the one server behind an endpoint, for a principal that may see
    /// anything of it.
    #[must_use]
    pub fn server_info(&self, principal: &Principal, scope: &Scope) -> Option<Bytes> {
        let Scope::Server(server) = scope else {
            return None;
        };
        if !self.path.decider.sight().all(principal, scope) {
            return self.introduction(principal, scope).server_info;
        }
        let catalog = self.catalog();
        let own = &catalog.offer(server)?.initialize;
        let at = object::field(own, "serverInfo")?;
        Some(own.slice(at.start..at.end))
    }

    /// Whether a principal may see anything of a server at the endpoint of that server, as far as
    /// can be said without knowing what it has: `false` is certain.
    #[must_use]
    pub fn reaches(&self, principal: &Principal, server: &Arc<str>) -> bool {
        let scope = Scope::Server(Arc::clone(server));
        self.path.decider.reaches(principal, &scope, server)
    }

    /// Narrows everything that these credentials prove by contexts of the policy, on every path
    /// and at once; credentials that are not named here are narrowed no more.
    pub fn narrow_credentials(&self, credentials: Credentials) {
        self.path.decider.narrow_credentials(credentials);
    }

    /// Returns how many views were built and not found ready.
    #[must_use]
    pub fn views_built(&self) -> u64 {
        self.views.built()
    }

    fn kept(
        &self,
        catalog: &Catalog,
        sight: &Sight,
        (principal, scope): (&Principal, &Scope),
        what: What,
        build: impl FnOnce() -> View,
    ) -> View {
        let Some(policy) = sight.version() else {
            return build();
        };
        let of = Moment {
            catalog: catalog.version,
            policy,
        };
        let key = Key::new(sight.policy(), principal, scope, what);
        if let Some(view) = self.views.get(of, &key) {
            return view;
        }
        let view = build();
        self.views.put(of, key, &view);
        view
    }
}

/// Returns what those servers offer that lists of `scope` are made of.
fn in_scope<'a>(
    catalog: &'a Catalog,
    scope: &Scope,
) -> impl Iterator<Item = &'a Arc<Offer>> + use<'a> {
    let only = match scope {
        Scope::Server(server) => Some(Arc::clone(server)),
        Scope::All | Scope::Profile(_) => None,
    };
    let offers = catalog.offers();
    offers.filter(move |offer| only.as_ref().is_none_or(|only| *only == offer.server))
}

fn introduce(catalog: &Catalog, scope: &Scope, visible: impl Fn(&Offer) -> bool) -> Introduction {
    match scope {
        Scope::Server(server) => match catalog.offer(server) {
            Some(offer) if visible(offer) => Introduction::of_offer(offer),
            Some(_) | None => Introduction::unknown(),
        },
        Scope::All | Scope::Profile(_) => {
            let offers = catalog.offers().filter(|offer| visible(offer));
            let offers: Vec<_> = offers.collect();
            if offers.len() == catalog.offers().count() {
                return catalog.introduction().clone();
            }
            Introduction::of_all(offers.into_iter())
        }
    }
}

/// Whether anything of an offer is to be seen.
fn shows(sight: &Sight, who: (&Principal, &Scope), offer: &Offer) -> bool {
    ListKind::ALL.into_iter().any(|kind| {
        let mut items = offer.shelf(kind).iter();
        items.any(|item| sees(sight, who, kind, item))
    })
}

pub(super) fn sees(
    sight: &Sight,
    (principal, scope): (&Principal, &Scope),
    kind: ListKind,
    item: &Item,
) -> bool {
    let thing = Thing {
        kind: kind.subject(),
        server: &item.route.server,
        name: &item.route.name,
        arguments: None,
    };
    sight.of(principal, scope, thing)
}
