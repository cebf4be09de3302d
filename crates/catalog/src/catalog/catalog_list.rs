//! A list of a server: its items, its rendered form, and its cache hint.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bowline_core::cache::CacheHint;
use bowline_core::call::Route;
use bowline_core::era::Era;
use bowline_core::time::MonotonicTime;
use bowline_wire::era::header_params::HeaderParamError;
use bytes::Bytes;
use foldhash::fast::RandomState;

use super::definition_marks::DefinitionMarks;
use super::rendered_list::{self, RenderedList};
use super::server_catalog::{CatalogItem, HeaderParamPolicy, ItemVisibility, Staleness};
use super::{ListKind, cache_hints};
use crate::spec::ToolRule;

/// A list of a server.
#[derive(Clone, Debug, Default)]
pub struct CatalogList {
    /// Items in the server's order.
    pub items: Vec<CatalogItem>,
    /// The list under the server's own names: the server's bytes if read in a single page.
    pub rendered: RenderedList,
    /// Number of definitions omitted for an unusable or duplicate name.
    pub withheld: usize,
    /// Definitions omitted for unusable header parameters, with the reason.
    pub unusable: Vec<(Arc<str>, HeaderParamError)>,
    /// Items withdrawn until approval.
    pub withdrawn: Vec<CatalogItem>,
    by_name: HashMap<Arc<str>, usize, RandomState>,
    /// The single page, if it can be shown unchanged apart from era-specific members.
    page: Option<Bytes>,
    /// Cache hint of the pages.
    pub(super) hint: Option<CacheHint>,
    /// Time of reading; `None` for pages of an earlier run.
    read_at: Option<MonotonicTime>,
}

impl CatalogList {
    pub(super) fn new(
        kind: ListKind,
        server: &Arc<str>,
        pages: &[Bytes],
        rules: &BTreeMap<String, ToolRule>,
        header_policy: HeaderParamPolicy,
    ) -> Self {
        let mut items: Vec<CatalogItem> = Vec::new();
        let mut names = HashSet::new();
        let mut doubles: HashMap<Arc<str>, usize> = HashMap::new();
        let mut withheld = 0;
        let mut unusable = Vec::new();
        let era = rendered_list::pages_era(pages);
        for definition in pages
            .iter()
            .flat_map(|page| rendered_list::page_definitions(kind, page))
        {
            let read = CatalogItem::parse(kind, server, definition, rules);
            let read = read.map(|item| item.with_header_params(kind));
            if let Some((item, Some(error))) = &read
                && header_policy == HeaderParamPolicy::Enforce
            {
                unusable.push((Arc::clone(&item.route.name), error.clone()));
                continue;
            }
            match read.map(|(item, _)| item) {
                // Duplicate resource URIs have the same target: both are listed.
                Some(mut item)
                    if names.insert(Arc::clone(&item.route.name))
                        || matches!(kind, ListKind::Resources | ListKind::Templates) =>
                {
                    (item.nth, item.era) = (items.len(), era);
                    let double = doubles.entry(Arc::clone(&item.route.name)).or_default();
                    *double += 1;
                    if *double > 1 {
                        // A URI contains no space, so this pin key is unique.
                        item.pin_key = format!("{} ({double})", item.route.name).into();
                    }
                    // Tools get their marks when filtered; marks written by servers are removed.
                    items.push(match kind {
                        ListKind::Tools => item,
                        _ => item.with_marks(kind, &DefinitionMarks::default()),
                    });
                }
                Some(_) | None => withheld += 1,
            }
        }
        let page = match pages {
            [page]
                if withheld + unusable.len() == 0 && rendered_list::is_single_page(kind, page) =>
            {
                Some(rendered_list::to_legacy_page(kind, page))
            }
            _ => None,
        };
        let empty = Self {
            withheld,
            unusable,
            page,
            hint: cache_hints::merge_hints(pages.iter().map(|page| cache_hints::parse_hint(page))),
            ..Self::default()
        };
        empty.with_items(kind, items, Vec::new())
    }

    /// Sets the time of reading.
    pub(super) fn with_read_at(self, read_at: Option<MonotonicTime>) -> Self {
        Self { read_at, ..self }
    }

