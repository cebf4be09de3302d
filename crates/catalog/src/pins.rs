//! Approved definitions of servers, and handling of changed definitions.

mod accept;
mod definition_texts;
mod pin_store;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use bowline_core::lint::{LintFindings, NameRegistry, finding_codes};
use bowline_core::pins::{
    DefinitionHash, ListedDefinition, Pin, PinChange, PinKind, PinState, ServerPins as Machine,
};
use bowline_core::sync::lock;
use bowline_runtime::Clock;
use bytes::Bytes;
use foldhash::fast::RandomState;
use tokio::sync::Semaphore;

use crate::catalog::{
    CatalogItem, DefinitionMarks, InitializeField, ItemVisibility, ListKind, ServerCatalog,
};
use crate::spec::ServerSpec;

pub use accept::{AcceptPinsError, PinTarget};
pub use pin_store::{NullPinStore, PinStore, PinStoreError};

/// Handling of an unapproved tool, prompt, resource, template or `initialize` field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PinMode {
    /// Pins are off.
    Off,
    /// Marked and reported.
    #[default]
    Warn,
    /// Withdrawn until approval.
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

/// A change of a pin, or of the reliability of all pins of a server.
#[derive(Clone, Copy, Debug)]
pub struct PinEvent<'a> {
    /// The server.
    pub server: &'a Arc<str>,
    /// Kind and name of the definition; `None` for all pins of the server.
    pub entry: Option<(PinKind, &'a Arc<str>)>,
    /// The new state, as used in events and API.
    pub state: &'static str,
    /// Why, if the pins are unreliable.
    pub reason: Option<&'a Arc<str>>,
}

/// Publishes changes of pins.
pub trait PinEvents: fmt::Debug + Send + Sync {
    /// Publishes a change, without waiting.
    fn on_pin(&self, event: PinEvent<'_>);
}

/// Maximum number of servers with loaded pins.
const SERVERS_MAX: usize = 4_096;

/// Mark of a changed definition.
const CHANGED: &str = "changed";

/// Mark of a definition with unknown approval.
const UNVERIFIED: &str = "unverified";

/// The pins of all servers.
#[derive(Debug)]
pub struct PinRegistry {
    store: Arc<dyn PinStore>,
    clock: Arc<dyn Clock>,
    events: Arc<dyn PinEvents>,
    servers: Mutex<HashMap<Arc<str>, ServerPinState, RandomState>>,
    /// Replaced as a whole, so that definitions are linted without the lock.
    names: Mutex<Arc<NameRegistry>>,
}

/// Pins of a server. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ServerPinState {
    /// The pins.
    pub pins: Arc<Machine>,
    /// Why the pins are unreliable.
    pub trouble: Option<PinTrouble>,
    /// Held by an update until saved.
    update_permit: Arc<Semaphore>,
}

impl ServerPinState {
    fn new(pins: Machine, trouble: Option<PinTrouble>) -> Self {
        Self {
            pins: Arc::new(pins),
            trouble,
            update_permit: Arc::new(Semaphore::new(1)),
        }
    }
}

/// Why pins are unreliable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PinTrouble {
    /// Stored pins cannot be read: approvals are unknown.
    Unreadable(Arc<str>),
    /// Pins cannot be saved: they would be lost at the next start.
    Unsaved(Arc<str>),
}

impl PinTrouble {
    /// Returns the word used in events and API.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Unreadable(_) => "unreadable",
            Self::Unsaved(_) => "unsaved",
        }
    }

    /// Returns the error message.
    #[must_use]
    pub const fn reason(&self) -> &Arc<str> {
        match self {
            Self::Unreadable(reason) | Self::Unsaved(reason) => reason,
        }
    }
}

impl PinRegistry {
    /// Creates an empty registry.
    #[must_use]
    pub fn open(
        store: Arc<dyn PinStore>,
        clock: Arc<dyn Clock>,
        events: Arc<dyn PinEvents>,
    ) -> Self {
        Self {
            store,
            clock,
            events,
            servers: Mutex::default(),
            names: Mutex::default(),
        }
    }

    /// Registers servers and loads their pins.
    pub fn register_servers(&self, specs: &[ServerSpec]) {
        let mut names = lock(&self.names);
        Arc::make_mut(&mut names).set_servers(specs.iter().map(|spec| &spec.name));
        drop(names);
        for spec in specs.iter().filter(|spec| spec.pin != PinMode::Off) {
            let _read = self.server_pins(&spec.name);
        }
    }

