//! Contexts that narrow a credential: they count wherever it proves its principal, in every
//! session, stream and stored call.

use std::collections::HashMap;
use std::sync::Arc;

use super::Policy;
use crate::call::{Contexts, Principal};

/// Contexts by the ids of the credentials that they narrow.
pub type Credentials = HashMap<Arc<str>, Contexts>;

impl Policy {
    /// Narrows credentials, on every path that they prove a principal on.
    #[must_use]
    pub fn with_credentials(mut self, credentials: Arc<Credentials>) -> Self {
        self.credentials = credentials;
        self
    }

    /// Returns which credentials are narrowed, and by what.
    #[must_use]
    pub const fn credentials(&self) -> &Arc<Credentials> {
        &self.credentials
    }

    /// Returns all contexts that narrow a principal: its own and those of its credential.
    #[must_use]
    pub fn contexts_of(&self, principal: &Principal) -> Contexts {
        match self.credential(principal) {
            Some(more) => principal.contexts.and(more),
            None => principal.contexts.clone(),
        }
    }

    fn credential(&self, principal: &Principal) -> Option<&Contexts> {
        // Most gateways narrow none.
        match self.credentials.is_empty() {
            true => None,
            false => self.credentials.get(&principal.credential),
        }
    }

    /// Returns the names of the contexts that narrow a principal.
    pub(super) fn narrowing<'p>(
        &'p self,
        principal: &'p Principal,
    ) -> impl Iterator<Item = &'p Arc<str>> {
        let more = self.credential(principal).map_or(&[][..], Contexts::names);
        principal.contexts.names().iter().chain(more)
    }
}
