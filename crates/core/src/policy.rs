//! Access policy: one decision function for listing and calling, on every path. Contexts and
//! profiles narrow, never widen.

mod allowlist;
mod condition;
mod decision;
mod enabled_features;
mod exposure;
mod pattern;
mod pattern_index;
mod resource_uri;
mod role_grant;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::sync::Arc;

use crate::budget::CallAllowance;
use crate::call::{EndpointScope, FeatureKind, Principal, Role};

pub use allowlist::RoleAllowlist;
pub use condition::{Condition, ConditionError, ConditionInput, ConditionRule, EvaluationEffort};
pub use decision::{CredentialContexts, PolicyDecision, profile_context};
pub use enabled_features::EnabledFeatures;
pub use exposure::{AUTO_TOOLS_MAX, ExposeMode, ToolExposure};
pub use pattern::{FeaturePattern, PATTERN_BYTES_MAX, PatternError, WILDCARDS_MAX};

use pattern_index::{AccessFilter, ByName, FilterMatch, PatternIndex};
use resource_uri::NormalizedUri;
use role_grant::{ResolvedRole, RoleGrant};

/// A feature of a server to see or use.
#[derive(Clone, Copy, Debug)]
pub struct PolicyTarget<'a> {
    /// The feature kind.
    pub kind: FeatureKind,
    /// The server.
    pub server: &'a str,
    /// The upstream name.
    pub name: &'a str,
    /// The arguments of a call; absent for visibility only.
    pub arguments: Option<&'a [u8]>,
}

/// Access of principals without a defined role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DefaultAction {
    /// Full access.
    Allow,
    /// No access.
    #[default]
    Deny,
}

/// A role as configured.
#[derive(Clone, Debug, Default)]
pub struct RoleRules {
    /// Allowed features.
    pub allow: Vec<FeaturePattern>,
    /// Denied features; takes precedence over `allow`.
    pub deny: Vec<FeaturePattern>,
    /// Conditions on call arguments.
    pub conditions: Vec<ConditionRule>,
    /// Budget and rate of each principal.
    pub allowance: CallAllowance,
}

/// A profile as configured: all features matching `allow` except those matching `deny`.
#[derive(Clone, Debug, Default)]
pub struct ProfileRules {
    /// Included features.
    pub allow: Vec<FeaturePattern>,
    /// Excluded features; takes precedence over `allow`.
    pub deny: Vec<FeaturePattern>,
}

/// The rules in force; immutable, so that a reload swaps the whole value.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    roles: ByName<RoleGrant>,
    /// Roles assigned to principals, overriding the role of the credential.
    assigned_roles: ByName<Arc<str>>,
    default_action: DefaultAction,
    contexts: ByName<PatternIndex>,
    profiles: ByName<AccessFilter>,
    /// Features enabled for everyone; all if absent.
    enabled_features: Option<EnabledFeatures>,
    /// Tool listing mode.
    exposure: ToolExposure,
    /// Contexts of credentials, by credential id.
    credential_contexts: Arc<CredentialContexts>,
}

impl Policy {
    /// Returns a policy that grants access to the owner only, or as `default_action` says.
    #[must_use]
    pub fn new(default_action: DefaultAction) -> Self {
        Self {
            default_action,
            ..Self::default()
        }
    }

    /// Defines a role, replacing any role of the same name.
    #[must_use]
    pub fn with_role(mut self, name: &str, rules: RoleRules) -> Self {
        let granted = RoleGrant {
            filter: AccessFilter::new(rules.allow, rules.deny),
            conditions: rules.conditions,
            allowance: rules.allowance,
        };
        self.roles.insert(name.into(), granted);
        self
    }

    /// Assigns a role to a principal, overriding the credential.
    #[must_use]
    pub fn with_principal(mut self, name: &str, role: &str) -> Self {
        self.assigned_roles.insert(name.into(), role.into());
        self
    }

    /// Defines a context, which hides matching features.
    #[must_use]
    pub fn with_context(mut self, name: &str, hide: Vec<FeaturePattern>) -> Self {
        self.contexts.insert(name.into(), PatternIndex::new(hide));
        self
    }

