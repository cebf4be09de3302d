//! Lists as ready response bytes, per server and merged.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use bowline_core::cache::CacheHint;
use bowline_core::era::Era;
use bowline_core::name;
use bowline_wire::ByteSpan;
use bowline_wire::{ObjectEditor, era, object};
use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use super::catalog_list::CatalogList;
use super::definition_marks::add_stale_mark;
use super::server_catalog::{CatalogItem, ServerCatalog, Staleness};
use super::{ListKind, cache_hints};

/// Approximate size of a stale mark.
const STALE_BYTES: usize = 40;

/// A rendered list, with a fingerprint of its definitions.
#[derive(Clone, Debug, Default)]
pub struct RenderedList {
    /// The complete result of the list request.
    pub result: Bytes,
    /// Changes with any name or definition.
    pub fingerprint: [u8; 32],
    /// Cache hint, if every included server gives a hint.
    pub hint: Option<CacheHint>,
    /// The result for legacy clients, if some definition differs.
    pub legacy: Option<Bytes>,
}

impl RenderedList {
    /// Returns the number of definitions.
    #[must_use]
    pub fn count(&self, kind: ListKind) -> usize {
        let list = object::field(&self.result, kind.member());
        list.map_or(0, |at| object::items(at.slice(&self.result)).count())
    }

    /// Returns a list with this result and the same cache hint.
    pub fn with_result(&self, result: Bytes) -> Self {
        Self {
            fingerprint: Sha256::digest(&result).into(),
            legacy: match self.legacy {
                Some(_) => to_legacy(&result, ListKind::Tools),
                None => None,
            },
            result,
            hint: self.hint,
        }
    }

    /// Returns the list for legacy clients.
    #[must_use]
    pub fn for_legacy(mut self) -> Self {
        if let Some(legacy) = self.legacy.take() {
            self.result = legacy;
        }
        self
    }

    /// Renders the legacy variant if any of `items` is modern.
    pub(super) fn with_legacy<'a>(
        mut self,
        kind: ListKind,
        items: impl IntoIterator<Item = &'a CatalogItem>,
    ) -> Self {
        let is_modern = |item: &CatalogItem| item.era == Era::Modern;
        if kind == ListKind::Tools && items.into_iter().any(is_modern) {
            self.legacy = to_legacy(&self.result, kind);
        }
        self
    }

    pub(super) fn from_result(result: Bytes, hint: Option<CacheHint>) -> Self {
        let fingerprint = Sha256::digest(&result).into();
        Self {
            result,
            fingerprint,
            hint: cache_hints::known_hint(hint),
            legacy: None,
        }
    }
}

