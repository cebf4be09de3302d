//! Views that were built once, kept for all who see the same: what is announced to ten thousand
//! sessions of three roles is built three times.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use bowline_core::call::{Contexts, Principal, Scope};
use bowline_core::policy::{Class, Policy};
use bowline_core::sync::lock;

use crate::catalog::{Introduction, ListKind, Listing};

/// Views that are kept; the oldest goes first.
pub(super) const VIEWS_MAX: usize = 1_024;

/// Bytes of all views that are kept.
pub(super) const VIEW_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Who sees the same, where, and of what.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    class: Class,
    contexts: Contexts,
    scope: Scope,
    what: What,
}

/// What is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum What {
    /// A list.
    List(ListKind),
    /// The tools that are listed where the rest may have to be found.
    Shortened,
    /// What an endpoint says of itself.
    Introduction,
}

/// One of them, ready.
#[derive(Clone, Debug)]
pub(super) enum View {
    List(Listing),
    Introduction(Arc<Introduction>),
}

/// What all views of one moment are built of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Moment {
    pub(super) catalog: u64,
    pub(super) policy: u64,
}

impl Moment {
    /// Whether nothing of it is older than the same of `other`.
    const fn is_since(self, other: Self) -> bool {
        self.catalog >= other.catalog && self.policy >= other.policy
    }
}

/// The views of one moment. What is built of another catalog or policy is never among them.
#[derive(Debug, Default)]
pub(super) struct Views(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    of: Moment,
    views: HashMap<Key, View>,
    /// The keys, oldest first.
    order: VecDeque<Key>,
    bytes: usize,
    built: u64,
}

impl Key {
    pub(super) fn new(policy: &Policy, principal: &Principal, scope: &Scope, what: What) -> Self {
        Self {
            class: policy.class(principal),
            contexts: policy.contexts_of(principal),
            scope: scope.clone(),
            what,
        }
    }
}

impl View {
    fn bytes(&self) -> usize {
        match self {
            Self::List(list) => {
                list.result.len() + list.legacy.as_ref().map_or(0, bytes::Bytes::len)
            }
            Self::Introduction(own) => {
                own.capabilities.len() + own.instructions.as_ref().map_or(0, bytes::Bytes::len)
            }
        }
    }
}

impl Views {
    /// Returns a view of that moment.
    pub(super) fn get(&self, of: Moment, key: &Key) -> Option<View> {
        let kept = lock(&self.0);
        (kept.of == of).then(|| kept.views.get(key).cloned())?
    }

    /// Keeps a view, unless others of a later moment are kept.
    pub(super) fn put(&self, of: Moment, key: Key, view: &View) {
        let mut kept = lock(&self.0);
        kept.built += 1;
        if kept.of != of {
            if !of.is_since(kept.of) {
                return;
            }
            let built = kept.built;
            *kept = Kept {
                of,
                built,
                ..Kept::default()
            };
        }
        let bytes = view.bytes();
        if bytes > VIEW_BYTES_MAX || kept.views.contains_key(&key) {
            return;
        }
        while kept.views.len() >= VIEWS_MAX || kept.bytes + bytes > VIEW_BYTES_MAX {
            let Some(oldest) = kept.order.pop_front() else {
                break;
            };
            let left = kept.views.remove(&oldest);
            kept.bytes -= left.map_or(0, |left| left.bytes());
        }
        kept.bytes += bytes;
        kept.order.push_back(key.clone());
        kept.views.insert(key, view.clone());
    }

    /// Returns how many views were built.
    pub(super) fn built(&self) -> u64 {
        lock(&self.0).built
    }
}

#[cfg(test)]
mod tests {
    use bowline_core::call::Role;
    use bytes::Bytes;

    use super::*;

    fn key(context: usize) -> Key {
        let who = Principal::new("p", Role::None);
        let who = who.narrowed(&Contexts::new([context.to_string()]));
        let what = What::List(ListKind::Tools);
        Key::new(&Policy::default(), &who, &Scope::All, what)
    }

    fn list(bytes: usize) -> View {
        View::List(Listing {
            result: Bytes::from(vec![b' '; bytes]),
            fingerprint: [0; 32],
            hint: None,
            legacy: None,
        })
    }

    fn at(catalog: u64, policy: u64) -> Moment {
        Moment { catalog, policy }
    }

    #[test]
    fn a_view_is_of_its_moment_and_of_no_other() {
        let views = Views::default();
        views.put(at(1, 1), key(0), &list(1));
        assert!(views.get(at(1, 1), &key(0)).is_some());
        for other in [at(2, 1), at(1, 2), at(0, 1), at(1, 0)] {
            assert!(views.get(other, &key(0)).is_none());
        }
        views.put(at(0, 1), key(1), &list(1));
        assert!(views.get(at(0, 1), &key(1)).is_none(), "older is not kept");
        assert!(views.get(at(1, 1), &key(0)).is_some());
        views.put(at(1, 2), key(1), &list(1));
        assert!(views.get(at(1, 1), &key(0)).is_none(), "all others go");
        assert!(views.get(at(1, 2), &key(0)).is_none());
        assert!(views.get(at(1, 2), &key(1)).is_some());
    }

    #[test]
    fn so_many_views_are_kept_and_so_many_bytes() {
        let views = Views::default();
        let one = VIEW_BYTES_MAX / 2;
        for nth in 0..3 {
            views.put(at(1, 1), key(nth), &list(one));
        }
        views.put(at(1, 1), key(3), &list(VIEW_BYTES_MAX + 1));
        let kept = |nth| views.get(at(1, 1), &key(nth)).is_some();
        assert!(!kept(0) && kept(1) && kept(2) && !kept(3));
        for nth in 4..=VIEWS_MAX + 5 {
            views.put(at(1, 1), key(nth), &list(1));
        }
        assert_eq!(lock(&views.0).views.len(), VIEWS_MAX);
        assert_eq!(lock(&views.0).order.len(), VIEWS_MAX);
        assert_eq!(lock(&views.0).bytes, VIEWS_MAX);
    }
}
