//! Lists and server information visible to a principal, by the same decision as for calls.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::cache::CacheHint;
use bowline_core::call::{EndpointScope, Principal};
use bowline_core::policy::{CredentialContexts, ExposeMode, PolicyTarget};
use bowline_wire::object;
use bytes::Bytes;

use super::Host;
use super::view_cache::{CachedView, ViewKey, ViewSubject, ViewVersion};
use crate::authorizer::PolicySnapshot;
use crate::catalog::{
    Catalog, CatalogItem, InitializeInfo, ListKind, RenderedList, ServerCatalog, cache_hints,
};
use crate::expose;
use crate::supervisor::Supervisor;

/// A principal at an endpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct Viewer<'a> {
    pub(super) principal: &'a Principal,
    pub(super) scope: &'a EndpointScope,
}

impl Host {
    /// Returns a list for `principal` in `scope`, as ready bytes. Principals with equal rights
    /// share the bytes; with a guard, whose decisions may change, each list is built anew.
    #[must_use]
    pub fn list_for(
        &self,
        principal: &Principal,
        scope: &EndpointScope,
        kind: ListKind,
    ) -> RenderedList {
        let catalog = self.catalog();
        self.refresh_stale_lists(&catalog, scope, kind);
        let rules = self.call_path.authorizer.snapshot();
        let expose = rules.policy().exposure().expose;
        if expose == ExposeMode::All || kind != ListKind::Tools || !scope.is_multi_server() {
            return self.full_list(&catalog, &rules, principal, scope, kind);
        }
        let viewer = Viewer { principal, scope };
        let build = || CachedView::List(self.shortened_tools(&catalog, &rules, viewer));
        match self.cached_view(&catalog, &rules, viewer, ViewSubject::ShortenedTools, build) {
            CachedView::List(mut list) => {
                list.hint = self.adjusted_hint(&catalog, &rules, viewer, list.hint);
                self.with_remaining_ttl(&catalog, scope, ListKind::Tools, list)
            }
            CachedView::InitializeInfo(_) => RenderedList::default(),
        }
    }

    /// Returns the shortened tool list with meta tools for search, if the policy requires it.
    fn shortened_tools(
        &self,
        catalog: &Catalog,
        rules: &PolicySnapshot,
        viewer: Viewer<'_>,
    ) -> RenderedList {
        let Viewer { principal, scope } = viewer;
        let exposure = rules.policy().exposure();
        let can_see = |item: &CatalogItem| is_visible(rules, viewer, ListKind::Tools, item);
        let tools = catalog.servers().flat_map(|offer| offer.tools.iter());
        if !exposure
            .expose
            .uses_search(tools.filter(|item| can_see(item)).count())
        {
            return self.full_list(catalog, rules, principal, scope, ListKind::Tools);
        }
        let favours = |item: &CatalogItem| {
            let route = &item.route;
            exposure.is_favourite(&route.server, &route.name) && can_see(item)
        };
        expose::with_meta_tools(&catalog.filtered_list(scope, ListKind::Tools, favours))
    }

    /// Returns the complete list visible to `principal` in `scope`.
    fn full_list(
        &self,
        catalog: &Catalog,
        rules: &PolicySnapshot,
        principal: &Principal,
        scope: &EndpointScope,
        kind: ListKind,
    ) -> RenderedList {
        let viewer = Viewer { principal, scope };
        if rules.can_see_all(principal, scope) {
            let mut list = catalog.list(scope, kind);
            list.hint = self.adjusted_hint(catalog, rules, viewer, list.hint);
            return self.with_remaining_ttl(catalog, scope, kind, list);
        }
        let build = || {
            let sees = |item: &CatalogItem| is_visible(rules, viewer, kind, item);
            CachedView::List(catalog.filtered_list(scope, kind, sees))
        };
        match self.cached_view(catalog, rules, viewer, ViewSubject::List(kind), build) {
            CachedView::List(mut list) => {
                list.hint = self.adjusted_hint(catalog, rules, viewer, list.hint);
                self.with_remaining_ttl(catalog, scope, kind, list)
            }
            CachedView::InitializeInfo(_) => RenderedList::default(),
        }
    }