impl RenderedList {
    /// Marks last known definitions. The fingerprint stays: clients need not list again because of
    /// a short outage.
    pub(super) fn with_stale_marks(self, kind: ListKind, stale: &[bool]) -> Self {
        if !stale.contains(&true) {
            return self;
        }
        let whole = &self.result;
        let list = object::field(whole, kind.member()).unwrap_or(ByteSpan { start: 0, end: 0 });
        let mut out = Vec::with_capacity(whole.len() + stale.len() * STALE_BYTES);
        let mut done = 0;
        for (item, stale) in object::items(list.slice(whole)).zip(stale) {
            let at = item.shift(list.start);
            out.extend_from_slice(whole.get(done..at.start).unwrap_or_default());
            done = at.end;
            if *stale {
                out.extend_from_slice(&add_stale_mark(at.slice(whole)));
            } else {
                out.extend_from_slice(at.slice(whole));
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

/// Returns the definitions of a page, as written.
pub fn page_definitions(kind: ListKind, page: &Bytes) -> impl Iterator<Item = Bytes> + '_ {
    member_elements(kind.member(), page)
}

/// Returns the elements of an array member of a result, as written.
pub fn member_elements<'a>(member: &str, page: &'a Bytes) -> impl Iterator<Item = Bytes> + use<'a> {
    let list = object::field(page, member).unwrap_or(ByteSpan { start: 0, end: 0 });
    object::items(list.slice(page)).map(move |item| {
        let at = item.shift(list.start);
        page.slice(at.start..at.end)
    })
}

/// True if a page can be shown unchanged: it has a list and no next cursor.
pub(super) fn is_single_page(kind: ListKind, page: &Bytes) -> bool {
    let list = object::field(page, kind.member());
    let is_list = list.is_some_and(|at| at.slice(page).starts_with(b"["));
    is_list && object::field(page, "nextCursor").is_none()
}

/// Returns the era of the pages: only modern results have a type.
pub(super) fn pages_era(pages: &[Bytes]) -> Era {
    let is_modern = |page: &Bytes| object::field(page, "resultType").is_some();
    match pages.iter().any(is_modern) {
        true => Era::Modern,
        false => Era::Legacy,
    }
}

/// Translates a page to the legacy era, without members of the modern era: the client may use a
/// different era, and the hint must hold for all servers.
pub fn to_legacy_page(kind: ListKind, page: &Bytes) -> Bytes {
    // In a legacy result these members belong to the server.
    if object::field(page, "resultType").is_none() {
        return page.clone();
    }
    match era::result_translation::to_legacy(page, kind.method()) {
        Cow::Borrowed(_) => page.clone(),
        Cow::Owned(plain) => plain.into(),
    }
}

/// Rewrites the definitions that legacy clients would refuse; `None` without such definitions.
fn to_legacy(list: &[u8], kind: ListKind) -> Option<Bytes> {
    let at = object::field(list, kind.member())?;
    let mut editor = ObjectEditor::new(list);
    for item in object::items(at.slice(list)) {
        let item = item.shift(at.start);
        if let Some(definition) = era::result_translation::tool_to_legacy(item.slice(list)) {
            editor.replace(item, definition);
        }
    }
    (!editor.is_unchanged()).then(|| editor.finish().into())
}

/// Renders `items`, each by `one`.
pub(super) fn render<'a>(
    kind: ListKind,
    items: impl IntoIterator<Item = &'a CatalogItem> + Clone,
    one: impl Fn(&CatalogItem, &mut Vec<u8>),
    hint: Option<CacheHint>,
) -> RenderedList {
    let mut result = format!("{{\"{}\":[", kind.member()).into_bytes();
    let mut stale = Vec::new();
    for (nth, item) in items.clone().into_iter().enumerate() {
        if nth > 0 {
            result.push(b',');
        }
        one(item, &mut result);
        stale.push(item.staleness == Staleness::LastKnown);
    }
    result.extend_from_slice(b"]}");
    let list = RenderedList::from_result(result.into(), hint).with_stale_marks(kind, &stale);
    list.with_legacy(kind, items)
}

/// Merges a list of all servers under visible names.
pub(super) fn merge_servers<'a>(
    kind: ListKind,
    offers: impl Iterator<Item = &'a Arc<ServerCatalog>> + Clone,
) -> RenderedList {
    let hint = merged_hint(kind, offers.clone());
    let items = offers.flat_map(|offer| offer.list(kind));
    render(kind, items, CatalogItem::write_visible, hint)
}

/// Merges the cache hints of a list over these servers.
pub(super) fn merged_hint<'a>(
    kind: ListKind,
    offers: impl Iterator<Item = &'a Arc<ServerCatalog>>,
) -> Option<CacheHint> {
    cache_hints::merge_hints(offers.map(|offer| offer.list(kind).live_hint()))
}

/// Returns an empty list.
pub(super) fn empty_list(kind: ListKind) -> RenderedList {
    merge_servers(kind, std::iter::empty())
}

/// Makes all visible names unique.
pub(super) fn resolve_collisions(offers: &mut BTreeMap<Arc<str>, Arc<ServerCatalog>>) {
    for kind in [ListKind::Tools, ListKind::Prompts] {
        for offer in offers.values_mut() {
            resolve_names(kind, offer);
        }
    }
    for kind in [ListKind::Resources, ListKind::Templates] {
        resolve_uris(kind, offers);
    }
}

