//! Which definitions of servers were approved, and what becomes of those that are others now.

mod accept;
mod pieces;
mod store;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use bowline_core::lint::{Findings, Names, codes};
use bowline_core::pins::{Hash, News, Pin, PinKind, Pins as Machine, Sight, State};
use bowline_core::sync::lock;
use bytes::Bytes;
use foldhash::fast::RandomState;
use serde::Serialize;
use tokio::sync::Semaphore;

use crate::catalog::{Item, ListKind, Marks, Offer, Part, Verdict};
use crate::events::{Events, What};
use crate::ports::Clock;
use crate::spec::ServerSpec;

pub use accept::{AcceptError, PinTarget};
pub use store::{PinStore, StoreError, Unkept};

/// What happens to a tool, prompt, resource, template or introduction that is not the approved one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PinMode {
    /// Nothing is remembered.
    Off,
    /// It is marked and told of.
    #[default]
    Warn,
    /// It is withdrawn until a person accepts it.
    Block,
}

impl PinMode {
    /// Returns the word used in configuration and API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Warn => "warn",
            Self::Block => "block",
        }
    }
}

/// Servers whose pins are held.
const SERVERS_MAX: usize = 4_096;

/// The mark of a definition that is not what was approved.
const CHANGED: &str = "changed";

/// The mark of a definition of which nobody can say whether it is what was approved.
const UNVERIFIED: &str = "unverified";

/// The pins of all servers.
#[derive(Debug)]
pub struct Pins {
    store: Arc<dyn PinStore>,
    clock: Arc<dyn Clock>,
    events: Events,
    servers: Mutex<HashMap<Arc<str>, Kept, RandomState>>,
    /// Swapped whole, so that definitions are looked at without the lock.
    names: Mutex<Arc<Names>>,
}

/// What is known of one server. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Kept {
    /// Its pins.
    pub pins: Arc<Machine>,
    /// Why they cannot be relied on.
    pub trouble: Option<Trouble>,
    /// Whoever changes them holds it until they are saved.
    turn: Arc<Semaphore>,
}

impl Kept {
    fn new(pins: Machine, trouble: Option<Trouble>) -> Self {
        Self {
            pins: Arc::new(pins),
            trouble,
            turn: Arc::new(Semaphore::new(1)),
        }
    }
}

/// What `status` says of the pins of one server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// What happens to definitions that are not as they were approved.
    #[serde(rename = "pin")]
    pub mode: &'static str,
    /// Definitions of every kind that are not as they were approved.
    #[serde(rename = "pins_changed")]
    pub changed: usize,
    /// Definitions of every kind that nobody looked at yet, and that are odd.
    #[serde(rename = "pins_quarantined")]
    pub quarantined: usize,
    /// Why nobody can say what was approved.
    #[serde(rename = "pins_error")]
    pub error: Option<Arc<str>>,
}

impl Summary {
    pub(crate) fn of(pins: &Pins, spec: &ServerSpec) -> Self {
        let mode = spec.pin.as_str();
        if spec.pin == PinMode::Off {
            return Self {
                mode,
                ..Self::default()
            };
        }
        let Kept { pins, trouble, .. } = pins.kept(&spec.name);
        Self {
            mode,
            changed: pins.count(|state| matches!(state, State::Changed { .. })),
            quarantined: pins.count(|state| *state == State::Quarantined),
            error: trouble.map(|trouble| Arc::clone(trouble.reason())),
        }
    }
}

/// Why pins cannot be relied on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// What was kept cannot be read: nobody knows what was approved.
    Unreadable(Arc<str>),
    /// What was seen cannot be kept: it would not be known after the next start.
    Unsaved(Arc<str>),
}

impl Trouble {
    /// Returns the word used in events and API.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Unreadable(_) => "unreadable",
            Self::Unsaved(_) => "unsaved",
        }
    }

    /// Says what is wrong.
    #[must_use]
    pub const fn reason(&self) -> &Arc<str> {
        match self {
            Self::Unreadable(reason) | Self::Unsaved(reason) => reason,
        }
    }
}