    /// Returns the pins of a server, loading them if needed.
    #[must_use]
    pub fn server_pins(&self, server: &Arc<str>) -> ServerPinState {
        let mut servers = lock(&self.servers);
        if let Some(state) = servers.get(server) {
            return state.clone();
        }
        if servers.len() >= SERVERS_MAX {
            // Evicted pins were saved; they are loaded again on demand.
            let names = lock(&self.names);
            servers.retain(|server, _| names.has_server(server));
        }
        if servers.len() >= SERVERS_MAX {
            let trouble = PinTrouble::Unreadable("there are too many servers".into());
            return ServerPinState::new(Machine::default(), Some(trouble));
        }
        let state = match self.store.load(server) {
            Ok(pins) => ServerPinState::new(pins.unwrap_or_default(), None),
            Err(error) => {
                let trouble = PinTrouble::Unreadable(error.to_string().into());
                self.report_trouble(server, &trouble);
                ServerPinState::new(Machine::default(), Some(trouble))
            }
        };
        servers.insert(Arc::clone(server), state.clone());
        drop(servers);
        let mut names = lock(&self.names);
        Arc::make_mut(&mut names).add_server(server);
        for (tool, _) in state.pins.iter(PinKind::Tool) {
            Arc::make_mut(&mut names).add_tool(server, tool);
        }
        state
    }

    /// Records the listed definitions of a server. New definitions are saved on return.
    pub async fn record_listed(&self, spec: &ServerSpec, catalog: &ServerCatalog) {
        if spec.pin == PinMode::Off {
            return;
        }
        let server = &spec.name;
        let update_permit = self.server_pins(server).update_permit;
        let Ok(_permit) = update_permit.acquire().await else {
            return;
        };
        let ServerPinState { pins, trouble, .. } = self.server_pins(server);
        // Only an operator may replace unreadable pins.
        if matches!(trouble, Some(PinTrouble::Unreadable(_))) {
            return;
        }
        let listed = self.listed_definitions(server, catalog);
        if trouble.is_none() && !listed.iter().any(|definition| pins.is_new(definition)) {
            return;
        }
        let mut next = Machine::clone(&pins);
        let changes = next.observe_list(&listed, self.clock.unix_ms());
        let saved = self.save_pins(server, next).await;
        for PinChange {
            kind,
            name: tool,
            state,
        } in changes
        {
            let word = kind.as_str();
            // Debug format, so that no character of a name is hidden.
            match state {
                "changed" => {
                    tracing::warn!(%server, kind = word, ?tool, "definition is not as approved");
                }
                _ => {
                    tracing::warn!(%server, kind = word, ?tool, "new definition is suspicious");
                }
            }
            self.emit_event(server, Some((kind, &tool)), state, None);
        }
        if let Err(trouble) = saved {
            self.report_trouble(server, &trouble);
        }
    }

