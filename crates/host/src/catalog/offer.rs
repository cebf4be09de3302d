//! What one server offers: its definitions as it wrote them, and how to find them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bowline_core::cache::Hint;
use bowline_core::call::{Effect, Route};
use bowline_core::era::Era;
use bowline_core::name;
use bowline_core::template::Template;
use bowline_core::time::Now;
use bowline_wire::era::mirror::{self, BadMirror};
use bowline_wire::object;
use bowline_wire::scan::{self, Keys};
use bowline_wire::span::Span;
use bowline_wire::splice::{Edit, Edited, write_string};
use bytes::Bytes;
use foldhash::fast::RandomState;

use super::definition::{digest, hinted};
use super::listing::{self, Listing};
use super::mark::{Marks, mark};
use super::widened::widened;
use super::{ListKind, PerList, keep};
use crate::spec::ToolRule;

/// A list is not asked for again sooner, however short its server says that it is good.
const WORN_MIN: Duration = Duration::from_secs(5);

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
    /// Whether it serves, or only did.
    pub age: Age,
}

/// Whether what is offered is known from a server that serves, or from before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Age {
    /// As the server says it, or will when it is needed.
    #[default]
    Live,
    /// As the server said it when it last served; it is down, or being started.
    LastKnown,
}

/// One list of one server.
#[derive(Clone, Debug, Default)]
pub struct Shelf {
    /// Its entries, in the server's own order.
    pub items: Vec<Item>,
    /// The list under the server's own names: its own bytes where it came in one page.
    pub listing: Listing,
    /// Definitions left out because they have no usable name, or one that is taken.
    pub withheld: usize,
    /// Definitions left out because what they say of headers cannot be used, and why.
    pub unusable: Vec<(Arc<str>, BadMirror)>,
    /// Entries that are not offered until a person accepts them.
    pub withdrawn: Vec<Item>,
    by_name: HashMap<Arc<str>, usize, RandomState>,
    /// The one page that the list came in, where it can be shown as it is, without what it says
    /// of itself.
    page: Option<Bytes>,
    /// How long the list may be kept and by whom, as its pages say.
    hint: Option<Hint>,
    /// When its pages were read; absent where they are known from an earlier life.
    read_at: Option<Now>,
}

/// What is done about a tool whose definition wants arguments in headers that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mirroring {
    /// It is left out: its server would refuse every call of it.
    Needed,
    /// It is offered, since no headers go to its server.
    Idle,
}

/// What becomes of one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is offered, with these marks.
    Show(Marks),
    /// It is not offered, and calls of it are refused.
    Withdraw,
}

/// One tool, prompt, resource or template.
#[derive(Clone, Debug)]
pub struct Item {
    /// Where a call of it goes.
    pub route: Arc<Route>,
    /// Its name or URI on `/mcp`.
    pub visible: Arc<str>,
    /// Its definition as clients are shown it: byte for byte, but for our own marks and, where
    /// it is queued, for what a queued call answers.
    pub definition: Bytes,
    /// The same without the latter.
    pub plain: Bytes,
    /// The URIs it stands for, where it is a template that can be read.
    pub template: Option<Template>,
    /// Its definition as the server wrote it.
    pub(crate) written: Bytes,
    /// Where in `definition` the value of its name or URI stands.
    name_at: Span,
    /// Its place in the server's own order.
    nth: usize,
    /// The era it is written in.
    pub(super) era: Era,
    /// Whether its server serves.
    pub(super) age: Age,
}

impl Offer {
    /// Builds an offer from the lists that were read, at `read_at` where they were just now; the
    /// others stay as they were `before`.
    #[must_use]
    pub fn new(
        server: &Arc<str>,
        initialize: &Bytes,
        pages: &Pages,
        (rules, mirroring): (&BTreeMap<String, ToolRule>, Mirroring),
        before: Option<&Self>,
        read_at: Option<Now>,
    ) -> Self {
        let shelf = |kind| match (pages.get(kind), before) {
            (Some(pages), _) => Shelf {
                read_at,
                ..Shelf::new(kind, server, pages, (rules, mirroring))
            },
            (None, Some(before)) => before.shelf(kind).clone(),
            (None, None) => Shelf::new(kind, server, &[], (rules, mirroring)),
        };
        Self {
            server: Arc::clone(server),
            initialize: initialize.clone(),
            tools: shelf(ListKind::Tools),
            prompts: shelf(ListKind::Prompts),
            resources: shelf(ListKind::Resources),
            templates: shelf(ListKind::Templates),
            age: Age::Live,
        }
        .aged(Age::Live)
    }