impl Pins {
    /// Knows of no server yet.
    #[must_use]
    pub(crate) fn open(store: Arc<dyn PinStore>, clock: Arc<dyn Clock>, events: Events) -> Self {
        Self {
            store,
            clock,
            events,
            servers: Mutex::default(),
            names: Mutex::default(),
        }
    }

    /// Learns which servers there are, and reads what was kept of them.
    pub(crate) fn know(&self, specs: &[ServerSpec]) {
        let mut names = lock(&self.names);
        Arc::make_mut(&mut names).know(specs.iter().map(|spec| &spec.name));
        drop(names);
        for spec in specs.iter().filter(|spec| spec.pin != PinMode::Off) {
            let _read = self.kept(&spec.name);
        }
    }

    /// Returns what is known of a server, reading what was kept where that is not done yet.
    #[must_use]
    pub fn kept(&self, server: &Arc<str>) -> Kept {
        let mut servers = lock(&self.servers);
        if let Some(kept) = servers.get(server) {
            return kept.clone();
        }
        if servers.len() >= SERVERS_MAX {
            // They were kept; those that come back are read again.
            let names = lock(&self.names);
            servers.retain(|server, _| names.knows(server));
        }
        if servers.len() >= SERVERS_MAX {
            let trouble = Trouble::Unreadable("there are too many servers".into());
            return Kept::new(Machine::default(), Some(trouble));
        }
        let kept = match self.store.load(server) {
            Ok(pins) => Kept::new(pins.unwrap_or_default(), None),
            Err(error) => {
                let trouble = Trouble::Unreadable(error.to_string().into());
                self.tell_trouble(server, &trouble);
                Kept::new(Machine::default(), Some(trouble))
            }
        };
        servers.insert(Arc::clone(server), kept.clone());
        drop(servers);
        let mut names = lock(&self.names);
        Arc::make_mut(&mut names).meet(server);
        for (tool, _) in kept.pins.iter(PinKind::Tool) {
            Arc::make_mut(&mut names).add(server, tool);
        }
        kept
    }

    /// Takes in what a server offers. What is new is saved before this returns.
    pub(crate) async fn see(&self, spec: &ServerSpec, offer: &Offer) {
        if spec.pin == PinMode::Off {
            return;
        }
        let server = &spec.name;
        let turn = self.kept(server).turn;
        let Ok(_turn) = turn.acquire().await else {
            return;
        };
        let Kept { pins, trouble, .. } = self.kept(server);
        // Nothing is approved in place of what cannot be read but by a person.
        if matches!(trouble, Some(Trouble::Unreadable(_))) {
            return;
        }
        let sights = self.sights(server, offer);
        if trouble.is_none() && !sights.iter().any(|sight| pins.is_news(sight)) {
            return;
        }
        let mut next = Machine::clone(&pins);
        let news = next.see(&sights, self.clock.unix_ms());
        let saved = self.save(server, next).await;
        for News { kind, tool, state } in news {
            let word = kind.as_str();
            // A name is written so that nothing in it is hidden.
            match state {
                "changed" => {
                    tracing::warn!(%server, kind = word, ?tool, "a definition is not as approved");
                }
                _ => {
                    tracing::warn!(%server, kind = word, ?tool, "a definition is odd and new");
                }
            }
            self.tell(server, Some((kind, &tool)), state, None);
        }
        if let Err(trouble) = saved {
            self.tell_trouble(server, &trouble);
        }
    }

