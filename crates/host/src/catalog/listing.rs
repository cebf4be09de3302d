//! Lists as ready bytes, of one server and of all.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use bowline_core::cache::Hint;
use bowline_core::era::Era;
use bowline_core::name;
use bowline_wire::span::Span;
use bowline_wire::{era, object};
use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use super::mark::mark_stale;
use super::offer::{Age, Item, Offer};
use super::shelf::Shelf;
use super::{ListKind, keep};

/// About what a mark adds to a definition.
const STALE_BYTES: usize = 40;

/// A list as ready bytes, and a fingerprint that changes with any definition.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// A whole result of the request for the list.
    pub result: Bytes,
    /// Differs whenever a name or definition differs.
    pub fingerprint: [u8; 32],
    /// How long it may be kept and by whom, where every server that is part of it says so.
    pub hint: Option<Hint>,
    /// The result for callers of the legacy era, where some definition must differ for them.
    pub legacy: Option<Bytes>,
}

impl Listing {
    /// Returns how many definitions there are.
    #[must_use]
    pub fn count(&self, kind: ListKind) -> usize {
        let list = object::field(&self.result, kind.member());
        list.map_or(0, |at| object::items(at.of(&self.result)).count())
    }

    /// Returns another list that is held to the same.
    pub(crate) fn with(&self, result: Bytes) -> Self {
        Self {
            fingerprint: Sha256::digest(&result).into(),
            legacy: match self.legacy {
                Some(_) => legacy(&result, ListKind::Tools),
                None => None,
            },
            result,
            hint: self.hint,
        }
    }

    /// Returns the same list for callers of the legacy era.
    #[must_use]
    pub fn for_legacy(mut self) -> Self {
        if let Some(legacy) = self.legacy.take() {
            self.result = legacy;
        }
        self
    }

    /// Writes what differs for callers of the legacy era, where any of `items` is of the other.
    pub(super) fn translated<'a>(
        mut self,
        kind: ListKind,
        items: impl IntoIterator<Item = &'a Item>,
    ) -> Self {
        let is_modern = |item: &Item| item.era == Era::Modern;
        if kind == ListKind::Tools && items.into_iter().any(is_modern) {
            self.legacy = legacy(&self.result, kind);
        }
        self
    }

    pub(super) fn of(result: Bytes, hint: Option<Hint>) -> Self {
        let fingerprint = Sha256::digest(&result).into();
        Self {
            result,
            fingerprint,
            hint: keep::told(hint),
            legacy: None,
        }
    }
}

impl Listing {
    /// Marks those definitions that are only known from before. The fingerprint stays: whoever
    /// knows the list need not ask for it again because its server is away for a while.
    pub(super) fn marked(self, kind: ListKind, stale: &[bool]) -> Self {
        if !stale.contains(&true) {
            return self;
        }
        let whole = &self.result;
        let list = object::field(whole, kind.member()).unwrap_or(Span { start: 0, end: 0 });
        let mut out = Vec::with_capacity(whole.len() + stale.len() * STALE_BYTES);
        let mut done = 0;
        for (item, stale) in object::items(list.of(whole)).zip(stale) {
            let at = item.shift(list.start);
            out.extend_from_slice(whole.get(done..at.start).unwrap_or_default());
            done = at.end;
            if *stale {
                out.extend_from_slice(&mark_stale(at.of(whole)));
            } else {
                out.extend_from_slice(at.of(whole));
            }
        }
        out.extend_from_slice(whole.get(done..).unwrap_or_default());
        Self {
            result: out.into(),
            hint: None,
            ..self
        }
    }
}

/// Returns the definitions of one page, as written.
pub(crate) fn read(kind: ListKind, page: &Bytes) -> impl Iterator<Item = Bytes> + '_ {
    read_member(kind.member(), page)
}

/// Returns the elements of the array in one member of a result, as written.
pub(crate) fn read_member<'a>(
    member: &str,
    page: &'a Bytes,
) -> impl Iterator<Item = Bytes> + use<'a> {
    let list = object::field(page, member).unwrap_or(Span { start: 0, end: 0 });
    object::items(list.of(page)).map(move |item| {
        let at = item.shift(list.start);
        page.slice(at.start..at.end)
    })
}

