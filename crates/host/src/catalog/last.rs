//! What servers offered that were ejected since. It is not listed; a call of it may still have
//! an answer that was kept.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bowline_core::call::{Route, Scope, Subject};
use bowline_core::sync::lock;

use super::{ListKind, Offer};

/// The last offers of servers that are ejected.
#[derive(Debug, Default)]
pub(crate) struct LastOffers(Mutex<BTreeMap<Arc<str>, Arc<Offer>>>);

impl LastOffers {
    pub(super) fn put(&self, offer: &Arc<Offer>) {
        lock(&self.0).insert(Arc::clone(&offer.server), Arc::clone(offer));
    }

    pub(super) fn remove(&self, server: &str) {
        lock(&self.0).remove(server);
    }

    pub(super) fn of(&self, server: &str) -> Option<Arc<Offer>> {
        lock(&self.0).get(server).cloned()
    }

    /// Finds what `subject` named when that server was last listed.
    pub(crate) fn find(
        &self,
        server: &str,
        scope: &Scope,
        subject: &Subject,
    ) -> Option<Arc<Route>> {
        let kind = match subject {
            Subject::Tool(_) => ListKind::Tools,
            Subject::Prompt(_) => ListKind::Prompts,
            Subject::Resource(_)
            | Subject::CompletePrompt(_)
            | Subject::CompleteResource(_)
            | Subject::Task { .. } => return None,
        };
        let last = lock(&self.0);
        let (shelf, name) = (last.get(server)?.shelf(kind), subject.name());
        match scope {
            Scope::Server(_) => shelf.route(name).cloned(),
            Scope::All | Scope::Profile(_) => {
                let item = shelf.iter().find(|item| item.visible == *name)?;
                Some(Arc::clone(&item.route))
            }
        }
    }
}
