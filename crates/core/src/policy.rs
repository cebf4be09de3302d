//! Who may see and use what: one function for listing and calling, on every path. Narrows, never
//! widens.

mod allowlist;
mod condition;
mod pattern;
mod rules;
mod ruling;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::budget::Allowance;
use crate::call::{Kind, Principal, Role, Scope};

pub use allowlist::RoleAllowlist;
pub use condition::{Condition, Facts, Undecided, When};
pub use pattern::{PATTERN_BYTES_MAX, Pattern, PatternError, WILDCARDS_MAX};
pub use ruling::Ruling;

use rules::{Filter, Filtered, Named, Rules, Unsaid};

/// One thing of one server that somebody wants to see or use.
#[derive(Clone, Copy, Debug)]
pub struct Thing<'a> {
    /// What kind of thing.
    pub kind: Kind,
    /// The server.
    pub server: &'a str,
    /// The server's own name of it.
    pub name: &'a str,
    /// The arguments of a call; absent where it is only to be seen.
    pub arguments: Option<&'a [u8]>,
}

/// What those may do who have no role that is defined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Otherwise {
    /// Everything.
    Allow,
    /// Nothing.
    #[default]
    Deny,
}

/// A role as it is written down.
#[derive(Clone, Debug, Default)]
pub struct RoleRules {
    /// What it may see and use.
    pub allow: Vec<Pattern>,
    /// What it may not, whatever `allow` says.
    pub deny: Vec<Pattern>,
    /// What must hold of the arguments of its calls.
    pub when: Vec<When>,
    /// What each of its principals may spend.
    pub allowance: Allowance,
}

/// A profile as it is written down: all of what `allow` names, without what `deny` names.
#[derive(Clone, Debug, Default)]
pub struct ProfileRules {
    /// What is in it.
    pub allow: Vec<Pattern>,
    /// What is not, whatever `allow` says.
    pub deny: Vec<Pattern>,
}

/// The rules in force; immutable, so that a reload swaps the whole value.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    roles: Named<Granted>,
    /// Roles of principals, which count instead of those of their credentials.
    assigned: Named<Arc<str>>,
    otherwise: Otherwise,
    contexts: Named<Rules>,
    profiles: Named<Filter>,
    /// What is switched on for anybody at all; everything where absent.
    enabled: Option<Filter>,
}

#[derive(Clone, Debug, Default)]
struct Granted {
    filter: Filter,
    when: Vec<When>,
    allowance: Allowance,
}

impl Policy {
    /// Returns a policy that grants nothing to anybody but the owner.
    #[must_use]
    pub fn new(otherwise: Otherwise) -> Self {
        Self {
            otherwise,
            ..Self::default()
        }
    }

    /// Defines a role; one of that name that was there before is gone.
    #[must_use]
    pub fn with_role(mut self, name: &str, rules: RoleRules) -> Self {
        let granted = Granted {
            filter: Filter {
                allow: Rules::new(rules.allow),
                deny: Rules::new(rules.deny),
            },
            when: rules.when,
            allowance: rules.allowance,
        };
        self.roles.insert(name.into(), granted);
        self
    }

    /// Gives a principal a role, whatever its credentials say.
    #[must_use]
    pub fn with_principal(mut self, name: &str, role: &str) -> Self {
        self.assigned.insert(name.into(), role.into());
        self
    }

    /// Defines a context, which hides what it names.
    #[must_use]
    pub fn with_context(mut self, name: &str, hide: Vec<Pattern>) -> Self {
        self.contexts.insert(name.into(), Rules::new(hide));
        self
    }

    /// Defines a profile.
    #[must_use]
    pub fn with_profile(mut self, name: &str, rules: ProfileRules) -> Self {
        let filter = Filter {
            allow: Rules::new(rules.allow),
            deny: Rules::new(rules.deny),
        };
        self.profiles.insert(name.into(), filter);
        self
    }

    /// Switches everything off but this, for everybody.
    #[must_use]
    pub fn with_enabled(mut self, allow: Vec<Pattern>, deny: Vec<Pattern>) -> Self {
        self.enabled = Some(Filter {
            allow: Rules::new(allow),
            deny: Rules::new(deny),
        });
        self
    }

