//! The catalog of all servers: an immutable snapshot, rebuilt when a server's lists change and read
//! on every call.

pub mod cache_hints;
mod catalog_list;
mod definition;
mod definition_marks;
mod ejected;
mod initialize_field;
pub mod initialize_info;
mod list_kind;
mod queued_schema;
pub mod rendered_list;
mod server_catalog;
mod unlisted_servers;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use bowline_core::call::{CallRequest, CallSubject, EndpointScope, Route};
use bowline_core::name;
use bowline_core::sync::lock;
use foldhash::fast::RandomState;
use tokio::sync::watch;

pub use catalog_list::CatalogList;
pub use definition_marks::DefinitionMarks;
pub use initialize_field::InitializeField;
pub use initialize_info::InitializeInfo;
pub use list_kind::{ListKind, PerList};
pub use rendered_list::RenderedList;
pub use server_catalog::{
    CatalogItem, HeaderParamPolicy, ItemVisibility, ListPages, ServerCatalog, Staleness,
};

use self::ejected::EjectedCatalogs;
use self::unlisted_servers::UnlistedServers;

/// Snapshot of the lists of all servers, ready for listing and lookup.
#[derive(Debug)]
pub struct Catalog {
    /// Grows with every change.
    pub version: u64,
    /// Catalog entries of each server, by name.
    servers: BTreeMap<Arc<str>, Arc<ServerCatalog>>,
    /// Every item by visible name.
    visible: PerList<RouteMap>,
    /// Every item withdrawn until approval, by visible name.
    withdrawn: PerList<RouteMap>,
    /// The merged lists under visible names.
    all: PerList<RenderedList>,
    /// The merged result of `initialize`.
    initialize_info: InitializeInfo,
}

type RouteMap = HashMap<Arc<str>, Arc<Route>, RandomState>;

/// Result of a name lookup.
#[derive(Debug)]
pub enum NameLookup {
    /// Found.
    Route(Arc<Route>),
    /// Found, but withdrawn until approval.
    Withdrawn(Arc<Route>),
    /// The named server has not listed anything yet.
    Unlisted(Arc<str>),
    /// Unknown.
    Unknown,
}

/// No server has listed anything: all lists are empty.
impl Default for Catalog {
    fn default() -> Self {
        Self::build(0, BTreeMap::new())
    }
}

impl Catalog {
    /// Looks up the subject of a call.
    #[must_use]
    pub fn lookup_call(&self, call: &CallRequest) -> NameLookup {
        self.lookup(&call.scope, &call.subject)
    }

    /// Looks up a subject in a scope. Tasks are not in the catalog.
    #[must_use]
    pub fn lookup(&self, scope: &EndpointScope, subject: &CallSubject) -> NameLookup {
        match (scope, subject) {
            (_, CallSubject::Task { .. }) => NameLookup::Unknown,
            (EndpointScope::Server(server), CallSubject::Tool(tool)) => {
                match self.servers.get(server) {
                    Some(offer) => {
                        to_lookup(offer.tools.route(tool), offer.tools.withdrawn_route(tool))
                    }
                    None => NameLookup::Unlisted(Arc::clone(server)),
                }
            }
            (EndpointScope::Server(server), subject) => {
                self.lookup_in_server(server, subject, subject.name())
            }
            (_, CallSubject::Tool(name)) => {
                self.lookup_name(&self.visible.tools, &self.withdrawn.tools, name)
            }
            (_, CallSubject::Prompt(name) | CallSubject::CompletePrompt(name)) => {
                self.lookup_name(&self.visible.prompts, &self.withdrawn.prompts, name)
            }
            (_, CallSubject::Resource(uri)) => self.lookup_uri(uri),
            (_, CallSubject::CompleteResource(uri)) => {
                let offered = self.visible.templates.get(uri);
                match to_lookup(offered, self.withdrawn.templates.get(uri)) {
                    NameLookup::Unknown => self.lookup_uri(uri),
                    found => found,
                }
            }
        }
    }

    /// Returns the route to a prompt or resource of a server, unless withdrawn. The server itself
    /// reports whether the item exists.
    fn lookup_in_server(
        &self,
        server: &Arc<str>,
        subject: &CallSubject,
        own: &Arc<str>,
    ) -> NameLookup {
        let offer = self.servers.get(server);
        match offer.and_then(|offer| offer.withdrawn_route(subject)) {
            Some(route) => NameLookup::Withdrawn(Arc::clone(route)),
            None => unlisted_route(server, own),
        }
    }

    fn lookup_name(&self, offered: &RouteMap, withdrawn: &RouteMap, name: &Arc<str>) -> NameLookup {
        if let Some(route) = offered.get(name) {
            return NameLookup::Route(Arc::clone(route));
        }
        if let Some(route) = withdrawn.get(name) {
            return NameLookup::Withdrawn(Arc::clone(route));
        }
        match name::visible_server(name) {
            Some(server) if !self.servers.contains_key(server) => {
                NameLookup::Unlisted(server.into())
            }
            Some(_) | None => NameLookup::Unknown,
        }
    }