    /// Returns the same offer as one that is known so.
    #[must_use]
    pub(crate) fn aged(mut self, age: Age) -> Self {
        self.age = age;
        for kind in ListKind::ALL {
            let shelf = self.shelf_mut(kind);
            if shelf.all().any(|item| item.age != age) {
                *shelf = shelf.aged(kind, age);
            }
        }
        self
    }

    /// Returns the same offer with every tool dealt with as `verdict` says.
    #[must_use]
    pub(crate) fn judged(&self, verdict: impl Fn(&Item) -> Verdict) -> Self {
        Self {
            tools: self.tools.judged(ListKind::Tools, verdict),
            ..self.clone()
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
            let items = offer.tools.items.iter().chain(&offer.tools.withdrawn);
            items.map(|item| Arc::clone(&item.route)).collect()
        };
        self.initialize == other.initialize
            && ListKind::ALL.into_iter().all(alike)
            && routes(self) == routes(other)
    }

    /// Whether the same holds for two offers that are alike: how they are known, and how long.
    pub(super) fn is_told_like(&self, other: &Self) -> bool {
        let alike = |kind| {
            let of = |offer: &Self| (offer.shelf(kind).hint, offer.shelf(kind).good_until());
            of(self) == of(other)
        };
        self.age == other.age && ListKind::ALL.into_iter().all(alike)
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
        (rules, mirroring): (&BTreeMap<String, ToolRule>, Mirroring),
    ) -> Self {
        let mut items: Vec<Item> = Vec::new();
        let mut names = HashSet::new();
        let mut withheld = 0;
        let mut unusable = Vec::new();
        let era = listing::era(pages);
        for definition in pages.iter().flat_map(|page| listing::read(kind, page)) {
            let read = Item::read(kind, server, definition, rules);
            let read = read.map(|item| item.mirrored(kind));
            if let Some((item, Some(why))) = &read
                && mirroring == Mirroring::Needed
            {
                unusable.push((Arc::clone(&item.route.name), why.clone()));
                continue;
            }
            match read.map(|(item, _)| item) {
                // Two resources of one URI lead to the same place: no harm in showing both.
                Some(item)
                    if names.insert(Arc::clone(&item.route.name))
                        || matches!(kind, ListKind::Resources | ListKind::Templates) =>
                {
                    let nth = items.len();
                    let item = Item { nth, era, ..item };
                    // Whoever judges tools puts their marks on; marks are nobody else's to write.
                    items.push(match kind {
                        ListKind::Tools => item,
                        _ => item.marked(kind, &Marks::default()),
                    });
                }
                Some(_) | None => withheld += 1,
            }
        }
        let page = match pages {
            [page] if withheld + unusable.len() == 0 && listing::is_whole(kind, page) => {
                Some(listing::plain(kind, page))
            }
            _ => None,
        };
        let empty = Self {
            withheld,
            unusable,
            page,
            hint: keep::merged(pages.iter().map(|page| keep::read(page))),
            ..Self::default()
        };
        empty.with(kind, (items, Vec::new()))
    }

    /// Returns the same list with these entries and those that are withdrawn.
    fn with(&self, kind: ListKind, (items, withdrawn): (Vec<Item>, Vec<Item>)) -> Self {
        let mut by_name = HashMap::default();
        for (at, item) in items.iter().enumerate() {
            by_name.entry(Arc::clone(&item.route.name)).or_insert(at);
        }
        let is_as_written = |item: &Item| item.definition == item.written;
        let listing = match &self.page {
            Some(page) if withdrawn.is_empty() && items.iter().all(is_as_written) => {
                let stale = items.iter().map(|item| item.age == Age::LastKnown);
                let list = Listing::of(page.clone(), self.hint);
                let list = list.marked(kind, &stale.collect::<Vec<_>>());
                list.translated(kind, &items)
            }
            _ => listing::write(kind, &items, Item::write_definition, self.hint),
        };
        Self {
            items,
            listing,
            withheld: self.withheld,
            unusable: self.unusable.clone(),
            withdrawn,
            by_name,
            page: self.page.clone(),
            hint: self.hint,
            read_at: self.read_at,
        }
    }