    /// Returns the list with these items and withdrawn items.
    fn with_items(
        &self,
        kind: ListKind,
        items: Vec<CatalogItem>,
        withdrawn: Vec<CatalogItem>,
    ) -> Self {
        let mut by_name = HashMap::default();
        for (at, item) in items.iter().enumerate() {
            by_name.entry(Arc::clone(&item.route.name)).or_insert(at);
        }
        let is_as_written = |item: &CatalogItem| item.definition == item.raw_definition;
        let listing = match &self.page {
            Some(page) if withdrawn.is_empty() && items.iter().all(is_as_written) => {
                let stale = items
                    .iter()
                    .map(|item| item.staleness == Staleness::LastKnown);
                let list = RenderedList::from_result(page.clone(), self.hint);
                let list = list.with_stale_marks(kind, &stale.collect::<Vec<_>>());
                list.with_legacy(kind, &items)
            }
            _ => rendered_list::render(kind, &items, CatalogItem::write_definition, self.hint),
        };
        Self {
            items,
            rendered: listing,
            withheld: self.withheld,
            unusable: self.unusable.clone(),
            withdrawn,
            by_name,
            page: self.page.clone(),
            hint: self.hint,
            read_at: self.read_at,
        }
    }

    pub(super) fn filter_items(
        &self,
        kind: ListKind,
        visibility: impl Fn(&CatalogItem) -> ItemVisibility,
    ) -> Self {
        let mut all: Vec<_> = self.all_items().cloned().collect();
        all.sort_by_key(|item| item.nth);
        let (mut items, mut withdrawn) = (Vec::with_capacity(all.len()), Vec::new());
        for item in all {
            match visibility(&item) {
                ItemVisibility::Show(marks) => items.push(item.with_marks(kind, &marks)),
                ItemVisibility::Withdraw => withdrawn.push(item),
            }
        }
        self.with_items(kind, items, withdrawn)
    }

    pub(super) fn with_staleness(&self, kind: ListKind, age: Staleness) -> Self {
        let aged = |items: &[CatalogItem]| -> Vec<_> {
            let items = items.iter().cloned();
            let aged = items.map(|mut item| {
                item.staleness = age;
                item
            });
            aged.collect()
        };
        self.with_items(kind, aged(&self.items), aged(&self.withdrawn))
    }

    /// Returns the cache hint; `None` with last known items.
    pub(super) fn live_hint(&self) -> Option<CacheHint> {
        let is_live = |item: &CatalogItem| item.staleness == Staleness::Live;
        self.hint.filter(|_| self.items.iter().all(is_live))
    }

    /// Returns the expiry time by the server's hint.
    pub fn expires_at(&self) -> Option<MonotonicTime> {
        let hint = self.hint?;
        Some(
            self.read_at
                .map_or(MonotonicTime(0), |read_at| read_at.plus(hint.ttl)),
        )
    }

    /// Returns the TTL by the server's hint.
    pub fn ttl(&self) -> Option<Duration> {
        self.hint.map(|hint| hint.ttl)
    }

    /// Returns the era of the items.
    pub fn era(&self) -> Era {
        match self.all_items().any(|item| item.era == Era::Modern) {
            true => Era::Modern,
            false => Era::Legacy,
        }
    }

    /// Returns all items including withdrawn ones.
    pub fn all_items(&self) -> impl Iterator<Item = &CatalogItem> {
        self.items.iter().chain(&self.withdrawn)
    }

    /// Returns the route of a withdrawn item.
    pub(super) fn withdrawn_route(&self, name: &str) -> Option<&Arc<Route>> {
        // With a duplicate name, another item may be listed.
        if self.route(name).is_some() {
            return None;
        }
        let mut withdrawn = self.withdrawn.iter();
        let item = withdrawn.find(|item| *item.route.name == *name);
        item.map(|item| &item.route)
    }

    /// Returns the route of an item by the server's own name.
    #[must_use]
    pub fn route(&self, name: &str) -> Option<&Arc<Route>> {
        let at = *self.by_name.get(name)?;
        self.items.get(at).map(|item| &item.route)
    }

    /// Returns the listed items.
    pub fn iter(&self) -> std::slice::Iter<'_, CatalogItem> {
        self.items.iter()
    }

    /// Returns the number of listed items.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.items.len()
    }

    /// True without listed items.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

impl<'a> IntoIterator for &'a CatalogList {
    type Item = &'a CatalogItem;
    type IntoIter = std::slice::Iter<'a, CatalogItem>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
