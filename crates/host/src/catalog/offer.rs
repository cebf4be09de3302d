//! What one server offers: its definitions as it wrote them, and how to find them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bowline_core::call::{Effect, Route};
use bowline_core::name;
use bowline_core::template::Template;
use bowline_wire::canonical::canonical;
use bowline_wire::object;
use bowline_wire::scan::{self, Keys};
use bowline_wire::span::Span;
use bowline_wire::splice::{Edit, Edited, write_string};
use bytes::Bytes;
use foldhash::fast::RandomState;
use sha2::{Digest as _, Sha256};

use super::listing::{self, Listing};
use super::{ListKind, PerList};
use crate::spec::ToolRule;

/// The pages of those lists that were read.
pub type Pages = PerList<Option<Vec<Bytes>>>;

/// What one server offers.
#[derive(Clone, Debug)]
pub struct Offer {
    /// The server.
    pub server: Arc<str>,
    /// What it said of itself: its result of `initialize`.
    pub initialize: Bytes,
    /// Its tools, in its own order.
    pub tools: Shelf,
    /// Its prompts.
    pub prompts: Shelf,
    /// Its resources.
    pub resources: Shelf,
    /// Its templates of resources.
    pub templates: Shelf,
}

/// One list of one server.
#[derive(Clone, Debug)]
pub struct Shelf {
    /// Its entries, in the server's own order.
    pub items: Vec<Item>,
    /// The list under the server's own names: its own bytes where it came in one page.
    pub listing: Listing,
    /// Definitions left out because they have no usable name, or one that is taken.
    pub withheld: usize,
    by_name: HashMap<Arc<str>, usize, RandomState>,
}

/// One tool, prompt, resource or template.
#[derive(Clone, Debug)]
pub struct Item {
    /// Where a call of it goes.
    pub route: Arc<Route>,
    /// Its name or URI on `/mcp`.
    pub visible: Arc<str>,
    /// Its definition, byte for byte.
    pub definition: Bytes,
    /// The URIs it stands for, where it is a template that can be read.
    pub template: Option<Template>,
    /// Where in `definition` the value of its name or URI stands.
    name_at: Span,
}

impl Offer {
    /// Builds an offer from the lists that were read; the others stay as they were `before`.
    #[must_use]
    pub fn new(
        server: &Arc<str>,
        initialize: &Bytes,
        pages: &Pages,
        rules: &BTreeMap<String, ToolRule>,
        before: Option<&Self>,
    ) -> Self {
        let shelf = |kind| match (pages.get(kind), before) {
            (Some(pages), _) => Shelf::new(kind, server, pages, rules),
            (None, Some(before)) => before.shelf(kind).clone(),
            (None, None) => Shelf::new(kind, server, &[], rules),
        };
        Self {
            server: Arc::clone(server),
            initialize: initialize.clone(),
            tools: shelf(ListKind::Tools),
            prompts: shelf(ListKind::Prompts),
            resources: shelf(ListKind::Resources),
            templates: shelf(ListKind::Templates),
        }
    }

    /// Returns one of its lists.
    #[must_use]
    pub const fn shelf(&self, kind: ListKind) -> &Shelf {
        match kind {
            ListKind::Tools => &self.tools,
            ListKind::Prompts => &self.prompts,
            ListKind::Resources => &self.resources,
            ListKind::Templates => &self.templates,
        }
    }

    /// Whether two offers list and say the same, and calls of them are treated the same.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let alike = |kind| {
            let of = |offer: &Self| offer.shelf(kind).listing.fingerprint;
            of(self) == of(other)
        };
        let routes = |offer: &Self| -> Vec<_> {
            let items = offer.tools.items.iter();
            items.map(|item| Arc::clone(&item.route)).collect()
        };
        self.initialize == other.initialize
            && ListKind::ALL.into_iter().all(alike)
            && routes(self) == routes(other)
    }

    pub(super) const fn shelf_mut(&mut self, kind: ListKind) -> &mut Shelf {
        match kind {
            ListKind::Tools => &mut self.tools,
            ListKind::Prompts => &mut self.prompts,
            ListKind::Resources => &mut self.resources,
            ListKind::Templates => &mut self.templates,
        }
    }
}

