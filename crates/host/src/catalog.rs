//! What all servers offer: an immutable snapshot, built when a server's lists change and read on
//! every call.

mod definition;
pub(crate) mod introduction;
pub(crate) mod keep;
mod kind;
mod last;
pub(crate) mod listing;
mod mark;
mod offer;
mod part;
mod shelf;
mod unlisted;
mod widened;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use bowline_core::call::{Call, Route, Scope, Subject};
use bowline_core::name;
use bowline_core::sync::lock;
use foldhash::fast::RandomState;
use tokio::sync::watch;

pub use introduction::Introduction;
pub use kind::{ListKind, PerList};
pub use listing::Listing;
pub use mark::Marks;
pub use offer::{Age, Item, Mirroring, Offer, Pages, Verdict};
pub(crate) use part::Part;
pub use shelf::Shelf;

use self::last::LastOffers;
use self::unlisted::Unlisted;

/// The snapshot: all that every server offers, ready to be listed and resolved.
#[derive(Debug)]
pub struct Catalog {
    /// Grows with every change.
    pub version: u64,
    /// What each server offers, by its name.
    offers: BTreeMap<Arc<str>, Arc<Offer>>,
    /// Every entry by its visible name.
    visible: PerList<Routes>,
    /// Every entry that is not offered until a person accepts it, by its visible name.
    withdrawn: PerList<Routes>,
    /// The lists of all servers under the visible names.
    all: PerList<Listing>,
    /// What all servers together say of themselves.
    introduction: Introduction,
}

type Routes = HashMap<Arc<str>, Arc<Route>, RandomState>;

/// What looking up a name came to.
#[derive(Debug)]
pub enum Found {
    /// This one.
    Route(Arc<Route>),
    /// This one, but it is not offered until a person accepts it.
    Withdrawn(Arc<Route>),
    /// The server of that name has not told what it offers yet.
    Unlisted(Arc<str>),
    /// Nothing of that name.
    Nothing,
}

/// Nobody has told anything: the lists are empty, but lists.
impl Default for Catalog {
    fn default() -> Self {
        Self::build(0, BTreeMap::new())
    }
}

impl Catalog {
    /// Looks up what a call names.
    #[must_use]
    pub fn resolve(&self, call: &Call) -> Found {
        self.find(&call.scope, &call.subject)
    }

    /// Looks up what a subject names in a scope. Tasks are in no catalog.
    #[must_use]
    pub fn find(&self, scope: &Scope, subject: &Subject) -> Found {
        match (scope, subject) {
            (_, Subject::Task { .. }) => Found::Nothing,
            (Scope::Server(server), Subject::Tool(tool)) => match self.offers.get(server) {
                Some(offer) => found(offer.tools.route(tool), offer.tools.withdrawn(tool)),
                None => Found::Unlisted(Arc::clone(server)),
            },
            (Scope::Server(server), subject) => self.of_server(server, subject, subject.name()),
            (_, Subject::Tool(name)) => self.by_name(ListKind::Tools, name),
            (_, Subject::Prompt(name) | Subject::CompletePrompt(name)) => {
                self.by_name(ListKind::Prompts, name)
            }
            (_, Subject::Resource(uri)) => self.by_uri(uri),
            (_, Subject::CompleteResource(uri)) => {
                let offered = self.visible.templates.get(uri);
                match found(offered, self.withdrawn.templates.get(uri)) {
                    Found::Nothing => self.by_uri(uri),
                    found => found,
                }
            }
        }
    }

    /// The way to a prompt or resource of one server, unless it waits for a person. Whether it
    /// exists is for the server to say, in its own words.
    fn of_server(&self, server: &Arc<str>, subject: &Subject, own: &Arc<str>) -> Found {
        let offer = self.offers.get(server);
        match offer.and_then(|offer| offer.withdrawn(subject)) {
            Some(route) => Found::Withdrawn(Arc::clone(route)),
            None => direct(server, own),
        }
    }

    fn by_name(&self, kind: ListKind, visible: &Arc<str>) -> Found {
        if let Some(route) = self.visible.get(kind).get(visible) {
            return Found::Route(Arc::clone(route));
        }
        if let Some(route) = self.withdrawn.get(kind).get(visible) {
            return Found::Withdrawn(Arc::clone(route));
        }
        match name::server_of(visible) {
            Some(server) if !self.offers.contains_key(server) => Found::Unlisted(server.into()),
            Some(_) | None => Found::Nothing,
        }
    }

