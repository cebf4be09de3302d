//! Servers that nothing is known of and that wait to be needed: the first list that would show
//! them starts them.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bowline_core::call::Scope;
use bowline_core::sync::lock;

/// The names of such servers.
#[derive(Debug, Default)]
pub(crate) struct Unlisted {
    names: Mutex<BTreeSet<Arc<str>>>,
    /// Whether there are any: every list asks, and hardly ever there are.
    any: AtomicBool,
}

impl Unlisted {
    /// Adds a server.
    pub(crate) fn add(&self, server: &Arc<str>) {
        let mut names = lock(&self.names);
        names.insert(Arc::clone(server));
        self.any.store(true, Ordering::Relaxed);
    }

    /// Forgets a server, because it has told, or is gone.
    pub(crate) fn remove(&self, server: &str) {
        let mut names = lock(&self.names);
        names.remove(server);
        self.any.store(!names.is_empty(), Ordering::Relaxed);
    }

    /// Returns those that a list of `scope` would show to whoever `reaches` them, and forgets
    /// them.
    pub(crate) fn take(&self, scope: &Scope, reaches: impl Fn(&str) -> bool) -> Vec<Arc<str>> {
        if !self.any.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let mut names = lock(&self.names);
        let wanted = |name: &Arc<str>| match scope {
            Scope::All | Scope::Profile(_) => reaches(name),
            Scope::Server(server) => name == server && reaches(name),
        };
        let taken: Vec<_> = names.iter().filter(|name| wanted(name)).cloned().collect();
        names.retain(|name| !taken.contains(name));
        self.any.store(!names.is_empty(), Ordering::Relaxed);
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_is_given_out_once_and_only_where_it_shows() {
        let unlisted = Unlisted::default();
        assert!(unlisted.take(&Scope::All, |_| true).is_empty());
        for name in ["a", "b", "c", "d"] {
            unlisted.add(&name.into());
        }
        unlisted.remove("d");
        assert!(unlisted.take(&Scope::All, |_| false).is_empty());
        assert_eq!(
            unlisted.take(&Scope::Server("b".into()), |_| true),
            ["b".into()]
        );
        assert!(
            unlisted
                .take(&Scope::Server("b".into()), |_| true)
                .is_empty()
        );
        assert_eq!(
            unlisted.take(&Scope::All, |_| true),
            ["a".into(), "c".into()]
        );
        assert!(unlisted.take(&Scope::All, |_| true).is_empty());
    }
}
