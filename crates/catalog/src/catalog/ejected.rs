//! Catalog entries of ejected servers. They are not listed; calls may still hit the cache.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bowline_core::call::{CallSubject, EndpointScope, Route};
use bowline_core::sync::lock;

use super::{ListKind, ServerCatalog};

/// The last catalog entries of ejected servers.
#[derive(Debug, Default)]
pub struct EjectedCatalogs(Mutex<BTreeMap<Arc<str>, Arc<ServerCatalog>>>);

impl EjectedCatalogs {
    pub(super) fn insert(&self, offer: &Arc<ServerCatalog>) {
        lock(&self.0).insert(Arc::clone(&offer.server), Arc::clone(offer));
    }

    pub(super) fn remove(&self, server: &str) {
        lock(&self.0).remove(server);
    }

    pub(super) fn get(&self, server: &str) -> Option<Arc<ServerCatalog>> {
        lock(&self.0).get(server).cloned()
    }

    /// Finds the route of `subject` in the server's last entries.
    pub fn find_route(
        &self,
        server: &str,
        scope: &EndpointScope,
        subject: &CallSubject,
    ) -> Option<Arc<Route>> {
        let kind = match subject {
            CallSubject::Tool(_) => ListKind::Tools,
            CallSubject::Prompt(_) => ListKind::Prompts,
            CallSubject::Resource(_)
            | CallSubject::CompletePrompt(_)
            | CallSubject::CompleteResource(_)
            | CallSubject::Task { .. } => return None,
        };
        let last = lock(&self.0);
        let (shelf, name) = (last.get(server)?.list(kind), subject.name());
        match scope {
            EndpointScope::Server(_) => shelf.route(name).cloned(),
            EndpointScope::All | EndpointScope::Profile(_) => {
                let item = shelf.iter().find(|item| item.visible == *name)?;
                Some(Arc::clone(&item.route))
            }
        }
    }
}
