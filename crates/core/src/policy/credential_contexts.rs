//! Contexts bound to a credential: they apply to every session, stream and stored call
//! authenticated by the credential.

use std::collections::HashMap;
use std::sync::Arc;

use super::pattern_index::{AccessFilter, FilterMatch, KindDefault, PatternIndex};
use super::{Policy, PolicyDecision, PolicyTarget};
use crate::call::{ContextSet, Principal};

/// Contexts by credential id.
pub type CredentialContexts = HashMap<Arc<str>, ContextSet>;

/// Prefix of a profile name used as a context. Configured context names contain no colon.
const PROFILE_PREFIX: &str = "profile:";

/// Returns the context that restricts a credential to a profile on every endpoint.
#[must_use]
pub fn profile_context(profile: &str) -> Arc<str> {
    format!("{PROFILE_PREFIX}{profile}").into()
}

/// The rule named by a context.
pub(super) enum ContextRule<'p> {
    /// Hides matching features.
    Hide(&'p PatternIndex),
    /// Hides everything outside this profile.
    Profile(&'p Arc<str>, &'p AccessFilter),
}

impl ContextRule<'_> {
    /// Returns whether all features of a server are hidden; `true` is definite.
    pub(super) fn hides_whole_server(&self, server: &str) -> bool {
        match self {
            Self::Hide(hide) => hide.covers_server(server),
            Self::Profile(_, filter) => !filter.may_reach_server(server),
        }
    }
}

impl Policy {
    /// Returns the rule of a context; `None` if undefined.
    pub(super) fn context_rule(&self, name: &str) -> Option<ContextRule<'_>> {
        match name.strip_prefix(PROFILE_PREFIX) {
            Some(profile) => {
                let profile = self.profiles.get_key_value(profile);
                profile.map(|(name, filter)| ContextRule::Profile(name, filter))
            }
            None => self.contexts.get(name).map(ContextRule::Hide),
        }
    }

    /// Returns the decision of a context that hides `target`. An undefined context hides
    /// everything, since its intent is unknown.
    pub(super) fn hiding_decision<'p>(
        &'p self,
        context: &'p Arc<str>,
        target: PolicyTarget<'_>,
    ) -> Option<PolicyDecision<'p>> {
        let PolicyTarget {
            kind, server, name, ..
        } = target;
        match self.context_rule(context) {
            None => Some(PolicyDecision::UnknownContext { context }),
            Some(ContextRule::Hide(hide)) => {
                let pattern = hide.find_match(KindDefault::All, kind, server, name)?;
                Some(PolicyDecision::Hidden { context, pattern })
            }
            Some(ContextRule::Profile(profile, filter)) => {
                let matched = filter.match_feature(kind, server, name);
                let is_inside = matches!(matched, FilterMatch::Allowed(_));
                (!is_inside).then_some(PolicyDecision::OutsideProfile { profile })
            }
        }
    }

    /// Sets the contexts of credentials, effective on every path.
    #[must_use]
    pub fn with_credential_contexts(mut self, credentials: Arc<CredentialContexts>) -> Self {
        self.credential_contexts = credentials;
        self
    }

    /// Returns the contexts of credentials.
    #[must_use]
    pub const fn credential_contexts(&self) -> &Arc<CredentialContexts> {
        &self.credential_contexts
    }

    /// Returns all contexts of a principal, including those of the credential.
    #[must_use]
    pub fn all_contexts(&self, principal: &Principal) -> ContextSet {
        match self.credential_context(principal) {
            Some(more) => principal.contexts.union(more),
            None => principal.contexts.clone(),
        }
    }

    fn credential_context(&self, principal: &Principal) -> Option<&ContextSet> {
        // Most gateways have none.
        match self.credential_contexts.is_empty() {
            true => None,
            false => self.credential_contexts.get(&principal.credential),
        }
    }

    /// Returns the names of all contexts of a principal.
    pub(super) fn narrowing_contexts<'p>(
        &'p self,
        principal: &'p Principal,
    ) -> impl Iterator<Item = &'p Arc<str>> {
        let more = self
            .credential_context(principal)
            .map_or(&[][..], ContextSet::names);
        principal.contexts.names().iter().chain(more)
    }
}