    fn judged(&self, kind: ListKind, verdict: impl Fn(&Item) -> Verdict) -> Self {
        let mut all: Vec<_> = self.all().cloned().collect();
        all.sort_by_key(|item| item.nth);
        let (mut items, mut withdrawn) = (Vec::with_capacity(all.len()), Vec::new());
        for item in all {
            match verdict(&item) {
                Verdict::Show(marks) => items.push(item.marked(kind, &marks)),
                Verdict::Withdraw => withdrawn.push(item),
            }
        }
        self.with(kind, (items, withdrawn))
    }

    fn aged(&self, kind: ListKind, age: Age) -> Self {
        let aged = |items: &[Item]| -> Vec<_> {
            let items = items.iter().cloned();
            items.map(|item| Item { age, ..item }).collect()
        };
        let entries = (aged(&self.items), aged(&self.withdrawn));
        self.with(kind, entries)
    }

    /// Returns how long the list may be kept, and by whom: not at all where it is only known from
    /// before.
    pub(super) fn hint(&self) -> Option<Hint> {
        let is_live = |item: &Item| item.age == Age::Live;
        self.hint.filter(|_| self.items.iter().all(is_live))
    }

    /// Returns until when the list is good, where its server says so.
    pub(crate) fn good_until(&self) -> Option<Now> {
        let hint = self.hint?;
        Some(
            self.read_at
                .map_or(Now(0), |read_at| read_at.plus(hint.ttl)),
        )
    }

    /// Returns when the list is worth asking for again, where its server says how long it is
    /// good: not too often, since some say that it never is.
    pub(crate) fn worn_at(&self) -> Option<Now> {
        let hint = self.hint?;
        let read_at = self.read_at?;
        Some(read_at.plus(hint.ttl.max(WORN_MIN)))
    }

    /// Returns the era that its entries are written in.
    pub(crate) fn era(&self) -> Era {
        match self.all().any(|item| item.era == Era::Modern) {
            true => Era::Modern,
            false => Era::Legacy,
        }
    }

    /// Returns its entries and those that are withdrawn.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Item> {
        self.items.iter().chain(&self.withdrawn)
    }

    /// Returns the route of an entry with this name that is withdrawn.
    pub(super) fn withdrawn(&self, name: &str) -> Option<&Arc<Route>> {
        let mut withdrawn = self.withdrawn.iter();
        let item = withdrawn.find(|item| *item.route.name == *name);
        item.map(|item| &item.route)
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
        let effect = rule.effect.unwrap_or_else(|| match hint("readOnlyHint") {
            Some(true) => Effect::Read,
            Some(false) => Effect::Write,
            None => Effect::Unknown,
        });
        Some(Self {
            visible,
            template: (kind == ListKind::Templates)
                .then(|| Template::parse(&own))
                .flatten(),
            route: Arc::new(Route {
                server: Arc::clone(server),
                name: own,
                effect,
                idempotent: rule.idempotent.or_else(|| hint("idempotentHint")) == Some(true),
                timeout: rule.timeout,
                definition: digest(&definition),
                queue: rule.queueing(effect).map(Arc::new),
                mirrors: None,
            }),
            written: definition.clone(),
            plain: definition.clone(),
            definition,
            name_at,
            nth: 0,
            era: Era::Legacy,
            age: Age::Live,
        })
    }

    /// Returns the same entry with these marks and no others.
    fn marked(self, kind: ListKind, marks: &Marks) -> Self {
        let plain = mark(&self.written, marks);
        let definition = match self.route.queue {
            Some(_) => widened(&plain),
            None => plain.clone(),
        };
        let name_at = object::field(&definition, kind.id()).unwrap_or(self.name_at);
        Self {
            definition,
            plain,
            name_at,
            ..self
        }
    }

    /// Reads which arguments are repeated in headers, or why that cannot be.
    fn mirrored(self, kind: ListKind) -> (Self, Option<BadMirror>) {
        if kind != ListKind::Tools {
            return (self, None);
        }
        let schema = object::field(&self.written, "inputSchema").map(|at| at.of(&self.written));
        match mirror::read(schema.unwrap_or_default()) {
            Ok(mirrors) if mirrors.is_empty() => (self, None),
            Ok(mirrors) => {
                let route = Route {
                    mirrors: Some(mirrors.into()),
                    ..Route::clone(&self.route)
                };
                let route = Arc::new(route);
                (Self { route, ..self }, None)
            }
            Err(why) => (self, Some(why)),
        }
    }

    /// Writes the definition under its own name.
    pub fn write_definition(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.definition);
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