impl Shelf {
    fn new(
        kind: ListKind,
        server: &Arc<str>,
        pages: &[Bytes],
        rules: &BTreeMap<String, ToolRule>,
    ) -> Self {
        let mut items: Vec<Item> = Vec::new();
        let mut by_name = HashMap::default();
        let mut withheld = 0;
        for definition in pages.iter().flat_map(|page| listing::read(kind, page)) {
            match Item::read(kind, server, definition, rules) {
                Some(item) if !by_name.contains_key(&item.route.name) => {
                    by_name.insert(Arc::clone(&item.route.name), items.len());
                    items.push(item);
                }
                // Two resources of one URI lead to the same place: no harm in showing both.
                Some(item) if matches!(kind, ListKind::Resources | ListKind::Templates) => {
                    items.push(item);
                }
                Some(_) | None => withheld += 1,
            }
        }
        let listing = match pages {
            [page] if withheld == 0 && listing::is_whole(kind, page) => Listing::of(page.clone()),
            _ => listing::write(kind, &items, |item, out| {
                out.extend_from_slice(&item.definition);
            }),
        };
        Self {
            items,
            listing,
            withheld,
            by_name,
        }
    }

    /// Returns the route of the entry with this name of the server's own.
    #[must_use]
    pub fn route(&self, name: &str) -> Option<&Arc<Route>> {
        let at = *self.by_name.get(name)?;
        self.items.get(at).map(|item| &item.route)
    }

    /// Returns its entries.
    pub fn iter(&self) -> std::slice::Iter<'_, Item> {
        self.items.iter()
    }

    /// Returns how many entries there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there is no entry.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

impl<'a> IntoIterator for &'a Shelf {
    type Item = &'a Item;
    type IntoIter = std::slice::Iter<'a, Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl Item {
    fn read(
        kind: ListKind,
        server: &Arc<str>,
        definition: Bytes,
        rules: &BTreeMap<String, ToolRule>,
    ) -> Option<Self> {
        // With a member that comes twice, we and a client might read different names.
        scan::check(&definition, Keys::UniqueOutside).ok()?;
        let name_at = object::field(&definition, kind.id())?;
        let own: Arc<str> = object::string(name_at.of(&definition))?.into();
        let visible = match kind {
            ListKind::Tools | ListKind::Prompts => name::visible(server, &own).into(),
            ListKind::Resources | ListKind::Templates => Arc::clone(&own),
        };
        let rule = match kind {
            ListKind::Tools => rules.get(own.as_ref()).cloned().unwrap_or_default(),
            // Only tools do anything.
            ListKind::Prompts | ListKind::Resources | ListKind::Templates => ToolRule {
                effect: Some(Effect::Read),
                ..ToolRule::default()
            },
        };
        let hint = |key| hinted(&definition, key);
        Some(Self {
            visible,
            template: (kind == ListKind::Templates)
                .then(|| Template::parse(&own))
                .flatten(),
            route: Arc::new(Route {
                server: Arc::clone(server),
                name: own,
                effect: rule.effect.unwrap_or_else(|| match hint("readOnlyHint") {
                    Some(true) => Effect::Read,
                    Some(false) => Effect::Write,
                    None => Effect::Unknown,
                }),
                idempotent: rule.idempotent.or_else(|| hint("idempotentHint")) == Some(true),
                timeout: rule.timeout,
                definition: digest(&definition),
            }),
            definition,
            name_at,
        })
    }

    /// Writes the definition under its visible name, every other byte unchanged.
    pub fn write_visible(&self, out: &mut Vec<u8>) {
        if self.visible == self.route.name {
            out.extend_from_slice(&self.definition);
            return;
        }
        let mut literal = Vec::with_capacity(self.visible.len() + 2);
        write_string(&mut literal, &self.visible);
        Edited {
            source: &self.definition,
            edits: &[Edit {
                at: self.name_at,
                with: &literal,
            }],
        }
        .write(out);
    }
}

/// Hashes a definition so that the order of its members and the space between them do not count.
fn digest(definition: &[u8]) -> [u8; 32] {
    match canonical(definition) {
        Ok(text) => Sha256::digest(&text).into(),
        // A member that comes twice deeper inside: as it is written, then.
        Err(_) => Sha256::digest(definition).into(),
    }
}

/// What a server says of its tool. A hint: nothing unsafe may rest on it alone.
fn hinted(definition: &[u8], key: &str) -> Option<bool> {
    let annotations = object::field(definition, "annotations")?.of(definition);
    match object::field(annotations, key)?.of(annotations) {
        b"true" => Some(true),
        b"false" => Some(false),
        _ => None,
    }
}