    /// Whether an offer holds what was not seen yet, or cannot be judged.
    pub(crate) fn is_news(&self, spec: &ServerSpec, offer: &Offer) -> bool {
        let kept = self.kept(&spec.name);
        let is_pinned = |entry: &Entry<'_>| {
            let pin = kept.pins.get(entry.kind, entry.name);
            pin.is_some_and(|pin| pin.now().hash == entry.hash)
        };
        kept.trouble.is_some()
            || !entries(offer).all(|entry| is_pinned(&entry))
            || !offer.parts().iter().all(|part| is_pinned(&part.entry()))
    }

    /// Marks or withdraws what is not as it should be.
    pub(crate) fn judge(&self, spec: &ServerSpec, offer: &Offer) -> Offer {
        if spec.pin == PinMode::Off {
            let show = || Verdict::Show(Marks::default());
            return offer.judged(|_, _| show(), |_| show());
        }
        let kept = self.kept(&spec.name);
        offer.judged(
            |kind, item| verdict(spec.pin, &kept, &Entry::of(kind, item)),
            |part| verdict(spec.pin, &kept, &part.entry()),
        )
    }

    /// Returns the entries of an offer with what is odd about each.
    fn sights(&self, server: &Arc<str>, offer: &Offer) -> Vec<Sight> {
        let names = {
            let mut names = lock(&self.names);
            for item in offer.tools.all() {
                if !names.has(server, &item.route.name) {
                    Arc::make_mut(&mut names).add(server, &item.route.name);
                }
            }
            Arc::clone(&names)
        };
        let sight = |entry: &Entry<'_>, text: &[u8]| {
            let mut findings = Findings::default();
            // A URI is no name that people choose by.
            if matches!(entry.kind, PinKind::Tool | PinKind::Prompt) {
                findings.name(server, entry.name, &names);
            }
            pieces::look(server, text, &names, &mut findings);
            Sight {
                kind: entry.kind,
                tool: Arc::clone(entry.name),
                hash: entry.hash,
                definition: entry.definition.clone(),
                findings: findings.into_vec(),
            }
        };
        let lists = entries(offer).map(|entry| sight(&entry, entry.definition));
        let mut sights: Vec<_> = lists.collect();
        let parts = offer.parts();
        sights.extend(parts.iter().map(|part| sight(&part.entry(), &part.text)));
        sights
    }

    fn tell(
        &self,
        server: &Arc<str>,
        entry: Option<(PinKind, &Arc<str>)>,
        state: &'static str,
        reason: Option<&Arc<str>>,
    ) {
        self.events.tell(What::Pin {
            server: Arc::clone(server),
            kind: entry.map(|(kind, _)| kind.as_str()),
            tool: entry.map(|(_, name)| Arc::clone(name)),
            state,
            reason: reason.cloned(),
        });
    }

    fn tell_trouble(&self, server: &Arc<str>, trouble: &Trouble) {
        let reason = trouble.reason();
        tracing::error!(%server, %reason, "its pins cannot be relied on");
        self.tell(server, None, trouble.as_str(), Some(reason));
    }
}

/// What one entry is pinned by.
struct Entry<'a> {
    kind: PinKind,
    name: &'a Arc<str>,
    hash: Hash,
    definition: &'a Bytes,
}

impl<'a> Entry<'a> {
    fn of(kind: ListKind, item: &'a Item) -> Self {
        Self {
            kind: kind.pinned(),
            name: &item.pinned,
            hash: item.route.definition,
            definition: &item.written,
        }
    }
}

impl Part {
    fn entry(&self) -> Entry<'_> {
        Entry {
            kind: PinKind::Introduction,
            name: &self.name,
            hash: self.hash,
            definition: &self.pinned,
        }
    }
}

/// Returns the entries of all four lists.
fn entries(offer: &Offer) -> impl Iterator<Item = Entry<'_>> {
    let lists = ListKind::ALL.into_iter();
    lists.flat_map(|kind| {
        let items = offer.shelf(kind).all();
        items.map(move |item| Entry::of(kind, item))
    })
}

/// Decides about one entry.
fn verdict(mode: PinMode, kept: &Kept, entry: &Entry<'_>) -> Verdict {
    let pin = kept.pins.get(entry.kind, entry.name);
    let mark = match (&kept.trouble, pin) {
        (Some(_), _) | (None, None) => Some(UNVERIFIED),
        (None, Some(pin)) => is_changed(pin, entry.hash).then_some(CHANGED),
    };
    let lint = pin.map(|pin| codes(&pin.findings)).unwrap_or_default();
    let is_odd = mark.is_some() || pin.is_some_and(|pin| pin.state != State::Approved);
    match mode {
        PinMode::Block if is_odd => Verdict::Withdraw,
        PinMode::Block | PinMode::Warn | PinMode::Off => Verdict::Show(Marks { pin: mark, lint }),
    }
}

fn is_changed(pin: &Pin, hash: Hash) -> bool {
    matches!(pin.state, State::Changed { .. }) || pin.approved.hash != hash
}