    /// True if a catalog has unseen definitions, or cannot be verified.
    pub fn has_unseen(&self, spec: &ServerSpec, catalog: &ServerCatalog) -> bool {
        let state = self.server_pins(&spec.name);
        let is_pinned = |entry: &PinEntry<'_>| {
            let pin = state.pins.get(entry.kind, entry.name);
            pin.is_some_and(|pin| pin.current().hash == entry.hash)
        };
        state.trouble.is_some()
            || !pin_entries(catalog).all(|entry| is_pinned(&entry))
            || !catalog
                .initialize_fields()
                .iter()
                .all(|part| is_pinned(&part.pin_entry()))
    }

    /// Marks or withdraws unapproved items.
    pub fn filter_catalog(&self, spec: &ServerSpec, catalog: &ServerCatalog) -> ServerCatalog {
        if spec.pin == PinMode::Off {
            let show = || ItemVisibility::Show(DefinitionMarks::default());
            return catalog.filter_items(|_, _| show(), |_| show());
        }
        let server_pins = self.server_pins(&spec.name);
        catalog.filter_items(
            |kind, item| item_visibility(spec.pin, &server_pins, &PinEntry::from_item(kind, item)),
            |part| item_visibility(spec.pin, &server_pins, &part.pin_entry()),
        )
    }

    /// Returns the listed definitions with their lint findings.
    fn listed_definitions(
        &self,
        server: &Arc<str>,
        catalog: &ServerCatalog,
    ) -> Vec<ListedDefinition> {
        let names = {
            let mut names = lock(&self.names);
            for item in catalog.tools.all_items() {
                if !names.has_tool(server, &item.route.name) {
                    Arc::make_mut(&mut names).add_tool(server, &item.route.name);
                }
            }
            Arc::clone(&names)
        };
        let to_listed = |entry: &PinEntry<'_>, text: &[u8]| {
            let mut findings = LintFindings::default();
            // A URI is not a name chosen by people.
            if matches!(entry.kind, PinKind::Tool | PinKind::Prompt) {
                findings.check_name(server, entry.name, &names);
            }
            definition_texts::lint_definition(server, text, &names, &mut findings);
            ListedDefinition {
                kind: entry.kind,
                name: Arc::clone(entry.name),
                hash: entry.hash,
                definition: entry.definition.clone(),
                findings: findings.into_vec(),
            }
        };
        let lists = pin_entries(catalog).map(|entry| to_listed(&entry, entry.definition));
        let mut definitions: Vec<_> = lists.collect();
        let parts = catalog.initialize_fields();
        definitions.extend(
            parts
                .iter()
                .map(|part| to_listed(&part.pin_entry(), &part.text)),
        );
        definitions
    }

    fn emit_event(
        &self,
        server: &Arc<str>,
        entry: Option<(PinKind, &Arc<str>)>,
        state: &'static str,
        reason: Option<&Arc<str>>,
    ) {
        self.events.on_pin(PinEvent {
            server,
            entry,
            state,
            reason,
        });
    }

    fn report_trouble(&self, server: &Arc<str>, trouble: &PinTrouble) {
        let reason = trouble.reason();
        tracing::error!(%server, %reason, "pins of the server are unreliable");
        self.emit_event(server, None, trouble.as_str(), Some(reason));
    }
}

/// Pin key and definition of an item.
struct PinEntry<'a> {
    kind: PinKind,
    name: &'a Arc<str>,
    hash: DefinitionHash,
    definition: &'a Bytes,
}

impl<'a> PinEntry<'a> {
    fn from_item(kind: ListKind, item: &'a CatalogItem) -> Self {
        Self {
            kind: kind.pin_kind(),
            name: &item.pin_key,
            hash: item.route.definition_hash,
            definition: &item.raw_definition,
        }
    }
}

impl InitializeField {
    fn pin_entry(&self) -> PinEntry<'_> {
        PinEntry {
            kind: PinKind::Introduction,
            name: &self.name,
            hash: self.hash,
            definition: &self.pinned,
        }
    }
}

/// Returns the pin entries of all four lists.
fn pin_entries(offer: &ServerCatalog) -> impl Iterator<Item = PinEntry<'_>> {
    let lists = ListKind::ALL.into_iter();
    lists.flat_map(|kind| {
        let items = offer.list(kind).all_items();
        items.map(move |item| PinEntry::from_item(kind, item))
    })
}

/// Decides the visibility of an item.
fn item_visibility(
    mode: PinMode,
    server_pins: &ServerPinState,
    entry: &PinEntry<'_>,
) -> ItemVisibility {
    let pin = server_pins.pins.get(entry.kind, entry.name);
    let pin_mark = match (&server_pins.trouble, pin) {
        (Some(_), _) | (None, None) => Some(UNVERIFIED),
        (None, Some(pin)) => is_changed(pin, entry.hash).then_some(CHANGED),
    };
    let lint = pin
        .map(|pin| finding_codes(&pin.findings))
        .unwrap_or_default();
    let is_odd = pin_mark.is_some() || pin.is_some_and(|pin| pin.state != PinState::Approved);
    match mode {
        PinMode::Block if is_odd => ItemVisibility::Withdraw,
        PinMode::Block | PinMode::Warn | PinMode::Off => ItemVisibility::Show(DefinitionMarks {
            pin: pin_mark,
            lint,
        }),
    }
}

fn is_changed(pin: &Pin, hash: DefinitionHash) -> bool {
    matches!(pin.state, PinState::Changed { .. }) || pin.approved.hash != hash
}
