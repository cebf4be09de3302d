//! What all servers offer: an immutable snapshot, built when a server's list changes and read on
//! every call.

mod listing;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use bowline_core::call::{Call, Route, Scope, Subject};
use bowline_core::name;
use bowline_core::sync::lock;
use bytes::Bytes;
use foldhash::fast::RandomState;
use tokio::sync::watch;

pub use listing::{Offer, Tool, read_tools};

/// The snapshot: every tool of every server, ready to be listed and resolved.
#[derive(Debug)]
pub struct Catalog {
    /// Grows with every change.
    pub version: u64,
    /// What each server offers, by its name.
    offers: BTreeMap<Arc<str>, Arc<Offer>>,
    /// Every tool by its visible name.
    visible: HashMap<Arc<str>, Arc<Route>, RandomState>,
    /// The tools of all servers under their visible names.
    all: Listing,
}

/// A list as ready bytes, and a fingerprint that changes with any definition.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// A whole `tools/list` result.
    pub result: Bytes,
    /// Differs whenever a name or definition differs.
    pub fingerprint: [u8; 32],
}

/// The lists of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ListKind {
    /// `tools/list`.
    Tools,
    /// `prompts/list`.
    Prompts,
    /// `resources/list`.
    Resources,
    /// `resources/templates/list`.
    Templates,
}

/// What looking up a name came to.
#[derive(Debug)]
pub enum Found {
    /// This tool.
    Route(Arc<Route>),
    /// The server of that name has not told its tools yet.
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
    /// Looks up the tool a call names.
    #[must_use]
    pub fn resolve(&self, call: &Call) -> Found {
        let Subject::Tool(tool) = &call.subject else {
            return Found::Nothing;
        };
        match &call.scope {
            Scope::All => {
                if let Some(route) = self.visible.get(tool) {
                    return Found::Route(Arc::clone(route));
                }
                match name::server_of(tool) {
                    Some(server) if !self.offers.contains_key(server) => {
                        Found::Unlisted(server.into())
                    }
                    Some(_) | None => Found::Nothing,
                }
            }
            Scope::Server(server) => match self.offers.get(server) {
                Some(offer) => offer
                    .route(tool)
                    .map_or(Found::Nothing, |route| Found::Route(Arc::clone(route))),
                None => Found::Unlisted(Arc::clone(server)),
            },
        }
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

    /// Returns the list for `scope`; empty for a server that has not told.
    #[must_use]
    pub fn listing(&self, scope: &Scope, kind: ListKind) -> Listing {
        if kind != ListKind::Tools {
            return Listing::default();
        }
        match scope {
            Scope::All => self.all.clone(),
            Scope::Server(server) => self
                .offers
                .get(server)
                .map_or_else(listing::empty, |offer| offer.listing.clone()),
        }
    }

    fn build(version: u64, mut offers: BTreeMap<Arc<str>, Arc<Offer>>) -> Self {
        listing::resolve_collisions(&mut offers);
        let mut visible = HashMap::default();
        for offer in offers.values() {
            for tool in &offer.tools {
                visible.insert(Arc::clone(&tool.visible), Arc::clone(&tool.route));
            }
        }
        let all = listing::merge(offers.values());
        Self {
            version,
            offers,
            visible,
            all,
        }
    }
}

/// Holds the current snapshot and tells when it was replaced.
#[derive(Debug)]
pub struct CatalogStore {
    current: ArcSwap<Catalog>,
    /// Serialises writers; readers never see it.
    writing: Mutex<()>,
    version: watch::Sender<u64>,
}

impl Default for CatalogStore {
    fn default() -> Self {
        Self {
            current: ArcSwap::from_pointee(Catalog::default()),
            writing: Mutex::default(),
            version: watch::Sender::new(0),
        }
    }
}

impl CatalogStore {
    /// Returns the snapshot of this moment.
    #[must_use]
    pub fn current(&self) -> Arc<Catalog> {
        self.current.load_full()
    }

    /// Returns a receiver that sees every new version.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Puts what a server offers into the catalog.
    pub fn publish(&self, offer: Offer) {
        self.change(|offers| {
            let same = offers
                .get(&offer.server)
                .is_some_and(|old| old.listing.fingerprint == offer.listing.fingerprint);
            if !same {
                offers.insert(Arc::clone(&offer.server), Arc::new(offer));
            }
            !same
        });
    }

    /// Takes a server's tools out of the catalog.
    pub fn withdraw(&self, server: &str) {
        self.change(|offers| offers.remove(server).is_some());
    }

    fn change(&self, edit: impl FnOnce(&mut BTreeMap<Arc<str>, Arc<Offer>>) -> bool) {
        let _writing = lock(&self.writing);
        let old = self.current.load();
        let mut offers = old.offers.clone();
        if edit(&mut offers) {
            let version = old.version + 1;
            self.current
                .store(Arc::new(Catalog::build(version, offers)));
            self.version.send_replace(version);
        }
    }
}
