//! What the policy says of one thing, and why.

use std::fmt;
use std::sync::Arc;

use super::condition::{Undecided, When};
use super::pattern::Pattern;

/// The decision, with the rule that made it.
#[derive(Clone, Debug)]
pub enum Ruling<'p> {
    /// The owner may do all.
    Owner,
    /// The role's `allow` names it.
    Allowed {
        /// The role.
        role: &'p Arc<str>,
        /// The entry.
        pattern: &'p Pattern,
    },
    /// The principal has no defined role, and such may do everything.
    DefaultAllow {
        /// The role it has, where it has one that is not defined.
        role: Option<&'p Arc<str>>,
    },
    /// The principal has no defined role, and such may do nothing.
    DefaultDeny {
        /// The role it has, where it has one that is not defined.
        role: Option<&'p Arc<str>>,
    },
    /// The role's `deny` names it.
    Denied {
        /// The role.
        role: &'p Arc<str>,
        /// The entry.
        pattern: &'p Pattern,
    },
    /// The role's `allow` does not name it.
    NotListed {
        /// The role.
        role: &'p Arc<str>,
    },
    /// A context hides it.
    Hidden {
        /// The context.
        context: &'p Arc<str>,
        /// The entry.
        pattern: &'p Pattern,
    },
    /// A context that is not defined hides everything.
    UnknownContext {
        /// The context.
        context: &'p Arc<str>,
    },
    /// It is not in the profile of this endpoint.
    OutsideProfile {
        /// The profile.
        profile: &'p Arc<str>,
    },
    /// It is switched off for everybody.
    SwitchedOff,
    /// It is a resource whose address can be read in more than one way.
    UnclearAddress,
    /// The arguments do not meet a condition of the role.
    Unmet {
        /// The role.
        role: &'p Arc<str>,
        /// The condition.
        when: &'p When,
    },
    /// A condition of the role cannot be decided for these arguments.
    Undecided {
        /// The role.
        role: &'p Arc<str>,
        /// The condition.
        when: &'p When,
        /// Why.
        why: Undecided,
    },
}

impl Ruling<'_> {
    /// Whether it may be seen and used.
    #[must_use]
    pub const fn allows(&self) -> bool {
        match self {
            Self::Owner | Self::Allowed { .. } | Self::DefaultAllow { .. } => true,
            Self::DefaultDeny { .. }
            | Self::Denied { .. }
            | Self::NotListed { .. }
            | Self::Hidden { .. }
            | Self::UnknownContext { .. }
            | Self::OutsideProfile { .. }
            | Self::SwitchedOff
            | Self::UnclearAddress
            | Self::Unmet { .. }
            | Self::Undecided { .. } => false,
        }
    }

    /// Whether a condition was not evaluated, because that takes more than
    /// [`Effort::Quick`](super::Effort::Quick).
    #[must_use]
    pub const fn takes_long(&self) -> bool {
        matches!(
            self,
            Self::Undecided {
                why: Undecided::TakesLong,
                ..
            }
        )
    }

    /// Whether an entry of the configuration names the thing to take it away.
    pub(super) const fn takes_away(&self) -> bool {
        matches!(self, Self::Denied { .. } | Self::Hidden { .. })
    }

    /// Returns the word under which decisions like this one are counted.
    #[must_use]
    pub const fn source(&self) -> &'static str {
        match self {
            Self::Owner => "owner",
            Self::Allowed { .. } | Self::Denied { .. } | Self::NotListed { .. } => "role",
            Self::DefaultAllow { .. } | Self::DefaultDeny { .. } => "default",
            Self::Hidden { .. } | Self::UnknownContext { .. } => "context",
            Self::OutsideProfile { .. } => "profile",
            Self::SwitchedOff => "allowlist",
            Self::UnclearAddress => "address",
            Self::Unmet { .. } | Self::Undecided { .. } => "condition",
        }
    }

    /// Returns where the rule stands in a configuration.
    #[must_use]
    pub fn rule(&self) -> String {
        match self {
            Self::Owner => "owner".to_owned(),
            Self::Allowed { role, .. } | Self::NotListed { role } => format!("roles.{role}.allow"),
            Self::DefaultAllow { .. } | Self::DefaultDeny { .. } => "policy.default".to_owned(),
            Self::Denied { role, .. } => format!("roles.{role}.deny"),
            Self::Hidden { context, .. } | Self::UnknownContext { context } => {
                format!("context.{context}")
            }
            Self::OutsideProfile { profile } => format!("profiles.{profile}"),
            Self::SwitchedOff => "policy.allowlist".to_owned(),
            Self::UnclearAddress => "address".to_owned(),
            Self::Unmet { role, .. } | Self::Undecided { role, .. } => format!("roles.{role}.when"),
        }
    }
}

/// One clause that a person can act on.
impl fmt::Display for Ruling<'_> {
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
            Self::SwitchedOff => f.write_str("the allowlist document does not enable it"),
            Self::UnclearAddress => f.write_str("its address can be read in more than one way"),
            Self::Unmet { role, when } => write!(
                f,
                "role `{role}` allows it only when `{}`",
                when.condition.text()
            ),
            Self::Undecided { role, when, why } => write!(
                f,
                "role `{role}` allows it only when `{}`, which cannot be decided: {why}",
                when.condition.text()
            ),
        }
    }
}
