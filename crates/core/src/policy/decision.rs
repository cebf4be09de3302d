//! Policy decisions with the deciding rule.

use std::fmt;
use std::sync::Arc;

use super::condition::{ConditionError, ConditionRule};
use super::pattern::FeaturePattern;

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
