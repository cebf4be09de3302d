//! One list of one server: its entries, how it is shown, and how long it is good.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bowline_core::cache::Hint;
use bowline_core::call::Route;
use bowline_core::era::Era;
use bowline_core::time::Now;
use bowline_wire::era::mirror::BadMirror;
use bytes::Bytes;
use foldhash::fast::RandomState;

use super::listing::{self, Listing};
use super::mark::Marks;
use super::offer::{Age, Item, Mirroring, Verdict};
use super::{ListKind, keep};
use crate::spec::ToolRule;

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
    pub(super) hint: Option<Hint>,
    /// When its pages were read; absent where they are known from an earlier life.
    read_at: Option<Now>,
}

impl Shelf {
    pub(super) fn new(
        kind: ListKind,
        server: &Arc<str>,
        pages: &[Bytes],
        (rules, mirroring): (&BTreeMap<String, ToolRule>, Mirroring),
    ) -> Self {
        let mut items: Vec<Item> = Vec::new();
        let mut names = HashSet::new();
        let mut doubles: HashMap<Arc<str>, usize> = HashMap::new();
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
                Some(mut item)
                    if names.insert(Arc::clone(&item.route.name))
                        || matches!(kind, ListKind::Resources | ListKind::Templates) =>
                {
                    (item.nth, item.era) = (items.len(), era);
                    let double = doubles.entry(Arc::clone(&item.route.name)).or_default();
                    *double += 1;
                    if *double > 1 {
                        // A URI holds no space, so that no other entry is pinned by this.
                        item.pinned = format!("{} ({double})", item.route.name).into();
                    }
                    // Whoever judges entries puts their marks on; marks are nobody else's to write.
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

    /// Returns the same list, whose pages were read then.
    pub(super) fn read_at(self, read_at: Option<Now>) -> Self {
        Self { read_at, ..self }
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

    pub(super) fn judged(&self, kind: ListKind, verdict: impl Fn(&Item) -> Verdict) -> Self {
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

    pub(super) fn aged(&self, kind: ListKind, age: Age) -> Self {
        let aged = |items: &[Item]| -> Vec<_> {
            let items = items.iter().cloned();
            let aged = items.map(|mut item| {
                item.age = age;
                item
            });
            aged.collect()
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

    /// Returns how long the list is good, where its server says so.
    pub(crate) fn ttl(&self) -> Option<Duration> {
        self.hint.map(|hint| hint.ttl)
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
        // Where the list has it twice, one of them may be offered.
        if self.route(name).is_some() {
            return None;
        }
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