/// Whether a page may be shown to callers as it is: it has a list, and does not say that more
/// pages follow.
pub(super) fn is_whole(kind: ListKind, page: &Bytes) -> bool {
    let list = object::field(page, kind.member());
    let is_list = list.is_some_and(|at| at.of(page).starts_with(b"["));
    is_list && object::field(page, "nextCursor").is_none()
}

/// Returns the era that pages are written in: only in one do they say what they are.
pub(super) fn era(pages: &[Bytes]) -> Era {
    let is_modern = |page: &Bytes| object::field(page, "resultType").is_some();
    match pages.iter().any(is_modern) {
        true => Era::Modern,
        false => Era::Legacy,
    }
}

/// Returns a page without what it says of itself in one era: whom it is shown to may be of the
/// other, and what is said to all is said of all servers.
pub(crate) fn plain(kind: ListKind, page: &Bytes) -> Bytes {
    // In the other era these words are a server's own.
    if object::field(page, "resultType").is_none() {
        return page.clone();
    }
    match era::result::to_legacy(page, kind.method()) {
        Cow::Borrowed(_) => page.clone(),
        Cow::Owned(plain) => plain.into(),
    }
}

/// Returns a list of tools with those definitions written anew that callers of the legacy era
/// would refuse; nothing where there are none.
fn legacy(list: &[u8], kind: ListKind) -> Option<Bytes> {
    let at = object::field(list, kind.member())?;
    let mut changes: Vec<era::Change> = Vec::new();
    for item in object::items(at.of(list)) {
        let item = item.shift(at.start);
        let written = era::result::tool_to_legacy(item.of(list));
        changes.extend(written.map(|text| (item, text)));
    }
    (!changes.is_empty()).then(|| era::applied(list, &mut changes).into())
}

/// Writes a list of `items`, each as `one` writes it.
pub(super) fn write<'a>(
    kind: ListKind,
    items: impl IntoIterator<Item = &'a Item> + Clone,
    one: impl Fn(&Item, &mut Vec<u8>),
    hint: Option<Hint>,
) -> Listing {
    let mut result = format!("{{\"{}\":[", kind.member()).into_bytes();
    let mut stale = Vec::new();
    for (nth, item) in items.clone().into_iter().enumerate() {
        if nth > 0 {
            result.push(b',');
        }
        one(item, &mut result);
        stale.push(item.age == Age::LastKnown);
    }
    result.extend_from_slice(b"]}");
    let list = Listing::of(result.into(), hint).marked(kind, &stale);
    list.translated(kind, items)
}

/// Merges one list of all servers under the visible names.
pub(super) fn merge<'a>(
    kind: ListKind,
    offers: impl Iterator<Item = &'a Arc<Offer>> + Clone,
) -> Listing {
    let hint = hint(kind, offers.clone());
    let items = offers.flat_map(|offer| offer.shelf(kind));
    write(kind, items, Item::write_visible, hint)
}

/// Returns how long one list of these servers together may be kept, and by whom.
pub(super) fn hint<'a>(
    kind: ListKind,
    offers: impl Iterator<Item = &'a Arc<Offer>>,
) -> Option<Hint> {
    keep::merged(offers.map(|offer| offer.shelf(kind).hint()))
}

/// Returns the list of nothing.
pub(super) fn empty(kind: ListKind) -> Listing {
    merge(kind, std::iter::empty())
}

/// Gives every entry a visible name that no other has.
pub(super) fn resolve_collisions(offers: &mut BTreeMap<Arc<str>, Arc<Offer>>) {
    for kind in [ListKind::Tools, ListKind::Prompts] {
        for offer in offers.values_mut() {
            resolve_names(kind, offer);
        }
    }
    for kind in [ListKind::Resources, ListKind::Templates] {
        resolve_uris(kind, offers);
    }
}