    /// Decides whether `principal` may see and, with arguments, use `thing` at the endpoint of
    /// `scope`, and says by which rule.
    #[must_use]
    pub fn decide<'p>(
        &'p self,
        principal: &'p Principal,
        scope: &'p Scope,
        thing: Thing<'_>,
    ) -> Ruling<'p> {
        if let Some(narrowed) = self.narrowed(principal, scope, thing) {
            return narrowed;
        }
        let (role, granted) = match self.role_of(principal) {
            Standing::All => return Ruling::Owner,
            Standing::Unlisted(role) => {
                return match self.otherwise {
                    Otherwise::Allow => Ruling::DefaultAllow { role },
                    Otherwise::Deny => Ruling::DefaultDeny { role },
                };
            }
            Standing::Role(role, granted) => (role, granted),
        };
        match granted.filter.of(thing.kind, thing.server, thing.name) {
            Filtered::Denied(pattern) => Ruling::Denied { role, pattern },
            Filtered::NotListed => Ruling::NotListed { role },
            Filtered::Allowed(pattern) => granted
                .unmet(principal, role, thing)
                .unwrap_or(Ruling::Allowed { role, pattern }),
        }
    }

    /// Whether `principal` may see and use all there is, so that no entry need be looked at.
    #[must_use]
    pub fn sees_all(&self, principal: &Principal, scope: &Scope) -> bool {
        let all = match self.role_of(principal) {
            Standing::All => true,
            Standing::Unlisted(_) => self.otherwise == Otherwise::Allow,
            Standing::Role(..) => false,
        };
        let profile = matches!(scope, Scope::Profile(_));
        all && principal.contexts.is_empty() && !profile && self.enabled.is_none()
    }

    /// Returns what a principal may spend.
    #[must_use]
    pub fn allowance(&self, principal: &Principal) -> Allowance {
        match self.role_of(principal) {
            Standing::Role(_, granted) => granted.allowance,
            Standing::All | Standing::Unlisted(_) => Allowance::default(),
        }
    }

    /// Returns the name of the role that counts for a principal, where one does.
    #[must_use]
    pub fn role<'p>(&'p self, principal: &'p Principal) -> Option<&'p Arc<str>> {
        match self.role_of(principal) {
            Standing::All => None,
            Standing::Unlisted(role) => role,
            Standing::Role(role, _) => Some(role),
        }
    }

    /// Whether a role of that name is defined.
    #[must_use]
    pub fn has_role(&self, name: &str) -> bool {
        self.roles.contains_key(name)
    }

    /// Returns the names of all roles, sorted.
    #[must_use]
    pub fn roles(&self) -> Vec<Arc<str>> {
        let mut names: Vec<_> = self.roles.keys().cloned().collect();
        names.sort();
        names
    }

    /// Returns the role that the policy gives to the principal of that name.
    #[must_use]
    pub fn assigned(&self, principal: &str) -> Option<&Arc<str>> {
        self.assigned.get(principal)
    }

    /// Returns what those may do who have no role that is defined.
    #[must_use]
    pub const fn otherwise(&self) -> Otherwise {
        self.otherwise
    }

    /// Returns the names of all contexts.
    pub fn contexts(&self) -> impl Iterator<Item = Arc<str>> {
        self.contexts.keys().cloned()
    }

    /// Whether a context of that name is defined.
    #[must_use]
    pub fn has_context(&self, name: &str) -> bool {
        self.contexts.contains_key(name)
    }

    /// Whether a profile of that name is defined.
    #[must_use]
    pub fn has_profile(&self, name: &str) -> bool {
        self.profiles.contains_key(name)
    }

    /// Returns every pattern that grants something, for whoever looks for names that do not exist.
    pub fn granting(&self) -> impl Iterator<Item = (&Arc<str>, &Pattern)> {
        let roles = self.roles.iter();
        roles.flat_map(|(role, granted)| granted.filter.allow.iter().map(move |one| (role, one)))
    }

    fn role_of<'p>(&'p self, principal: &'p Principal) -> Standing<'p> {
        let assigned = self.assigned.get(&principal.name);
        let named = match (&principal.role, assigned) {
            (Role::Owner, _) | (Role::AnonymousLocal, None) => return Standing::All,
            (Role::Named(_) | Role::None | Role::AnonymousLocal, Some(role)) => Some(role),
            (Role::Named(role), None) => Some(role),
            (Role::None, None) => None,
        };
        let defined = named.and_then(|role| self.roles.get_key_value(role));
        match defined {
            Some((role, granted)) => Standing::Role(role, granted),
            None => Standing::Unlisted(named),
        }
    }

    /// What takes away, whoever asks. A rule that is named and not defined takes away everything:
    /// nobody knows what it was meant to hide.
    fn narrowed<'p>(
        &'p self,
        principal: &'p Principal,
        scope: &'p Scope,
        thing: Thing<'_>,
    ) -> Option<Ruling<'p>> {
        let Thing {
            kind, server, name, ..
        } = thing;
        for context in principal.contexts.names() {
            let Some(hide) = self.contexts.get(context) else {
                return Some(Ruling::UnknownContext { context });
            };
            if let Some(pattern) = hide.find(Unsaid::All, kind, server, name) {
                return Some(Ruling::Hidden { context, pattern });
            }
        }
        if let Scope::Profile(profile) = scope {
            let filter = self.profiles.get(profile);
            match filter.map(|filter| filter.of(kind, server, name)) {
                Some(Filtered::Allowed(_)) => {}
                _ => return Some(Ruling::OutsideProfile { profile }),
            }
        }
        let enabled = self.enabled.as_ref()?;
        match enabled.of(kind, server, name) {
            Filtered::Allowed(_) => None,
            Filtered::Denied(_) | Filtered::NotListed => Some(Ruling::SwitchedOff),
        }
    }
}

impl Granted {
    /// Returns the first condition that does not hold.
    fn unmet<'p>(
        &'p self,
        principal: &Principal,
        role: &'p Arc<str>,
        thing: Thing<'_>,
    ) -> Option<Ruling<'p>> {
        let arguments = thing.arguments?;
        let facts = Facts {
            principal: &principal.name,
            role: Some(role),
            server: thing.server,
            name: thing.name,
            arguments,
        };
        self.when.iter().find_map(|when| {
            let about = when.pattern.kind.is_none_or(|kind| kind == thing.kind);
            if !about || !when.pattern.fits(thing.server, thing.name) {
                return None;
            }
            match when.condition.holds(&facts) {
                Ok(true) => None,
                Ok(false) => Some(Ruling::Unmet { role, when }),
                Err(why) => Some(Ruling::Undecided { role, when, why }),
            }
        })
    }
}

/// What a principal is under this policy.
enum Standing<'p> {
    /// It may do all.
    All,
    /// It has this role.
    Role(&'p Arc<str>, &'p Granted),
    /// It has no role, or one that is not defined.
    Unlisted(Option<&'p Arc<str>>),
}