    /// By the server that the URI names, then by the lists, then by the one server that has a
    /// template for it. Where several have, none is guessed.
    fn by_uri(&self, uri: &Arc<str>) -> Found {
        if let Some((server, own)) = name::read_addressed(uri) {
            return match self.offers.get_key_value(server) {
                Some((server, _)) => {
                    let own: Arc<str> = own.into();
                    self.of_server(server, &Subject::Resource(Arc::clone(&own)), &own)
                }
                None => Found::Unlisted(server.into()),
            };
        }
        if let Some(route) = self.visible.resources.get(uri) {
            return Found::Route(Arc::clone(route));
        }
        if let Some(route) = self.withdrawn.resources.get(uri) {
            return Found::Withdrawn(Arc::clone(route));
        }
        let mut takers = self.offers.values().filter(|offer| {
            let templates = offer.templates.iter();
            let mut templates = templates.filter_map(|item| item.template.as_ref());
            templates.any(|template| template.fits(uri))
        });
        match (takers.next(), takers.next()) {
            (Some(only), None) if !self.is_shared(uri) => direct(&only.server, uri),
            _ => Found::Nothing,
        }
    }

    /// Whether several servers list this URI, so that it is listed under other ones.
    fn is_shared(&self, uri: &str) -> bool {
        let mut offers = self.offers.values();
        offers.any(|offer| {
            let own = &offer.resources;
            own.route(uri).is_some() || own.withdrawn(uri).is_some()
        })
    }

    /// Returns what one server offers, if it has told.
    #[must_use]
    pub fn offer(&self, server: &str) -> Option<&Arc<Offer>> {
        self.offers.get(server)
    }

    /// Returns what every server that has told offers, by name.
    pub fn offers(&self) -> impl Iterator<Item = &Arc<Offer>> {
        self.offers.values()
    }

    /// Returns a list for `scope`; empty for a server that has not told.
    #[must_use]
    pub fn listing(&self, scope: &Scope, kind: ListKind) -> Listing {
        match scope {
            Scope::All | Scope::Profile(_) => self.all.get(kind).clone(),
            Scope::Server(server) => self.offers.get(server).map_or_else(
                || listing::empty(kind),
                |offer| offer.shelf(kind).listing.clone(),
            ),
        }
    }

    /// Returns a list of those entries for `scope` that `may` lets through.
    #[must_use]
    pub fn filtered(&self, scope: &Scope, kind: ListKind, may: impl Fn(&Item) -> bool) -> Listing {
        match scope {
            Scope::All | Scope::Profile(_) => {
                let items = self.offers.values().flat_map(|offer| offer.shelf(kind));
                let items = items.filter(|item| may(item));
                let hint = listing::hint(kind, self.offers.values());
                listing::write(kind, items, Item::write_visible, hint)
            }
            Scope::Server(server) => {
                let offer = self.offers.get(server);
                let items = offer.into_iter().flat_map(|offer| offer.shelf(kind));
                let items = items.filter(|item| may(item));
                let hint = listing::hint(kind, offer.into_iter());
                listing::write(kind, items, Item::write_definition, hint)
            }
        }
    }

    /// Returns what all servers together say of themselves.
    #[must_use]
    pub const fn introduction(&self) -> &Introduction {
        &self.introduction
    }

    fn build(version: u64, mut offers: BTreeMap<Arc<str>, Arc<Offer>>) -> Self {
        listing::resolve_collisions(&mut offers);
        let route = |item: &Item| (Arc::clone(&item.visible), Arc::clone(&item.route));
        let visible = PerList::from(|kind| {
            let items = offers.values().flat_map(|offer| offer.shelf(kind));
            items.map(route).collect()
        });
        let withdrawn = PerList::from(|kind| {
            let items = offers
                .values()
                .flat_map(|offer| &offer.shelf(kind).withdrawn);
            items.map(route).collect()
        });
        let all = PerList::from(|kind| listing::merge(kind, offers.values()));
        let introduction = Introduction::of_all(offers.values());
        Self {
            version,
            offers,
            visible,
            withdrawn,
            all,
            introduction,
        }
    }
}

fn found(offered: Option<&Arc<Route>>, withdrawn: Option<&Arc<Route>>) -> Found {
    match (offered, withdrawn) {
        (Some(route), _) => Found::Route(Arc::clone(route)),
        (None, Some(route)) => Found::Withdrawn(Arc::clone(route)),
        (None, None) => Found::Nothing,
    }
}

/// The way to something that a server may have, whether it lists it or not.
fn direct(server: &Arc<str>, own: &Arc<str>) -> Found {
    Found::Route(Route::unlisted(server, own))
}

