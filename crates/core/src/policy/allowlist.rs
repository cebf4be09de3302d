//! Roles and their tools as one value, filled by embedders.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::pattern::FeaturePattern;
use super::{DefaultAction, Policy, RoleRules};

/// Allowed tools per role.
///
/// An unlisted role, or no role, may use everything; a role listed without tools may use nothing.
/// [`Policy`] is built from the list, the single source of truth.
///
/// ```
/// use bowline_core::call::{EndpointScope, FeatureKind, Principal, Role};
/// use bowline_core::policy::{Policy, PolicyTarget, RoleAllowlist};
///
/// let list = RoleAllowlist::from_entries([("reader", vec!["files.read_*"])])
///     .with_role("locked", [""; 0]);
/// let policy = Policy::from(&list);
/// let may = |role: &str, name| {
///     let principal = Principal::new("ann", Role::Named(role.into()));
///     let kind = FeatureKind::Tool;
///     let target = PolicyTarget { kind, server: "files", name, arguments: None };
///     policy.decide(&principal, &EndpointScope::All, target).is_allowed()
/// };
/// assert!(may("reader", "read_text") && !may("reader", "write_text"));
/// assert!(!may("locked", "read_text") && may("not-listed", "write_text"));
/// assert!(RoleAllowlist::unrestricted().warnings().is_empty());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoleAllowlist {
    roles: BTreeMap<Arc<str>, Vec<FeaturePattern>>,
    denies_by_default: bool,
    warnings: Vec<String>,
}

impl RoleAllowlist {
    /// Returns a list without restrictions.
    #[must_use]
    pub fn unrestricted() -> Self {
        Self::default()
    }

    /// Returns a list of these roles and their tools. The later entry of a duplicate role counts;
    /// blank names are skipped. [`warnings`](Self::warnings) reports both.
    #[must_use]
    pub fn from_entries<R, T>(entries: impl IntoIterator<Item = (R, T)>) -> Self
    where
        R: AsRef<str>,
        T: IntoIterator,
        T::Item: AsRef<str>,
    {
        let mut list = Self::default();
        for (role, tools) in entries {
            list.add_role(role.as_ref(), tools);
        }
        list
    }

    /// Adds or replaces one role.
    #[must_use]
    pub fn with_role<T>(mut self, role: &str, tools: T) -> Self
    where
        T: IntoIterator,
        T::Item: AsRef<str>,
    {
        self.roles.remove(role.trim());
        self.add_role(role, tools);
        self
    }

    /// Denies everything to unlisted roles, and to principals without a role.
    #[must_use]
    pub const fn deny_others(mut self) -> Self {
        self.denies_by_default = true;
        self
    }

    /// Returns the list with only the entries accepted by `keep`. A role left without entries may
    /// use nothing.
    #[must_use]
    pub fn retain_patterns(&self, keep: impl Fn(&FeaturePattern) -> bool) -> Self {
        let mut list = self.clone();
        for entries in list.roles.values_mut() {
            entries.retain(&keep);
        }
        list
    }

    /// Returns skipped and replaced entries, one clause each.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    fn add_role<T>(&mut self, role: &str, tools: T)
    where
        T: IntoIterator,
        T::Item: AsRef<str>,
    {
        let role = role.trim();
        if role.is_empty() {
            self.warnings
                .push("a role without a name is left out".to_owned());
            return;
        }
        let mut patterns = Vec::new();
        for tool in tools {
            match FeaturePattern::parse(tool.as_ref()) {
                Ok(pattern) => patterns.push(pattern),
                Err(error) => self
                    .warnings
                    .push(format!("an entry of role `{role}` is left out: {error}")),
            }
        }
        if self.roles.insert(role.into(), patterns).is_some() {
            self.warnings
                .push(format!("role `{role}` comes twice; the later entry counts"));
        }
    }
}

impl From<&RoleAllowlist> for Policy {
    fn from(list: &RoleAllowlist) -> Self {
        let otherwise = if list.denies_by_default {
            DefaultAction::Deny
        } else {
            DefaultAction::Allow
        };
        let roles = list.roles.iter();
        roles.fold(Self::new(otherwise), |policy, (role, allow)| {
            let rules = RoleRules {
                allow: allow.clone(),
                ..RoleRules::default()
            };
            policy.with_role(role, rules)
        })
    }
}
