//! Roles and the tools they may use, as one value that others fill.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::pattern::Pattern;
use super::{Otherwise, Policy, RoleRules};

/// Which role may use which tools.
///
/// A role that is not listed, or none, may use everything; one that is listed with nothing sees
/// nothing. [`Policy`] is made from it, so there is one source of truth.
///
/// ```
/// use bowline_core::call::{Kind, Principal, Role, Scope};
/// use bowline_core::policy::{Policy, RoleAllowlist, Thing};
///
/// let list = RoleAllowlist::from_entries([("reader", vec!["files.read_*"])])
///     .with_role("locked", [""; 0]);
/// let policy = Policy::from(&list);
/// let may = |role: &str, name| {
///     let who = Principal::new("ann", Role::Named(role.into()));
///     let tool = Thing { kind: Kind::Tool, server: "files", name, arguments: None };
///     policy.decide(&who, &Scope::All, tool).allows()
/// };
/// assert!(may("reader", "read_text") && !may("reader", "write_text"));
/// assert!(!may("locked", "read_text") && may("not-listed", "write_text"));
/// assert!(RoleAllowlist::unrestricted().warnings().is_empty());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoleAllowlist {
    roles: BTreeMap<Arc<str>, Vec<Pattern>>,
    otherwise_denies: bool,
    warnings: Vec<String>,
}

impl RoleAllowlist {
    /// Returns a list that restricts nobody.
    #[must_use]
    pub fn unrestricted() -> Self {
        Self::default()
    }

    /// Returns a list of these roles and their tools. Of a role that comes twice the later entry
    /// counts; blank names are left out. [`warnings`](Self::warnings) tells of both.
    #[must_use]
    pub fn from_entries<R, T>(entries: impl IntoIterator<Item = (R, T)>) -> Self
    where
        R: AsRef<str>,
        T: IntoIterator,
        T::Item: AsRef<str>,
    {
        let mut list = Self::default();
        for (role, tools) in entries {
            list.add(role.as_ref(), tools);
        }
        list
    }

    /// Adds one role, or replaces it.
    #[must_use]
    pub fn with_role<T>(mut self, role: &str, tools: T) -> Self
    where
        T: IntoIterator,
        T::Item: AsRef<str>,
    {
        self.roles.remove(role.trim());
        self.add(role, tools);
        self
    }

    /// Denies everything to a role that is not listed, and to those without one.
    #[must_use]
    pub const fn deny_others(mut self) -> Self {
        self.otherwise_denies = true;
        self
    }

    /// Returns the same list with only those entries that `keep` wants. A role that is left with
    /// none may use nothing.
    #[must_use]
    pub fn only(&self, keep: impl Fn(&Pattern) -> bool) -> Self {
        let mut list = self.clone();
        for entries in list.roles.values_mut() {
            entries.retain(&keep);
        }
        list
    }

    /// Returns what was left out or replaced, one clause each.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    fn add<T>(&mut self, role: &str, tools: T)
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
            match Pattern::parse(tool.as_ref()) {
                Ok(pattern) => patterns.push(pattern),
                Err(why) => self
                    .warnings
                    .push(format!("an entry of role `{role}` is left out: {why}")),
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
        let otherwise = if list.otherwise_denies {
            Otherwise::Deny
        } else {
            Otherwise::Allow
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