    /// Looks up a URI: by the server named in the URI, then by the lists, then by a single server
    /// with a matching template. Several matching servers give no result.
    fn lookup_uri(&self, uri: &Arc<str>) -> NameLookup {
        if let Some((server, own)) = name::parse_qualified_uri(uri) {
            return match self.servers.get_key_value(server) {
                Some((server, _)) => {
                    let own: Arc<str> = own.into();
                    self.lookup_in_server(server, &CallSubject::Resource(Arc::clone(&own)), &own)
                }
                None => NameLookup::Unlisted(server.into()),
            };
        }
        if let Some(route) = self.visible.resources.get(uri) {
            return NameLookup::Route(Arc::clone(route));
        }
        if let Some(route) = self.withdrawn.resources.get(uri) {
            return NameLookup::Withdrawn(Arc::clone(route));
        }
        let mut takers = self.servers.values().filter(|offer| {
            let templates = offer.templates.iter();
            let mut templates = templates.filter_map(|item| item.template.as_ref());
            templates.any(|template| template.matches_uri(uri))
        });
        match (takers.next(), takers.next()) {
            (Some(only), None) if !self.is_listed_by_any(uri) => unlisted_route(&only.server, uri),
            _ => NameLookup::Unknown,
        }
    }

    /// True if any server lists this URI. A listed URI without a plain route is shared by several
    /// servers and listed under qualified URIs.
    fn is_listed_by_any(&self, uri: &str) -> bool {
        let mut offers = self.servers.values();
        offers.any(|offer| {
            let own = &offer.resources;
            own.route(uri).is_some() || own.withdrawn_route(uri).is_some()
        })
    }

    /// Returns the catalog entries of a server, if listed.
    #[must_use]
    pub fn server(&self, server: &str) -> Option<&Arc<ServerCatalog>> {
        self.servers.get(server)
    }

    /// Returns the catalog entries of all listed servers, by name.
    pub fn servers(&self) -> impl Iterator<Item = &Arc<ServerCatalog>> {
        self.servers.values()
    }

    /// Returns a list for `scope`; empty for an unlisted server.
    #[must_use]
    pub fn list(&self, scope: &EndpointScope, kind: ListKind) -> RenderedList {
        match scope {
            EndpointScope::All | EndpointScope::Profile(_) => self.all.get(kind).clone(),
            EndpointScope::Server(server) => self.servers.get(server).map_or_else(
                || rendered_list::empty_list(kind),
                |offer| offer.list(kind).rendered.clone(),
            ),
        }
    }

    /// Returns a list for `scope` with the items accepted by `may`.
    #[must_use]
    pub fn filtered_list(
        &self,
        scope: &EndpointScope,
        kind: ListKind,
        may: impl Fn(&CatalogItem) -> bool,
    ) -> RenderedList {
        match scope {
            EndpointScope::All | EndpointScope::Profile(_) => {
                let items = self.servers.values().flat_map(|offer| offer.list(kind));
                let items = items.filter(|item| may(item));
                let hint = rendered_list::merged_hint(kind, self.servers.values());
                rendered_list::render(kind, items, CatalogItem::write_visible, hint)
            }
            EndpointScope::Server(server) => {
                let offer = self.servers.get(server);
                let items = offer.into_iter().flat_map(|offer| offer.list(kind));
                let items = items.filter(|item| may(item));
                let hint = rendered_list::merged_hint(kind, offer.into_iter());
                rendered_list::render(kind, items, CatalogItem::write_definition, hint)
            }
        }
    }

    /// Returns the merged result of `initialize`.
    #[must_use]
    pub const fn initialize_info(&self) -> &InitializeInfo {
        &self.initialize_info
    }

    fn build(version: u64, mut servers: BTreeMap<Arc<str>, Arc<ServerCatalog>>) -> Self {
        rendered_list::resolve_collisions(&mut servers);
        let route = |item: &CatalogItem| (Arc::clone(&item.visible), Arc::clone(&item.route));
        let visible = PerList::from_fn(|kind| {
            let items = servers.values().flat_map(|offer| offer.list(kind));
            items.map(route).collect()
        });
        let withdrawn = PerList::from_fn(|kind| {
            let items = servers
                .values()
                .flat_map(|offer| &offer.list(kind).withdrawn);
            items.map(route).collect()
        });
        let all = PerList::from_fn(|kind| rendered_list::merge_servers(kind, servers.values()));
        let initialize_info = InitializeInfo::from_servers(servers.values());
        Self {
            version,
            servers,
            visible,
            withdrawn,
            all,
            initialize_info,
        }
    }
}

fn to_lookup(offered: Option<&Arc<Route>>, withdrawn: Option<&Arc<Route>>) -> NameLookup {
    match (offered, withdrawn) {
        (Some(route), _) => NameLookup::Route(Arc::clone(route)),
        (None, Some(route)) => NameLookup::Withdrawn(Arc::clone(route)),
        (None, None) => NameLookup::Unknown,
    }
}