    /// Adjusts the cache hint for `principal`: private if other principals see less, and none
    /// while a server has not listed yet.
    fn adjusted_hint(
        &self,
        catalog: &Catalog,
        rules: &PolicySnapshot,
        viewer: Viewer<'_>,
        hint: Option<CacheHint>,
    ) -> Option<CacheHint> {
        // Most servers give no hint.
        let hint = hint?;
        let Viewer { principal, scope } = viewer;
        if scope.is_multi_server() && !self.has_all_lists(catalog, principal, scope) {
            return None;
        }
        match rules.is_unrestricted(principal, scope) {
            true => Some(hint),
            false => cache_hints::to_private(Some(hint)),
        }
    }

    /// Reduces the TTL to the remaining time of the oldest part.
    fn with_remaining_ttl(
        &self,
        catalog: &Catalog,
        scope: &EndpointScope,
        kind: ListKind,
        mut list: RenderedList,
    ) -> RenderedList {
        if let Some(hint) = &mut list.hint {
            let now = self.call_path.clock.now();
            let ends =
                servers_in_scope(catalog, scope).filter_map(|offer| offer.list(kind).expires_at());
            let left = ends.map(|end| now.duration_until(end)).min();
            hint.ttl = hint.ttl.min(left.unwrap_or(Duration::MAX));
        }
        list
    }

    /// Requests a background refresh of stale lists, of servers without change notifications: older
    /// than the server's TTL, or older than `relist` without a TTL. The caller gets the current
    /// lists.
    pub(crate) fn refresh_stale_lists(
        &self,
        catalog: &Catalog,
        scope: &EndpointScope,
        kind: ListKind,
    ) {
        let servers = self.call_path.servers.load();
        for offer in servers_in_scope(catalog, scope) {
            if let Some(server) = servers.get(&offer.server) {
                server.refresh_stale(kind, offer.list(kind).ttl());
            }
        }
    }

    /// Waits like [`wait_settled`](Self::wait_settled), but only for servers reachable by
    /// `principal` in `scope` and without known lists. A server with a manifest is not awaited.
    pub async fn wait_server_info(&self, principal: &Principal, scope: &EndpointScope) {
        let unknown = self.unlisted_servers(principal, scope);
        self.wait_servers_settled(unknown).await;
    }

    fn unlisted_servers(&self, principal: &Principal, scope: &EndpointScope) -> Vec<Supervisor> {
        let catalog = self.catalog();
        let servers = self.call_path.servers.load();
        let is_unknown = |name: &str| {
            let is_in_scope = match scope {
                EndpointScope::Server(only) => **only == *name,
                EndpointScope::All | EndpointScope::Profile(_) => true,
            };
            is_in_scope
                && catalog.server(name).is_none()
                && self.call_path.authorizer.can_reach(principal, scope, name)
        };
        let unknown = servers.iter().filter(|(name, _)| is_unknown(name));
        unknown.map(|(_, server)| server.clone()).collect()
    }

    /// True if every server reachable by `principal` has listed.
    fn has_all_lists(
        &self,
        catalog: &Catalog,
        principal: &Principal,
        scope: &EndpointScope,
    ) -> bool {
        let servers = self.call_path.servers.load();
        servers.keys().all(|name| {
            catalog.server(name).is_some()
                || !self.call_path.authorizer.can_reach(principal, scope, name)
        })
    }

    /// Returns the `initialize` members of the endpoint of `scope` for `principal`, merged over the
    /// visible servers.
    #[must_use]
    pub fn initialize_info(&self, principal: &Principal, scope: &EndpointScope) -> InitializeInfo {
        let catalog = self.catalog();
        let rules = self.call_path.authorizer.snapshot();
        let viewer = Viewer { principal, scope };
        let own = if rules.can_see_all(principal, scope) {
            build_initialize_info(&catalog, scope, |_| true)
        } else {
            let build = || {
                let visible = |offer: &ServerCatalog| has_visible_items(&rules, viewer, offer);
                CachedView::InitializeInfo(Arc::new(build_initialize_info(
                    &catalog, scope, visible,
                )))
            };
            match self.cached_view(&catalog, &rules, viewer, ViewSubject::InitializeInfo, build) {
                CachedView::InitializeInfo(own) => InitializeInfo::clone(&own),
                CachedView::List(_) => InitializeInfo::unknown(),
            }
        };
        // A server not listed yet may have any capability.
        if scope.is_multi_server() && !self.has_all_lists(&catalog, principal, scope) {
            return own.with_all_capabilities();
        }
        InitializeInfo {
            hint: self.adjusted_hint(&catalog, &rules, viewer, own.hint),
            ..own
        }
    }