/// Assigns hashed names to items with equal visible names.
///
/// Names of different servers cannot collide, since a server name contains no separator; two odd
/// names of a single server can, if one equals the mangled form of the next.
fn resolve_names(kind: ListKind, offer: &mut Arc<ServerCatalog>) {
    let mut seen = HashSet::new();
    // Withdrawn items count too, so that names stay stable when they return.
    if offer
        .list(kind)
        .all_items()
        .all(|item| seen.insert(&item.visible))
    {
        return;
    }
    let server = Arc::clone(&offer.server);
    let list = Arc::make_mut(offer).list_mut(kind);
    for item in list.items.iter_mut().chain(&mut list.withdrawn) {
        item.visible = name::mangled_name(&server, &item.route.name).into();
    }
}

/// Keeps a URI unchanged if a single server lists it; otherwise qualifies it with the server name.
fn resolve_uris(kind: ListKind, offers: &mut BTreeMap<Arc<str>, Arc<ServerCatalog>>) {
    let mut servers: HashMap<Arc<str>, usize> = HashMap::new();
    for offer in offers.values() {
        let own: HashSet<_> = offer
            .list(kind)
            .all_items()
            .map(|item| &item.route.name)
            .collect();
        for uri in own {
            *servers.entry(Arc::clone(uri)).or_default() += 1;
        }
    }
    let visible = |item: &CatalogItem| -> Arc<str> {
        let CatalogItem { route, .. } = item;
        match kind {
            // A URI in the qualified form would be routed to the server it names.
            _ if servers.get(&route.name) == Some(&1)
                && name::parse_qualified_uri(&route.name).is_none() =>
            {
                Arc::clone(&route.name)
            }
            ListKind::Templates => name::qualified_template(&route.server, &route.name).into(),
            _ => name::qualified_uri(&route.server, &route.name).into(),
        }
    };
    for offer in offers.values_mut() {
        // Withdrawn items count too, so that URIs stay stable when they return.
        let settled =
            |list: &CatalogList| list.all_items().all(|item| item.visible == visible(item));
        if settled(offer.list(kind)) {
            continue;
        }
        let list = Arc::make_mut(offer).list_mut(kind);
        for item in list.items.iter_mut().chain(&mut list.withdrawn) {
            item.visible = visible(item);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::HeaderParamPolicy;
    use super::*;

    fn tool_list(page: &str) -> RenderedList {
        let pages = crate::catalog::ListPages::from_fn(|kind| match kind {
            ListKind::Tools => Some(vec![Bytes::copy_from_slice(page.as_bytes())]),
            _ => None,
        });
        let offer = ServerCatalog::new(
            &"s".into(),
            &Bytes::from_static(b"{}"),
            &pages,
            &BTreeMap::new(),
            HeaderParamPolicy::Ignore,
            None,
            None,
        );
        let offers = [Arc::new(offer)];
        let all = merge_servers(ListKind::Tools, offers.iter());
        assert_eq!(
            all.legacy.is_some(),
            offers[0].tools.rendered.legacy.is_some()
        );
        offers[0].tools.rendered.clone()
    }

    #[test]
    fn legacy_list_omits_unsupported_output_schemas() {
        let odd = r#"{"name":"a","inputSchema":{"type":"object"},"outputSchema":{"type":"array"}}"#;
        let even = r#"{"name":"a","inputSchema":{"type":"object"}}"#;
        let modern = format!(r#"{{"tools":[{odd}],"resultType":"complete"}}"#);
        let list = tool_list(&modern);
        assert_eq!(list.result, format!(r#"{{"tools":[{odd}]}}"#));
        let legacy = list.for_legacy();
        assert_eq!(legacy.result, format!(r#"{{"tools":[{even}]}}"#));
        // Nothing to translate, or a legacy server.
        for page in [
            format!(r#"{{"tools":[{even}],"resultType":"complete"}}"#),
            format!(r#"{{"tools":[{odd}]}}"#),
        ] {
            let list = tool_list(&page);
            assert_eq!(list.legacy, None);
            let result = list.result.clone();
            assert_eq!(list.for_legacy().result, result);
        }
    }
}
