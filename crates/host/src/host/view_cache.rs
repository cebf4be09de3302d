//! Cache of views, shared by principals with equal rights: a change announced to ten thousand
//! sessions with three roles is rendered three times.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use bowline_core::call::{ContextSet, EndpointScope, Principal};
use bowline_core::policy::{AccessClass, Policy};
use bowline_core::sync::lock;

use crate::catalog::{InitializeInfo, ListKind, RenderedList};

/// Maximum number of cached views; the oldest is evicted first.
pub(super) const VIEWS_MAX: usize = 1_024;

/// Maximum total bytes.
pub(super) const VIEW_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Cache key: rights, endpoint and subject.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ViewKey {
    class: AccessClass,
    contexts: ContextSet,
    scope: EndpointScope,
    subject: ViewSubject,
}

/// Subject of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ViewSubject {
    /// A list.
    List(ListKind),
    /// The shortened tool list with meta tools.
    ShortenedTools,
    /// The `initialize` members.
    InitializeInfo,
}

/// A rendered view.
#[derive(Clone, Debug)]
pub(super) enum CachedView {
    List(RenderedList),
    InitializeInfo(Arc<InitializeInfo>),
}

/// Catalog and policy version of a view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ViewVersion {
    pub(super) catalog: u64,
    pub(super) policy: u64,
}

impl ViewVersion {
    /// True if both versions are at least those of `other`.
    const fn is_at_least(self, other: Self) -> bool {
        self.catalog >= other.catalog && self.policy >= other.policy
    }
}

/// The views of a single version; views of other versions are never mixed in.
#[derive(Debug, Default)]
pub(super) struct ViewCache(Mutex<ViewCacheState>);

#[derive(Debug, Default)]
struct ViewCacheState {
    version: ViewVersion,
    views: HashMap<ViewKey, CachedView>,
    /// Keys, oldest first.
    order: VecDeque<ViewKey>,
    bytes: usize,
    built: u64,
}

impl ViewKey {
    pub(super) fn new(
        policy: &Policy,
        principal: &Principal,
        scope: &EndpointScope,
        subject: ViewSubject,
    ) -> Self {
        Self {
            class: policy.access_class(principal),
            contexts: policy.all_contexts(principal),
            scope: scope.clone(),
            subject,
        }
    }
}

impl CachedView {
    fn byte_len(&self) -> usize {
        match self {
            Self::List(list) => {
                list.result.len() + list.legacy.as_ref().map_or(0, bytes::Bytes::len)
            }
            Self::InitializeInfo(own) => {
                own.capabilities.len() + own.instructions.as_ref().map_or(0, bytes::Bytes::len)
            }
        }
    }
}

impl ViewCache {
    /// Returns a cached view of this version.
    pub(super) fn get(&self, wanted_version: ViewVersion, key: &ViewKey) -> Option<CachedView> {
        let state = lock(&self.0);
        (state.version == wanted_version).then(|| state.views.get(key).cloned())?
    }

    /// Caches a view, unless views of a later version are cached.
    pub(super) fn insert(&self, wanted_version: ViewVersion, key: ViewKey, view: &CachedView) {
        let mut state = lock(&self.0);
        state.built += 1;
        if state.version != wanted_version {
            if !wanted_version.is_at_least(state.version) {
                return;
            }
            let built = state.built;
            *state = ViewCacheState {
                version: wanted_version,
                built,
                ..ViewCacheState::default()
            };
        }
        let bytes = view.byte_len();
        if bytes > VIEW_BYTES_MAX || state.views.contains_key(&key) {
            return;
        }
        while state.views.len() >= VIEWS_MAX || state.bytes + bytes > VIEW_BYTES_MAX {
            let Some(oldest) = state.order.pop_front() else {
                break;
            };
            let evicted = state.views.remove(&oldest);
            state.bytes -= evicted.map_or(0, |evicted| evicted.byte_len());
        }
        state.bytes += bytes;
        state.order.push_back(key.clone());
        state.views.insert(key, view.clone());
    }

    /// Returns the number of views built.
    pub(super) fn built_count(&self) -> u64 {
        lock(&self.0).built
    }
}

#[cfg(test)]
mod tests {
    use bowline_core::call::Role;
    use bytes::Bytes;

    use super::*;

    fn view_key(context: usize) -> ViewKey {
        let who = Principal::new("p", Role::None);
        let who = who.with_contexts(&ContextSet::new([context.to_string()]));
        let what = ViewSubject::List(ListKind::Tools);
        ViewKey::new(&Policy::default(), &who, &EndpointScope::All, what)
    }

    fn list_view(bytes: usize) -> CachedView {
        CachedView::List(RenderedList {
            result: Bytes::from(vec![b' '; bytes]),
            fingerprint: [0; 32],
            hint: None,
            legacy: None,
        })
    }

    fn view_version(catalog: u64, policy: u64) -> ViewVersion {
        ViewVersion { catalog, policy }
    }

    #[test]
    fn view_is_returned_for_its_version_only() {
        let views = ViewCache::default();
        views.insert(view_version(1, 1), view_key(0), &list_view(1));
        assert!(views.get(view_version(1, 1), &view_key(0)).is_some());
        for other in [
            view_version(2, 1),
            view_version(1, 2),
            view_version(0, 1),
            view_version(1, 0),
        ] {
            assert!(views.get(other, &view_key(0)).is_none());
        }
        views.insert(view_version(0, 1), view_key(1), &list_view(1));
        assert!(
            views.get(view_version(0, 1), &view_key(1)).is_none(),
            "older is not kept"
        );
        assert!(views.get(view_version(1, 1), &view_key(0)).is_some());
        views.insert(view_version(1, 2), view_key(1), &list_view(1));
        assert!(
            views.get(view_version(1, 1), &view_key(0)).is_none(),
            "all others go"
        );
        assert!(views.get(view_version(1, 2), &view_key(0)).is_none());
        assert!(views.get(view_version(1, 2), &view_key(1)).is_some());
    }

    #[test]
    fn cache_is_bounded_by_count_and_bytes() {
        let views = ViewCache::default();
        let one = VIEW_BYTES_MAX / 2;
        for nth in 0..3 {
            views.insert(view_version(1, 1), view_key(nth), &list_view(one));
        }
        views.insert(
            view_version(1, 1),
            view_key(3),
            &list_view(VIEW_BYTES_MAX + 1),
        );
        let kept = |nth| views.get(view_version(1, 1), &view_key(nth)).is_some();
        assert!(!kept(0) && kept(1) && kept(2) && !kept(3));
        for nth in 4..=VIEWS_MAX + 5 {
            views.insert(view_version(1, 1), view_key(nth), &list_view(1));
        }
        assert_eq!(lock(&views.0).views.len(), VIEWS_MAX);
        assert_eq!(lock(&views.0).order.len(), VIEWS_MAX);
        assert_eq!(lock(&views.0).bytes, VIEWS_MAX);
    }
}