    /// Defines a profile.
    #[must_use]
    pub fn with_profile(mut self, name: &str, rules: ProfileRules) -> Self {
        let filter = AccessFilter::new(rules.allow, rules.deny);
        self.profiles.insert(name.into(), filter);
        self
    }

    /// Disables every feature outside `enabled`, for everyone.
    #[must_use]
    pub fn with_enabled(mut self, enabled: EnabledFeatures) -> Self {
        self.enabled_features = Some(enabled);
        self
    }

    /// Sets the tool listing mode.
    #[must_use]
    pub fn with_exposure(mut self, exposure: ToolExposure) -> Self {
        self.exposure = exposure;
        self
    }

    /// Returns the tool listing mode.
    #[must_use]
    pub const fn exposure(&self) -> &ToolExposure {
        &self.exposure
    }

    /// Decides whether `principal` may see and, with arguments, use `target` at the endpoint of
    /// `scope`, and returns the deciding rule.
    #[must_use]
    pub fn decide<'p>(
        &'p self,
        principal: &'p Principal,
        scope: &'p EndpointScope,
        target: PolicyTarget<'_>,
    ) -> PolicyDecision<'p> {
        self.decide_lazily(principal, scope, target, EvaluationEffort::Full, || {
            target.arguments
        })
    }

    /// Like [`decide`](Self::decide), with arguments read only if a condition needs them, and with
    /// a bound on the work of conditions.
    #[must_use]
    pub fn decide_lazily<'p, 'a>(
        &'p self,
        principal: &'p Principal,
        scope: &'p EndpointScope,
        target: PolicyTarget<'_>,
        effort: EvaluationEffort,
        arguments: impl FnOnce() -> Option<&'a [u8]>,
    ) -> PolicyDecision<'p> {
        let ruling = self.evaluate_rules(principal, scope, target, effort, arguments);
        if target.kind != FeatureKind::Resource
            || !ruling.is_allowed()
            || self.can_see_all(principal, scope)
        {
            return ruling;
        }
        // A server may accept several spellings of a URI: all must be allowed.
        let evaluate_name = |name: &str| {
            let target = PolicyTarget { name, ..target };
            self.evaluate_rules(principal, scope, target, effort, || None)
        };
        let normalized = match resource_uri::normalize_uri(target.name) {
            NormalizedUri::Same => Cow::Borrowed(target.name),
            NormalizedUri::Ambiguous => return PolicyDecision::AmbiguousUri,
            NormalizedUri::Other(normalized) => {
                let other = evaluate_name(&normalized);
                if !other.is_allowed() {
                    return other;
                }
                Cow::Owned(normalized)
            }
        };
        // Servers may accept further spellings: none may be denied.
        let mut others = resource_uri::alternative_spellings(&normalized).into_iter();
        let denied = others.find_map(|other| {
            Some(evaluate_name(&other)).filter(PolicyDecision::is_explicit_denial)
        });
        denied.unwrap_or(ruling)
    }

    fn evaluate_rules<'p, 'a>(
        &'p self,
        principal: &'p Principal,
        scope: &'p EndpointScope,
        target: PolicyTarget<'_>,
        effort: EvaluationEffort,
        arguments: impl FnOnce() -> Option<&'a [u8]>,
    ) -> PolicyDecision<'p> {
        if let Some(narrowed) = self.narrowing_decision(principal, scope, target) {
            return narrowed;
        }
        let (role, granted) = match self.resolve_role(principal) {
            ResolvedRole::All => return PolicyDecision::Owner,
            ResolvedRole::Undefined(role) => {
                return match self.default_action {
                    DefaultAction::Allow => PolicyDecision::DefaultAllow { role },
                    DefaultAction::Deny => PolicyDecision::DefaultDeny { role },
                };
            }
            ResolvedRole::Role(role, granted) => (role, granted),
        };
        match granted
            .filter
            .match_feature(target.kind, target.server, target.name)
        {
            FilterMatch::Denied(pattern) => PolicyDecision::Denied { role, pattern },
            FilterMatch::NotListed => PolicyDecision::NotListed { role },
            FilterMatch::Allowed(pattern) => granted
                .failed_condition(principal, role, target, effort, arguments)
                .unwrap_or(PolicyDecision::Allowed { role, pattern }),
        }
    }

    /// Whether a context, the profile or the allowlist document hides `target`, regardless of the
    /// role.
    #[must_use]
    pub fn is_hidden(
        &self,
        principal: &Principal,
        scope: &EndpointScope,
        target: PolicyTarget<'_>,
    ) -> bool {
        self.narrowing_decision(principal, scope, target).is_some()
    }

    /// Whether `principal` may see and use everything, so that no entry needs a check.
    #[must_use]
    pub fn can_see_all(&self, principal: &Principal, scope: &EndpointScope) -> bool {
        let all = match self.resolve_role(principal) {
            ResolvedRole::All => true,
            ResolvedRole::Undefined(_) => self.default_action == DefaultAction::Allow,
            ResolvedRole::Role(..) => false,
        };
        let profile = matches!(scope, EndpointScope::Profile(_));
        all && self.narrowing_contexts(principal).next().is_none()
            && !profile
            && self.enabled_features.is_none()
    }

    /// Whether the policy hides nothing from any principal with access.
    #[must_use]
    pub fn is_unrestricted(&self) -> bool {
        self.roles.is_empty()
            && self.contexts.is_empty()
            // Credentials may be bound to profiles.
            && self.profiles.is_empty()
            && self.enabled_features.is_none()
            && self.credential_contexts.is_empty()
    }

    /// Whether any feature of a server may be visible, without knowing the server's features;
    /// `false` is definite.
    #[must_use]
    pub fn may_reach_server(
        &self,
        principal: &Principal,
        scope: &EndpointScope,
        server: &str,
    ) -> bool {
        let hidden = |context: &Arc<str>| {
            let rule = self.context_rule(context);
            rule.is_none_or(|rule| rule.hides_whole_server(server))
        };
        if self.narrowing_contexts(principal).any(hidden) {
            return false;
        }
        if let EndpointScope::Profile(profile) = scope
            && !(self.profiles.get(profile)).is_some_and(|filter| filter.may_reach_server(server))
        {
            return false;
        }
        if !(self.enabled_features.as_ref()).is_none_or(|enabled| enabled.may_reach_server(server))
        {
            return false;
        }
        match self.resolve_role(principal) {
            ResolvedRole::All => true,
            ResolvedRole::Undefined(_) => self.default_action == DefaultAction::Allow,
            ResolvedRole::Role(_, granted) => granted.filter.may_reach_server(server),
        }
    }

    /// Returns the access class: principals of one class see the same features, except for
    /// contexts.
    #[must_use]
    pub fn access_class(&self, principal: &Principal) -> AccessClass {
        match self.resolve_role(principal) {
            ResolvedRole::All => AccessClass::All,
            ResolvedRole::Undefined(_) => AccessClass::Default,
            ResolvedRole::Role(role, _) => AccessClass::Role(Arc::clone(role)),
        }
    }

    /// Returns the role that limits a principal, with its budget and rate; `None` without limits.
    #[must_use]
    pub fn allowance<'p>(
        &'p self,
        principal: &'p Principal,
    ) -> Option<(&'p Arc<str>, CallAllowance)> {
        match self.resolve_role(principal) {
            ResolvedRole::Role(role, granted) if !granted.allowance.is_unlimited() => {
                Some((role, granted.allowance))
            }
            ResolvedRole::Role(..) | ResolvedRole::All | ResolvedRole::Undefined(_) => None,
        }
    }

    /// Returns the effective role name of a principal, if any.
    #[must_use]
    pub fn role_name<'p>(&'p self, principal: &'p Principal) -> Option<&'p Arc<str>> {
        match self.resolve_role(principal) {
            ResolvedRole::All => None,
            ResolvedRole::Undefined(role) => role,
            ResolvedRole::Role(role, _) => Some(role),
        }
    }

    /// Whether a role is defined.
    #[must_use]
    pub fn has_role(&self, name: &str) -> bool {
        self.roles.contains_key(name)
    }

    /// Whether any role is defined.
    #[must_use]
    pub fn has_roles(&self) -> bool {
        !self.roles.is_empty()
    }

    /// Returns the names of all roles, sorted.
    #[must_use]
    pub fn role_names(&self) -> Vec<Arc<str>> {
        let mut names: Vec<_> = self.roles.keys().cloned().collect();
        names.sort();
        names
    }

    /// Returns the role assigned to a principal by the policy.
    #[must_use]
    pub fn assigned_role(&self, principal: &str) -> Option<&Arc<str>> {
        self.assigned_roles.get(principal)
    }

    /// Returns the access of principals without a defined role.
    #[must_use]
    pub const fn default_action(&self) -> DefaultAction {
        self.default_action
    }

    /// Returns the names of all contexts.
    pub fn context_names(&self) -> impl Iterator<Item = Arc<str>> {
        self.contexts.keys().cloned()
    }

    /// Whether a context, or the profile named by the context, is defined.
    #[must_use]
    pub fn has_context(&self, name: &str) -> bool {
        self.context_rule(name).is_some()
    }

    /// Returns the names of all profiles.
    pub fn profile_names(&self) -> impl Iterator<Item = Arc<str>> {
        self.profiles.keys().cloned()
    }

    /// Whether a profile is defined.
    #[must_use]
    pub fn has_profile(&self, name: &str) -> bool {
        self.profiles.contains_key(name)
    }

    /// Returns every granting pattern with its role, for detecting names that match nothing.
    pub fn granting_patterns(&self) -> impl Iterator<Item = (&Arc<str>, &FeaturePattern)> {
        let roles = self.roles.iter();
        roles.flat_map(|(role, granted)| granted.filter.allow.iter().map(move |one| (role, one)))
    }

    fn resolve_role<'p>(&'p self, principal: &'p Principal) -> ResolvedRole<'p> {
        // The owner's agents see the same features as the owner.
        if matches!(principal.role, Role::Owner | Role::OwnersAgent) {
            return ResolvedRole::All;
        }
        let assigned = self.assigned_roles.get(&principal.name);
        let named = match (&principal.role, assigned) {
            (Role::Owner | Role::OwnersAgent, _) | (Role::AnonymousLocal, None) => {
                return ResolvedRole::All;
            }
            (Role::Named(_) | Role::None | Role::AnonymousLocal, Some(role)) => Some(role),
            (Role::Named(role), None) => Some(role),
            (Role::None, None) => None,
        };
        let defined = named.and_then(|role| self.roles.get_key_value(role));
        match defined {
            Some((role, granted)) => ResolvedRole::Role(role, granted),
            None => ResolvedRole::Undefined(named),
        }
    }

    /// Returns the decision that hides a feature, if any. An undefined rule hides everything.
    fn narrowing_decision<'p>(
        &'p self,
        principal: &'p Principal,
        scope: &'p EndpointScope,
        target: PolicyTarget<'_>,
    ) -> Option<PolicyDecision<'p>> {
        let PolicyTarget {
            kind, server, name, ..
        } = target;
        let mut contexts = self.narrowing_contexts(principal);
        if let Some(hidden) = contexts.find_map(|context| self.hiding_decision(context, target)) {
            return Some(hidden);
        }
        if let EndpointScope::Profile(profile) = scope {
            let filter = self.profiles.get(profile);
            match filter.map(|filter| filter.match_feature(kind, server, name)) {
                Some(FilterMatch::Allowed(_)) => {}
                _ => return Some(PolicyDecision::OutsideProfile { profile }),
            }
        }
        let enabled = self.enabled_features.as_ref()?;
        (!enabled.is_enabled(kind, server, name)).then_some(PolicyDecision::Disabled)
    }
}

/// Principals with equal visibility, except for contexts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AccessClass {
    /// Full access.
    All,
    /// A defined role.
    Role(Arc<str>),
    /// No defined role.
    Default,
}