/// Holds the current snapshot and tells when it was replaced.
#[derive(Debug)]
pub struct CatalogStore {
    current: ArcSwap<Catalog>,
    /// Serialises writers; readers never see it.
    writing: Mutex<()>,
    version: watch::Sender<u64>,
    /// Servers that have never told, and wait to be needed.
    pub(crate) unlisted: Unlisted,
    /// What those offered that are ejected.
    pub(crate) last: LastOffers,
}

impl Default for CatalogStore {
    fn default() -> Self {
        Self {
            current: ArcSwap::from_pointee(Catalog::default()),
            writing: Mutex::default(),
            version: watch::Sender::new(0),
            unlisted: Unlisted::default(),
            last: LastOffers::default(),
        }
    }
}

impl CatalogStore {
    /// Returns the snapshot of this moment.
    #[must_use]
    pub fn current(&self) -> Arc<Catalog> {
        self.current.load_full()
    }

    /// Returns a receiver that sees every new version in which something else is offered.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Puts what a server offers into the catalog, as `judge` lets it be seen.
    pub(crate) fn publish(&self, offer: &Offer, judge: impl FnOnce(&Offer) -> Offer) {
        self.unlisted.remove(&offer.server);
        self.last.remove(&offer.server);
        self.change(|offers| {
            let offer = judge(offer);
            let old = offers.get(&offer.server);
            let edit = match old {
                Some(old) if old.is_like(&offer) && old.is_told_like(&offer) => return Edit::None,
                Some(old) if old.is_like(&offer) => Edit::Marks,
                Some(_) | None => Edit::Offer,
            };
            offers.insert(Arc::clone(&offer.server), Arc::new(offer));
            edit
        });
    }

    /// Notes whether what a server offers is known from it or from before.
    pub(crate) fn age(&self, server: &str, age: Age) {
        let is_so = |offer: &Arc<Offer>| offer.age == age;
        if self.current.load().offer(server).is_none_or(is_so) {
            return;
        }
        self.change(|offers| match offers.get_mut(server) {
            Some(offer) if !is_so(offer) => {
                *offer = Arc::new(Offer::clone(offer).aged(age));
                Edit::Marks
            }
            Some(_) | None => Edit::None,
        });
    }

    /// Judges what a server offers anew.
    pub(crate) fn judge_again(&self, server: &str, judge: impl FnOnce(&Offer) -> Offer) {
        if let Some(last) = self.last.of(server) {
            self.last.put(&Arc::new(judge(&last)));
            return;
        }
        self.change(|offers| {
            let Some(old) = offers.get_mut(server) else {
                return Edit::None;
            };
            let offer = judge(old);
            let same = old.is_like(&offer);
            if !same {
                *old = Arc::new(offer);
            }
            Edit::of(!same)
        });
    }

    /// Takes what a server offers out of the catalog, and remembers it until it is listed again
    /// or withdrawn.
    pub fn eject(&self, server: &str) {
        if let Some(offer) = self.current.load().offer(server) {
            self.last.put(offer);
        }
        self.change(|offers| Edit::of(offers.remove(server).is_some()));
    }

    /// Takes what a server offers out of the catalog.
    pub fn withdraw(&self, server: &str) {
        self.last.remove(server);
        self.change(|offers| Edit::of(offers.remove(server).is_some()));
    }

    /// Takes what several servers offer out of the catalog, as one change.
    pub fn withdraw_all(&self, servers: &[Arc<str>]) {
        for server in servers {
            self.last.remove(server);
        }
        self.change(|offers| {
            let before = offers.len();
            offers.retain(|server, _| !servers.contains(server));
            Edit::of(offers.len() != before)
        });
    }

    fn change(&self, edit: impl FnOnce(&mut BTreeMap<Arc<str>, Arc<Offer>>) -> Edit) {
        let _writing = lock(&self.writing);
        let old = self.current.load();
        let mut offers = old.offers.clone();
        let edit = edit(&mut offers);
        if edit == Edit::None {
            return;
        }
        let version = old.version + 1;
        self.current
            .store(Arc::new(Catalog::build(version, offers)));
        // A server that is away for a moment is no reason to compare what thousands know.
        if edit == Edit::Offer {
            self.version.send_replace(version);
        }
    }
}

/// What was changed in the catalog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Edit {
    /// Nothing.
    None,
    /// Which definitions are marked as last known.
    Marks,
    /// What is offered.
    Offer,
}

impl Edit {
    const fn of(offer: bool) -> Self {
        if offer { Self::Offer } else { Self::None }
    }
}
