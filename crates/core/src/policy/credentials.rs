//! Contexts that narrow a credential: they count wherever it proves its principal, in every
//! session, stream and stored call.

use std::collections::HashMap;
use std::sync::Arc;

use super::rules::{Filter, Filtered, Rules, Unsaid};
use super::{Policy, Ruling, Thing};
use crate::call::{Contexts, Principal};

/// Contexts by the ids of the credentials that they narrow.
pub type Credentials = HashMap<Arc<str>, Contexts>;

/// What stands before the name of a profile where it narrows like a context. No context of a
/// configuration has a colon in its name.
const PROFILE_PREFIX: &str = "profile:";

/// Returns the context that narrows a credential by a profile, on every endpoint.
#[must_use]
pub fn profile_context(profile: &str) -> Arc<str> {
    format!("{PROFILE_PREFIX}{profile}").into()
}

/// The rule that the name of a context refers to.
pub(super) enum ContextRule<'p> {
    /// It hides what it names.
    Hide(&'p Rules),
    /// It hides what is not in this profile.
    Profile(&'p Arc<str>, &'p Filter),
}

impl ContextRule<'_> {
    /// Returns whether everything of a server is hidden: `true` is certain.
    pub(super) fn hides_server(&self, server: &str) -> bool {
        match self {
            Self::Hide(hide) => hide.all_of(server),
            Self::Profile(_, filter) => !filter.reaches(server),
        }
    }
}

impl Policy {
    /// Returns the rule of a context; none where nothing of that name is defined.
    pub(super) fn context_rule(&self, name: &str) -> Option<ContextRule<'_>> {
        match name.strip_prefix(PROFILE_PREFIX) {
            Some(profile) => {
                let profile = self.profiles.get_key_value(profile);
                profile.map(|(name, filter)| ContextRule::Profile(name, filter))
            }
            None => self.contexts.get(name).map(ContextRule::Hide),
        }
    }

    /// Returns the ruling of a context that hides `thing`. A context that is not defined hides
    /// everything: what it was meant to hide is not known.
    pub(super) fn hidden_by<'p>(
        &'p self,
        context: &'p Arc<str>,
        thing: Thing<'_>,
    ) -> Option<Ruling<'p>> {
        let Thing {
            kind, server, name, ..
        } = thing;
        match self.context_rule(context) {
            None => Some(Ruling::UnknownContext { context }),
            Some(ContextRule::Hide(hide)) => {
                let pattern = hide.find(Unsaid::All, kind, server, name)?;
                Some(Ruling::Hidden { context, pattern })
            }
            Some(ContextRule::Profile(profile, filter)) => {
                let found = filter.of(kind, server, name);
                let is_inside = matches!(found, Filtered::Allowed(_));
                (!is_inside).then_some(Ruling::OutsideProfile { profile })
            }
        }
    }

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