    /// Returns `serverInfo` of the single server behind an endpoint, if visible to the principal.
    #[must_use]
    pub fn server_info(&self, principal: &Principal, scope: &EndpointScope) -> Option<Bytes> {
        let EndpointScope::Server(server) = scope else {
            return None;
        };
        if !self
            .call_path
            .authorizer
            .snapshot()
            .can_see_all(principal, scope)
        {
            return self.initialize_info(principal, scope).server_info;
        }
        let catalog = self.catalog();
        let own = &catalog.server(server)?.initialize;
        let at = object::field(own, "serverInfo")?;
        Some(own.slice(at.start..at.end))
    }

    /// True if a principal may see anything at the endpoint of a server, as far as known without
    /// its lists: `false` is certain.
    #[must_use]
    pub fn can_reach(&self, principal: &Principal, server: &Arc<str>) -> bool {
        let scope = EndpointScope::Server(Arc::clone(server));
        self.call_path
            .authorizer
            .can_reach(principal, &scope, server)
    }

    /// Restricts credentials by policy contexts, everywhere and at once; credentials not given here
    /// become unrestricted.
    pub fn restrict_credentials(&self, credentials: CredentialContexts) {
        self.call_path.authorizer.restrict_credentials(credentials);
    }

    /// Returns the number of views built, excluding cache hits.
    #[must_use]
    pub fn views_built(&self) -> u64 {
        self.views.built_count()
    }

    fn cached_view(
        &self,
        catalog: &Catalog,
        rules: &PolicySnapshot,
        viewer: Viewer<'_>,
        subject: ViewSubject,
        build: impl FnOnce() -> CachedView,
    ) -> CachedView {
        let Some(policy) = rules.version() else {
            return build();
        };
        let version = ViewVersion {
            catalog: catalog.version,
            policy,
        };
        let key = ViewKey::new(rules.policy(), viewer.principal, viewer.scope, subject);
        if let Some(view) = self.views.get(version, &key) {
            return view;
        }
        let view = build();
        self.views.insert(version, key, &view);
        view
    }
}

/// Returns the catalog entries of the servers in `scope`.
fn servers_in_scope<'a>(
    catalog: &'a Catalog,
    scope: &EndpointScope,
) -> impl Iterator<Item = &'a Arc<ServerCatalog>> + use<'a> {
    let only = match scope {
        EndpointScope::Server(server) => Some(Arc::clone(server)),
        EndpointScope::All | EndpointScope::Profile(_) => None,
    };
    let offers = catalog.servers();
    offers.filter(move |offer| only.as_ref().is_none_or(|only| *only == offer.server))
}

fn build_initialize_info(
    catalog: &Catalog,
    scope: &EndpointScope,
    visible: impl Fn(&ServerCatalog) -> bool,
) -> InitializeInfo {
    match scope {
        EndpointScope::Server(server) => match catalog.server(server) {
            Some(offer) if visible(offer) => InitializeInfo::from_server(offer),
            Some(_) | None => InitializeInfo::unknown(),
        },
        EndpointScope::All | EndpointScope::Profile(_) => {
            let offers = catalog.servers().filter(|offer| visible(offer));
            let offers: Vec<_> = offers.collect();
            if offers.len() == catalog.servers().count() {
                return catalog.initialize_info().clone();
            }
            InitializeInfo::from_servers(offers.into_iter())
        }
    }
}

/// True if any item of a server is visible.
fn has_visible_items(rules: &PolicySnapshot, viewer: Viewer<'_>, offer: &ServerCatalog) -> bool {
    ListKind::ALL.into_iter().any(|kind| {
        let mut items = offer.list(kind).iter();
        items.any(|item| is_visible(rules, viewer, kind, item))
    })
}

pub(super) fn is_visible(
    rules: &PolicySnapshot,
    viewer: Viewer<'_>,
    kind: ListKind,
    item: &CatalogItem,
) -> bool {
    let thing = PolicyTarget {
        kind: kind.feature_kind(),
        server: &item.route.server,
        name: &item.route.name,
        arguments: None,
    };
    rules.can_see(viewer.principal, viewer.scope, thing)
}
