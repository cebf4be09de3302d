//! Lazy servers without known lists; started by the first list request in scope.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bowline_core::call::EndpointScope;
use bowline_core::sync::lock;

/// The names of these servers.
#[derive(Debug, Default)]
pub struct UnlistedServers {
    names: Mutex<BTreeSet<Arc<str>>>,
    /// True if any exist: checked by every list request, rarely true.
    has_any: AtomicBool,
}

impl UnlistedServers {
    /// Adds a server.
    pub fn add(&self, server: &Arc<str>) {
        let mut names = lock(&self.names);
        names.insert(Arc::clone(server));
        self.has_any.store(true, Ordering::Relaxed);
    }

    /// Removes a listed or removed server.
    pub fn remove(&self, server: &str) {
        let mut names = lock(&self.names);
        names.remove(server);
        self.has_any.store(!names.is_empty(), Ordering::Relaxed);
    }

    /// Takes the servers in `scope` accepted by `reaches`.
    pub fn take_in_scope(
        &self,
        scope: &EndpointScope,
        reaches: impl Fn(&str) -> bool,
    ) -> Vec<Arc<str>> {
        if !self.has_any.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let mut names = lock(&self.names);
        let is_in_scope = |name: &Arc<str>| match scope {
            EndpointScope::All | EndpointScope::Profile(_) => reaches(name),
            EndpointScope::Server(server) => name == server && reaches(name),
        };
        let taken: Vec<_> = names
            .iter()
            .filter(|name| is_in_scope(name))
            .cloned()
            .collect();
        names.retain(|name| !taken.contains(name));
        self.has_any.store(!names.is_empty(), Ordering::Relaxed);
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unlisted_server_is_taken_once_in_scope() {
        let unlisted = UnlistedServers::default();
        assert!(
            unlisted
                .take_in_scope(&EndpointScope::All, |_| true)
                .is_empty()
        );
        for name in ["a", "b", "c", "d"] {
            unlisted.add(&name.into());
        }
        unlisted.remove("d");
        assert!(
            unlisted
                .take_in_scope(&EndpointScope::All, |_| false)
                .is_empty()
        );
        assert_eq!(
            unlisted.take_in_scope(&EndpointScope::Server("b".into()), |_| true),
            ["b".into()]
        );
        assert!(
            unlisted
                .take_in_scope(&EndpointScope::Server("b".into()), |_| true)
                .is_empty()
        );
        assert_eq!(
            unlisted.take_in_scope(&EndpointScope::All, |_| true),
            ["a".into(), "c".into()]
        );
        assert!(
            unlisted
                .take_in_scope(&EndpointScope::All, |_| true)
                .is_empty()
        );
    }
}