/// Gives a hashed name to entries whose visible names would be the same.
///
/// Two servers cannot clash, since a server name holds no separator; two odd names of one server
/// can, where one looks like the mangled form of the other.
fn resolve_names(kind: ListKind, offer: &mut Arc<Offer>) {
    let mut seen = HashSet::new();
    // What is withdrawn counts as well: the others keep their names when it comes back.
    if offer
        .shelf(kind)
        .all()
        .all(|item| seen.insert(&item.visible))
    {
        return;
    }
    let server = Arc::clone(&offer.server);
    let shelf = Arc::make_mut(offer).shelf_mut(kind);
    for item in shelf.items.iter_mut().chain(&mut shelf.withdrawn) {
        item.visible = name::mangled(&server, &item.route.name).into();
    }
}

/// Lets URIs be what they are where one server has them, and name their server where several do.
fn resolve_uris(kind: ListKind, offers: &mut BTreeMap<Arc<str>, Arc<Offer>>) {
    let mut servers: HashMap<Arc<str>, usize> = HashMap::new();
    for offer in offers.values() {
        let own: HashSet<_> = offer
            .shelf(kind)
            .all()
            .map(|item| &item.route.name)
            .collect();
        for uri in own {
            *servers.entry(Arc::clone(uri)).or_default() += 1;
        }
    }
    let visible = |item: &Item| -> Arc<str> {
        let Item { route, .. } = item;
        match kind {
            // A URI that looks as if it named a server would lead there.
            _ if servers.get(&route.name) == Some(&1)
                && name::read_addressed(&route.name).is_none() =>
            {
                Arc::clone(&route.name)
            }
            ListKind::Templates => name::addressed_template(&route.server, &route.name).into(),
            _ => name::addressed(&route.server, &route.name).into(),
        }
    };
    for offer in offers.values_mut() {
        // What is withdrawn counts as well: the others keep their URIs when it comes back.
        let settled = |shelf: &Shelf| shelf.all().all(|item| item.visible == visible(item));
        if settled(offer.shelf(kind)) {
            continue;
        }
        let shelf = Arc::make_mut(offer).shelf_mut(kind);
        for item in shelf.items.iter_mut().chain(&mut shelf.withdrawn) {
            item.visible = visible(item);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Mirroring;
    use super::*;

    fn listing(page: &str) -> Listing {
        let pages = crate::catalog::Pages::from(|kind| match kind {
            ListKind::Tools => Some(vec![Bytes::copy_from_slice(page.as_bytes())]),
            _ => None,
        });
        let rules = (&BTreeMap::new(), Mirroring::Idle);
        let offer = Offer::new(
            &"s".into(),
            &Bytes::from_static(b"{}"),
            &pages,
            rules,
            None,
            None,
        );
        let offers = [Arc::new(offer)];
        let all = merge(ListKind::Tools, offers.iter());
        assert_eq!(
            all.legacy.is_some(),
            offers[0].tools.listing.legacy.is_some()
        );
        offers[0].tools.listing.clone()
    }

    #[test]
    fn callers_of_the_older_era_are_shown_no_schema_that_they_refuse() {
        let odd = r#"{"name":"a","inputSchema":{"type":"object"},"outputSchema":{"type":"array"}}"#;
        let even = r#"{"name":"a","inputSchema":{"type":"object"}}"#;
        let modern = format!(r#"{{"tools":[{odd}],"resultType":"complete"}}"#);
        let list = listing(&modern);
        assert_eq!(list.result, format!(r#"{{"tools":[{odd}]}}"#));
        let legacy = list.for_legacy();
        assert_eq!(legacy.result, format!(r#"{{"tools":[{even}]}}"#));
        // Nothing to translate, or not ours to: a server of the same era.
        for page in [
            format!(r#"{{"tools":[{even}],"resultType":"complete"}}"#),
            format!(r#"{{"tools":[{odd}]}}"#),
        ] {
            let list = listing(&page);
            assert_eq!(list.legacy, None);
            let result = list.result.clone();
            assert_eq!(list.for_legacy().result, result);
        }
    }
}
