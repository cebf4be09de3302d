//! Policy decisions with the deciding rule, and the contexts that narrow the decisions for a
//! principal.
//!
//! Contexts of a credential apply to every session, stream and stored call authenticated by the
//! credential.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use super::condition::{ConditionError, ConditionRule};
use super::pattern::FeaturePattern;
use super::pattern_index::{AccessFilter, FilterMatch, KindDefault, PatternIndex};
use super::{Policy, PolicyTarget};
use crate::call::{ContextSet, Principal};

/// A decision with the deciding rule.
#[derive(Clone, Debug)]
pub enum PolicyDecision<'p> {
    /// The owner has full access.
    Owner,
    /// Allowed by the role.
    Allowed {
        /// The role.
        role: &'p Arc<str>,
        /// The matching pattern.
        pattern: &'p FeaturePattern,
    },
    /// No defined role, and the default allows.
    DefaultAllow {
        /// The undefined role, if any.
        role: Option<&'p Arc<str>>,
    },
    /// No defined role, and the default denies.
    DefaultDeny {
        /// The undefined role, if any.
        role: Option<&'p Arc<str>>,
    },
    /// Denied by the role.
    Denied {
        /// The role.
        role: &'p Arc<str>,
        /// The matching pattern.
        pattern: &'p FeaturePattern,
    },
    /// Not matched by the role's `allow`.
    NotListed {
        /// The role.
        role: &'p Arc<str>,
    },
    /// Hidden by a context.
    Hidden {
        /// The context.
        context: &'p Arc<str>,
        /// The matching pattern.
        pattern: &'p FeaturePattern,
    },
    /// An undefined context hides everything.
    UnknownContext {
        /// The context.
        context: &'p Arc<str>,
    },
    /// Outside the profile of the endpoint or the credential.
    OutsideProfile {
        /// The profile.
        profile: &'p Arc<str>,
    },
    /// Disabled for everyone.
    Disabled,
    /// A resource with an ambiguous URI.
    AmbiguousUri,
    /// A condition of the role failed.
    ConditionFailed {
        /// The role.
        role: &'p Arc<str>,
        /// The condition.
        rule: &'p ConditionRule,
    },
    /// A condition of the role could not be evaluated.
    ConditionUndecided {
        /// The role.
        role: &'p Arc<str>,
        /// The condition.
        rule: &'p ConditionRule,
        /// The cause.
        error: ConditionError,
    },
}

impl PolicyDecision<'_> {
    /// Whether the feature may be seen and used.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        match self {
            Self::Owner | Self::Allowed { .. } | Self::DefaultAllow { .. } => true,
            Self::DefaultDeny { .. }
            | Self::Denied { .. }
            | Self::NotListed { .. }
            | Self::Hidden { .. }
            | Self::UnknownContext { .. }
            | Self::OutsideProfile { .. }
            | Self::Disabled
            | Self::AmbiguousUri
            | Self::ConditionFailed { .. }
            | Self::ConditionUndecided { .. } => false,
        }
    }

    /// Whether a condition was skipped because of
    /// [`EvaluationEffort::Quick`](super::EvaluationEffort::Quick).
    #[must_use]
    pub const fn needs_full_effort(&self) -> bool {
        matches!(
            self,
            Self::ConditionUndecided {
                error: ConditionError::NeedsFullEffort,
                ..
            }
        )
    }

    /// Whether a configured pattern explicitly denies or hides the feature.
    pub(super) const fn is_explicit_denial(&self) -> bool {
        matches!(self, Self::Denied { .. } | Self::Hidden { .. })
    }

    /// Returns the metric label of the decision.
    #[must_use]
    pub const fn metric_source(&self) -> &'static str {
        match self {
            Self::Owner => "owner",
            Self::Allowed { .. } | Self::Denied { .. } | Self::NotListed { .. } => "role",
            Self::DefaultAllow { .. } | Self::DefaultDeny { .. } => "default",
            Self::Hidden { .. } | Self::UnknownContext { .. } => "context",
            Self::OutsideProfile { .. } => "profile",
            Self::Disabled => "allowlist",
            Self::AmbiguousUri => "address",
            Self::ConditionFailed { .. } | Self::ConditionUndecided { .. } => "condition",
        }
    }

    /// Returns the configuration path of the rule.
    #[must_use]
    pub fn rule_path(&self) -> String {
        match self {
            Self::Owner => "owner".to_owned(),
            Self::Allowed { role, .. } | Self::NotListed { role } => format!("roles.{role}.allow"),
            Self::DefaultAllow { .. } | Self::DefaultDeny { .. } => "policy.default".to_owned(),
            Self::Denied { role, .. } => format!("roles.{role}.deny"),
            Self::Hidden { context, .. } | Self::UnknownContext { context } => {
                format!("context.{context}")
            }
            Self::OutsideProfile { profile } => format!("profiles.{profile}"),
            Self::Disabled => "policy.allowlist".to_owned(),
            Self::AmbiguousUri => "address".to_owned(),
            Self::ConditionFailed { role, .. } | Self::ConditionUndecided { role, .. } => {
                format!("roles.{role}.when")
            }
        }
    }
}

/// One clause a person can act on.
impl fmt::Display for PolicyDecision<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Owner => f.write_str("the owner may do all"),
            Self::Allowed { role, pattern } => {
                write!(f, "the allowlist of role `{role}` names `{pattern}`")
            }
            Self::DefaultAllow { role: None } => {
                f.write_str("without a role everything is allowed (`policy.default`)")
            }
            Self::DefaultAllow { role: Some(role) } => {
                write!(
                    f,
                    "role `{role}` is not defined, so `policy.default` allows it"
                )
            }
            Self::DefaultDeny { role: None } => {
                f.write_str("without a role nothing is allowed (`policy.default`)")
            }
            Self::DefaultDeny { role: Some(role) } => {
                write!(
                    f,
                    "role `{role}` is not defined, so `policy.default` denies it"
                )
            }
            Self::Denied { role, pattern } => write!(f, "role `{role}` denies `{pattern}`"),
            Self::NotListed { role } => {
                write!(f, "the allowlist of role `{role}` does not name it")
            }
            Self::Hidden { context, pattern } => {
                write!(f, "context `{context}` hides `{pattern}`")
            }
            Self::UnknownContext { context } => {
                write!(
                    f,
                    "context `{context}` is not defined, which hides everything"
                )
            }
            Self::OutsideProfile { profile } => write!(f, "it is not in profile `{profile}`"),
            Self::Disabled => f.write_str("the allowlist document does not enable it"),
            Self::AmbiguousUri => f.write_str("its address can be read in more than one way"),
            Self::ConditionFailed { role, rule } => write!(
                f,
                "role `{role}` allows it only when `{}`",
                rule.condition.source_text()
            ),
            Self::ConditionUndecided { role, rule, error } => write!(
                f,
                "role `{role}` allows it only when `{}`, which cannot be decided: {error}",
                rule.condition.source_text()
            ),
        }
    }
}

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