/// Returns a route to a possibly unlisted item of a server.
fn unlisted_route(server: &Arc<str>, own: &Arc<str>) -> NameLookup {
    NameLookup::Route(Route::new_unlisted(server, own))
}

/// Holds the current snapshot and announces changes.
#[derive(Debug)]
pub struct CatalogStore {
    current: ArcSwap<Catalog>,
    /// Serializes writers; readers never take it.
    write_lock: Mutex<()>,
    version: watch::Sender<u64>,
    /// Lazy servers never listed so far.
    pub unlisted: UnlistedServers,
    /// Catalog entries of ejected servers.
    pub ejected: EjectedCatalogs,
}

impl Default for CatalogStore {
    fn default() -> Self {
        Self {
            current: ArcSwap::from_pointee(Catalog::default()),
            write_lock: Mutex::default(),
            version: watch::Sender::new(0),
            unlisted: UnlistedServers::default(),
            ejected: EjectedCatalogs::default(),
        }
    }
}

impl CatalogStore {
    /// Returns the current snapshot.
    #[must_use]
    pub fn current(&self) -> Arc<Catalog> {
        self.current.load_full()
    }

    /// Returns a receiver of the versions with changed items.
    #[must_use]
    pub fn subscribe_version(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Publishes the entries of a server, filtered by `judge`.
    pub fn publish_server(
        &self,
        offer: &ServerCatalog,
        judge: impl FnOnce(&ServerCatalog) -> ServerCatalog,
    ) {
        self.unlisted.remove(&offer.server);
        self.ejected.remove(&offer.server);
        self.update(|offers| {
            let offer = judge(offer);
            let old = offers.get(&offer.server);
            let edit = match old {
                Some(old) if old.has_same_items(&offer) && old.has_same_freshness(&offer) => {
                    return CatalogEdit::None;
                }
                Some(old) if old.has_same_items(&offer) => CatalogEdit::Marks,
                Some(_) | None => CatalogEdit::Items,
            };
            offers.insert(Arc::clone(&offer.server), Arc::new(offer));
            edit
        });
    }

    /// Marks the entries of a server as live or last known.
    pub fn mark_staleness(&self, server: &str, age: Staleness) {
        let is_so = |offer: &Arc<ServerCatalog>| offer.staleness == age;
        if self.current.load().server(server).is_none_or(is_so) {
            return;
        }
        self.update(|offers| match offers.get_mut(server) {
            Some(offer) if !is_so(offer) => {
                *offer = Arc::new(ServerCatalog::clone(offer).with_staleness(age));
                CatalogEdit::Marks
            }
            Some(_) | None => CatalogEdit::None,
        });
    }

    /// Filters the entries of a server again.
    pub fn refilter_server(
        &self,
        server: &str,
        judge: impl FnOnce(&ServerCatalog) -> ServerCatalog,
    ) {
        if let Some(last) = self.ejected.get(server) {
            self.ejected.insert(&Arc::new(judge(&last)));
            return;
        }
        self.update(|offers| {
            let Some(old) = offers.get_mut(server) else {
                return CatalogEdit::None;
            };
            let offer = judge(old);
            let same = old.has_same_items(&offer);
            if !same {
                *old = Arc::new(offer);
            }
            CatalogEdit::from_changed(!same)
        });
    }

    /// Removes the entries of an ejected server, and keeps them aside until listed again or
    /// withdrawn.
    pub fn eject_server(&self, server: &str) {
        if let Some(offer) = self.current.load().server(server) {
            self.ejected.insert(offer);
        }
        self.update(|offers| CatalogEdit::from_changed(offers.remove(server).is_some()));
    }

    /// Removes the entries of a server.
    pub fn withdraw_server(&self, server: &str) {
        self.ejected.remove(server);
        self.update(|offers| CatalogEdit::from_changed(offers.remove(server).is_some()));
    }

    /// Removes the entries of several servers in a single change.
    pub fn withdraw_servers(&self, servers: &[Arc<str>]) {
        for server in servers {
            self.ejected.remove(server);
        }
        self.update(|offers| {
            let before = offers.len();
            offers.retain(|server, _| !servers.contains(server));
            CatalogEdit::from_changed(offers.len() != before)
        });
    }

    fn update(
        &self,
        edit: impl FnOnce(&mut BTreeMap<Arc<str>, Arc<ServerCatalog>>) -> CatalogEdit,
    ) {
        let _writing = lock(&self.write_lock);
        let old = self.current.load();
        let mut offers = old.servers.clone();
        let edit = edit(&mut offers);
        if edit == CatalogEdit::None {
            return;
        }
        let version = old.version + 1;
        self.current
            .store(Arc::new(Catalog::build(version, offers)));
        // A short outage changes only marks: no reason to notify thousands of sessions.
        if edit == CatalogEdit::Items {
            self.version.send_replace(version);
        }
    }
}

/// Kind of a catalog change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CatalogEdit {
    /// Unchanged.
    None,
    /// Only "last known" marks changed.
    Marks,
    /// Items changed.
    Items,
}

impl CatalogEdit {
    const fn from_changed(offer: bool) -> Self {
        if offer { Self::Items } else { Self::None }
    }
}
