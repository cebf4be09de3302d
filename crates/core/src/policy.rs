//! Who may see and use what: one function for listing and calling, on every path. Narrows, never
//! widens.

mod address;
mod allowlist;
mod condition;
mod credentials;
mod enabled;
mod exposure;
mod pattern;
mod rules;
mod ruling;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::sync::Arc;

use crate::budget::Allowance;
use crate::call::{Kind, Principal, Role, Scope};

pub use allowlist::RoleAllowlist;
pub use condition::{Condition, Effort, Facts, Undecided, When};
pub use credentials::{Credentials, profile_context};
pub use enabled::Enabled;
pub use exposure::{AUTO_TOOLS_MAX, Expose, Exposure};
pub use pattern::{PATTERN_BYTES_MAX, Pattern, PatternError, WILDCARDS_MAX};
pub use ruling::Ruling;

use address::Plain;
use rules::{Filter, Filtered, Named, Rules};

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
    enabled: Option<Enabled>,
    /// How much of what may be used is listed.
    exposure: Exposure,
    /// Contexts that narrow everything that a credential proves, by the id of the credential.
    credentials: Arc<Credentials>,
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
            filter: Filter::new(rules.allow, rules.deny),
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
        let filter = Filter::new(rules.allow, rules.deny);
        self.profiles.insert(name.into(), filter);
        self
    }

    /// Switches off, for everybody, what is not `enabled`.
    #[must_use]
    pub fn with_enabled(mut self, enabled: Enabled) -> Self {
        self.enabled = Some(enabled);
        self
    }

    /// Says how much of what may be used is listed.
    #[must_use]
    pub fn with_exposure(mut self, exposure: Exposure) -> Self {
        self.exposure = exposure;
        self
    }

    /// Returns how much of what may be used is listed.
    #[must_use]
    pub const fn exposure(&self) -> &Exposure {
        &self.exposure
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
        self.decide_with(principal, scope, thing, Effort::Full, || thing.arguments)
    }

    /// The same, with arguments that are looked up only where a condition is about them, and with
    /// a bound on the work that conditions take.
    #[must_use]
    pub fn decide_with<'p, 'a>(
        &'p self,
        principal: &'p Principal,
        scope: &'p Scope,
        thing: Thing<'_>,
        effort: Effort,
        arguments: impl FnOnce() -> Option<&'a [u8]>,
    ) -> Ruling<'p> {
        let ruling = self.ruling(principal, scope, thing, effort, arguments);
        if thing.kind != Kind::Resource || !ruling.allows() || self.sees_all(principal, scope) {
            return ruling;
        }
        // A server may take several addresses for one resource: all must be allowed.
        let of = |name: &str| {
            let thing = Thing { name, ..thing };
            self.ruling(principal, scope, thing, effort, || None)
        };
        let plain = match address::plain(thing.name) {
            Plain::Same => Cow::Borrowed(thing.name),
            Plain::Unclear => return Ruling::UnclearAddress,
            Plain::Other(plain) => {
                let other = of(&plain);
                if !other.allows() {
                    return other;
                }
                Cow::Owned(plain)
            }
        };
        // It may take still more for the same: none of them may be denied.
        let mut others = address::others(&plain).into_iter();
        let denied = others.find_map(|other| Some(of(&other)).filter(Ruling::takes_away));
        denied.unwrap_or(ruling)
    }

    fn ruling<'p, 'a>(
        &'p self,
        principal: &'p Principal,
        scope: &'p Scope,
        thing: Thing<'_>,
        effort: Effort,
        arguments: impl FnOnce() -> Option<&'a [u8]>,
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
                .unmet((principal, role), thing, effort, arguments)
                .unwrap_or(Ruling::Allowed { role, pattern }),
        }
    }

    /// Whether a context, the profile or the allowlist document hides `thing`, whatever the role.
    #[must_use]
    pub fn hides(&self, principal: &Principal, scope: &Scope, thing: Thing<'_>) -> bool {
        self.narrowed(principal, scope, thing).is_some()
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
        all && self.narrowing(principal).next().is_none() && !profile && self.enabled.is_none()
    }

    /// Whether it hides nothing from any principal that sees anything.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.roles.is_empty()
            && self.contexts.is_empty()
            // Credentials may be bound to them.
            && self.profiles.is_empty()
            && self.enabled.is_none()
            && self.credentials.is_empty()
    }

    /// Whether anything of a server may be seen, as far as can be said without knowing what it
    /// has: `false` is certain.
    #[must_use]
    pub fn reaches(&self, principal: &Principal, scope: &Scope, server: &str) -> bool {
        let hidden = |context: &Arc<str>| {
            let rule = self.context_rule(context);
            rule.is_none_or(|rule| rule.hides_server(server))
        };
        if self.narrowing(principal).any(hidden) {
            return false;
        }
        if let Scope::Profile(profile) = scope
            && !(self.profiles.get(profile)).is_some_and(|filter| filter.reaches(server))
        {
            return false;
        }
        if !(self.enabled.as_ref()).is_none_or(|enabled| enabled.reaches(server)) {
            return false;
        }
        match self.role_of(principal) {
            Standing::All => true,
            Standing::Unlisted(_) => self.otherwise == Otherwise::Allow,
            Standing::Role(_, granted) => granted.filter.reaches(server),
        }
    }

    /// Returns what all principals have in common that see the same under this policy, but for
    /// their contexts.
    #[must_use]
    pub fn class(&self, principal: &Principal) -> Class {
        match self.role_of(principal) {
            Standing::All => Class::All,
            Standing::Unlisted(_) => Class::Otherwise,
            Standing::Role(role, _) => Class::Role(Arc::clone(role)),
        }
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

    /// Whether any role is defined.
    #[must_use]
    pub fn has_roles(&self) -> bool {
        !self.roles.is_empty()
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

    /// Whether a context of that name, or the profile that it refers to, is defined.
    #[must_use]
    pub fn has_context(&self, name: &str) -> bool {
        self.context_rule(name).is_some()
    }

    /// Returns the names of all profiles.
    pub fn profiles(&self) -> impl Iterator<Item = Arc<str>> {
        self.profiles.keys().cloned()
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
        // Who acts for the owner over MCP sees what the owner sees there.
        if matches!(principal.role, Role::Owner | Role::OwnersAgent) {
            return Standing::All;
        }
        let assigned = self.assigned.get(&principal.name);
        let named = match (&principal.role, assigned) {
            (Role::Owner | Role::OwnersAgent, _) | (Role::AnonymousLocal, None) => {
                return Standing::All;
            }
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

    /// What takes away, whoever asks. A rule that is named and not defined takes away everything.
    fn narrowed<'p>(
        &'p self,
        principal: &'p Principal,
        scope: &'p Scope,
        thing: Thing<'_>,
    ) -> Option<Ruling<'p>> {
        let Thing {
            kind, server, name, ..
        } = thing;
        let mut contexts = self.narrowing(principal);
        if let Some(hidden) = contexts.find_map(|context| self.hidden_by(context, thing)) {
            return Some(hidden);
        }
        if let Scope::Profile(profile) = scope {
            let filter = self.profiles.get(profile);
            match filter.map(|filter| filter.of(kind, server, name)) {
                Some(Filtered::Allowed(_)) => {}
                _ => return Some(Ruling::OutsideProfile { profile }),
            }
        }
        let enabled = self.enabled.as_ref()?;
        (!enabled.has(kind, server, name)).then_some(Ruling::SwitchedOff)
    }
}

impl Granted {
    /// Returns the first condition that does not hold.
    fn unmet<'p, 'a>(
        &'p self,
        (principal, role): (&Principal, &'p Arc<str>),
        thing: Thing<'_>,
        effort: Effort,
        arguments: impl FnOnce() -> Option<&'a [u8]>,
    ) -> Option<Ruling<'p>> {
        let about = |when: &&When| {
            let kind = when.pattern.kind.is_none_or(|kind| kind == thing.kind);
            kind && when.pattern.fits(thing.server, thing.name)
        };
        let mut due = self.when.iter().filter(about).peekable();
        due.peek()?;
        let arguments = arguments()?;
        let facts = Facts {
            principal: &principal.name,
            role: Some(role),
            server: thing.server,
            name: thing.name,
            arguments,
        };
        due.find_map(|when| match when.condition.holds(&facts, effort) {
            Ok(true) => None,
            Ok(false) => Some(Ruling::Unmet { role, when }),
            Err(why) => Some(Ruling::Undecided { role, when, why }),
        })
    }
}

/// What principals have in common that see the same, but for their contexts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// They may do all.
    All,
    /// They have this role.
    Role(Arc<str>),
    /// They have no role that is defined.
    Otherwise,
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
